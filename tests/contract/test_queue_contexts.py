"""What a handler may ask on every store."""

from penstock.testing.contract.contexts import TestContext, TestPutsWithTheOutcome

__all__ = ["TestContext", "TestPutsWithTheOutcome"]
