"""Queues, batches, units of work and the bus with ``await``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar, Unpack, cast, overload

import anyio

from penstock import bus as sync_bus
from penstock import opening
from penstock.aio.calling import THREADS, Awaited, awaited, in_thread, joined_options, run
from penstock.clock import Clock, Duration, duration
from penstock.queue import batch as sync_batch
from penstock.queue import queue as sync_queue
from penstock.queue import queues as sync_store
from penstock.queue import results
from penstock.queue import unit as sync_unit
from penstock.queue.entry import Entry
from penstock.queue.handling.handler import DEFAULT_RETRY
from penstock.queue.options import LinkOptions, ManyLinkOptions, ManyOptions, PutOptions, QueueOptions
from penstock.queue.protocol import On, PutResult
from penstock.queue.results import Result
from penstock.signals import Signals

T = TypeVar("T")


async def open_queues(url: str, *, clock: Clock | None = None, node: str | None = None) -> QueueStore:
    """Open the queue store behind a URL; close it with ``await store.close()`` or ``async with``."""
    return QueueStore(await run(opening.open_queues, url, clock=clock, node=node))


class QueueStore(Awaited):
    """What keeps queues; see :class:`penstock.QueueStore`."""

    def __init__(self, sync: sync_store.QueueStore) -> None:
        """Wrap an opened store; both may be used side by side."""
        self.sync = sync
        self.limiter = anyio.CapacityLimiter(THREADS)

    @property
    def signals(self) -> Signals:
        """Everything that happens in this store."""
        return cast(Signals, self.sync.signals)

    @overload
    async def queue(self, name: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    async def queue(self, name: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    async def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A typed handle on one queue; awaited because settings such as ``fifo`` are stored."""
        handle = await in_thread(self.limiter, lambda: self.sync.queue(name, type, **options))
        return Queue(handle, self.limiter)

    @overload
    async def family(self, prefix: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    async def family(self, prefix: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    async def family(self, prefix: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A handle on all queues whose name starts with ``prefix``."""
        handle = await in_thread(self.limiter, lambda: self.sync.family(prefix, type, **options))
        return Queue(handle, self.limiter)

    def batch(
        self,
        then: tuple[Queue[Any], Any],
        *,
        on: On = "done",
        inside: Batch | str | None = None,
        within: Duration = "1h",
        **options: Unpack[PutOptions],
    ) -> Batch:
        """Entries, and one that is held until all of them are done; with ``async with``, else as the twin."""
        outer = inside.sync if isinstance(inside, Batch) else inside
        twin = self.sync.batch(_sync_pair(then), on=on, inside=outer, within=within, **options)
        return Batch(twin, self.limiter)

    async def chain(self, *steps: tuple[Queue[Any], Any], on: On = "done", **options: Unpack[ManyOptions]) -> list[str]:
        """Put entries of which each is held until the one before is done, or has ended. Returns their ids."""
        return await in_thread(self.limiter, lambda: self.sync.chain(*map(_sync_pair, steps), on=on, **options))

    def unit(self, *, lease: Duration = "60s") -> UnitOfWork:
        """Start a unit of work, in an ``async with`` block."""
        return UnitOfWork(self.sync.unit(lease=lease), self.limiter)

    counts = awaited(sync_store.QueueStore.counts)
    locks = awaited(sync_store.QueueStore.locks)
    schedules = awaited(sync_store.QueueStore.schedules)
    remove_schedule = awaited(sync_store.QueueStore.remove_schedule)
    check = awaited(sync_store.QueueStore.check)
    close = awaited(sync_store.QueueStore.close)

    async def __aenter__(self) -> QueueStore:
        """Use the store in an ``async with`` block to have it closed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    def __repr__(self) -> str:
        """The same as the store it wraps."""
        return f"<aio {self.sync!r}>"


def _sync_pair(pair: tuple[Queue[Any], Any]) -> tuple[sync_queue.Queue[Any], Any]:
    """A queue and a value, for the twin; it refuses what is not such a pair."""
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Queue):
        return pair[0].sync, pair[1]
    return cast(Any, pair)


class Queue(Awaited, Generic[T]):
    """One queue or family; see :class:`penstock.Queue`.

    ``handler``, ``add_handler`` and ``remove_handler`` are there too, and called without ``await``.
    """

    def __init__(self, sync: sync_queue.Queue[T], limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_queue.Queue[T] = sync
        self.limiter = limiter
        # Handlers are kept in this process, nothing is stored: nothing to await.
        self.handler = sync.handler
        self.add_handler = sync.add_handler
        self.remove_handler = sync.remove_handler

    @property
    def name(self) -> str:
        """The name, of a family its prefix."""
        return self.sync.name

    async def member(self, name: str) -> Queue[T]:
        """One queue of this family."""
        return Queue(await in_thread(self.limiter, lambda: self.sync.member(name)), self.limiter)

    async def put(self, value: T, *, connection: Any = None, **options: Unpack[LinkOptions]) -> PutResult:
        """Put one entry. When this returns, it is stored."""
        joined = await joined_options({**options, "connection": connection})
        return await in_thread(self.limiter, lambda: self.sync.put(value, **joined))

    async def put_many(
        self,
        values: Iterable[T],
        *,
        chunk: int | None = None,
        connection: Any = None,
        **options: Unpack[ManyLinkOptions],
    ) -> list[PutResult]:
        """Put many entries as one unit: all or none. ``chunk`` splits them into several units."""
        joined = await joined_options({**options, "connection": connection})
        return await in_thread(self.limiter, lambda: self.sync.put_many(values, chunk=chunk, **joined))

    async def result(self, id: str, *, timeout: Duration | None = None) -> Result:
        """What has become of an entry, and what its handler returned; waits in the event loop, not in a thread."""
        seconds = 0.0 if timeout is None else duration(timeout, name="timeout").total_seconds()
        result = await in_thread(self.limiter, lambda: self.sync.result(id))
        for pause in results.pauses(seconds):
            if result.is_final:
                break
            await anyio.sleep(pause)
            result = await in_thread(self.limiter, lambda: self.sync.result(id))
        return result

    get = awaited(sync_queue.Queue[T].get)
    find = awaited(sync_queue.Queue[T].find)
    dead = awaited(sync_queue.Queue[T].dead)
    history = awaited(sync_queue.Queue[T].history)
    counts = awaited(sync_queue.Queue[T].counts)
    update = awaited(sync_queue.Queue[T].update)
    reschedule = awaited(sync_queue.Queue[T].reschedule)
    progress = awaited(sync_queue.Queue[T].progress)
    cancel = awaited(sync_queue.Queue[T].cancel)
    cancel_where = awaited(sync_queue.Queue[T].cancel_where)
    replay = awaited(sync_queue.Queue[T].replay)
    purge_dead = awaited(sync_queue.Queue[T].purge_dead)
    lock = awaited(sync_queue.Queue[T].lock)
    unlock = awaited(sync_queue.Queue[T].unlock)
    locks = awaited(sync_queue.Queue[T].locks)
    schedule = awaited(sync_queue.Queue[T].schedule)

    def __repr__(self) -> str:
        """The same as the queue it wraps."""
        return f"<aio {self.sync!r}>"


class Batch(Awaited):
    """Members and what happens after them; see :class:`penstock.Batch`. Only commit and cancel have to be awaited."""

    def __init__(self, sync: sync_batch.Batch, limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_batch.Batch = sync
        self.limiter = limiter
        self.id = sync.id

    def put(self, queue: Queue[T], value: T, **options: Unpack[LinkOptions]) -> str:
        """Add a member. Returns its id."""
        return self.sync.put(queue.sync, value, **options)

    def put_many(self, queue: Queue[T], values: Iterable[T], **options: Unpack[LinkOptions]) -> list[str]:
        """Add a member for each value. Returns their ids."""
        return self.sync.put_many(queue.sync, values, **options)

    commit = awaited(sync_batch.Batch.commit)
    cancel = awaited(sync_batch.Batch.cancel)

    async def __aenter__(self) -> Batch:
        """Collect members in an ``async with`` block."""
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Put it all, or nothing if the block failed."""
        await in_thread(self.limiter, lambda: self.sync.__exit__(error_type, None, None))


class UnitOfWork(Awaited):
    """Take N entries and put K, committed together or not at all; see :class:`penstock.UnitOfWork`.

    What only collects (``put``, ``publish``, ``reject``, ``retry``, ``release``) is called without ``await``.
    """

    def __init__(self, sync: sync_unit.UnitOfWork, limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_unit.UnitOfWork = sync
        self.limiter = limiter
        self.reject = sync.reject
        self.retry = sync.retry
        self.release = sync.release

    async def take(
        self, queue: Queue[T], limit: int = 1, *, attempts: int | None = DEFAULT_RETRY.attempts
    ) -> list[Entry[T]]:
        """Lease up to ``limit`` due entries of a queue."""
        return await in_thread(self.limiter, lambda: self.sync.take(queue.sync, limit, attempts=attempts))

    def put(self, queue: Queue[T], value: T, **options: Unpack[LinkOptions]) -> str:
        """Put on commit. Returns the id the entry will have."""
        return self.sync.put(queue.sync, value, **options)

    def publish(self, bus: Bus, event: Any, **options: Unpack[PutOptions]) -> str:
        """Publish on commit. Returns the event's id."""
        return self.sync.publish(bus.sync, event, **options)

    commit = awaited(sync_unit.UnitOfWork.commit)
    rollback = awaited(sync_unit.UnitOfWork.rollback)

    async def __aenter__(self) -> UnitOfWork:
        """Begin."""
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Roll back unless committed; a cancelled task waits for that."""
        try:
            if error_type is None:
                self.sync.check_committed(stacklevel=2)
        finally:
            await in_thread(self.limiter, lambda: self.sync.leave(failed=error_type is not None))


class Bus(Awaited):
    """Publish and subscribe; see :class:`penstock.Bus`."""

    def __init__(self, store: QueueStore) -> None:
        """Cheap to make; all state is in the store."""
        self.sync: sync_bus.Bus = sync_bus.Bus(store.sync)
        self.limiter = store.limiter

    async def subscribe(self, name: str, *types: type[T], **options: Unpack[QueueOptions]) -> Queue[T]:
        """Make or change a durable subscription. Returns its queue."""
        return Queue(await in_thread(self.limiter, lambda: self.sync.subscribe(name, *types, **options)), self.limiter)

    unsubscribe = awaited(sync_bus.Bus.unsubscribe)
    subscriptions = awaited(sync_bus.Bus.subscriptions)

    async def publish(self, event: Any, *, connection: Any = None, **options: Unpack[PutOptions]) -> list[PutResult]:
        """Publish. Returns what was put for each subscription."""
        joined = await joined_options({**options, "connection": connection})
        return await in_thread(self.limiter, lambda: self.sync.publish(event, **joined))
