"""Priority, FIFO, families and fairness on every store."""

from penstock.testing.contract.order import TestFairness, TestFamilies, TestFifo, TestPriority

__all__ = ["TestFairness", "TestFamilies", "TestFifo", "TestPriority"]
