"""Schedules on every store."""

from penstock.testing.contract.schedules import TestFiring, TestKeeping, TestTimes

__all__ = ["TestFiring", "TestKeeping", "TestTimes"]
