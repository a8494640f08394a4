"""Rates and label limits on every store."""

from penstock.testing.contract.limits import TestLabelLimits, TestRates, TestUnsupportedLimits

__all__ = ["TestLabelLimits", "TestRates", "TestUnsupportedLimits"]
