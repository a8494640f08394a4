"""Units of work on every store."""

from penstock.testing.contract.units import TestAllOrNone, TestCommit, TestRollback, TestUnitLeases

__all__ = ["TestAllOrNone", "TestCommit", "TestRollback", "TestUnitLeases"]
