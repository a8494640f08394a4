"""Handler: the user's function with its policy; Context: what a handler may ask of Penstock while it runs."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from penstock.clock import Duration, Micros, duration_micros
from penstock.errors import BadInput, LeaseLost, Undecodable
from penstock.policy import Reject, Retry, Snooze, TryAgain
from penstock.queue.entry import Entry, Lease
from penstock.queue.store import Ending, NewEntry, NewEvent, Publisher, Step

if TYPE_CHECKING:
    from penstock.queue.queue import Queue

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
    ) -> None:
        """Check the function's shape once, so that no worker has to."""
        self.queue = queue
        self.function = function
        self.retry = retry
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.on_dead = on_dead
        self.executor = executor
        self.title = getattr(function, "__qualname__", None) or repr(function)
        if not callable(function):
            raise BadInput(f"{self.title} cannot be called.", hint="A handler is a function that takes the value.")
        if concurrency < 1:
            raise BadInput(f"handler {self.title} has concurrency {concurrency}.", hint="Use 1 or more.")
        if prefetch and (queue.definition.fifo or (not queue.is_family and queue.counts().fifo)):
            raise BadInput(
                f"handler {self.title} asks for prefetch on the FIFO queue {queue.name!r}.",
                hint="A FIFO queue has one entry in flight; leave prefetch out.",
            )
        target = function if inspect.isroutine(function) else type(function).__call__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(target)
        self.takes_context = _takes_context(function, self.title)

    def call(self, value: Any, context: Context) -> Any:
        """Call the function with what it asked for; an async one gives its coroutine."""
        return self.function(value, context) if self.takes_context else self.function(value)


class Context:
    """What a handler may ask: about its entry and lease, and for puts that are committed with its outcome."""

    __slots__ = ("_events", "_puts", "_started_us", "entry", "finished", "handler", "lease")

    def __init__(self, handler: Handler, entry: Entry[Any], started_us: Micros) -> None:
        """Belong to one attempt."""
        if entry.lease is None:
            raise LeaseLost(f"entry {entry.id} of queue {entry.queue!r} is not leased.", hint="Claim it first.")
        self.handler = handler
        self.entry = entry
        self.lease: Lease = entry.lease
        self.finished = False
        self._started_us = started_us
        self._puts: list[NewEntry] | None = None
        self._events: list[NewEvent] | None = None

    def put(self, queue: Queue[Any], value: Any, **options: Any) -> str:
        """Put into a queue of the same space, committed together with this attempt's success; the new id."""
        entry = queue.new(value, **options)
        same_space(self.handler.queue, queue)
        if self._puts is None:
            self._puts = []
        self._puts.append(entry)
        return entry.id

    def publish(self, bus: Publisher, event: Any, **options: Any) -> str:
        """Publish on the bus, committed together with this attempt's success; the event's id."""
        same_space(self.handler.queue, bus)
        made = bus.new(event, **options)
        if self._events is None:
            self._events = []
        self._events.append(made)
        return made.template.id

    def extend(self, by: Duration) -> None:
        """Hold the entry for at least this long from now; raises ``LeaseLost`` when it is held no more."""
        [until] = self.handler.queue.store.extend([self.lease], duration_micros(by))
        if until is None:
            raise LeaseLost(
                f"entry {self.entry.id} of queue {self.entry.queue!r} is no longer held by this worker.",
                hint="Stop: another worker may be running it.",
            )

    def finish(self, *, connection: Any = None) -> None:
        """End this attempt as done now, in the caller's own transaction if a connection is given.

        With the connection of the database that holds the queue, the handler's own writes and the end of the entry
        are one commit: both happen, or neither.
        """
        self.handler.queue.store.commit(self.success(), connection=connection)
        self.finished = True

    # --- for the worker ----------------------------------------------------------------------------

    def success(self) -> Step:
        """The step that ends the attempt as done, with what the handler put and published."""
        ending = Ending(self.lease, "done", started_us=self._started_us)
        if self._puts is None and self._events is None and not self.finished:
            return Step((ending,))
        # After finish() the worker's own settle is a repeat: it changes nothing if the caller's transaction was
        # committed.
        step = Step((ending,), tuple(self._puts or ()), tuple(self._events or ()), repeat=self.finished)
        self.handler.queue.store.check_step(step)
        return step

    def step_for(self, result: Any, rng: random.Random | None = None) -> Step:
        """What a returned value means."""
        if isinstance(result, Snooze):
            delay = duration_micros(result.after)
            return Step((Ending(self.lease, "snooze", delay, started_us=self._started_us),))
        if isinstance(result, Reject):
            return self.dead(f"rejected: {result.reason}")
        if result is False:
            return self.failure(RuntimeError("the handler returned False"), rng)
        return self.success()

    def failure(self, error: BaseException, rng: random.Random | None = None) -> Step:
        """What an exception means: retry by policy, or the dead letters; what was put in this attempt is dropped."""
        retry = error.retry if isinstance(error, TryAgain) else self.handler.retry
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
        return Step((Ending(self.lease, "dead", error=error[:ERROR_LENGTH], started_us=self._started_us),))

    def gave_up(self, error: str) -> None:
        """The store has agreed that the entry is dead: tell the exhaustion hook, whose own failure harms nobody."""
        if self.handler.on_dead is None:
            return
        try:
            value = self.entry.value
        except Undecodable:
            value = None
        try:
            self.handler.on_dead(value, error)
        except Exception:
            logger.exception("on_dead of handler %s failed on entry %s", self.handler.title, self.entry.id)


def error_text(error: BaseException) -> str:
    """An error as kept with the entry: its type and message, cut to a bearable length; never rebuilt from there."""
    return f"{type(error).__name__}: {error}"[:ERROR_LENGTH]


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
