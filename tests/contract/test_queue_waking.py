"""Wake-up on every store."""

from penstock.testing.contract.waking import TestBell, TestIdleWorker

__all__ = ["TestBell", "TestIdleWorker"]
