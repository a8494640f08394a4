"""What the time is inside a transaction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from penstock.clock import Micros

# So old a reading may be. It is far below every lease, and above what a transaction takes that waits for nobody.
FRESH_SECONDS = 0.02


class ServerClock:
    """A server's time, never older than a moment.

    A statement may wait for others' locks for longer than a lease lasts. So the time is read again when it is asked
    for and the last reading is not fresh: what is stamped after a wait is stamped with the time after it.
    """

    def __init__(self, read: Callable[[], Micros], *, now: Micros | None, fixed: Micros | None) -> None:
        """``read`` asks the server; ``now`` is what it has just said, if anything; ``fixed`` is a fake clock's time."""
        self.fixed = fixed
        self._read = read
        self._now: Micros = now or 0
        self._asked_at = -math.inf if now is None else time.monotonic()

    def now(self) -> Micros:
        """The time; asks the server if some has passed since it was last asked."""
        if self.fixed is not None:
            return self.fixed
        if time.monotonic() - self._asked_at > FRESH_SECONDS:
            self._asked_at = time.monotonic()
            self._now = self._read()
        return self._now
