"""Repeated calls on every store."""

from penstock.testing.contract.repeats import TestRepeatedCalls, TestRepeats

__all__ = ["TestRepeatedCalls", "TestRepeats"]
