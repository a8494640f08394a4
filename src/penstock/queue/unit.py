"""UnitOfWork: take N entries and put K, committed together or not at all."""

from __future__ import annotations

import threading
from typing import Any, TypeVar, Unpack

from penstock import chaos
from penstock.clock import Duration, duration_micros
from penstock.errors import BadInput, Conflict, LeaseLost, Undecodable
from penstock.ids import new_nonce
from penstock.queue.entry import Entry, Lease, check_lease
from penstock.queue.handler import DEFAULT_RETRY, error_text, storable
from penstock.queue.options import PutOptions, check_options
from penstock.queue.queue import Queue
from penstock.queue.store import ClaimRequest, Ending, NewEntry, NewEvent, Publisher, QueueStore, Step, StepDone

T = TypeVar("T")


class UnitOfWork:
    """Collects takes and puts; ``commit()`` makes them one step. Leaving the ``with`` block without it rolls back.

    Rolling back gives the taken entries back at once and spends their attempt: after as many as ``take(attempts=...)``
    allows, 5 unless told otherwise, they are dead letters. While the unit is open, its leases are kept alive. A unit
    may be used from several threads.
    """

    def __init__(self, store: QueueStore, *, lease: Duration = "60s") -> None:
        """Start empty."""
        self.store = store
        self._lease_us = check_lease(lease)
        self._owner = f"{store.node}/unit-{new_nonce()}"
        self._lock = threading.RLock()
        self._taken: dict[str, Entry[Any]] = {}
        self._endings: dict[str, Ending] = {}
        self._puts: list[NewEntry] = []
        self._events: list[NewEvent] = []
        self._lost: list[str] = []
        self._ended = ""

    def take(self, queue: Queue[T], limit: int = 1, *, attempts: int | None = DEFAULT_RETRY.attempts) -> list[Entry[T]]:
        """Lease up to ``limit`` due entries of a queue; an empty list when none is due.

        ``attempts`` bounds how often an entry may be taken in all before it becomes a dead letter; None is without end.
        """
        with self._lock:
            self._check_open()
            self._check_space(queue)
            if limit < 1:
                raise BadInput(f"take(limit={limit}) takes nothing.", hint="Use 1 or more.")
            if attempts is not None and attempts < 1:
                raise BadInput(f"take(attempts={attempts}) would end every entry.", hint="Use 1 or more, or None.")
            request = ClaimRequest(
                new_nonce(), (queue.source(limit, attempts),), limit, self._owner, self.store.node, self._lease_us,
                alone=not self._taken,
            )  # fmt: skip
            good = []
            for entry in self.store.claim(request).entries:
                entry.reader = queue.codec
                if self._readable(entry):
                    self._taken[entry.id] = entry
                    good.append(entry)
            leases = [entry.lease for entry in good if entry.lease is not None]
            self.store.heartbeat.hold(leases, self._lease_us, self._on_lost)
            return good

    def put(self, queue: Queue[T], value: T, **options: Unpack[PutOptions]) -> str:
        """Put on commit; nothing is sent before. Returns the id the entry will have.

        The options are those of ``penstock.Queue.put``.
        """
        check_options(options, "unit.put")
        with self._lock:
            self._check_open()
            self._check_space(queue)
            entry = queue.new(value, **options)
            self._puts.append(entry)
            return entry.id

    def publish(self, bus: Publisher, event: Any, **options: Any) -> str:
        """Publish on commit; returns the event's id."""
        check_options(options, "unit.publish")
        with self._lock:
            self._check_open()
            self._check_space(bus)
            made = bus.new(event, **options)
            self._events.append(made)
            return made.template.id

    def reject(self, entry: Entry[Any], reason: str) -> None:
        """On commit send this taken entry to the dead letters instead of finishing it."""
        self._end(entry, "dead", error=storable(f"rejected: {reason}"))

    def retry(self, entry: Entry[Any], *, after: Duration = "0s", error: str | None = None) -> None:
        """On commit put this taken entry back for another attempt instead of finishing it."""
        self._end(entry, "retry", delay_us=duration_micros(after), error=None if error is None else storable(error))

    def release(self, entry: Entry[Any]) -> None:
        """On commit give this taken entry back, as if it had never been taken."""
        self._end(entry, "release")

    def commit(self, *, connection: Any = None) -> StepDone:
        """Finish what was taken and put what was put, in one step; when it returns, all of it happened.

        With the caller's ``connection`` it happens when that is committed. Is it rolled back instead, the taken
        entries come back when their leases run out.

        Raises ``LeaseLost`` when a taken entry is no longer held: then nothing happened.
        """
        with self._lock:
            self._check_open()
            endings = tuple(
                self._endings.get(entry.id) or Ending(_lease(entry), "done", started_us=_lease(entry).claimed_us)
                for entry in self._taken.values()
            )
            step = Step(endings, tuple(self._puts), tuple(self._events))
            chaos.point("unit.before")
            done = self.store.commit(step, connection=connection)
            chaos.point("unit.after")
            self._close("committed")
            return done

    def rollback(self) -> None:
        """Give the taken entries back and forget the puts; entries lost meanwhile are left to their new owners."""
        with self._lock:
            if self._ended:
                return
            steps = [
                Step((Ending(_lease(entry), "retry", error="rolled back", started_us=_lease(entry).claimed_us),))
                for entry in self._taken.values()
            ]
            self._close("rolled back")
            if steps:
                self.store.settle(steps)

    def __enter__(self) -> UnitOfWork:
        """Use the unit in a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Roll back unless committed."""
        self.rollback()

    # --- inside ------------------------------------------------------------------------------------

    def _end(self, entry: Entry[Any], outcome: Any, **fields: Any) -> None:
        with self._lock:
            self._check_open()
            if entry.id not in self._taken:
                raise BadInput(f"entry {entry.id} was not taken by this unit.", hint="End what take() gave.")
            lease = _lease(entry)
            self._endings[entry.id] = Ending(lease, outcome, started_us=lease.claimed_us, **fields)

    def _readable(self, entry: Entry[Any]) -> bool:
        try:
            _ = entry.value
        except Undecodable as error:
            dead = Ending(_lease(entry), "dead", error=error_text(error))
            self.store.settle((Step((dead,)),))
            return False
        return True

    def _check_open(self) -> None:
        if self._ended:
            raise Conflict(f"this unit of work was already {self._ended}.", hint="Start a new one: store.unit().")
        if self._lost:
            raise LeaseLost(
                f"this unit of work lost {len(self._lost)} of its entries (first: {self._lost[0]}).",
                hint="Roll it back and start a new one; its entries will be given out again.",
            )

    def _check_space(self, other: Queue[Any] | Publisher) -> None:
        if not self.store.shares_with(other.store):
            raise BadInput(
                f"{other!r} is in {other.store!r}, not in {self.store!r}.",
                hint="A unit of work stays in one space of one store.",
            )

    def _on_lost(self, lease: Lease) -> None:
        self._lost.append(lease.entry)

    def _close(self, how: str) -> None:
        self._ended = how
        self.store.heartbeat.drop(_lease(entry) for entry in self._taken.values())


def _lease(entry: Entry[Any]) -> Lease:
    if entry.lease is None:
        raise LeaseLost(f"entry {entry.id} of queue {entry.queue!r} is not leased.", hint="Take it first.")
    return entry.lease
