"""Handler: the user's function with its policy; Context: what a handler may ask of Penstock while it runs."""

from __future__ import annotations

import enum
import inspect
import logging
import random
import typing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, Unpack

from penstock.clock import Duration, Micros, duration_micros
from penstock.errors import BadInput, Conflict, LeaseLost
from penstock.policy import Outcome, Reject, Retry, Snooze, TryAgain
from penstock.queue.entry import Entry, Lease
from penstock.queue.guard import Guard
from penstock.queue.options import PutOptions, check_options
from penstock.queue.store import Ending, Find, NewEntry, NewEvent, Publisher, Step

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.queue.queue import Queue

    # A handler that writes plain `Context` leaves the payload's type open.
    T = TypeVar("T", default=Any)
    V = TypeVar("V")
else:
    T = typing.TypeVar("T")

logger = logging.getLogger("penstock.queue.worker")

DEFAULT_RETRY = Retry()
ERROR_LENGTH = 2000  # characters of an error's text that are kept


class Handler:
    """A function that handles a queue's entries, and how."""

    def __init__(
        self,
        queue: Queue[Any],
        function: Callable[..., Any],
        *,
        retry: Retry = DEFAULT_RETRY,
        concurrency: int = 10,
        prefetch: int | None = None,
        on_dead: Callable[[Any, str], Any] | None = None,
        executor: Executor | None = None,
        breaker: Any = None,
    ) -> None:
        """Check the function's shape and the options once, so that no worker has to."""
        self.queue = queue
        self.function = function
        self.retry = retry
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.on_dead = on_dead
        self.executor = executor
        # A breaker makes the guard for this queue; a guard is taken as it is.
        self.guard: Guard | None = breaker.guards(queue) if hasattr(breaker, "guards") else breaker
        self.title = getattr(function, "__qualname__", None) or repr(function)
        if not callable(function):
            raise BadInput(f"{self.title} cannot be called.", hint="A handler is a function that takes the value.")
        self._check_options()
        if prefetch and (queue.definition.fifo or (not queue.is_family and queue.counts().fifo)):
            raise BadInput(
                f"handler {self.title} asks for prefetch on the FIFO queue {queue.name!r}.",
                hint="A FIFO queue has one entry in flight; leave prefetch out.",
            )
        target = function if inspect.isroutine(function) else type(function).__call__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(target)
        self.takes_context = _takes_context(function, self.title)

    def _check_options(self) -> None:
        """A worker that met a bad one later would fail at every turn, for all queues."""
        if not isinstance(self.retry, Retry):
            raise BadInput(
                f"handler {self.title} has retry={self.retry!r}, which is no policy.",
                hint="Write retry=Retry(attempts=5).",
            )
        if not _whole(self.concurrency) or self.concurrency < 1:
            raise BadInput(f"handler {self.title} has concurrency {self.concurrency!r}.", hint="Use 1 or more.")
        if self.prefetch is not None and (not _whole(self.prefetch) or self.prefetch < 0):
            raise BadInput(f"handler {self.title} has prefetch {self.prefetch!r}.", hint="Use 0 or more, or None.")
        if self.on_dead is not None and not callable(self.on_dead):
            raise BadInput(
                f"handler {self.title} has on_dead={self.on_dead!r}, which cannot be called.",
                hint="Give a function that takes (value, error).",
            )
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            raise BadInput(
                f"handler {self.title} has executor={self.executor!r}, which is none.",
                hint="Give a concurrent.futures.Executor.",
            )
        if self.guard is not None and not callable(getattr(self.guard, "enter", None)):
            raise BadInput(
                f"handler {self.title} has breaker={self.guard!r}, which is none.",
                hint="Give a penstock.Breaker, or one of its guards: breaker.guard(circuit).",
            )
        if isinstance(self.executor, ProcessPoolExecutor):
            raise BadInput(
                f"handler {self.title} has a ProcessPoolExecutor; handlers and their stores stay in their process.",
                hint="Use a ThreadPoolExecutor, or several workers: penstock worker --processes N.",
            )

    def call(self, value: Any, context: Context) -> Any:
        """Call the function with what it asked for; an async one gives its coroutine."""
        return self.function(value, context) if self.takes_context else self.function(value)


class _Finish(enum.Enum):
    """What ``ctx.finish()`` has come to."""

    NOT_ASKED = enum.auto()
    IN_DOUBT = enum.auto()  # it hangs on the caller's transaction
    DONE = enum.auto()  # the caller's transaction was committed
    SETTLED = enum.auto()  # by a call of our own


NOT_ASKED = _Finish.NOT_ASKED  # read for every entry


