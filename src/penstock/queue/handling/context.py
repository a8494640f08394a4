"""Context: what a handler may ask of Penstock while it runs."""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Unpack

from penstock.clock import Duration, Micros, duration_micros
from penstock.errors import BadInput, Conflict, LeaseLost
from penstock.queue.batch import LABEL, ON_HEADER, linked_entry
from penstock.queue.checking import check_step
from penstock.queue.entry import Entry, Lease
from penstock.queue.options import LinkOptions, PutOptions, check_options
from penstock.queue.protocol import Ending, Find, Link, NewEntry, NewEvent, On, Publisher, Step
from penstock.queue.results import Progress, new_result, note_of, values_of_batch

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.queue.handling.handler import Handler
    from penstock.queue.handling.middleware import VerdictSink
    from penstock.queue.queue import Queue
    from penstock.queue.queues import QueueStore
    from penstock.tracing import SpanName

    # A handler that writes plain `Context` leaves the payload's type open.
    T = TypeVar("T", default=Any)
    V = TypeVar("V")
else:
    T = typing.TypeVar("T")


class _Finish(enum.Enum):
    """What ``ctx.finish()`` has come to."""

    NOT_ASKED = enum.auto()
    IN_DOUBT = enum.auto()  # it hangs on the caller's transaction
    DONE = enum.auto()  # the caller's transaction was committed
    SETTLED = enum.auto()  # by a call of our own


NOT_ASKED = _Finish.NOT_ASKED  # read for every entry
NO_RESULT: Any = object()  # where nothing is to be kept; None is a result like any other


