"""The stream contract on every runner: event time from one computation to the next."""

from tests.contract.streams import kind, logs, runner

from penstock.testing.stream_contract.carried import TestCarried

__all__ = ["TestCarried", "kind", "logs", "runner"]
