"""Pools: where the entries of one handler wait and run: in threads, in an event loop, or in the user's executor.

A pool knows nothing of the store. It takes claimed entries, runs them, and reports each that has ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.clock import SECOND, Micros
from penstock.queue.entry import Entry
from penstock.queue.handling.attempt import Attempt, Surroundings
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.middleware import Layer, Middleware, layers_of
from penstock.queue.handling.outcomes import failure
from penstock.queue.protocol import Source
from penstock.queue.worker.event_loop import HandlerLoop

if TYPE_CHECKING:
    # Imported by the pools that need them: a worker whose handlers are all sync, in threads, starts without them.
    import asyncio

    from penstock.queue.worker.processes import HandlerProcess

logger = logging.getLogger("penstock.queue.worker")

PREFETCH_SECONDS = 0.05
MOST_PREFETCHED = 200  # a full claim to work on, and one that comes meanwhile
BRIEF = 0.001  # seconds; a handler that takes less is done with what is prepared before a round trip is
# Seconds after which a slot counts as held up although its handler is brief by experience. Less would take a thread
# that waits for a core, or for the reply to its round trip, for one whose handler hangs.
PATIENCE = 0.01
MOST_TIMES = 8  # as the mean: as much as one attempt may count for


class Reports(Protocol):
    """To whom pools report: the worker's loop."""

    def attempt_ended(self, attempt: Attempt, *, hurry: bool) -> None:
        """An attempt has ended; ``hurry`` when no slot comes to make the round trip that settles it."""

    def slot_runs_low(self, pool: ThreadPool) -> None:
        """A slot has little left to do, and time for a round trip."""

    def half_is_done(self) -> None:
        """A slot is half through what was prepared: time to fetch more, if others than the slots have time for it."""

    def late_one_returned(self) -> None:
        """A handler whose attempt had failed at its time limit has returned, and its slot is free."""

    def slots_are_held_up(self) -> None:
        """The slots at work have no time for a round trip: what has ended must not wait for them."""


class Shared(NamedTuple):
    """What the pools of one worker share."""

    around: Surroundings
    reports: Reports
    loop: HandlerLoop
    middleware: tuple[Middleware, ...]  # around every handler


