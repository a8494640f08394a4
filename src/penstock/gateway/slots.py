"""Slots: how many requests of one route are under way, so that a backend that hangs does not stop all others."""

from __future__ import annotations

import threading
import time
from collections import Counter

WAIT = 0.5  # seconds for which a request waits for a slot of a route that moves
WAIT_IN_VAIN = 0.01


class Slots:
    """Shared by the routes: each may have as many as it leaves free, so one has half of them at most."""

    def __init__(self, slots: int) -> None:
        """All of them are free."""
        self._slots = slots
        self._used: Counter[str] = Counter()
        self._moved: dict[str, float] = {}  # when a route last gave a slot back
        self._given = threading.Condition()

    def take(self, route: str, *, alone: bool = False) -> bool:
        """Take a slot, after a short wait if need be. Returns False if the route has its share.

        ``alone`` says that no other route wants slots.
        """
        with self._given:
            if not alone and not self._is_free(route):
                # Who waits holds one of the threads that others could use, so for a backend that hangs nobody does.
                moves = time.monotonic() - self._moved.get(route, -WAIT) < WAIT
                if not self._given.wait_for(lambda: self._is_free(route), WAIT if moves else WAIT_IN_VAIN):
                    return False
            self._used[route] += 1
            return True

    def _is_free(self, route: str) -> bool:
        return self._used[route] < max(1, self._slots - self._used.total())

    def give(self, route: str) -> None:
        """Give a slot back."""
        with self._given:
            self._used[route] -= 1
            self._moved[route] = time.monotonic()
            self._given.notify_all()
