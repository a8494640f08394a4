"""Times as text in their order: items of a map state that are named by time can be found by time."""

from __future__ import annotations

from penstock.clock import Micros

ZERO = 1 << 63  # so that times before 1970 have an order too
LAST = (1 << 64) - 1
DIGITS = 16


def moment_text(time: Micros) -> str:
    """A time as text that has the order of times."""
    return f"{min(max(time + ZERO, 0), LAST):0{DIGITS}x}"


def moment_of(text: str) -> Micros:
    """The time that a text begins with."""
    return int(text[:DIGITS], 16) - ZERO
