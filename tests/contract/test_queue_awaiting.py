"""penstock.aio on every store."""

from penstock.testing.contract.awaiting import TestAwaitedCalls, TestAwaitedUnits, TestAwaitedWorkers, TestCancellation

__all__ = ["TestAwaitedCalls", "TestAwaitedUnits", "TestAwaitedWorkers", "TestCancellation"]
