"""Worker: handles the queues of a store: start, stop, run, drain."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from penstock.clock import Duration, duration
from penstock.errors import BadInput, Conflict
from penstock.ids import new_nonce
from penstock.queue.entry import Entry, check_lease
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.middleware import Middleware, check_middleware
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.worker.counting import AttemptCounter
from penstock.queue.worker.event_loop import HandlerLoop
from penstock.queue.worker.loop import Loop
from penstock.queue.worker.maintenance import Reaper
from penstock.queue.worker.presence import Presence, Serving
from penstock.queue.worker.pump import Pulse
from penstock.queue.worker.registry import Key
from penstock.queue.worker.shutdown import between_handlers, until_asked

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("penstock.queue.worker")

MOST_PER_CLAIM = 100
LAST_ROUND_TRIP_SECONDS = 5.0


@runtime_checkable
class Opened(Protocol):
    """What has a store once it is open: :class:`penstock.Queues`."""

    handlers: dict[Key, Handler]

    @property
    def store(self) -> QueueStore:
        """The store; raises ``NotOpen`` before."""


class Worker:
    """Handles the queues of a store: all that have a handler, or those given.

    Handlers may be added and removed while it runs. ``run`` blocks until SIGTERM or SIGINT; ``start`` and
    ``stop`` are for programs of their own; ``drain`` handles what is due now in the calling thread, for tests
    and scripts.

    Args:
        store: an open store, or declared queues that are open
        queues: serve these only; by default all with a handler
        lease: how long an entry is held without a heartbeat
        grace: what running handlers get when it stops
        poll: how long it waits at most if the store cannot wake it
        batch: how many entries it claims at once
        reaper: takes back lost leases and prunes the history; by default ``Reaper(store)``
        rng: randomness of retries, for tests
        loop: the event loop of async handlers; by default its own
        middleware: functions ``(ctx, call_next)`` around every handler
    """

    def __init__(
        self,
        store: QueueStore | Opened,
        queues: Iterable[Queue[Any]] | None = None,
        *,
        lease: Duration = "60s",
        grace: Duration = "15s",
        poll: Duration = "1s",
        batch: int = MOST_PER_CLAIM,
        reaper: Reaper | None = None,
        rng: random.Random | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        """``batch`` bounds a claim, ``grace`` is what running handlers get on shutdown, ``poll`` the fallback wait.

        Async handlers share one event loop: the running ``loop`` given, or one in a thread of the worker's own.
        ``middleware`` stands around every handler, outside that of the store and of the handler.
        """
        if not isinstance(store, QueueStore) and isinstance(store, Opened):
            store = store.store
        if not isinstance(store, QueueStore):
            raise BadInput(f"Worker({store!r}) names no store.", hint='Open it first: penstock.open_queues("...").')
        if not isinstance(batch, int) or not 1 <= batch <= MOST_PER_CLAIM:
            raise BadInput(f"Worker(batch={batch!r}) is out of range.", hint=f"Use 1 to {MOST_PER_CLAIM}.")
        self.store = store
        self.owner = f"{store.node}/{os.getpid()}-{new_nonce()}"
        self._grace = duration(grace, name="grace").total_seconds()
        self._reaper = reaper or Reaper(store)
        self._presence = Presence(store, self.owner, self.serving)
        self._loop = Loop(
            store,
            None if queues is None else _keys(queues),
            owner=self.owner,
            lease_us=check_lease(lease),
            batch=batch,
            poll=duration(poll, name="poll").total_seconds(),
            rng=rng,
            handler_loop=HandlerLoop(loop),
            figures=self._presence.figures,
            middleware=(*check_middleware(middleware, "the worker"), *check_middleware(store.middleware, repr(store))),
        )
        self._pools = self._loop.pools

    # --- in the background -------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to work in the background; returns the worker itself."""
        if self._loop.pump.is_started:
            raise Conflict("this worker is already running.", hint="Stop it first, or make another one.")
        if not self.store.handlers:
            logger.warning(
                "%s has no handlers yet: this worker only reaps and fires schedules. Decorate a function with "
                "@queue.handler in a module that is imported here",
                self.store.name,
            )
        self._reaper.start()
        self._loop.start()
        self._presence.start()
        return self

    def stop(self, grace: Duration | None = None) -> bool:
        """Stop claiming, give running handlers time to end, release the rest.

        Args:
            grace: how long; by default the worker's own

        Returns:
            whether all ended
        """
        if not self._loop.pump.is_started:
            return True
        deadline = time.monotonic() + (self._grace if grace is None else duration(grace).total_seconds())
        # 1. Claim no more, and wake all who sleep.
        self._loop.stop_claiming()
        self._presence.stopping()
        self.store.driver.wake()
        for pool in self._pools.all():
            pool.wake()
        # 2. Give back what has not started. Wait for running handlers, and for the round trips under way.
        self._release_prepared()
        while (self._loop.under_way or self._pools.in_hand()) and time.monotonic() < deadline:
            self._wait_for_change(0.05)
            self._release_prepared()  # a claim that was under way may have brought more
            self._loop.round_trip()
        # 3. Give back what still runs; its outcome does not count any more.
        still_running = self._give_up()
        self._loop.round_trip()
        # 4. A slot may be at its last round trip: what it settles, and what it was given, belongs to this stop.
        while self._loop.under_way and time.monotonic() < deadline + LAST_ROUND_TRIP_SECONDS:
            self._wait_for_change(0.01)
        self._release_prepared()
        still_running += self._give_up()
        self._loop.round_trip()
        # 5. Let go of threads.
        self._loop.pump.join()
        self._reaper.stop()
        self._presence.stop()
        self._loop.close()
        if still_running:
            logger.warning(
                "stopped while %d handlers were still running; their entries were released", len(still_running)
            )
        return not still_running

    def run(self) -> bool:
        """Work until SIGTERM or SIGINT, then stop in order. Returns whether all handlers ended by themselves."""
        with until_asked(self._grace) as ended:
            self.start()
            # Waiting in short steps lets the interpreter deliver signals to the main thread.
            while not ended.wait(0.5) and not self._loop.stopping.is_set():
                continue
            return self.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._loop.stopping.is_set()

    def add_counter(self, counter: AttemptCounter) -> None:
        """Tell somebody who counts or logs of every ended attempt, from now on."""
        self._loop.counters.append(counter)

    def write_figures(self) -> None:
        """Bring what a :meth:`drain` did into the charts; a worker in the background does so by itself."""
        self._presence.write_figures()

    def pulse(self) -> Pulse:
        """When its loop last went round, and when the store last answered it."""
        return self._loop.pulse()

    def longest_running(self) -> dict[Key, float]:
        """For how long the handler of each queue or family that started first has been running, in seconds."""
        return {
            (pool.name, pool.handler.queue.is_family): pool.longest_running(self._loop.now)
            for pool in self._pools.serving()
        }

    def serving(self) -> tuple[Serving, ...]:
        """Its handlers, how many entries each runs and how many it may."""
        return tuple(
            Serving(pool.name, pool.handler.queue.is_family, pool.busy(), pool.handler.concurrency)
            for pool in self._pools.serving()
        )

    def _release_prepared(self) -> None:
        for pool in self._pools.all():
            self._loop.give_back(pool.take_back())

    def _give_up(self) -> list[Entry[Any]]:
        running = [entry for pool in self._pools.all() for entry in pool.abandon()]
        self._loop.give_back(running)
        return running

    def _wait_for_change(self, seconds: float) -> None:
        self._loop.changed.clear()
        self._loop.changed.wait(seconds)

    # --- in the calling thread ---------------------------------------------------------------------

    def drain(self, *, limit: int | None = None) -> int:
        """Handle all that is due, one after the other in this thread, until nothing is.

        Limits hold: what a rate does not allow now is left. In the main thread a first SIGINT or SIGTERM lets the
        running handler end, gives back the rest unspent and raises ``KeyboardInterrupt`` or ``SystemExit``; a second
        ends the process at once.

        Args:
            limit: end after so many runs

        Returns:
            how many handlers ran
        """
        try:
            with between_handlers() as asked:
                return self._drain(limit, asked)
        finally:
            if not self._loop.pump.is_started:
                self._loop.close()

    def _drain(self, limit: int | None, asked: threading.Event) -> int:
        self._loop.settle_only()  # what an earlier drain could not
        runs = 0
        while (limit is None or runs < limit) and not asked.is_set():
            self._reaper.once()
            entries = self._claim_to_drain()
            if not entries:
                break
            runs += self._run_here(entries, None if limit is None else limit - runs, asked)
        return runs

    def _claim_to_drain(self) -> list[Entry[Any]]:
        self._pools.sync()
        pools = self._pools.serving()
        # What may be tried once only must not wait behind an entry that may kill this process.
        most = 1 if any(pool.handler.retry.attempts == 1 for pool in pools) else self._loop.batch
        sources = tuple(pool.source(most) for pool in pools)
        return self._loop.claim_only(self._loop.claim_request(sources, most, alone=True)) if sources else []

    def _run_here(self, entries: list[Entry[Any]], most: int | None, asked: threading.Event) -> int:
        """Handle entries one after the other, up to ``most``; what is left goes back unspent. How many were run."""
        self._loop.hold(entries)
        waiting, runs = deque(entries), 0
        try:
            self._loop.set_time(self.store.now())
            while waiting and runs != most and not asked.is_set():
                entry = waiting.popleft()
                pool = self._pools.of_queue(entry.queue)
                if pool is None:  # its handler was removed a moment ago
                    self._loop.give_back([entry])
                    continue
                pool.run_here(entry)
                runs += 1
                self._loop.settle_only()
            self._loop.give_back(list(waiting))
            waiting.clear()
            self._loop.settle_only()
        except BaseException:
            # The next drain settles and gives back; if there is none, the leases run out.
            self._loop.give_back(list(waiting))
            self.store.driver.heartbeat.drop([entry.lease for entry in entries if entry.lease is not None])
            raise
        return runs


def _keys(queues: Iterable[Queue[Any]]) -> set[Key]:
    chosen = set()
    if not isinstance(queues, Iterable):
        raise BadInput(f"Worker(queues={queues!r}) is not a list.", hint="Pass queues: [store.queue(name)].")
    for queue in queues:
        if not isinstance(queue, Queue):
            raise BadInput(
                f"Worker(queues=...) got {queue!r}, which is not a queue.", hint="Pass queues: [store.queue(name)]."
            )
        chosen.add((queue.name, queue.is_family))
    return chosen
