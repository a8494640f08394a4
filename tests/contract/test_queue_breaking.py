"""Handlers behind a breaker on every store."""

from penstock.testing.contract.breaking import TestBreaking, TestBreakingInWorkers

__all__ = ["TestBreaking", "TestBreakingInWorkers"]
