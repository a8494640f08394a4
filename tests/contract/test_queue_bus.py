"""The bus on every store."""

from penstock.testing.contract.bus import TestPublishing, TestSubscriptions

__all__ = ["TestPublishing", "TestSubscriptions"]
