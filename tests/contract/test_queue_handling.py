"""What handlers' outcomes become on every store."""

from penstock.testing.contract.handling import (
    TestFailures,
    TestHandlers,
    TestOnDead,
    TestResults,
    TestSayingSo,
    TestUndecodable,
)

__all__ = ["TestFailures", "TestHandlers", "TestOnDead", "TestResults", "TestSayingSo", "TestUndecodable"]
