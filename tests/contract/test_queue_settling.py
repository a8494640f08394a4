"""Outcomes and steps on every store."""

from penstock.testing.contract.settling import TestOutcomes, TestSteps

__all__ = ["TestOutcomes", "TestSteps"]
