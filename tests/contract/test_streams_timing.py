"""The stream contract on every runner: timing."""

from tests.contract.streams import kind, logs, runner

from penstock.testing.stream_contract.timing import TestTime

__all__ = ["TestTime", "kind", "logs", "runner"]
