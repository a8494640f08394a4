"""ExecutorPool: runs a sync handler in the user's own executor."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import Any

from penstock.queue.entry import Entry
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.outcomes import failure
from penstock.queue.worker.pool import HandlerPool, Shared

logger = logging.getLogger("penstock.queue.worker")


class ExecutorPool(HandlerPool):
    """A sync handler in the user's own executor."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Start with nothing submitted."""
        super().__init__(handler, shared)
        self._futures: dict[str, Future[None]] = {}

    def _started(self) -> list[Entry[Any]]:
        return [
            entry
            for id_, entry in list(self._in_hand.items())
            if (future := self._futures.get(id_)) is not None and future.running()
        ]

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Submit entries. An entry that the executor refuses fails its attempt."""
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
