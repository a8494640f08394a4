"""LoopPool: runs an async handler in the event loop of the worker."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from penstock.queue.entry import Entry, Lease
from penstock.queue.handling.attempt import Attempt
from penstock.queue.handling.handler import Handler
from penstock.queue.worker.pool import HandlerPool, Shared

if TYPE_CHECKING:
    # Imported when there is an async handler: other workers start without it.
    import asyncio


class LoopPool(HandlerPool):
    """An async handler in the worker's event loop: many at once in one thread."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Share the worker's loop, so that handlers may share what is bound to one: clients, pools."""
        import asyncio

        super().__init__(handler, shared)
        self._loop = shared.loop
        self._waiting: dict[str, Entry[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempts: dict[tuple[str, str], Attempt] = {}  # that run, by entry and token
        self._limit = asyncio.Semaphore(handler.concurrency)
        self._last_start = time.perf_counter()

    def prepared(self) -> int:
        """What waits for a place."""
        return len(self._waiting)

    def _seconds_since_start(self) -> float:
        return time.perf_counter() - self._last_start

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

    def lease_lost(self, lease: Lease) -> None:
        """Cancel the handler that runs under this lease: its outcome will not count."""
        attempt = self._attempts.get((lease.entry, lease.token))
        if attempt is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon(attempt.cancel)

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
            self._last_start = time.perf_counter()
            attempt = self._attempt(entry)
            lease = attempt.context.lease
            self._attempts[lease.entry, lease.token] = attempt
            try:
                await attempt.run_in_loop()
            finally:
                del self._attempts[lease.entry, lease.token]
            self._measure(attempt)
            self._ended(entry, attempt, hurry=True)
