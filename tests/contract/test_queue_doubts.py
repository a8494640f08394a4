"""Lost replies on every store."""

from penstock.testing.contract.doubts import TestUnitInDoubt, TestWorkerInDoubt

__all__ = ["TestUnitInDoubt", "TestWorkerInDoubt"]
