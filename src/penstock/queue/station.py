"""Stations: where one handler's entries wait prepared and run: in slots (threads), a loop, or an executor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock import chaos
from penstock.clock import SECOND, Micros, from_micros
from penstock.errors import PenstockError
from penstock.policy import Outcome
from penstock.queue.entry import Entry
from penstock.queue.handler import Context, Handler, error_text
from penstock.queue.store import Ending, Source, Step

if TYPE_CHECKING:
    from penstock.queue.worker import Worker

logger = logging.getLogger("penstock.queue.worker")

PREFETCH_SECONDS = 0.05
MOST_PREFETCHED = 100
BRIEF = 0.001  # a handler that takes less is done with what is prepared before a turn is


class Station(ABC):
    """One handler in one worker."""

    def __init__(self, worker: Worker, handler: Handler) -> None:
        """Start with nothing in hand."""
        self.worker = worker
        self.handler = handler
        self.name = handler.queue.name
        self.reserved = 0  # room that claims under way may fill
        self._held: dict[str, Entry[Any]] = {}  # accepted and not yet ended: prepared or running
        self._abandoned: set[str] = set()
        self._mean: float | None = None  # seconds a handler takes, smoothed
        # An entry that may be tried once only must not wait in a worker that may die. A FIFO queue has one in flight
        # anyway; the queues of a FIFO family each have one.
        self._may_prefetch = handler.retry.attempts != 1 and (
            handler.queue.is_family or not handler.queue.definition.fifo
        )

    # --- for the worker ----------------------------------------------------------------------------

    def source(self, limit: int) -> Source:
        """Where this station's entries come from."""
        return self.handler.queue.source(limit, self.handler.retry.attempts)

    def room(self) -> int:
        """How many more entries may be claimed for it; none while enough are prepared or on their way.

        So claims stay large: what a claim under way leaves is not fetched one by one, as slots become free, by others.
        """
        prefetch = self._prefetch()
        if self.prepared() + (self.reserved if prefetch else 0) > prefetch // 2:
            return 0
        return self.handler.concurrency + prefetch - len(self._held) - self.reserved

    def _prefetch(self) -> int:
        if not self._may_prefetch:
            return 0
        if self.handler.prefetch is not None:
            return self.handler.prefetch
        if self._mean is None:
            return 0
        return min(MOST_PREFETCHED, int(PREFETCH_SECONDS / max(self._mean, 1e-6) * self.handler.concurrency))

    def in_hand(self) -> int:
        """Entries claimed and not yet ended."""
        return len(self._held)

    def prepared(self) -> int:
        """Those of them that have not started."""
        return 0

    @abstractmethod
    def accept(self, entries: list[Entry[Any]]) -> None:
        """Take claimed entries to run."""

    def take_back(self) -> list[Entry[Any]]:
        """Entries that have not started, no longer to be started."""
        return []

    def abandon(self) -> list[Entry[Any]]:
        """Entries whose handlers are still running and whose outcome will not count any more."""
        left = list(self._held.values())
        self._abandoned.update(self._held)
        self._held.clear()
        return left

    def wake(self) -> None:  # noqa: B027 - only slots sleep
        """Let idle slots notice that the worker is stopping."""

    def close(self) -> None:  # noqa: B027 - an executor is its owner's to close
        """Let go of threads and loops."""

    def run_here(self, entry: Entry[Any]) -> tuple[Step | None, Context]:
        """Run one entry in the calling thread, also if its handler is async; no step if it has settled itself."""
        context, value, dead = self._begin(entry)
        if dead is not None:
            return dead, context
        chaos.point("handler.before")
        begin = time.perf_counter()
        step: Step | None
        try:
            result = self.handler.call(value, context)
            if self.handler.is_async:
                result = self.worker.loop.run(result)
            step = self._concluded(context, result)
        except BaseException as error:
            step = self._failed(context, error)
        self._note(time.perf_counter() - begin)
        chaos.point("handler.after")
        return step, context

    def _run_surely(self, entry: Entry[Any]) -> tuple[Step | None, Context]:
        """Run one entry in a thread that has to live on, whatever happens."""
        try:
            return self.run_here(entry)
        except BaseException as error:
            logger.exception("entry %s of queue %r could not be concluded", entry.id, entry.queue)
            context = Context(self.handler, entry, self.worker.store_now())
            return context.failure(error, self.worker.rng), context

    # --- inside ------------------------------------------------------------------------------------

    def _begin(self, entry: Entry[Any]) -> tuple[Context, Any, Step | None]:
        """The context and the value; or, for an entry that cannot be read, the step that makes it a dead letter."""
        context = Context(self.handler, entry, self.worker.store_now())
        entry.reader = self.handler.queue.codec
        try:
            value = entry.value
        except Exception as error:  # also what a codec or a type of the user's raises
            logger.error(
                "entry %s of queue %r cannot be read; it is a dead letter now: %s", entry.id, entry.queue, error
            )
            return context, None, context.dead(error_text(error))
        if self.handler.guard is not None and (back := self.handler.guard.enter(context, value)) is not None:
            return context, None, Step((back,))
        signals = self.worker.store.signals
        if signals.wants("started"):
            signals.tell("started", entry.queue, (entry.id,), self.worker.store_now(), attempt=entry.attempt)
        return context, value, None

    def _concluded(self, context: Context, result: Any) -> Step | None:
        step = context.conclude(result, self.worker.rng)
        if self.handler.guard is not None:
            self.handler.guard.leave(context, result, None)
        # Plain success, by far the most frequent, is not worth a word.
        if step is not None and step.endings[0].outcome != "done":
            self._log(context, step.endings[0], _said(result), None)
        return step

    def _failed(self, context: Context, error: BaseException) -> Step | None:
        if self.handler.guard is not None:
            self.handler.guard.leave(context, None, error)
        try:
            step = context.conclude_failure(error, self.worker.rng)
        except PenstockError:
            # Nobody can say now what became of ctx.finish(); a failure never counts where it was committed.
            step = context.failure(error, self.worker.rng)
        if step is not None and step.endings[0].outcome != "done":
            self._log(context, step.endings[0], error_text(error), None if isinstance(error, Outcome) else error)
        return step

    def _log(self, context: Context, ending: Ending, why: str, error: BaseException | None) -> None:
        """One line for every attempt that did not succeed: which, why, and what comes next."""
        entry, most = context.entry, self.handler.retry.attempts
        level = logging.DEBUG if ending.outcome == "snooze" else logging.WARNING
        logger.log(
            level, "handler %s of queue %r, entry %s (attempt %d%s): %s -> %s",
            self.handler.title, entry.queue, entry.id, entry.attempt, f" of {most}" if most is not None else "", why,
            _what_next(ending), exc_info=error,
        )  # fmt: skip

    def _note(self, seconds: float) -> None:
        self._mean = seconds if self._mean is None else 0.8 * self._mean + 0.2 * seconds

    def _done(self, entry: Entry[Any], step: Step | None, context: Context, *, hurry: bool) -> None:
        if entry.id in self._abandoned:
            self._abandoned.discard(entry.id)
            if self.handler.guard is not None:
                self.handler.guard.forget(context)
            return
        # First the outcome, then the room: nobody may think that all is ended while an outcome is on its way.
        self.worker.finished(step, context, hurry=hurry)
        # An entry that was taken away and claimed again is held anew; then this is not the one that is held.
        if self._held.get(entry.id) is entry:
            del self._held[entry.id]


