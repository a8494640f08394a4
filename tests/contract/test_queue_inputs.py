"""What is refused, text and spaces on every store."""

from penstock.testing.contract.inputs import TestInput, TestSpaces

__all__ = ["TestInput", "TestSpaces"]
