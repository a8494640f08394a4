"""The stream contract on every runner: running."""

from tests.contract.streams import kind, logs, runner

from penstock.testing.stream_contract.running import TestRunning

__all__ = ["TestRunning", "kind", "logs", "runner"]