class Context(Generic[T]):
    """What a handler may ask: about its entry and lease, and for puts that are committed with its outcome.

    ``value`` is the payload; ``entry`` and ``lease`` are those of this attempt.
    """

    __slots__ = (
        "_events", "_finish", "_links", "_puts", "_result", "answered", "entry", "handler", "is_cut_short", "lease",
        "on_cut_short", "seconds", "started_us", "trace", "value", "verdicts",
    )  # fmt: skip

    def __init__(self, handler: Handler, entry: Entry[T], started_us: Micros) -> None:
        """Belong to one attempt."""
        if entry.lease is None:
            raise LeaseLost(f"entry {entry.id} of queue {entry.queue!r} is not leased.", hint="Claim it first.")
        self.handler = handler
        self.entry = entry
        self.lease: Lease = entry.lease
        self.answered: bool | None = None
        self.value: T | None = None  # the payload as the queue's type, once it was read
        self.verdicts: list[tuple[VerdictSink, Any]] | None = None  # of middleware
        self.is_cut_short = False  # its time was over and the attempt has failed, while the handler still runs
        self.on_cut_short: Callable[[BaseException], None] | None = None  # for a middleware that waits for the handler
        self.started_us = started_us
        self.seconds: float | None = None  # how long the handler took, once it has ended
        self.trace: Callable[[], SpanName] | None = None  # names the span of this attempt, if somebody traces
        self._finish = NOT_ASKED
        self._result = NO_RESULT  # of finish()
        self._puts: list[NewEntry] | None = None
        self._events: list[NewEvent] | None = None
        self._links: tuple[Link, ...] = ()

    def put(self, queue: Queue[V], value: V, **options: Unpack[LinkOptions]) -> str:
        """Put into a queue of the same space, committed together with this attempt's success.

        Args:
            queue: of the same space
            value: of the queue's type
            **options: those of :meth:`penstock.Queue.put`; with ``batch=ctx.batch`` the entry becomes a member of the
                batch that this one belongs to, which is held for it, too

        Returns:
            the new id
        """
        self._check_open("put")
        check_options(options, "ctx.put", LinkOptions)
        same_space(self.handler.queue, queue)
        batch_on: On | None = None
        if options.get("batch") is not None and options.get("batch") == self.batch:
            batch_on = "ended" if self.entry.headers.get(ON_HEADER) == "ended" else "done"
        entry, links = linked_entry(queue, value, options, batch_on=batch_on)
        if self._puts is None:
            self._puts = []
        self._puts.append(entry)
        if links:
            self._links = (*self._links, *links)
        return entry.id

    @property
    def batch(self) -> str | None:
        """The id of the batch that this entry is a member of."""
        return self.entry.labels.get(LABEL)

    @property
    def cancelled(self) -> bool:
        """Whether the outcome will not count: the entry was cancelled, the lease lost, or the time limit is over.

        A lease that is lost shows at the next heartbeat, after a third of its duration. An async handler is cancelled
        then.
        """
        lost = self.handler.queue.store.driver.heartbeat.has_lost(self.lease)
        return self.is_cut_short or (lost and not self.finished)

    @property
    def before(self) -> Before:
        """What this entry has waited for; asks the store."""
        return Before(self.handler.queue.store, self.entry.id)

    def progress(self, done: int, total: int | None = None, text: str = "") -> None:
        """Say how far the handler has come; the last word counts. It is written with the next heartbeat.

        Args:
            done: how much is done
            total: of how much, if that is known
            text: anything to show
        """
        self.handler.queue.store.driver.heartbeat.note(
            note_of(self.lease, Progress(done, total, text[:200].replace("\0", " ")))
        )

    def publish(self, bus: Publisher, event: Any, **options: Unpack[PutOptions]) -> str:
        """Publish on the bus, committed together with this attempt's success.

        Args:
            bus: of the same space
            event: what to publish
            **options: those of :meth:`penstock.Bus.publish`

        Returns:
            the event's id
        """
        self._check_open("publish")
        check_options(options, "ctx.publish")
        same_space(self.handler.queue, bus)
        new_event = bus.new(event, **options)
        if self._events is None:
            self._events = []
        self._events.append(new_event)
        return new_event.template.id

    def extend(self, by: Duration) -> None:
        """Hold the entry for at least this long from now.

        Args:
            by: how long

        Raises:
            LeaseLost: it is not held any more
        """
        self._check_open("extend")
        [until] = self.handler.queue.store.driver.extend([self.lease], duration_micros(by))
        if until is None:
            raise LeaseLost(
                f"entry {self.entry.id} of queue {self.entry.queue!r} is no longer held by this worker.",
                hint="Stop: another worker may be running it.",
            )

    def report(self, ok: bool) -> None:
        """Tell the handler's breaker whether the far side is well, whatever becomes of the entry."""
        self.answered = ok

    def finish(self, *, connection: Any = None, result: Any = NO_RESULT) -> None:
        """End this attempt as done now, in the caller's own transaction if a connection is given.

        With the connection of the database that holds the queue, the handler's own writes and the end of the entry
        are one commit: both happen, or neither. Commit it before the handler returns: an attempt whose transaction
        was rolled back or is still open then has failed. After a rollback it may be called again.

        Args:
            connection: of the database that holds the queue, in a transaction
            result: to be kept, if the handler has ``keep_result``; what it returns afterwards is not

        Raises:
            BadInput: there is a ``result``, and the handler keeps none
            PayloadTooLarge: the ``result`` is too large to be kept
            Undecodable: JSON would change the ``result``
        """
        if self._finish is _Finish.SETTLED:
            raise self._has_ended("finish")
        if result is not NO_RESULT and self.handler.keep_result_us is None:
            raise BadInput(
                f"ctx.finish(result=...) in handler {self.handler.title}, which keeps no results.",
                hint='Register it with keep_result="1d", say.',
            )
        self._result = result
        store = self.handler.queue.store
        store.driver.commit(self.success(result), connection=connection)
        if connection is None:
            self._finish = _Finish.SETTLED
            store.driver.heartbeat.drop((self.lease,))
        else:
            self._finish = _Finish.IN_DOUBT

    # --- for middleware and the worker -------------------------------------------------------------

    def add_verdict(self, sink: VerdictSink, verdict: Any) -> None:
        """Have the sink write what this attempt meant, in the call that settles it."""
        if self.is_cut_short:
            return  # what the attempt meant was said when its time was over
        if self.verdicts is None:
            self.verdicts = []
        self.verdicts.append((sink, verdict))

    @property
    def finished(self) -> bool:
        """Whether ``finish()`` was called, so that the store may have to be asked what became of it."""
        return self._finish is not NOT_ASKED

    def is_over(self) -> bool:
        """Whether ``finish()`` has ended the attempt; asks the store if that hung on the caller's transaction."""
        if self._finish is _Finish.IN_DOUBT:
            store = self.handler.queue.store
            entries = store.driver.find(Find(queue=self.entry.queue, ids=(self.entry.id,)))
            if any(entry.lease is not None and entry.lease.token == self.lease.token for entry in entries):
                return False
            self._finish = _Finish.DONE
        return self.finished

    def forget_finish(self) -> None:
        """As if ``finish()`` had never been called: what follows is a failure like any other."""
        self._finish = NOT_ASKED

    def confirmation(self) -> Step | None:
        """A repeat of what the caller's transaction did: it changes nothing, and tells the signals that it happened."""
        return None if self._finish is _Finish.SETTLED else self.success(self._result)

    @property
    def has_result(self) -> bool:
        """Whether ``finish()`` was given a result."""
        return self._result is not NO_RESULT

    def success(self, result: Any = NO_RESULT) -> Step:
        """The step that ends the attempt as done, with what the handler put and published, and what it returned."""
        kept_us = self.handler.keep_result_us
        if kept_us is None or result is NO_RESULT:
            ending = Ending(self.lease, "done", started_us=self.started_us)
        else:
            ending = Ending(
                self.lease,
                "done",
                started_us=self.started_us,
                result=new_result(result, kept_us, self.entry),
            )
        if self._puts is None and self._events is None and self._finish is NOT_ASKED:
            return Step((ending,))
        step = Step(
            (ending,), tuple(self._puts or ()), tuple(self._events or ()), repeat=self.finished, links=self._links
        )
        check_step(self.handler.queue.store.driver, step)
        return step

    def _check_open(self, call: str) -> None:
        if self.finished:
            raise self._has_ended(call)

    def _has_ended(self, call: str) -> Conflict:
        return Conflict(
            f"ctx.{call}() came after ctx.finish(): this attempt of entry {self.entry.id} has ended.",
            hint="Call it before ctx.finish(), or use the queue itself.",
        )


class Before:
    """What an entry has waited for."""

    def __init__(self, store: QueueStore, id_: str) -> None:
        """Ask nothing yet."""
        self._store = store
        self._id = id_

    @property
    def tally(self) -> dict[str, int]:
        """How many of them ended how: done, dead, cancelled, expired."""
        waits = self._store.driver.waits([self._id])
        return waits[0].tally if waits else {"done": 0, "dead": 0, "cancelled": 0, "expired": 0}

    def results(self) -> dict[str, Any]:
        """What the handlers of the batch's members returned, by id, as far as it is kept."""
        return values_of_batch(self._store, self._id)


def same_space(mine: Queue[Any], other: Queue[Any] | Publisher) -> None:
    """Units never cross spaces."""
    if not mine.store.driver.shares_with(other.store.driver):
        raise BadInput(
            f"{other!r} is in another space than {mine!r}.",
            hint="What is committed together has to live in one space of one store.",
        )
