"""Puts, ids, input and spaces on every store."""

from penstock.testing.contract.puts import TestIds, TestInput, TestPuts, TestSpaces

__all__ = ["TestIds", "TestInput", "TestPuts", "TestSpaces"]
