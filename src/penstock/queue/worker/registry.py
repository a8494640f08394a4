"""PoolRegistry: which handler of a worker runs in which pool, as handlers come and go."""

from __future__ import annotations

from typing import Any

from penstock.queue.entry import Entry, Lease
from penstock.queue.handling.handler import Handler
from penstock.queue.protocol import Source
from penstock.queue.queues import QueueStore
from penstock.queue.worker.pool import HandlerPool, Shared
from penstock.queue.worker.pools.event_loop import LoopPool
from penstock.queue.worker.pools.executor import ExecutorPool
from penstock.queue.worker.pools.processes import ProcessPool
from penstock.queue.worker.pools.threads import ThreadPool
from penstock.queue.worker.verdicts import Verdicts

Key = tuple[str, bool]  # the name of a queue, or of a family


class PoolRegistry:
    """The pools of one worker: one for every handler of the store, or of the chosen queues."""

    def __init__(self, store: QueueStore, chosen: set[Key] | None, *, shared: Shared, verdicts: Verdicts) -> None:
        """Start without pools; :meth:`sync` makes them."""
        self._store = store
        self._chosen = chosen
        self._shared = shared
        self._verdicts = verdicts
        self._pools: dict[Key, HandlerPool] = {}
        self._retired: list[HandlerPool] = []  # their handlers were removed, their work continues
        self.in_background = False

    def sync(self) -> None:
        """Follow the handlers: a new one gets a pool, a removed one loses it once its work is done."""
        handlers = self._store.handlers
        if (
            not self._retired
            and len(handlers) == len(self._pools)
            and all(key in handlers and pool.handler is handlers[key] for key, pool in self._pools.items())
        ):
            return
        for key, handler in list(handlers.items()):
            if self._chosen is not None and key not in self._chosen:
                continue
            pool = self._pools.get(key)
            if pool is None or pool.handler is not handler:
                if pool is not None:
                    self._retired.append(pool)
                self._pools[key] = self._pool_for(handler)
        self._retired += [self._pools.pop(key) for key in list(self._pools) if key not in handlers]
        for pool in [pool for pool in self._retired if not pool.in_hand() and not pool.reserved]:
            self._retired.remove(pool)
            pool.close()

    def _pool_for(self, handler: Handler) -> HandlerPool:
        pool = _kind_for(handler)(handler, self._shared)
        self._verdicts.follow(pool.layers, begin=self.in_background)
        return pool

    def close(self) -> None:
        """End all pools."""
        for pool in self.all():
            pool.close()
        self._pools.clear()
        self._retired.clear()

    def lease_lost(self, lease: Lease) -> None:
        """A heartbeat has found that somebody else ended an entry, or has it: what still runs here may stop."""
        for pool in self.all():
            pool.lease_lost(lease)

    # --- asking ------------------------------------------------------------------------------------

    def serving(self) -> list[HandlerPool]:
        """The pools of handlers that are there."""
        return list(self._pools.values())

    def all(self) -> list[HandlerPool]:
        """Also those whose handlers were removed and whose work continues."""
        return [*self._pools.values(), *self._retired]

    def of_source(self, source: Source) -> HandlerPool | None:
        """The pool whose entries come from this source, or None if its handler was removed since."""
        return self._pools.get((source.name, source.family))

    def of_queue(self, queue: str) -> HandlerPool | None:
        """Where an entry of this queue runs, or None if its handler was removed or replaced during the claim."""
        key = (queue, False)
        if key not in self._pools:
            families = [known for known in list(self._pools) if known[1] and queue.startswith(known[0])]
            key = max(families, key=lambda known: len(known[0]), default=key)
        pool = self._pools.get(key)
        return pool if pool is not None and self._store.handlers.get(key) is pool.handler else None

    def by_pool(self, entries: list[Entry[Any]]) -> tuple[list[tuple[HandlerPool, list[Entry[Any]]]], list[Entry[Any]]]:
        """Entries by the pool they run in, and those whose handler was removed a moment ago."""
        by_pool: dict[int, tuple[HandlerPool, list[Entry[Any]]]] = {}
        unhandled = []
        for entry in entries:
            pool = self.of_queue(entry.queue)
            if pool is None:
                unhandled.append(entry)
            else:
                by_pool.setdefault(id(pool), (pool, []))[1].append(entry)
        return list(by_pool.values()), unhandled

    def take_held_up(self, seconds: float) -> list[Entry[Any]]:
        """What waits in pools in which nothing was started for so long."""
        return [entry for pool in self.all() for entry in pool.take_held_up(seconds)]

    def in_hand(self) -> int:
        """Entries claimed and not yet ended."""
        return sum(pool.in_hand() for pool in self.all())

    def has_room(self) -> bool:
        """Whether a pool has room, or there are no pools."""
        return not self._pools or any(pool.room() > 0 for pool in self.serving())

    def sources(self, most: int) -> tuple[tuple[Source, ...], int]:
        """What may be claimed for each pool, up to ``most``, and how much in all."""
        rooms = [(pool, max(0, min(pool.room(), most))) for pool in self.serving()]
        total = min(most, sum(room for _, room in rooms))
        # Beside a family also those without room are named: their queues must not come through the family.
        families = any(pool.handler.queue.is_family for pool, _ in rooms)
        sources = tuple(pool.source(room) for pool, room in rooms if room > 0 or families)
        if families and self._chosen is not None:
            # Nor may those come through it that have a handler of their own which is not this worker's.
            others = [handler for key, handler in list(self._store.handlers.items()) if key not in self._pools]
            sources += tuple(handler.queue.source(0, handler.retry.attempts) for handler in others)
        return sources, total


def _kind_for(handler: Handler) -> type[HandlerPool]:
    if handler.executor is not None:
        return ExecutorPool
    if handler.in_processes:
        return ProcessPool
    return LoopPool if handler.is_async else ThreadPool