class SlotStation(Station):
    """A sync handler in threads of its own, as many as entries come, up to its concurrency."""

    def __init__(self, worker: Worker, handler: Handler) -> None:
        """Start without threads."""
        super().__init__(worker, handler)
        self._prepared: deque[Entry[Any]] = deque()
        self._change = threading.Condition()
        self._slots: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False
        # With one slot the turn can wait until all is done; with several, others should not run dry meanwhile.
        self._few = handler.concurrency

    def prepared(self) -> int:
        """What waits for a slot."""
        return len(self._prepared)

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Prepare entries and see that slots come for them."""
        # A slot that took the turn itself goes on with the first entry: no other need wake for that one.
        free = threading.current_thread() in self._slots
        self._held.update((entry.id, entry) for entry in entries)
        with self._change:
            self._prepared.extend(entries)
            wanted = len(self._prepared) - free
            self._change.notify(wanted)
            for _ in range(min(wanted - self._idle, self.handler.concurrency - len(self._slots))):
                slot = threading.Thread(target=self._slot, name=f"penstock-{self.name}", daemon=True)
                self._slots.add(slot)
                slot.start()

    def take_back(self) -> list[Entry[Any]]:
        """What has not started."""
        back = []
        with contextlib.suppress(IndexError):
            while True:
                entry = self._prepared.popleft()
                del self._held[entry.id]
                back.append(entry)
        return back

    def wake(self) -> None:
        """Let idle slots look again."""
        with self._change:
            self._change.notify_all()

    def close(self) -> None:
        """End the slots as they become idle."""
        self._closed = True
        self.wake()

    def _slot(self) -> None:
        try:
            while (entry := self._next()) is not None:
                step, context = self._run_surely(entry)
                self._done(entry, step, context, hurry=False)
                if len(self._prepared) < self._few or self._runs_low():
                    self.worker.offer_turn(self)
        finally:
            with self._change:
                self._slots.discard(threading.current_thread())

    def _runs_low(self) -> bool:
        """Whether slots might run dry while a slow turn is under way."""
        return self.has_better_to_do() and len(self._prepared) <= self._prefetch() // 2

    def has_better_to_do(self) -> bool:
        """Whether slots should not wait for a turn: it takes long, and so do the entries that are prepared."""
        return (self._mean or 0) > BRIEF and self.worker.is_slow() and bool(self._prepared)

    def _next(self) -> Entry[Any] | None:
        try:
            return self._prepared.popleft()
        except IndexError:
            pass
        with self._change:
            while not self._prepared:
                if self._closed:
                    return None
                self._idle += 1
                self._change.wait()
                self._idle -= 1
            return self._prepared.popleft()


class AsyncStation(Station):
    """An async handler in the worker's event loop: many at once in one thread."""

    def __init__(self, worker: Worker, handler: Handler) -> None:
        """Share the worker's loop, so that handlers may share what is bound to one: clients, pools."""
        super().__init__(worker, handler)
        self._waiting: dict[str, Entry[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = asyncio.Semaphore(handler.concurrency)

    def prepared(self) -> int:
        """What waits for a place."""
        return len(self._waiting)

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Hand entries to the loop."""
        self._held.update((entry.id, entry) for entry in entries)
        self._waiting.update((entry.id, entry) for entry in entries)
        self.worker.loop.call_soon(self._spawn, entries)

    def take_back(self) -> list[Entry[Any]]:
        """What has not started."""
        back = list(self._waiting.values())
        self._waiting.clear()
        for entry in back:
            self._held.pop(entry.id, None)
        return back

    def close(self) -> None:
        """Cancel what still runs."""
        if self._tasks:
            self.worker.loop.call_soon(self._cancel)

    def _spawn(self, entries: list[Entry[Any]]) -> None:
        for entry in entries:
            task = asyncio.get_running_loop().create_task(self._run(entry))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _run(self, entry: Entry[Any]) -> None:
        async with self._limit:
            if self._waiting.pop(entry.id, None) is None:
                return
            guard = self.handler.guard
            if guard is None or guard.is_calm:
                context, value, step = self._begin(entry)
            else:
                context, value, step = await asyncio.to_thread(self._begin, entry)
            if step is None:
                begin = time.perf_counter()
                try:
                    result = await self.handler.call(value, context)
                    step = await _beside(context, self._concluded, result)
                except BaseException as error:
                    step = await _beside(context, self._failed, error)
                self._note(time.perf_counter() - begin)
            self._done(entry, step, context, hurry=True)


class ExecutorStation(Station):
    """A sync handler in the user's own executor."""

    def __init__(self, worker: Worker, handler: Handler) -> None:
        """Nothing submitted yet."""
        super().__init__(worker, handler)
        self._futures: dict[str, Future[None]] = {}

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Submit entries; what the executor does not take goes back."""
        self._held.update((entry.id, entry) for entry in entries)
        for entry in entries:
            try:
                if self.handler.executor is not None:
                    self._futures[entry.id] = self.handler.executor.submit(self._run, entry)
            except RuntimeError as error:
                logger.error("the executor of handler %s takes nothing: %s", self.handler.title, error)
                context = Context(self.handler, entry, self.worker.store_now())
                self._done(entry, context.failure(error, self.worker.rng), context, hurry=True)

    def take_back(self) -> list[Entry[Any]]:
        """What the executor has not begun with."""
        back = []
        for id_, future in list(self._futures.items()):
            if future.cancel():
                self._futures.pop(id_, None)
                entry = self._held.pop(id_, None)
                back += [] if entry is None else [entry]
        return back

    def _run(self, entry: Entry[Any]) -> None:
        step, context = self._run_surely(entry)
        self._futures.pop(entry.id, None)
        self._done(entry, step, context, hurry=True)


async def _beside(context: Context, conclude: Callable[[Context, Any], Step | None], outcome: Any) -> Step | None:
    """Conclude an attempt; in a thread if the store has to be asked, so that the loop goes on meanwhile."""
    if context.finished:
        return await asyncio.to_thread(conclude, context, outcome)
    return conclude(context, outcome)


def _said(result: Any) -> str:
    """What a handler returned, as a reason."""
    return error_text(result) if isinstance(result, Outcome) else f"returned {getattr(result, '__name__', result)}"


def _what_next(ending: Ending) -> str:
    if ending.outcome == "dead":
        return "dead letter"
    if ending.due_us is not None:
        return f"again at {from_micros(ending.due_us).isoformat(timespec='seconds')}"
    return f"again in {_span(ending.delay_us)}"


def _span(micros: Micros) -> str:
    seconds = micros / SECOND
    return f"{seconds:.3g}s" if seconds < 120 else str(timedelta(seconds=round(seconds)))
