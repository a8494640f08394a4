"""Attempt: one start of a handler for one entry: read the value, call the function, say what its outcome means."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from penstock import chaos
from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.policy import Outcome
from penstock.queue.entry import Entry
from penstock.queue.handling.context import Context
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.outcomes import (
    dead,
    error_text,
    failure,
    log_outcome,
    reason_of,
    step_of_error,
    step_of_result,
)
from penstock.queue.messages import Step
from penstock.signals import Signals

logger = logging.getLogger("penstock.queue.worker")


class Surroundings(Protocol):
    """What the attempts of one worker share."""

    rng: random.Random | None  # where jitter comes from
    signals: Signals

    def now(self) -> Micros:
        """The store's time."""

    def run_async(self, coroutine: Any) -> Any:
        """Run a coroutine in the event loop of the handlers, from a thread."""


class Attempt:
    """Runs once. ``step`` is what to settle: None if ``ctx.finish()`` has done so."""

    __slots__ = ("around", "context", "handler", "seconds", "step")

    def __init__(self, handler: Handler, entry: Entry[Any], around: Surroundings) -> None:
        """Nothing has started yet."""
        self.handler = handler
        self.around = around
        self.context: Context[Any] = Context(handler, entry, around.now())
        self.step: Step | None = None
        self.seconds: float | None = None  # how long the handler took; None if it was not called

    def run(self) -> None:
        """Run in the calling thread, also an async handler."""
        value, refused = self._begin()
        if refused is not None:
            self.step = refused
            return
        chaos.point("handler.before")
        begin = time.perf_counter()
        try:
            result = self.handler.call(value, self.context)
            if self.handler.is_async:
                result = self.around.run_async(result)
            self.step = self._returned(result)
        except BaseException as error:
            self.step = self._raised(error)
        self.seconds = time.perf_counter() - begin
        chaos.point("handler.after")

    def run_surely(self) -> None:
        """Run in a thread that has to live on, whatever happens."""
        try:
            self.run()
        except BaseException as error:
            entry = self.context.entry
            logger.exception("entry %s of queue %r could not be concluded", entry.id, entry.queue)
            self.step = failure(self.context, error, self.around.rng)

    async def run_in_loop(self) -> None:
        """Run an async handler in its loop; what has to ask the store does so in a thread."""
        guard = self.handler.guard
        if guard is None or guard.is_calm:
            value, refused = self._begin()
        else:
            value, refused = await asyncio.to_thread(self._begin)
        if refused is not None:
            self.step = refused
            return
        begin = time.perf_counter()
        try:
            result = await self.handler.call(value, self.context)
            self.step = await self._beside(self._returned, result)
        except BaseException as error:
            self.step = await self._beside(self._raised, error)
        self.seconds = time.perf_counter() - begin

    def forget(self) -> None:
        """The outcome will never be settled."""
        if self.handler.guard is not None:
            self.handler.guard.forget(self.context)

    # --- inside ------------------------------------------------------------------------------------

    def _begin(self) -> tuple[Any, Step | None]:
        """The value; or the step that ends the attempt before it starts."""
        context, entry = self.context, self.context.entry
        entry.reader = self.handler.queue.codec
        try:
            value = entry.value
        except Exception as error:  # also what a codec or a type of the user's raises
            logger.error(
                "entry %s of queue %r cannot be read; it is a dead letter now: %s", entry.id, entry.queue, error
            )
            return None, dead(context, error_text(error))
        if self.handler.guard is not None and (back := self.handler.guard.enter(context, value)) is not None:
            return None, Step((back,))
        signals = self.around.signals
        if signals.wants("started"):
            signals.tell("started", entry.queue, (entry.id,), self.around.now(), attempt=entry.attempt)
        return value, None

    def _returned(self, result: Any) -> Step | None:
        step = step_of_result(self.context, result, self.around.rng)
        if self.handler.guard is not None:
            self.handler.guard.leave(self.context, result, None)
        # Plain success, by far the most frequent, is not worth a word.
        if step is not None and step.endings[0].outcome != "done":
            log_outcome(self.context, step.endings[0], reason_of(result), None)
        return step

    def _raised(self, error: BaseException) -> Step | None:
        if self.handler.guard is not None:
            self.handler.guard.leave(self.context, None, error)
        try:
            step = step_of_error(self.context, error, self.around.rng)
        except PenstockError:
            # Nobody can say now what became of ctx.finish(); a failure never counts where it was committed.
            step = failure(self.context, error, self.around.rng)
        if step is not None and step.endings[0].outcome != "done":
            shown = None if isinstance(error, Outcome) else error
            log_outcome(self.context, step.endings[0], error_text(error), shown)
        return step

    async def _beside(self, conclude: Callable[[Any], Step | None], outcome: Any) -> Step | None:
        """Conclude; in a thread if the store has to be asked, so that the loop goes on meanwhile."""
        if self.context.finished:
            return await asyncio.to_thread(conclude, outcome)
        return conclude(outcome)
