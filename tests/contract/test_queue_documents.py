"""Documents on every store."""

from penstock.testing.contract.documents import TestDocuments

__all__ = ["TestDocuments"]
