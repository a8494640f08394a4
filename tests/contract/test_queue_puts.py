"""Puts and ids on every store."""

from penstock.testing.contract.puts import TestIds, TestPuts

__all__ = ["TestIds", "TestPuts"]
