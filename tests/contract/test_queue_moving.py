"""Moving a space to another store, on every store."""

from penstock.testing.contract.moving import TestCargo, TestCopy, other

__all__ = ["TestCargo", "TestCopy", "other"]
