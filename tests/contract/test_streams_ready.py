"""The stream contract on every runner: ready."""

from tests.contract.streams import kind, logs, runner

from penstock.testing.stream_contract.ready import TestJoins, TestPieces, TestTotals, TestWindows

__all__ = ["TestJoins", "TestPieces", "TestTotals", "TestWindows", "kind", "logs", "runner"]
