"""UnitOfWork: take N entries and put K, committed together or not at all."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from penstock import failpoints
from penstock.clock import SECOND, Duration, duration_micros
from penstock.errors import (
    BadInput,
    Conflict,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooNew,
    PenstockError,
    StoreUnavailable,
    Undecodable,
    UnitNotCommitted,
)
from penstock.ids import new_nonce
from penstock.queue.batch import linked_entry
from penstock.queue.entry import Entry, Lease, check_lease
from penstock.queue.forgetting import REMEMBERED
from penstock.queue.handling.handler import DEFAULT_RETRY
from penstock.queue.handling.outcomes import TOO_NEW_PAUSE, error_text, storable
from penstock.queue.options import LinkOptions, PutOptions, check_options
from penstock.queue.protocol import ClaimRequest, Ending, Link, NewEntry, NewEvent, Publisher, Source, Step, StepDone
from penstock.queue.queue import Queue

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

T = TypeVar("T")

MOST_TAKEN = (1 << 31) - 1  # as large a number as every store can compare
logger = logging.getLogger("penstock.queue.unit")


class UnitOfWork:
    """Collects takes and puts; ``commit()`` makes them one step. Leaving the ``with`` block without it rolls back.

    Rolling back gives the taken entries back at once and spends their attempt: after as many as ``take(attempts=...)``
    allows, 5 unless told otherwise, they are dead letters. Leaving the block without an error and without a commit
    warns (``UnitNotCommitted``). While the unit is open, its leases are kept alive. A unit may be used from several
    threads.

    When ``commit()`` raises ``OutcomeUnknown``, call it again, inside the block or after it: the same step is sent
    again, has one effect, and the store says what happened. Until then nothing else can be done with the unit, and
    leaving the block gives nothing back; entries of a commit that did not happen come back when their leases run out.
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
        self._links: list[Link] = []
        self._lost: list[str] = []
        self._ended = ""
        self._asked = False  # whether anybody called commit()
        self._doubtful: Step | None = None  # a commit that may have happened
        self._doubtful_since = 0.0
        self._unanswered: ClaimRequest | None = None  # a take whose reply was lost

    def take(self, queue: Queue[T], limit: int = 1, *, attempts: int | None = DEFAULT_RETRY.attempts) -> list[Entry[T]]:
        """Lease due entries of a queue.

        Args:
            queue: where from
            limit: at most so many
            attempts: how often an entry may be taken before it becomes a dead letter; None: no limit

        Returns:
            the entries, in a list that is empty if nothing is due
        """
        with self._lock:
            self._check_open()
            self._check_space(queue)
            if not isinstance(limit, int) or not 1 <= limit <= MOST_TAKEN:
                raise BadInput(f"take(limit={limit!r}) is out of range.", hint=f"Use 1 to {MOST_TAKEN:,}.")
            if attempts is not None and (not isinstance(attempts, int) or not 1 <= attempts <= MOST_TAKEN):
                raise BadInput(
                    f"take(attempts={attempts!r}) is out of range.", hint=f"Use 1 to {MOST_TAKEN:,}, or None."
                )
            tracing, began = self.store.driver.tracing, time.perf_counter()
            good = []
            for entry in self._claim(queue.source(limit, attempts)):
                entry.reader = queue.codec
                if self._readable(entry):
                    self._taken[entry.id] = entry
                    good.append(entry)
            leases = [entry.lease for entry in good if entry.lease is not None]
            self.store.driver.heartbeat.hold(leases, self._lease_us, self._on_lost)
            if tracing is not None and good:
                tracing.received("take", queue.name, [entry.headers for entry in good], began)
            return good

    def put(self, queue: Queue[T], value: T, **options: Unpack[LinkOptions]) -> str:
        """Put on commit.

        Args:
            queue: of the same space
            value: of the queue's type
            **options: those of :meth:`penstock.Queue.put`; ``after`` may name entries that this unit puts

        Returns:
            the id that the entry will have
        """
        check_options(options, "unit.put", LinkOptions)
        with self._lock:
            self._check_open()
            self._check_space(queue)
            entry, links = linked_entry(queue, value, options)
            self._puts.append(entry)
            self._links += links
            return entry.id

    def publish(self, bus: Publisher, event: Any, **options: Unpack[PutOptions]) -> str:
        """Publish on commit.

        Args:
            bus: of the same space
            event: what to publish
            **options: those of :meth:`penstock.Bus.publish`

        Returns:
            the event's id
        """
        check_options(options, "unit.publish")
        with self._lock:
            self._check_open()
            self._check_space(bus)
            new_event = bus.new(event, **options)
            self._events.append(new_event)
            return new_event.template.id

    def reject(self, entry: Entry[Any], reason: str) -> None:
        """On commit send this taken entry to the dead letters instead of finishing it.

        Args:
            entry: that was taken
            reason: kept as its error
        """
        self._end(entry, "dead", error=storable(f"rejected: {reason}"))

    def retry(self, entry: Entry[Any], *, after: Duration = "0s", error: str | None = None) -> None:
        """On commit put this taken entry back for another attempt instead of finishing it.

        Args:
            entry: that was taken
            after: how long to wait
            error: kept as the error of the attempt
        """
        self._end(entry, "retry", delay_us=duration_micros(after), error=None if error is None else storable(error))

    def release(self, entry: Entry[Any]) -> None:
        """On commit give this taken entry back, as if it had never been taken.

        Args:
            entry: that was taken
        """
        self._end(entry, "release")

    def commit(self, *, connection: Any = None) -> StepDone:
        """Finish what was taken and put what was put, in one step. When this returns, all of it has happened.

        With ``connection``, the unit takes effect when the caller's transaction commits. If that is rolled back, the
        taken entries come back when their leases run out.

        Returns:
            what was put

        Raises:
            LeaseLost: a taken entry is not held any more; nothing happened
            OutcomeUnknown: it may have happened: call it again
            UniqueHeld: another entry has a unique id that is put; nothing happened
            Conflict: an id exists with another payload; nothing happened
            StoreFull: the store has no room
            UnitTooLarge: more than the store takes in one step
        """
        with self._lock:
            if self._doubtful is not None:
                return self._commit_again(self._doubtful, connection)
            self._asked = True
            self._check_open()
            step = Step(self._all_endings(), tuple(self._puts), tuple(self._events), links=tuple(self._links))
            try:
                return self._commit(step, connection)
            except PenstockError as error:
                if isinstance(error, OutcomeUnknown) and connection is None:
                    self._doubt(step)
                raise
            except BaseException:
                # Broken off by an interrupt, nobody knows where.
                if connection is None and not self._ended:
                    self._doubt(step)
                raise

    def rollback(self) -> None:
        """Give the taken entries back and forget the puts. Entries lost meanwhile are left to their new owners.

        After a commit whose outcome is unknown this decides the matter for a unit that took something: either the
        commit had happened, and ``commit()`` still says so, or it never will.
        """
        with self._lock:
            if self._ended and self._doubtful is None:
                return
            steps = [
                Step((Ending(_lease(entry), "retry", error="rolled back", started_us=_lease(entry).claimed_us),))
                for entry in self._taken.values()
            ]
            self._close("rolled back")
            if not steps:
                return
            results = self.store.driver.settle(steps).results
            if any(isinstance(result, StepDone) for result in results):
                self._doubtful = None

    def __enter__(self) -> UnitOfWork:
        """Use the unit in a ``with`` block."""
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Roll back unless committed."""
        try:
            if error_type is None:
                self.check_committed(stacklevel=2)
        finally:
            self.leave(failed=error_type is not None)

    # --- inside ------------------------------------------------------------------------------------

    def _claim(self, source: Source) -> list[Entry[Any]]:
        """Claim, or repeat a claim whose reply was lost."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None and unanswered.sources == (source,):
            request = msgspec.structs.replace(unanswered, repeat=True)
        else:
            request = ClaimRequest(
                new_nonce(), (source,), source.limit, self._owner, self.store.node, self._lease_us,
                alone=not self._taken,
            )  # fmt: skip
        try:
            return self.store.driver.claim(request).entries
        except OutcomeUnknown:
            self._unanswered = request
            raise

    def _all_endings(self) -> tuple[Ending, ...]:
        return tuple(
            self._endings.get(entry.id) or Ending(_lease(entry), "done", started_us=_lease(entry).claimed_us)
            for entry in self._taken.values()
        )

    def _commit(self, step: Step, connection: Any) -> StepDone:
        failpoints.point("unit.before")
        done = self.store.driver.commit(step, connection=connection)
        failpoints.point("unit.after")
        self._doubtful = None
        self._close("committed")
        return done

    def _doubt(self, step: Step) -> None:
        self._doubtful, self._doubtful_since = msgspec.structs.replace(step, repeat=True), time.monotonic()

    def _commit_again(self, step: Step, connection: Any) -> StepDone:
        """Repeat a commit whose outcome is unknown. The store knows whether this step happened."""
        long_ago = time.monotonic() - self._doubtful_since > REMEMBERED / SECOND
        if long_ago and not step.endings:
            # What it put may have ended and been forgotten since: sent again, it would be put again.
            raise _nobody_knows("its outcome has been unknown for longer than the store remembers.")
        try:
            return self._commit(step, connection)
        except LeaseLost as error:
            # Of entries that were only given back the store knows the last end, which may be another's by now.
            if long_ago or not any(ending.outcome in ("done", "dead") for ending in step.endings):
                raise _nobody_knows(error.message) from error
            self._doubtful = None
            raise
        except (BadInput, Conflict):
            self._doubtful = None
            raise
        except OutcomeUnknown:
            raise
        except PenstockError as error:
            raise OutcomeUnknown(
                f"whether this unit of work was committed could not be asked: {error.message}",
                hint="Call commit() again when the store is back.",
            ) from error

    def check_committed(self, *, stacklevel: int) -> None:
        """Warn a caller that leaves its ``with`` block, sync or async, without a commit or a rollback."""
        if self._ended or self._asked or not (self._taken or self._puts or self._events):
            return
        warnings.warn(
            "a unit of work was left without commit(): what it took is given back, what it put is dropped. Call "
            "unit.commit() at the end of the block, or unit.rollback() if that is what you mean.",
            UnitNotCommitted,
            stacklevel=stacklevel + 1,
        )

    def leave(self, *, failed: bool) -> None:
        """Roll back unless committed. ``failed`` says that an error is leaving the block."""
        with self._lock:
            if self._doubtful is not None:
                # What may have happened cannot be rolled back; commit() can still be asked.
                self._drop_leases()
                return
            try:
                self.rollback()
            except (StoreUnavailable, OutcomeUnknown) as error:
                if not failed:
                    raise
                # The block's own error must not be hidden behind this one.
                logger.warning("a unit of work could not be rolled back; its leases will run out: %s", error)

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
        except PayloadTooNew as error:
            back = Ending(_lease(entry), "snooze", TOO_NEW_PAUSE, error=error_text(error))
            self.store.driver.settle((Step((back,)),))
            return False
        except Undecodable as error:
            dead = Ending(_lease(entry), "dead", error=error_text(error))
            self.store.driver.settle((Step((dead,)),))
            return False
        return True

    def _check_open(self) -> None:
        if self._doubtful is not None:
            raise Conflict(
                "this unit of work was sent to be committed, and nobody knows yet whether it was.",
                hint="Call commit() again: it says what happened.",
            )
        if self._ended:
            raise Conflict(f"this unit of work was already {self._ended}.", hint="Start a new one: store.unit().")
        if self._lost:
            raise LeaseLost(
                f"this unit of work lost {len(self._lost)} of its entries (first: {self._lost[0]}).",
                hint="Roll it back and start a new one; its entries will be given out again.",
            )

    def _check_space(self, other: Queue[Any] | Publisher) -> None:
        if not hasattr(other, "store"):
            raise BadInput(
                f"a {type(other).__name__} is not a queue.",
                hint="The queue comes first: take(queue), put(queue, value).",
            )
        if not self.store.driver.shares_with(other.store.driver):
            raise BadInput(
                f"{other!r} is in {other.store!r}, not in {self.store!r}.",
                hint="A unit of work stays in one space of one store.",
            )

    def _on_lost(self, lease: Lease) -> None:
        self._lost.append(lease.entry)

    def _close(self, how: str) -> None:
        self._ended = how
        self._drop_leases()

    def _drop_leases(self) -> None:
        self.store.driver.heartbeat.drop(_lease(entry) for entry in self._taken.values())


def _nobody_knows(why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"nobody can tell any more whether this unit of work was committed: {why}",
        hint="Look for what it put, then decide; entries that it took are given out again if it was not.",
    )


def _lease(entry: Entry[Any]) -> Lease:
    if entry.lease is None:
        raise LeaseLost(f"entry {entry.id} of queue {entry.queue!r} is not leased.", hint="Take it first.")
    return entry.lease