class Context(Generic[T]):
    """What a handler may ask: about its entry and lease, and for puts that are committed with its outcome."""

    __slots__ = ("_events", "_finish", "_puts", "_started_us", "answered", "entry", "handler", "lease", "verdict")

    def __init__(self, handler: Handler, entry: Entry[T], started_us: Micros) -> None:
        """Belong to one attempt."""
        if entry.lease is None:
            raise LeaseLost(f"entry {entry.id} of queue {entry.queue!r} is not leased.", hint="Claim it first.")
        self.handler = handler
        self.entry = entry
        self.lease: Lease = entry.lease
        self.answered: bool | None = None
        self.verdict: Any = None  # of the handler's guard
        self._finish = NOT_ASKED
        self._started_us = started_us
        self._puts: list[NewEntry] | None = None
        self._events: list[NewEvent] | None = None

    def put(self, queue: Queue[V], value: V, **options: Unpack[PutOptions]) -> str:
        """Put into a queue of the same space, committed together with this attempt's success; the new id.

        The options are those of ``penstock.Queue.put``.
        """
        self._check_open("put")
        check_options(options, "ctx.put")
        entry = queue.new(value, **options)
        same_space(self.handler.queue, queue)
        if self._puts is None:
            self._puts = []
        self._puts.append(entry)
        return entry.id

    def publish(self, bus: Publisher, event: Any, **options: Any) -> str:
        """Publish on the bus, committed together with this attempt's success; the event's id."""
        self._check_open("publish")
        check_options(options, "ctx.publish")
        same_space(self.handler.queue, bus)
        made = bus.new(event, **options)
        if self._events is None:
            self._events = []
        self._events.append(made)
        return made.template.id

    def extend(self, by: Duration) -> None:
        """Hold the entry for at least this long from now; raises ``LeaseLost`` when it is held no more."""
        self._check_open("extend")
        [until] = self.handler.queue.store.extend([self.lease], duration_micros(by))
        if until is None:
            raise LeaseLost(
                f"entry {self.entry.id} of queue {self.entry.queue!r} is no longer held by this worker.",
                hint="Stop: another worker may be running it.",
            )

    def report(self, ok: bool) -> None:
        """Tell the handler's breaker whether the far side is well, whatever becomes of the entry."""
        self.answered = ok

    def finish(self, *, connection: Any = None) -> None:
        """End this attempt as done now, in the caller's own transaction if a connection is given.

        With the connection of the database that holds the queue, the handler's own writes and the end of the entry
        are one commit: both happen, or neither. Commit it before the handler returns: an attempt whose transaction
        was rolled back or is still open then has failed. After a rollback it may be called again.
        """
        if self._finish is _Finish.SETTLED:
            raise self._has_ended("finish")
        store = self.handler.queue.store
        store.commit(self.success(), connection=connection)
        if connection is None:
            self._finish = _Finish.SETTLED
            store.heartbeat.drop((self.lease,))
        else:
            self._finish = _Finish.IN_DOUBT

    # --- for the worker ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether ``finish()`` was called, so that the store may have to be asked what became of it."""
        return self._finish is not NOT_ASKED

    def conclude(self, result: Any, rng: random.Random | None = None) -> Step | None:
        """What a returned value means; None when this attempt is settled already."""
        if self._finish is NOT_ASKED:
            return self.step_for(result, rng)
        if self._is_over():
            if _asks_for_more(result):
                logger.warning(
                    "handler %s returned %r after ctx.finish() had ended entry %s of queue %r as done; it is ignored",
                    self.handler.title, result, self.entry.id, self.entry.queue,
                )  # fmt: skip
            return self._confirmation()
        if not _asks_for_more(result):
            # As if never asked: what follows is a failure like any other.
            self._finish = NOT_ASKED
            raise Conflict(
                "ctx.finish(connection=...) was rolled back or not committed; the entry is still held.",
                hint="Commit the connection before the handler returns.",
            )
        return self.step_for(result, rng)

    def conclude_failure(self, error: BaseException, rng: random.Random | None = None) -> Step | None:
        """What an exception means; None when this attempt is settled already."""
        if self.finished and self._is_over():
            logger.warning(
                "handler %s failed after ctx.finish() had ended entry %s of queue %r as done, which it stays: %s",
                self.handler.title, self.entry.id, self.entry.queue, error_text(error), exc_info=error,
            )  # fmt: skip
            return self._confirmation()
        return self.failure(error, rng)

    def _is_over(self) -> bool:
        """Whether ``finish()`` has ended the attempt; asks the store if that hung on the caller's transaction."""
        if self._finish is _Finish.IN_DOUBT:
            store = self.handler.queue.store
            found = store.find(Find(queue=self.entry.queue, ids=(self.entry.id,)))
            if any(one.lease is not None and one.lease.token == self.lease.token for one in found):
                return False
            self._finish = _Finish.DONE
        return self.finished

    def _confirmation(self) -> Step | None:
        """A repeat of what the caller's transaction did: it changes nothing, and tells the signals that it happened."""
        return None if self._finish is _Finish.SETTLED else self.success()

    def _check_open(self, call: str) -> None:
        if self.finished:
            raise self._has_ended(call)

    def _has_ended(self, call: str) -> Conflict:
        return Conflict(
            f"ctx.{call}() came after ctx.finish(): this attempt of entry {self.entry.id} has ended.",
            hint="Call it before ctx.finish(), or use the queue itself.",
        )

    def success(self) -> Step:
        """The step that ends the attempt as done, with what the handler put and published."""
        ending = Ending(self.lease, "done", started_us=self._started_us)
        if self._puts is None and self._events is None and self._finish is NOT_ASKED:
            return Step((ending,))
        step = Step((ending,), tuple(self._puts or ()), tuple(self._events or ()), repeat=self.finished)
        self.handler.queue.store.check_step(step)
        return step

    def step_for(self, result: Any, rng: random.Random | None = None) -> Step:
        """What a returned value means."""
        if result is None or result is True:
            return self.success()
        if result is False:
            return self.failure(RuntimeError("the handler returned False"), rng)
        if isinstance(result, type) and issubclass(result, Outcome):
            result = _made(result)
        if isinstance(result, Outcome):
            return self.failure(result, rng)
        return self.success()

    def failure(self, error: BaseException, rng: random.Random | None = None) -> Step:
        """What an exception means: an outcome, a retry, or the dead letters; what this attempt put is dropped."""
        if isinstance(error, Snooze):
            return Step((Ending(self.lease, "snooze", error.micros, started_us=self._started_us),))
        if isinstance(error, Reject):
            return self.dead(f"rejected: {error.reason}" if error.reason else "rejected")
        retry = (error.retry if isinstance(error, TryAgain) else None) or self.handler.retry
        text = error_text(error)
        delay = retry.delay(self.entry.attempt, rng)
        most = self.handler.retry.attempts  # claims go by it, so no policy of a failure can exceed it
        if delay is None or (most is not None and self.entry.attempt >= most):
            return self.dead(text)
        due = None
        if retry.relative_to == "due":
            due = self.entry.first_due_us + duration_micros(delay)
        return Step((Ending(self.lease, "retry", duration_micros(delay), due, text, self._started_us),))

    def dead(self, error: str) -> Step:
        """To the dead letters."""
        return Step((Ending(self.lease, "dead", error=storable(error), started_us=self._started_us),))

    def gave_up(self, error: str) -> None:
        """The store has agreed that the entry is dead: tell the exhaustion hook, whose own failure harms nobody."""
        if self.handler.on_dead is None:
            return
        try:
            value = self.entry.value
        except Exception:
            value = None
        try:
            self.handler.on_dead(value, error)
        except BaseException:
            logger.exception("on_dead of handler %s failed on entry %s", self.handler.title, self.entry.id)


