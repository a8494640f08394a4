"""Maintenance that every worker does besides handling: take back run-out leases, fire schedules, prune history, beat.

Any number of workers may do this at once. Each of these steps is compare-and-set in the store, so one of them wins
and the others find nothing to do. No leader is needed.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.clock import SECOND, Duration, Micros, duration_micros
from penstock.errors import BadInput, PenstockError
from penstock.queue.protocol import Find
from penstock.queue.schedule import fire_due

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

logger = logging.getLogger("penstock.queue.maintenance")

KEEP_HISTORY = timedelta(days=7)
PRUNE_EVERY: Micros = 60 * SECOND
BATCH = 1000
SHORTEST_ROUND: Micros = 10_000
LOOK = 1.0  # seconds between looks for schedules, where the store does not announce them


class Reaper:
    """The maintenance of a store, once per round or in a thread of its own.

    Args:
        store: what it looks after
        every: how often
        sticky_after: when the sticky entries of a vanished node may go elsewhere
        keep_history: how long ended attempts are kept; None: without end
        keep_dead: how long dead letters are kept; None: without end
    """

    def __init__(
        self,
        store: QueueStore,
        *,
        every: Duration = "15s",
        sticky_after: Duration = "10m",
        keep_history: Duration | None = KEEP_HISTORY,
        keep_dead: Duration | None = None,
    ) -> None:
        """``keep_history=None`` never removes history. Dead letters stay unless ``keep_dead`` says how long."""
        self.store = store
        self._every_us = duration_micros(every, name="every")
        if self._every_us < SHORTEST_ROUND:
            raise BadInput(f"Reaper(every={every}) would never rest.", hint="Use 15s, or at least 10ms in a test.")
        self._sticky_us = duration_micros(sticky_after, name="sticky_after")
        self._keep_us = None if keep_history is None else duration_micros(keep_history, name="keep_history")
        self._keep_dead_us = None if keep_dead is None else duration_micros(keep_dead, name="keep_dead")
        self._looked_at: Micros = 0
        self._next_reap: Micros = 0
        self._next_prune: Micros = 0
        self._wake = threading.Event()
        self._stopping = False
        self._away = False  # whether the last round failed
        self._thread: threading.Thread | None = None
        self._forget_clock: Any = None

    def once(self, *, force: bool = True) -> Micros | None:
        """Do what is due.

        Args:
            force: do all of it, due or not

        Returns:
            when the next schedule fires
        """
        store = self.store
        failed: Exception | None = None
        next_fire: Micros | None = None
        try:
            next_fire = fire_due(store)
        except Exception as error:  # raised in the end: leases have to be taken back whatever the schedules say
            failed = error
        self._looked_at = now = store.now()
        # A clock that was set back must not silence the reaper until it catches up.
        if force or now >= self._next_reap or self._next_reap > now + self._every_us:
            self._next_reap = now + self._every_us
            store.driver.beat(store.node)
            while len(self._reap()) >= BATCH:
                logger.info("took back %d leases, continuing", BATCH)
        if force or now >= self._next_prune or self._next_prune > now + PRUNE_EVERY:
            self._next_prune = now + PRUNE_EVERY
            self._tidy(now)
        if failed is not None:
            raise failed
        return next_fire

    def _reap(self) -> list[tuple[str, str]]:
        reaped = self.store.driver.reap(node=self.store.node, sticky_after_us=self._sticky_us, limit=BATCH)
        for id_, queue in reaped.dead:
            logger.warning(
                "entry %s of queue %r: its lease ran out in the last attempt that it had -> dead letter", id_, queue
            )
        return reaped.reaped

    def _tidy(self, now: Micros) -> None:
        """Remove what has been kept for long enough."""
        if self._keep_us is not None:
            while self.store.driver.prune(older_than_us=self._keep_us, limit=BATCH) >= BATCH and not self._stopping:
                continue
        if self._keep_dead_us is not None:
            old = Find(before_us=now - self._keep_dead_us, limit=BATCH)
            while self.store.driver.purge_dead(old) >= BATCH and not self._stopping:
                continue

    def start(self) -> None:
        """Run in the background."""
        if self._thread is None:
            self._stopping = False
            self._forget_clock = self.store.clock.on_change(self._wake.set)
            self._thread = threading.Thread(target=self._run, name="penstock-reaper", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the background thread."""
        thread, self._thread = self._thread, None
        self._stopping = True
        self._wake.set()
        if thread is not None:
            thread.join(timeout=10)
            self._forget_clock()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            pause = LOOK
            heard: int | None = None
            try:
                heard = self.store.driver.bell() if self.store.driver.hears() else None
                next_fire = self.once(force=False)
                self._away = False
                pause = self._until_due(next_fire)
            except PenstockError as error:
                if self._stopping or self.store.closed:
                    return
                level = logging.WARNING if not self._away else logging.DEBUG  # the worker says that it continues
                self._away = True
                logger.log(level, "maintenance of %s failed and will be tried again: %s", self.store.name, error)
                self.store.signals.tell("store_error", "", (), self.store.clock.micros(), step="reap", error=error)
            except Exception:
                logger.exception("maintenance of %s failed and will be tried again", self.store.name)
            self._sleep(pause, heard)

    def _until_due(self, next_fire: Micros | None) -> float:
        """Seconds until something has to be done."""
        due = min(self._next_reap, self._next_prune)
        if next_fire is not None:
            due = min(due, next_fire)
        return max(0.0, (due - self._looked_at) / SECOND)

    def _sleep(self, seconds: float, heard: int | None) -> None:
        """Sleep until something is due. A schedule that is set meanwhile rings the bell, or is found by polling."""
        deadline = time.monotonic() + seconds
        while not self._wake.wait(max(0.0, min(LOOK, deadline - time.monotonic()))):
            still = heard is not None and self.store.driver.hears() and self.store.driver.bell() == heard
            if not still or time.monotonic() >= deadline:
                return
