"""Rates of counters: how much they grew between the readings of the last minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW = 60.0  # seconds
SHORTEST = 1.0  # the least seconds between two readings


class Rates:
    """Remembers positions, such as the ends of logs, for the time over which a rate is averaged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without readings; a rate needs two."""
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, deque[tuple[float, dict[str, int]]]] = {}

    def per_second(self, what: str, positions: dict[str, int]) -> dict[str, float]:
        """How fast each position moves, without new ones."""
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
