"""Calls inside the caller's transaction on every store."""

from penstock.testing.contract.transactions import TestTransactional, TestUnsupportedTransactions

__all__ = ["TestTransactional", "TestUnsupportedTransactions"]