def _asks_for_more(result: Any) -> bool:
    """Whether a returned value wants anything but done."""
    return result is False or isinstance(result, Outcome) or (isinstance(result, type) and issubclass(result, Outcome))


def _made(outcome: type[Outcome]) -> Outcome:
    """A handler returned the class itself, as it may raise one."""
    try:
        return outcome()
    except TypeError as cause:
        raise BadInput(
            f"the handler returned the class {outcome.__name__}, which needs an argument.",
            hint='For example Snooze("5m").',
        ) from cause


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def error_text(error: BaseException) -> str:
    """An error as kept with the entry: its type and message, cut to a bearable length; never rebuilt from there."""
    try:
        said = str(error)
    except Exception as worse:
        said = f"(its text cannot be had: {type(worse).__name__})"
    return storable(f"{type(error).__name__}: {said}")


def storable(text: str) -> str:
    """A text that every store can keep: what is no character (a file name's odd bytes, NUL) is written out."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:ERROR_LENGTH]


def same_space(mine: Queue[Any], other: Queue[Any] | Publisher) -> None:
    """Units never cross spaces."""
    if not mine.store.shares_with(other.store):
        raise BadInput(
            f"{other!r} is in another space than {mine!r}.",
            hint="What is committed together has to live in one space of one store.",
        )


def _takes_context(function: Callable[..., Any], title: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        one for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    ]  # fmt: skip
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(required) > 2 or (not positional and not any(one.kind is one.VAR_POSITIONAL for one in parameters)):
        raise BadInput(
            f"handler {title} takes {len(required)} arguments.", hint="A handler takes (value) or (value, ctx)."
        )
    # A second parameter counts as the context when it is required or called so.
    return len(required) == 2 or (len(positional) > 1 and positional[1].name in ("ctx", "context"))
