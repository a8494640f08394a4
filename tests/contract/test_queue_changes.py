"""Cancel, update, reschedule and expiry on every store."""

from penstock.testing.contract.changes import TestCancel, TestScope, TestUpdate

__all__ = ["TestCancel", "TestScope", "TestUpdate"]
