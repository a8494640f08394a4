"""The stream contract on every runner: failing."""

from tests.contract.streams import kind, logs, runner

from penstock.testing.stream_contract.failing import TestBatches, TestFailures

__all__ = ["TestBatches", "TestFailures", "kind", "logs", "runner"]
