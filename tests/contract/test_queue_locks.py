"""Locks on every store."""

from penstock.testing.contract.locks import TestLocks

__all__ = ["TestLocks"]
