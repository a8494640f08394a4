"""Rates of what only grows: how much it grew between the looks of the last minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW = 60.0  # seconds
SHORTEST = 1.0  # seconds between two looks that tell something


class Rates:
    """Remembers positions, such as the ends of logs, for as long as a rate is the mean of."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is known before the second look."""
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, deque[tuple[float, dict[str, int]]]] = {}

    def per_second(self, what: str, positions: dict[str, int]) -> dict[str, float]:
        """How fast each position moves; those that were not there before are left out."""
        now = self._clock()
        with self._lock:
            seen = self._seen.setdefault(what, deque())
            if not seen or now - seen[-1][0] >= SHORTEST:
                seen.append((now, positions))
            while len(seen) > 2 and seen[1][0] <= now - WINDOW:
                seen.popleft()
            since, before = seen[0]
        if now - since < SHORTEST:
            return {}
        return {
            name: max(0, position - before[name]) / (now - since)
            for name, position in positions.items() if name in before
        }  # fmt: skip