class HandlerPool(ABC):
    """One handler in one worker."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Start with nothing in hand."""
        self.handler = handler
        self.name = handler.queue.name
        self.reserved = 0  # room that claims under way may fill
        self.mean_seconds: float | None = None  # that the handler takes, smoothed
        self._around = shared.around
        self._reports = shared.reports
        self._layers = layers_of(shared.middleware, handler.middleware)
        self._in_hand: dict[str, Entry[Any]] = {}  # accepted and not yet ended: prepared or running
        self._abandoned: set[str] = set()
        self._late: set[Attempt] = set()  # failed at their time limit, but their threads go on and keep their slots
        # An entry that may be tried once only must not wait in a worker that may die. A FIFO queue has one in flight
        # anyway; the queues of a FIFO family each have one.
        self._may_prefetch = handler.retry.attempts != 1 and (
            handler.queue.is_family or not handler.queue.definition.fifo
        )

    # --- for the loop ------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The middleware around the handler."""
        return self._layers

    def source(self, limit: int) -> Source:
        """Where the entries of this pool come from."""
        return self.handler.queue.source(limit, self.handler.retry.attempts)

    def room(self) -> int:
        """How many more entries may be claimed for it, or none while enough are prepared or on their way.

        So claims stay large: what a claim under way leaves is not fetched one by one, as slots become free, by others.
        """
        prefetch = self.prefetch()
        if self.prepared() + (self.reserved if prefetch else 0) > prefetch // 2:
            return 0
        return self.handler.concurrency + prefetch - len(self._in_hand) - len(self._late) - self.reserved

    def prefetch(self) -> int:
        """How many entries may wait here beyond those that run."""
        if not self._may_prefetch:
            return 0
        if self.handler.prefetch is not None:
            return self.handler.prefetch
        if self.mean_seconds is None:
            return 0
        return min(MOST_PREFETCHED, int(PREFETCH_SECONDS / max(self.mean_seconds, 1e-6) * self.handler.concurrency))

    def in_hand(self) -> int:
        """Entries claimed and not yet ended."""
        return len(self._in_hand)

    def prepared(self) -> int:
        """Those of them that have not started."""
        return 0

    def busy(self) -> int:
        """How many slots are taken: by entries that run, and by threads that go on after their time."""
        return max(0, len(self._in_hand) - self.prepared()) + len(self._late)

    def longest_running(self, now: Callable[[], Micros]) -> float:
        """For how long the entry that started first has been running, in seconds; ``now`` is the store's time.

        Told by when it was claimed: what waits here for a slot waits briefly.
        """
        claimed = [entry.lease.claimed_us for entry in self._started() if entry.lease is not None]
        return max(0.0, (now() - min(claimed)) / SECOND) if claimed else 0.0

    def _started(self) -> list[Entry[Any]]:
        """The entries in hand that run."""
        return list(self._in_hand.values())

    @abstractmethod
    def accept(self, entries: list[Entry[Any]]) -> None:
        """Take claimed entries to run."""

    def take_back(self) -> list[Entry[Any]]:
        """Entries that have not started, no longer to be started."""
        return []

    def abandon(self) -> list[Entry[Any]]:
        """Entries whose handlers are still running and whose outcome will not count any more."""
        running = list(self._in_hand.values())
        self._abandoned.update(self._in_hand)
        self._in_hand.clear()
        return running

    def wake(self) -> None:  # noqa: B027 - only slots sleep
        """Let idle slots notice that the worker is stopping."""

    def close(self) -> None:  # noqa: B027 - an executor is its owner's to close
        """Let go of threads and loops."""

    def run_here(self, entry: Entry[Any]) -> None:
        """Run one entry in the calling thread, also if its handler is async, and report it."""
        attempt = self._attempt(entry)
        attempt.run()
        self._conclude(entry, attempt, hurry=False)

    # --- for the kinds of pools --------------------------------------------------------------------

    def _hold(self, entries: list[Entry[Any]]) -> None:
        self._in_hand.update((entry.id, entry) for entry in entries)

    def _attempt(self, entry: Entry[Any]) -> Attempt:
        attempt = Attempt(self.handler, entry, self._around, self._layers)
        if self.handler.timeout is not None and not self.handler.is_async:
            attempt.late = self._late
            attempt.on_late = partial(self._ended, entry, hurry=True)
        return attempt

    def _conclude(self, entry: Entry[Any], attempt: Attempt, *, hurry: bool) -> None:
        self._measure(attempt)
        if attempt.is_late:
            self._late.discard(attempt)
            self._reports.late_one_returned()
        else:
            self._ended(entry, attempt, hurry=hurry)

    def _measure(self, attempt: Attempt) -> None:
        seconds, mean = attempt.seconds, self.mean_seconds
        if seconds is None:
            return
        # An attempt that took very long may have waited for a core. If the handler has become slow, the next ones say
        # so too.
        self.mean_seconds = seconds if mean is None else 0.8 * mean + 0.2 * min(seconds, MOST_TIMES * mean)

    def _ended(self, entry: Entry[Any], attempt: Attempt, *, hurry: bool) -> None:
        if entry.id in self._abandoned:
            self._abandoned.discard(entry.id)
            attempt.forget()
            return
        # First the outcome, then the room: nobody may think that all is ended while an outcome is on its way.
        self._reports.attempt_ended(attempt, hurry=hurry)
        # An entry that was taken away and claimed again is in hand again; then this is not the one in hand.
        if self._in_hand.get(entry.id) is entry:
            del self._in_hand[entry.id]


