"""Attempt: one start of a handler for one entry: read the value, call the function, say what its outcome means."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from penstock import failpoints
from penstock.clock import Micros
from penstock.errors import HandlerTimeout, PayloadTooNew, PenstockError
from penstock.policy import Outcome
from penstock.queue.entry import Entry, with_traceback
from penstock.queue.handling.context import Context
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.middleware import Layer, call_in_loop, call_in_thread
from penstock.queue.handling.outcomes import (
    TOO_NEW_PAUSE,
    Refuse,
    RemoteTraceback,
    dead,
    error_text,
    failure,
    log_fields,
    log_outcome,
    reason_of,
    step_of_error,
    step_of_result,
)
from penstock.queue.protocol import Step
from penstock.signals import Signals

if TYPE_CHECKING:
    # A worker without async handlers starts without it.
    import asyncio

logger = logging.getLogger("penstock.queue.worker")


class Cancellable(Protocol):
    """A call that is scheduled."""

    def cancel(self) -> None:
        """Drop the call."""


class Surroundings(Protocol):
    """What the attempts of one worker share."""

    rng: random.Random | None  # where jitter comes from
    signals: Signals

    def now(self) -> Micros:
        """The store's time."""

    def after(self, seconds: float, call: Callable[[], None]) -> Cancellable:
        """Call a function after this time, in a thread of the worker."""

    def run_async(self, coroutine: Any) -> Any:
        """Run a coroutine in the event loop of the handlers, from a thread."""


