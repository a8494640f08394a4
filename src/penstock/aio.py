"""The same API with ``await``: queues, units of work, bus and workers for programs on an event loop.

    store = await aio.open_queues("sqlite:///shop.db")
    mails = await store.queue("mails", Mail)
    await mails.put(Mail(to="ann@example.org"), delay="45m")

Every call is the synchronous one, run in a thread. A call that was begun is never abandoned: when its task is
cancelled, the cancellation waits for the answer, so a put that was sent is not left between yes and no, and a unit of
work is committed or rolled back whatever happens around it. The objects wrap their synchronous twins, ``.sync``.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import anyio
import anyio.to_thread

from penstock import bus as sync_bus
from penstock import opening
from penstock.clock import Clock, Duration
from penstock.queue import queue as sync_queue
from penstock.queue import store as sync_store
from penstock.queue import unit as sync_unit
from penstock.queue import worker as sync_worker
from penstock.queue.entry import Entry
from penstock.signals import Signals

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

__all__ = ["Bus", "Queue", "QueueStore", "UnitOfWork", "Worker", "open_queues", "run"]

THREADS = 64  # calls of one store that are under way at once


async def run(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a synchronous call, such as ``ctx.extend`` in a handler, in a thread; to its end, also when cancelled."""
    return await _run(None, functools.partial(function, *args, **kwargs))


async def _run(limiter: anyio.CapacityLimiter | None, call: Callable[[], R]) -> R:
    inside = anyio.to_thread.run_sync(call, limiter=limiter)
    with anyio.CancelScope(shield=True):
        result = await (inside if _loop() is None else _to_the_end(inside))
    return result


def _loop() -> asyncio.AbstractEventLoop | None:
    """The running event loop of asyncio; None under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _to_the_end(inside: Coroutine[Any, Any, R]) -> R:
    """asyncio's own ``task.cancel()`` knows no shields: remember it until the thread has answered."""
    task = asyncio.ensure_future(inside)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at, so that asyncio does not complain
        raise cancelled
    return task.result()


class _Awaited:
    """An object whose synchronous twin does the work."""

    sync: Any
    limiter: anyio.CapacityLimiter


def _awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method of the twin as one to await, with the same arguments and result."""

    @functools.wraps(method)
    async def call(self: _Awaited, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await _run(self.limiter, functools.partial(method, self.sync, *args, **kwargs))

    return call


async def open_queues(url: str, *, clock: Clock | None = None, node: str | None = None) -> QueueStore:
    """Open the queue store behind a URL; close it with ``await store.close()`` or ``async with``."""
    return QueueStore(await run(opening.open_queues, url, clock=clock, node=node))


class QueueStore(_Awaited):
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
    async def queue(self, name: str, type: type[T], **options: Any) -> Queue[T]: ...

    @overload
    async def queue(self, name: str, type: Any = ..., **options: Any) -> Queue[Any]: ...

    async def queue(self, name: str, type: Any = Any, **options: Any) -> Queue[Any]:
        """A typed handle on one queue; awaited because settings such as ``fifo`` are stored."""
        made = await _run(self.limiter, lambda: self.sync.queue(name, type, **options))
        return Queue(made, self.limiter)

    @overload
    async def family(self, prefix: str, type: type[T], **options: Any) -> Queue[T]: ...

    @overload
    async def family(self, prefix: str, type: Any = ..., **options: Any) -> Queue[Any]: ...

    async def family(self, prefix: str, type: Any = Any, **options: Any) -> Queue[Any]:
        """A handle on all queues whose name starts with ``prefix``."""
        made = await _run(self.limiter, lambda: self.sync.family(prefix, type, **options))
        return Queue(made, self.limiter)

    def unit(self, **options: Any) -> UnitOfWork:
        """Start a unit of work, in an ``async with`` block."""
        return UnitOfWork(self.sync.unit(**options), self.limiter)

    counts = _awaited(sync_store.QueueStore.counts)
    locks = _awaited(sync_store.QueueStore.locks)
    schedules = _awaited(sync_store.QueueStore.schedules)
    remove_schedule = _awaited(sync_store.QueueStore.remove_schedule)
    check = _awaited(sync_store.QueueStore.check)
    close = _awaited(sync_store.QueueStore.close)

    async def __aenter__(self) -> QueueStore:
        """Use the store in an ``async with`` block to have it closed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    def __repr__(self) -> str:
        """The same as the store it wraps."""
        return f"<aio {self.sync!r}>"