class ThreadPool(HandlerPool):
    """A sync handler in threads of its own (slots), up to its concurrency.

    While the handler is brief, one slot does all the work: waking others would cost more than they could do. One of the
    idle slots is the *lookout*: it looks every few milliseconds whether the work goes on, and helps if it does not.
    A handler that takes longer has as many slots as there are entries.
    """

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Start without threads."""
        super().__init__(handler, shared)
        self._prepared: deque[Entry[Any]] = deque()
        self._change = threading.Condition()
        self._slots: set[threading.Thread] = set()
        self._idle = 0
        self._begun: dict[threading.Thread, float] = {}  # when each busy slot last began something
        self._has_lookout = False
        self._first_takes_long = False  # the first attempt has not ended yet, and is not brief
        self._closed = False
        # What is limited is not claimed before there is a slot for it: others may have one.
        self._may_fetch_ahead = self._may_prefetch and not handler.queue.definition.is_limited

    def prepared(self) -> int:
        """What waits for a slot."""
        return len(self._prepared)

    def longest_running(self, now: Callable[[], Micros]) -> float:
        """By when each slot began what it is at."""
        begun = list(self._begun.values())
        return max(0.0, time.perf_counter() - min(begun)) if begun else 0.0

    def is_brief(self) -> bool:
        """Whether the handler takes so little time that one slot does best, as far as is known."""
        return not self._first_takes_long if self.mean_seconds is None else self.mean_seconds <= BRIEF

    def runs_low(self) -> bool:
        """Whether it is time for a round trip; several slots must not run dry while it is under way."""
        return len(self._prepared) < (1 if self.is_brief() else self.handler.concurrency)

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Prepare entries and see that slots come for them."""
        self._hold(entries)
        this = threading.current_thread()
        with self._change:
            self._prepared.extend(entries)
            # A slot that made the round trip itself goes on with the first entry: no other need wake for that one.
            here = this in self._slots
            if here:
                self._begun[this] = time.perf_counter()
            wanted = len(self._prepared) - here
            if self.is_brief():
                first = 0 if here or self._is_brisk() else 1
                lookout = wanted > first and not self._has_lookout
                wanted = first + lookout
            self._call(wanted)

    def take_back(self) -> list[Entry[Any]]:
        """What has not started."""
        back = []
        with contextlib.suppress(IndexError):
            while True:
                entry = self._prepared.popleft()
                if self._in_hand.get(entry.id) is entry:
                    del self._in_hand[entry.id]
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

    # --- in the slots ------------------------------------------------------------------------------

    def _slot(self) -> None:
        this = threading.current_thread()
        try:
            while (entry := self._next(this)) is not None:
                self._begun[this] = time.perf_counter()  # never a new key: others may be reading
                if self._in_hand.get(entry.id) is not entry:
                    continue  # it was taken away while it waited here, and claimed again or given up
                attempt = self._attempt(entry)
                attempt.run_surely()
                self._conclude(entry, attempt, hurry=False)
                self._go_on(this)
        finally:
            with self._change:
                self._slots.discard(this)
                self._begun.pop(this, None)

    def _go_on(self, this: threading.Thread) -> None:
        """After an attempt: see to it that the slots do not run dry."""
        prepared = len(self._prepared)
        if self.is_brief():
            if not prepared:
                self._begun[this] = time.perf_counter()
                self._reports.slot_runs_low(self)
            elif self._may_fetch_ahead and prepared <= self.prefetch() // 2:
                self._reports.half_is_done()
            return
        if self._idle and prepared:
            with self._change:
                self._call(prepared)  # those who slept while the handler seemed brief
        if self.runs_low() or prepared <= self.prefetch() // 2:
            self._reports.slot_runs_low(self)

    def _next(self, this: threading.Thread) -> Entry[Any] | None:
        """The next entry for this slot, or None when there will be none."""
        if len(self._slots) - self._idle <= 1 or not self.is_brief():
            try:
                return self._prepared.popleft()
            except IndexError:
                pass
        with self._change:
            self._begun.pop(this, None)
            while (entry := self._take()) is None:
                if self._closed and not self._prepared:
                    return None
                self._idle += 1
                if self._prepared and not self._has_lookout:
                    self._look_out()
                else:
                    self._change.wait()
                self._idle -= 1
            self._begun[this] = time.perf_counter()
            if self._prepared and not self._has_lookout:
                self._call(1)  # one who looks out from now on
            return entry

    def _take(self) -> Entry[Any] | None:
        """What is prepared, unless a slot at work comes to it in a moment.

        Such a slot takes without the lock, so it may also be quicker between the look and the pop.
        """
        if not (self._prepared and self.is_brief() and self._is_brisk()):
            with contextlib.suppress(IndexError):
                return self._prepared.popleft()
        return None

    def _look_out(self) -> None:
        """Sleep until the work does not go on by itself: nothing that a slot is at is brief. Needs the lock."""
        self._has_lookout = True
        while not self._change.wait(self._patience()) and self._is_brisk():
            pass
        self._has_lookout = False
        if not self._begun or self._is_brisk():
            return
        self._reports.slots_are_held_up()
        if self._prepared and self.mean_seconds is None:
            self._first_takes_long = True
            self._call(len(self._prepared))

    def _is_brisk(self) -> bool:
        """Whether a slot is at work and began what it is at a moment ago. Needs the lock."""
        recently = time.perf_counter() - self._patience()
        return any(begun > recently for begun in self._begun.values())

    def _patience(self) -> float:
        """How long a slot may be at one thing before another one helps."""
        return BRIEF if self.mean_seconds is None else PATIENCE

    def _call(self, wanted: int) -> None:
        """Wake as many idle slots, or start them. Needs the lock."""
        if wanted < 1:
            return
        self._change.notify(wanted)
        for _ in range(min(wanted - self._idle, self.handler.concurrency - len(self._slots))):
            slot = threading.Thread(target=self._slot, name=f"penstock-{self.name}", daemon=True)
            self._slots.add(slot)
            self._begun[slot] = time.perf_counter()
            slot.start()


