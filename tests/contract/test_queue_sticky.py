"""Sticky entries on every store."""

from penstock.testing.contract.sticky import TestFreeing, TestSticky

__all__ = ["TestFreeing", "TestSticky"]
