"""What a handler may ask on every store."""

from penstock.testing.contract.contexts import (
    TestAfterFinish,
    TestContext,
    TestFinishInATransaction,
    TestPutsWithTheOutcome,
)

__all__ = ["TestAfterFinish", "TestContext", "TestFinishInATransaction", "TestPutsWithTheOutcome"]
