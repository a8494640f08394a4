"""Reading in bulk on every store."""

from penstock.testing.contract.ranges import TestRanges

__all__ = ["TestRanges"]
