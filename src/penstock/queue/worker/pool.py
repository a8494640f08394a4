"""HandlerPool: where the entries of one handler wait and run; the kinds of pools are in ``pools/``.

A pool knows nothing of the store. It takes claimed entries, runs them, and reports each that has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.clock import SECOND, Micros
from penstock.queue.entry import Entry, Lease
from penstock.queue.handling.attempt import Attempt, Surroundings
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.middleware import Layer, Middleware, layers_of
from penstock.queue.protocol import Source
from penstock.queue.worker.event_loop import HandlerLoop

if TYPE_CHECKING:
    from penstock.queue.worker.pools.threads import ThreadPool

PREFETCH_SECONDS = 0.05
MOST_PREFETCHED = 200  # a full claim to work on, and one that comes meanwhile
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
        self._is_held_up = False  # what was prepared was given back, and no attempt has ended since
        self._late: set[Attempt] = set()  # failed at their time limit, but their threads continue and keep their slots
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
        if self.mean_seconds is None or self._is_held_up:
            return 0
        return min(MOST_PREFETCHED, int(PREFETCH_SECONDS / max(self.mean_seconds, 1e-6) * self.handler.concurrency))

    def in_hand(self) -> int:
        """Entries claimed and not yet ended."""
        return len(self._in_hand)

    def prepared(self) -> int:
        """Those of them that have not started."""
        return 0

    def busy(self) -> int:
        """How many slots are taken: by entries that run, and by threads that outlived their time limit."""
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

    def take_held_up(self, seconds: float) -> list[Entry[Any]]:
        """Entries that have not started, if no slot has begun anything for so long; until one does, none are prepared.

        They were claimed because the handler is quick by experience. Other workers may do them, and if this process
        dies of what it is at, they are not under suspicion. A handler with a prefetch of its own keeps them.
        """
        if self.handler.prefetch is not None or not self.prepared() or self._seconds_since_start() < seconds:
            return []
        self._is_held_up = True
        return self.take_back()

    def _seconds_since_start(self) -> float:
        """How long ago the last attempt that still runs was started."""
        return 0.0

    def abandon(self) -> list[Entry[Any]]:
        """Entries whose handlers are still running and whose outcome will not count any more."""
        running = list(self._in_hand.values())
        self._abandoned.update(self._in_hand)
        self._in_hand.clear()
        return running

    def wake(self) -> None:  # noqa: B027 - only slots sleep
        """Let idle slots notice that the worker is stopping."""

    def lease_lost(self, lease: Lease) -> None:  # noqa: B027 - a thread cannot be cancelled
        """Cancel the handler that runs under this lease: its outcome will not count."""

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
        self._is_held_up = False
        if entry.id in self._abandoned:
            self._abandoned.discard(entry.id)
            attempt.forget()
            return
        # First the outcome, then the room: nobody may think that all is ended while an outcome is on its way.
        self._reports.attempt_ended(attempt, hurry=hurry)
        # An entry that was taken away and claimed again is in hand again; then this is not the one in hand.
        if self._in_hand.get(entry.id) is entry:
            del self._in_hand[entry.id]
