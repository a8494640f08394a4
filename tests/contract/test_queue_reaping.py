"""Reaping and suspects on every store."""

from penstock.testing.contract.reaping import TestReaping, TestSuspects

__all__ = ["TestReaping", "TestSuspects"]
