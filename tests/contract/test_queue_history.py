"""History and pruning on every store."""

from penstock.testing.contract.history import TestHistory, TestPruning

__all__ = ["TestHistory", "TestPruning"]
