"""Order, families, fairness and pages, on every queue store."""

from penstock.testing.contract.order import TestFairness, TestFamilies, TestFifo, TestPages, TestPriority

__all__ = ["TestFairness", "TestFamilies", "TestFifo", "TestPages", "TestPriority"]