class Attempt:
    """Runs once. ``step`` is what to settle: None if ``ctx.finish()`` has done so."""

    __slots__ = (
        "_around", "_is_over", "_layers", "_lock", "_task", "_thread", "call", "context", "handler",
        "late", "on_late", "seconds", "step",
    )  # fmt: skip

    def __init__(self, handler: Handler, entry: Entry[Any], around: Surroundings, layers: tuple[Layer, ...]) -> None:
        """Nothing has started yet."""
        self.handler = handler
        self.call: Callable[[Any, Context[Any]], Any] = handler.call
        # If set, an attempt whose thread is late fails at its time limit: it joins the late ones, and this is called.
        self.on_late: Callable[[Attempt], None] | None = None
        self.late: set[Attempt] | None = None
        self._lock: threading.Lock | None = None
        self._is_over = False  # whether somebody has begun to conclude it
        self._thread = 0
        self._task: asyncio.Task[Any] | None = None  # in which an async handler runs
        # Between two replies the store's time is an estimate, and a little late: nothing starts before it is claimed.
        started_us = around.now() if entry.lease is None else max(around.now(), entry.lease.claimed_us)
        self.context: Context[Any] = Context(handler, with_traceback(entry), started_us)
        self.step: Step | None = None
        self.seconds: float | None = None  # how long it took, or None if the handler was not called
        self._around = around
        self._layers = layers

    def run(self) -> None:
        """Run in the calling thread, also an async handler."""
        if self.handler.is_async:
            self._around.run_async(self.run_in_loop())
            return
        if not self._read_value():
            return
        begin = time.perf_counter()
        try:
            if self._layers:
                result = call_in_thread(self._layers, self.context, self._call, self._around.run_async)
            else:
                result = self._call()
            self._measure(begin)
            if self._is_first():
                self.step = self._returned(result)
        except BaseException as error:
            self._measure(begin)
            if self._is_first():
                self.step = self._raised(error)
        failpoints.point("handler.after")

    def run_surely(self) -> None:
        """Run in a thread that must survive any error."""
        try:
            self.run()
        except BaseException as error:
            entry = self.context.entry
            logger.exception("entry %s of queue %r could not be concluded", entry.id, entry.queue)
            self.step = failure(self.context, error, self._around.rng)

    async def run_in_loop(self) -> None:
        """Run an async handler in its loop; what has to ask the store does so in a thread."""
        if not self._read_value():
            return
        begin = time.perf_counter()
        try:
            result = await self._run_layers()
            self._measure(begin)
            self.step = await self._beside(self._returned, result)
        except BaseException as error:
            self._measure(begin)
            self.step = await self._beside(self._raised, error)

    async def _run_layers(self) -> Any:
        import asyncio

        self._task = asyncio.current_task()
        try:
            return await call_in_loop(self._layers, self.context, self._call_async)
        finally:
            self._task = None  # what follows is not to be interrupted

    def cancel(self) -> None:
        """Cancel an async handler whose lease is lost; in its loop."""
        if self._task is not None and not self.context.finished:
            self._task.cancel()

    @property
    def is_late(self) -> bool:
        """Whether it failed at its time limit, before its handler returned."""
        return self.late is not None and self in self.late

    def forget(self) -> None:
        """The outcome will never be settled."""
        for sink, verdict in self.context.verdicts or ():
            sink.forget(verdict)

    # --- inside ------------------------------------------------------------------------------------

    def _read_value(self) -> bool:
        """Whether the value can be read. If not, the entry becomes a dead letter.

        An entry put by newer code goes back unspent: during a rollout, a newer worker will take it.
        """
        context, entry = self.context, self.context.entry
        entry.reader = self.handler.queue.codec
        try:
            context.value = entry.value
        except PayloadTooNew as error:
            logger.warning("entry %s of queue %r goes back: %s", entry.id, entry.queue, error)
            self.step = failure(context, Refuse(error_text(error), TOO_NEW_PAUSE))
            return False
        except Exception as error:  # also what a codec or a type of the user's raises
            self.step = dead(context, error_text(error))
            logger.error(
                "entry %s of queue %r cannot be read; it is a dead letter now: %s", entry.id, entry.queue, error,
                extra=log_fields(context, self.step.endings[0]),
            )  # fmt: skip
            return False
        return True

    def _call(self) -> Any:
        self._tell_started()
        failpoints.point("handler.before")
        if self.on_late is None or self.handler.timeout is None:
            return self.call(self.context.value, self.context)
        self._lock, self._thread = threading.Lock(), threading.get_ident()
        deadline = self._around.after(self.handler.timeout, self._cut_short)
        try:
            return self.call(self.context.value, self.context)
        finally:
            deadline.cancel()

    async def _call_async(self) -> Any:
        self._tell_started()
        if self.handler.timeout is None:
            return await self.handler.call(self.context.value, self.context)
        import asyncio  # a worker without async handlers does without it

        try:
            async with asyncio.timeout(self.handler.timeout) as limit:
                return await self.handler.call(self.context.value, self.context)
        except TimeoutError as error:
            if limit.expired():
                raise self._too_late("it was cancelled") from error
            raise  # one of the handler's own

    def _cut_short(self) -> None:
        """End the attempt as failed when its time is over, although the handler's thread is still running."""
        if not self._is_first(late=True):
            return
        error = self._too_late("the thread is still running and holds its slot until it returns")
        if self.context.on_cut_short is not None:
            self.context.on_cut_short(error)
        self.context.is_cut_short = True
        self.context.seconds = self.handler.timeout
        stack = sys._current_frames().get(self._thread)  # noqa: SLF001 - documented, for debuggers
        if stack is not None:
            error.__cause__ = RemoteTraceback("".join(traceback.format_stack(stack)))
        self.step = self._raised(error)
        if self.on_late is not None:
            self.on_late(self)

    def _is_first(self, *, late: bool = False) -> bool:
        """Whether this caller is the first to end the attempt. The outcome of a later caller does not count."""
        if self._lock is None:
            return True
        with self._lock:
            is_first, self._is_over = not self._is_over, True
            if is_first and late and self.late is not None:
                self.late.add(self)
        if not is_first and not late:
            entry = self.context.entry
            logger.info("handler %s returned after its time; entry %s had failed", self.handler.title, entry.id)
        return is_first

    def _too_late(self, what_became: str) -> HandlerTimeout:
        return HandlerTimeout(
            f"handler {self.handler.title} took longer than {self.handler.timeout:g}s; {what_became}.",
            hint="Give it more time with timeout=, or find out what it waits for.",
        )

    def _tell_started(self) -> None:
        self.seconds = 0.0
        signals = self._around.signals
        if signals.wants("started"):
            entry = self.context.entry
            at_us = max(self._around.now(), self.context.started_us)
            signals.tell("started", entry.queue, (entry.id,), at_us, attempt=entry.attempt)

    def _measure(self, begin: float) -> None:
        if self.seconds is not None:
            self.seconds = self.context.seconds = time.perf_counter() - begin

    def _returned(self, result: Any) -> Step | None:
        step = step_of_result(self.context, result, self._around.rng)
        # Plain success, by far the most frequent, is not worth a word.
        if step is not None and step.endings[0].outcome != "done":
            log_outcome(self.context, step.endings[0], reason_of(result), None)
        return step

    def _raised(self, error: BaseException) -> Step | None:
        try:
            step = step_of_error(self.context, error, self._around.rng)
        except PenstockError:
            # Nobody can say now what became of ctx.finish(); a failure never counts where it was committed.
            step = failure(self.context, error, self._around.rng)
        if self._was_cancelled(error):
            entry = self.context.entry
            logger.info(
                "handler %s was cancelled: entry %s is not this worker's any more", self.handler.title, entry.id
            )
        elif step is not None and step.endings[0].outcome != "done":
            shown = None if isinstance(error, Outcome) else error
            log_outcome(self.context, step.endings[0], error_text(error), shown)
        return step

    def _was_cancelled(self, error: BaseException) -> bool:
        """Whether the handler ended because its lease was lost."""
        if not self.handler.is_async:
            return False
        import asyncio

        return isinstance(error, asyncio.CancelledError) and self.context.cancelled

    async def _beside(self, conclude: Callable[[Any], Step | None], outcome: Any) -> Step | None:
        """Conclude; in a thread if the store has to be asked, so that the loop continues meanwhile."""
        if self.context.finished:
            import asyncio

            return await asyncio.to_thread(conclude, outcome)
        return conclude(outcome)
