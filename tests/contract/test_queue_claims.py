"""Claims on every store."""

from penstock.testing.contract.claims import (
    TestAttempts,
    TestClaims,
    TestExpiryAtTheClaim,
    TestRepeatedClaims,
    TestWhenToLookAgain,
)

__all__ = ["TestAttempts", "TestClaims", "TestExpiryAtTheClaim", "TestRepeatedClaims", "TestWhenToLookAgain"]
