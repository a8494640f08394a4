"""Pump: the thread that makes round trips while all slots idle."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.clock import SECOND, Micros
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.queue.worker.loop import Loop

logger = logging.getLogger("penstock.queue.worker")

STORE_AWAY_PAUSE = 0.5
OUTCOME_PATIENCE = 0.2  # seconds that an outcome waits at most for a round trip
QUIET_LOOK = 15.0  # seconds between claims of an idle worker whose store announces everything: one message may be lost
BURST_PAUSE = 0.001
MOST_PATIENCE = 0.02


class Pulse(NamedTuple):
    """How a loop goes. Times are of this host's monotonic clock, unless they are the store's."""

    passed: float  # when the loop last went round; 0.0 before it was started
    asks_store: bool  # whether it waits for an answer of the store meanwhile
    answered: float  # when the store last answered; 0.0 if it never did
    answered_us: Micros  # the same in the store's time
    is_stopping: bool


class Pump:
    """Makes round trips of one loop in a thread of its own. In between it sleeps until the store rings."""

    def __init__(self, loop: Loop, poll: float) -> None:
        """Prepare; ``poll`` is how long to sleep at most where the store does not tell of everything."""
        self._loop = loop
        self._poll = poll
        self._driver = loop.store.driver
        self._thread: threading.Thread | None = None
        self._is_called = False
        self.passed = 0.0  # when it last went round, on this host's monotonic clock
        self.asks_store = False  # whether it waits for the store

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="penstock-pump", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._thread = None

    @property
    def is_started(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def call(self) -> None:
        """Bring it to its next round trip; once is enough until it comes."""
        if not self._is_called:
            self._is_called = True
            self._driver.wake()

    def _run(self) -> None:
        loop, seen = self._loop, 0
        while not loop.stopping.is_set():
            self.passed, self.asks_store = time.monotonic(), True
            try:
                seen = self._driver.bell()
                # Not before: the bell may take its time, and a call that it has counted must not silence the next one.
                self._is_called = False
                if loop.has_outcomes() and loop.is_slow() and not loop.has_room():
                    # So that slow round trips, which other workers may wait for, do not follow each other endlessly.
                    loop.stopping.wait(min(2 * loop.trip_seconds, MOST_PATIENCE))
                loop.round_trip()
                pause = self._pause()
            except PenstockError as error:
                loop.store_away([], error)
                pause = STORE_AWAY_PAUSE
            except Exception:
                logger.exception("a round trip failed; will try again")
                pause = STORE_AWAY_PAUSE
            self.passed, self.asks_store = time.monotonic(), False
            if loop.stopping.is_set():
                return
            if loop.has_outcomes():
                # Asynchronous outcomes come in bursts: a moment's patience settles many at once.
                loop.stopping.wait(BURST_PAUSE)
            elif pause > 0:
                self._sleep(seen, pause)

    def _sleep(self, seen: int, seconds: float) -> None:
        """Sleep until the bell rings or the time is over.

        A slot in a long attempt cannot report what it ended before, so outcomes are looked for now and then.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - (now := time.monotonic())) > 0 and not self._loop.stopping.is_set():
            self.passed = now
            if self._driver.wait(seen, min(left, OUTCOME_PATIENCE)) or self._loop.has_outcomes():
                return

    def _pause(self) -> float:
        """How long to sleep if nothing rings: to the next due time, at most the fallback; 0: there is more now."""
        loop = self._loop
        longest = max(self._poll, QUIET_LOOK) if self._driver.hears() else self._poll
        if loop.next_us is None or not loop.has_room():
            return longest
        return min(longest, max(0.0, (loop.next_us - loop.store.now()) / SECOND))
