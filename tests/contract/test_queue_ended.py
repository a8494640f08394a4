"""Dead letters and replay on every store."""

from penstock.testing.contract.ended import TestDeadLetters, TestReplay

__all__ = ["TestDeadLetters", "TestReplay"]
