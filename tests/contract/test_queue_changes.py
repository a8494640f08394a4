"""Cancel, update, reschedule and expiry on every store."""

from penstock.testing.contract.changes import TestCancel, TestUpdate

__all__ = ["TestCancel", "TestUpdate"]
