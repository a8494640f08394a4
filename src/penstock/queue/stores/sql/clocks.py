"""What the time is inside a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from penstock.clock import SECOND, Micros

# So old a reading may be. It is far below every lease, and above what a transaction takes that waits for nobody.
FRESH_SECONDS = 0.02
FRESH: Micros = int(FRESH_SECONDS * SECOND)


class TransactionClock(Protocol):
    """The store's time, for what a transaction stamps."""

    fixed: Micros | None  # the time of a fake clock, which wins over the server's own

    def now(self) -> Micros:
        """The time."""


class OneMoment:
    """A time that was read when all locks were held: one of SQLite's writers has the whole file to itself."""

    def __init__(self, now: Micros) -> None:
        """Keep the moment."""
        self.fixed: Micros | None = now

    def now(self) -> Micros:
        """The moment."""
        return self.fixed or 0


class ServerClock:
    """A server's time, never older than a moment.

    A statement may wait for others' locks for longer than a lease lasts. So the time is read again when it is asked
    for and the last reading is not fresh: what is stamped after a wait is stamped with the time after it.
    """

    def __init__(self, begin: Callable[[], Micros], read: Callable[[], Micros], *, fixed: Micros | None) -> None:
        """``begin`` begins the transaction and tells the time, ``read`` tells it again."""
        self.fixed = fixed
        self._read = read
        self._asked_at = time.monotonic()
        self._now = begin()

    def now(self) -> Micros:
        """The time; asks the server if some has passed since it was last asked."""
        if self.fixed is None and time.monotonic() - self._asked_at > FRESH_SECONDS:
            self._asked_at = time.monotonic()
            self._now = self._read()
        return self._now
