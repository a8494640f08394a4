"""Heartbeats: one thread per store handle that keeps extending the leases in hand, for workers and units alike."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.clock import SECOND, Micros
from penstock.errors import PenstockError
from penstock.queue.entry import Lease
from penstock.queue.protocol import DocumentWrite

if TYPE_CHECKING:
    from penstock.queue.driver import Driver

logger = logging.getLogger("penstock.queue.heartbeat")


BeforeBeat = Callable[[], None]
Held = tuple[Lease, Micros, float, Callable[[Lease], None] | None, BeforeBeat | None]


class Heartbeat:
    """Extends every lease it holds, each time a third of its duration has passed."""

    def __init__(self, driver: Driver) -> None:
        """Do nothing until the first lease comes."""
        self._driver = driver
        self._held: dict[str, Held] = {}
        self._change = threading.Condition()
        self._lost: set[tuple[str, str]] = set()  # entry and token of leases that are lost, until they are dropped
        self._notes: dict[str, DocumentWrite] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def hold(
        self,
        leases: Iterable[Lease],
        lease_us: Micros,
        on_lost: Callable[[Lease], None] | None = None,
        before_beat: BeforeBeat | None = None,
    ) -> None:
        """Keep these leases until :meth:`drop`.

        ``on_lost`` is called with each lease that could not be kept, ``before_beat`` before some of them are extended.
        """
        next_beat = time.monotonic() + lease_us / SECOND / 3
        claimed_again: list[Held] = []
        with self._change:
            # Leases come in batches with the same duration, so this loop is all the cost the hot path pays.
            held = self._held
            for lease in leases:
                known = held.get(lease.entry)
                if known is not None and known[0].token != lease.token:
                    self._lost.add((lease.entry, known[0].token))
                    claimed_again.append(known)
                held[lease.entry] = (lease, lease_us, next_beat, on_lost, before_beat)
            self._start()
        for known in claimed_again:
            _tell(known)

    def _start(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)
            self._thread.start()

    def drop(self, leases: Iterable[Lease]) -> None:
        """Stop keeping these leases. Another lease on the same entry is kept."""
        held, lost = self._held, self._lost
        with self._change:
            for lease in leases:
                known = held.get(lease.entry)
                if known is not None and known[0].token == lease.token:
                    del held[lease.entry]
                if lost:
                    lost.discard((lease.entry, lease.token))

    def has_lost(self, lease: Lease) -> bool:
        """Whether a beat has found that the store does not know this lease any more."""
        return (lease.entry, lease.token) in self._lost

    def note(self, write: DocumentWrite) -> None:
        """Write a document with the next beat. Of several with one name, the last is written."""
        with self._change:
            self._notes[write.name] = write
            self._start()

    def close(self) -> None:
        """End the thread."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._change:
                if self._stopped:
                    return
                now = time.monotonic()
                soonest = min((next_beat for _, _, next_beat, *_ in list(self._held.values())), default=now + 1.0)
                self._change.wait(min(max(soonest - now, 0.01), 1.0))
                if self._stopped:
                    return
            self._beat()
            if self._notes:
                self._write_notes()

    def _write_notes(self) -> None:
        with self._change:
            notes, self._notes = self._notes, {}
        try:
            self._driver.write(list(notes.values()))
        except PenstockError as error:  # what they say is of use to nobody later
            logger.debug("could not write %d notes: %s", len(notes), error)

    def _beat(self) -> None:
        now = time.monotonic()
        due: dict[Micros, list[Lease]] = {}
        calls: dict[BeforeBeat, None] = {}
        for lease, lease_us, next_beat, _, before_beat in list(self._held.values()):
            if next_beat <= now:
                due.setdefault(lease_us, []).append(lease)
                if before_beat is not None:
                    calls[before_beat] = None
        for call in calls:
            try:
                call()
            except Exception:
                logger.exception("what goes before a heartbeat failed; the leases are extended")
        for lease_us, leases in due.items():
            try:
                ends = self._driver.extend(leases, lease_us)
            except PenstockError as error:
                # The store is away: try again at the next beat; the token decides who owns the entry in the end.
                logger.warning("could not extend %d leases: %s", len(leases), error)
                self._driver.signals.tell(
                    "store_error", "", (), self._driver.clock.micros(), step="extend", error=error
                )
                ends = []
                self._later(leases, lease_us, now + min(1.0, lease_us / SECOND / 3))
            for lease, end in zip(leases, ends, strict=False):
                if end is None:
                    self._lose(lease)
            if ends:
                self._later(leases, lease_us, now + lease_us / SECOND / 3)

    def _lose(self, lease: Lease) -> None:
        with self._change:
            known = self._held.get(lease.entry)
            if known is None or known[0] is not lease:
                return
            self._lost.add((lease.entry, lease.token))
            del self._held[lease.entry]
        _tell(known)

    def _later(self, leases: list[Lease], lease_us: Micros, when: float) -> None:
        with self._change:
            for lease in leases:
                known = self._held.get(lease.entry)
                if known is not None and known[0] is lease:
                    self._held[lease.entry] = (lease, lease_us, when, *known[3:])


def _tell(lost: Held) -> None:
    """Tell the holder that its lease is lost; without the lock, because the callback may drop leases."""
    lease, on_lost = lost[0], lost[3]
    if on_lost is None:
        return
    try:
        on_lost(lease)
    except Exception:
        logger.exception("entry %s: telling its holder that the lease is lost failed", lease.entry)
