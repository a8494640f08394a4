"""Unique ids on every store."""

from penstock.testing.contract.unique import TestConflicts, TestHeldForAPeriod, TestHeldUntilDone, TestHeldUntilStarted

__all__ = ["TestConflicts", "TestHeldForAPeriod", "TestHeldUntilDone", "TestHeldUntilStarted"]