class Queue(_Awaited, Generic[T]):
    """One queue or family; see :class:`penstock.Queue`."""

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
        return Queue(await _run(self.limiter, lambda: self.sync.member(name)), self.limiter)

    async def put_many(
        self, values: Iterable[T], *, chunk: int | None = None, connection: Any = None, **options: Any
    ) -> list[sync_store.PutResult]:
        """Put many entries as one unit: all or none; ``chunk`` splits it openly."""
        return await _run(
            self.limiter, lambda: self.sync.put_many(values, chunk=chunk, connection=connection, **options)
        )

    put = _awaited(sync_queue.Queue[T].put)
    get = _awaited(sync_queue.Queue[T].get)
    find = _awaited(sync_queue.Queue[T].find)
    dead = _awaited(sync_queue.Queue[T].dead)
    history = _awaited(sync_queue.Queue[T].history)
    counts = _awaited(sync_queue.Queue[T].counts)
    update = _awaited(sync_queue.Queue[T].update)
    reschedule = _awaited(sync_queue.Queue[T].reschedule)
    cancel = _awaited(sync_queue.Queue[T].cancel)
    cancel_where = _awaited(sync_queue.Queue[T].cancel_where)
    replay = _awaited(sync_queue.Queue[T].replay)
    purge_dead = _awaited(sync_queue.Queue[T].purge_dead)
    lock = _awaited(sync_queue.Queue[T].lock)
    unlock = _awaited(sync_queue.Queue[T].unlock)
    locks = _awaited(sync_queue.Queue[T].locks)
    schedule = _awaited(sync_queue.Queue[T].schedule)

    def __repr__(self) -> str:
        """The same as the queue it wraps."""
        return f"<aio {self.sync!r}>"


class UnitOfWork(_Awaited):
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

    async def take(self, queue: Queue[T], limit: int = 1, **options: Any) -> list[Entry[T]]:
        """Lease up to ``limit`` due entries of a queue."""
        return await _run(self.limiter, lambda: self.sync.take(queue.sync, limit, **options))

    def put(self, queue: Queue[T], value: T, **options: Any) -> str:
        """Put on commit; the id the entry will have."""
        return self.sync.put(queue.sync, value, **options)

    def publish(self, bus: Bus, event: Any, **options: Any) -> str:
        """Publish on commit; the event's id."""
        return self.sync.publish(bus.sync, event, **options)

    commit = _awaited(sync_unit.UnitOfWork.commit)
    rollback = _awaited(sync_unit.UnitOfWork.rollback)

    async def __aenter__(self) -> UnitOfWork:
        """Begin."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Roll back unless committed; a cancelled task waits for that."""
        await self.rollback()


class Bus(_Awaited):
    """Publish and subscribe; see :class:`penstock.Bus`."""

    def __init__(self, store: QueueStore) -> None:
        """Cheap to make; all state is in the store."""
        self.sync: sync_bus.Bus = sync_bus.Bus(store.sync)
        self.limiter = store.limiter

    async def subscribe(self, name: str, *types: type[T], **options: Any) -> Queue[T]:
        """Make or change a durable subscription; its queue."""
        return Queue(await _run(self.limiter, lambda: self.sync.subscribe(name, *types, **options)), self.limiter)

    unsubscribe = _awaited(sync_bus.Bus.unsubscribe)
    subscriptions = _awaited(sync_bus.Bus.subscriptions)

    async def publish(self, event: Any, *, connection: Any = None, **options: Any) -> list[sync_store.PutResult]:
        """Publish; the entries its subscriptions got."""
        return await _run(self.limiter, lambda: self.sync.publish(event, connection=connection, **options))


class Worker:
    """A worker whose async handlers run in the caller's own event loop, beside everything else that runs there.

        async with aio.Worker(store):
            ...                                # works until the block ends
        await aio.Worker(store).run()          # works until SIGTERM, SIGINT or cancellation

    Sync handlers run in threads, as with :class:`penstock.Worker`, whose options it takes. Under trio, async handlers
    run in an asyncio loop of their own.
    """

    def __init__(self, store: QueueStore, queues: list[Queue[Any]] | None = None, **options: Any) -> None:
        """Inside a running event loop."""
        chosen = None if queues is None else [queue.sync for queue in queues]
        self.sync = sync_worker.Worker(store.sync, chosen, loop=_loop(), **options)

    async def start(self) -> None:
        """Begin to work."""
        await run(self.sync.start)

    async def stop(self, grace: Duration | None = None) -> bool:
        """Stop in order; whether all handlers ended by themselves."""
        return await run(self.sync.stop, grace)

    async def drain(self, *, limit: int | None = None) -> int:
        """Handle all that is due, one after the other; how many handler runs."""
        return await run(self.sync.drain, limit=limit)

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or cancellation, then stop in order."""
        async with self:
            if threading.current_thread() is not threading.main_thread():
                await anyio.sleep_forever()
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    return

    async def __aenter__(self) -> Worker:
        """Begin to work."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop in order."""
        await self.stop()