class ProcessPool(ThreadPool):
    """A sync handler in processes, one for each slot: what is late is killed, what dies is replaced."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Start without processes."""
        super().__init__(handler, shared)
        self._processes: dict[int, HandlerProcess] = {}  # by thread

    def abandon(self) -> list[Entry[Any]]:
        """Kill what still runs: its entries go to others now."""
        running = super().abandon()
        if running:
            for process in list(self._processes.values()):
                process.kill()
        return running

    def close(self) -> None:
        """End the slots and their processes."""
        super().close()
        process = self._processes.pop(threading.get_ident(), None)  # of a drain
        if process is not None:
            process.close()

    def _attempt(self, entry: Entry[Any]) -> Attempt:
        attempt = Attempt(self.handler, entry, self._around, self._layers)
        attempt.call = self._call_in_process
        return attempt

    def _call_in_process(self, value: Any, _: Any) -> Any:
        thread = threading.get_ident()
        process = self._processes.get(thread)
        if process is None:
            from penstock.queue.worker.processes import HandlerProcess

            process = self._processes[thread] = HandlerProcess(self.handler.function, self.handler.title)
        return process.call(value, self.handler.timeout)

    def _slot(self) -> None:
        try:
            super()._slot()
        finally:
            process = self._processes.pop(threading.get_ident(), None)
            if process is not None:
                process.close()


class LoopPool(HandlerPool):
    """An async handler in the worker's event loop: many at once in one thread."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Share the worker's loop, so that handlers may share what is bound to one: clients, pools."""
        import asyncio

        super().__init__(handler, shared)
        self._loop = shared.loop
        self._waiting: dict[str, Entry[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = asyncio.Semaphore(handler.concurrency)

    def prepared(self) -> int:
        """What waits for a place."""
        return len(self._waiting)

    def _started(self) -> list[Entry[Any]]:
        waiting = set(self._waiting)
        return [entry for id_, entry in list(self._in_hand.items()) if id_ not in waiting]

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Hand entries to the loop."""
        self._hold(entries)
        self._waiting.update((entry.id, entry) for entry in entries)
        self._loop.call_soon(self._spawn, entries)

    def take_back(self) -> list[Entry[Any]]:
        """What has not started."""
        back = []
        with contextlib.suppress(KeyError):
            while True:
                id_, entry = self._waiting.popitem()  # one by one: the loop takes from them too
                self._in_hand.pop(id_, None)
                back.append(entry)
        return back

    def close(self) -> None:
        """Cancel what still runs."""
        if self._tasks:
            self._loop.call_soon(self._cancel)

    def _spawn(self, entries: list[Entry[Any]]) -> None:
        import asyncio

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
            attempt = self._attempt(entry)
            await attempt.run_in_loop()
            self._measure(attempt)
            self._ended(entry, attempt, hurry=True)


class ExecutorPool(HandlerPool):
    """A sync handler in the user's own executor."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Nothing is submitted yet."""
        super().__init__(handler, shared)
        self._futures: dict[str, Future[None]] = {}

    def _started(self) -> list[Entry[Any]]:
        return [
            entry
            for id_, entry in list(self._in_hand.items())
            if (future := self._futures.get(id_)) is not None and future.running()
        ]

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Submit entries; what the executor does not take goes back."""
        self._hold(entries)
        for entry in entries:
            try:
                if self.handler.executor is not None:
                    future = self._futures[entry.id] = self.handler.executor.submit(self._run, entry)
                    future.add_done_callback(partial(self._forget, entry.id))  # at once, if it is done already
            except RuntimeError as error:
                logger.error("the executor of handler %s takes nothing: %s", self.handler.title, error)
                attempt = self._attempt(entry)
                attempt.step = failure(attempt.context, error, self._around.rng)
                self._ended(entry, attempt, hurry=True)

    def take_back(self) -> list[Entry[Any]]:
        """What the executor has not begun with."""
        back = []
        for id_, future in list(self._futures.items()):
            if future.cancel():
                self._futures.pop(id_, None)
                entry = self._in_hand.pop(id_, None)
                back += [] if entry is None else [entry]
        return back

    def _forget(self, id_: str, future: Future[None]) -> None:
        if self._futures.get(id_) is future:
            del self._futures[id_]

    def _run(self, entry: Entry[Any]) -> None:
        attempt = self._attempt(entry)
        attempt.run_surely()
        self._conclude(entry, attempt, hurry=True)
