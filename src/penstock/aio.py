"""The same API with ``await``: queues, units of work, bus, workers and logs for programs on an event loop.

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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast, overload

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from penstock import bus as sync_bus
from penstock import opening
from penstock.clock import Clock, Duration, duration
from penstock.errors import BadInput
from penstock.log import appender as sync_appender
from penstock.log import log as sync_log
from penstock.log import store as sync_logs
from penstock.log import tailer as sync_tailer
from penstock.log import transaction as sync_transaction
from penstock.log.record import Appended, Offset, Partition, Record, RecordBatch
from penstock.queue import batch as sync_batch
from penstock.queue import queue as sync_queue
from penstock.queue import queues as sync_store
from penstock.queue import results
from penstock.queue import unit as sync_unit
from penstock.queue import worker as sync_worker
from penstock.queue.drivers.sql.callers import with_wait
from penstock.queue.entry import Entry
from penstock.queue.handling.handler import DEFAULT_RETRY
from penstock.queue.options import LinkOptions, ManyLinkOptions, PutOptions, QueueOptions
from penstock.queue.protocol import On, PutResult
from penstock.queue.results import Result
from penstock.signals import Signals

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

__all__ = [
    "Appender",
    "Batch",
    "Bus",
    "LogStore",
    "Queue",
    "QueueStore",
    "Tailer",
    "Transaction",
    "UnitOfWork",
    "Worker",
    "open_logs",
    "open_queues",
    "run",
]

THREADS = 64  # calls of one store that are under way at once
PATIENCE = 0.25  # seconds of one wait for records: a cancelled task waits no longer than that


async def run(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a synchronous call, such as ``ctx.extend`` in a handler, in a thread; to its end, also when cancelled."""
    return await _run(None, functools.partial(function, *args, **await _joined(kwargs)))


async def _joined(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a call whose ``connection`` may be of an async driver: the call's thread asks this loop to use it."""
    if options.get("connection") is None:
        return options
    return {**options, "connection": await with_wait(options["connection"], anyio.from_thread.run)}


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

    name = method.__name__

    @functools.wraps(method)
    async def call(self: _Awaited, /, *args: P.args, **kwargs: P.kwargs) -> R:
        # By name: the twin is of a class that may have a method of its own.
        options = await _joined(kwargs)
        return cast(R, await _run(self.limiter, functools.partial(getattr(self.sync, name), *args, **options)))

    return call


async def _each(limiter: anyio.CapacityLimiter, make: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
    """What an iterator gives, each step in a thread; batches, so that a step is worth one."""
    source = await _run(limiter, make)
    while (item := await _run(limiter, lambda: next(source, None))) is not None:
        yield item


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
    async def queue(self, name: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    async def queue(self, name: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    async def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A typed handle on one queue; awaited because settings such as ``fifo`` are stored."""
        handle = await _run(self.limiter, lambda: self.sync.queue(name, type, **options))
        return Queue(handle, self.limiter)

    @overload
    async def family(self, prefix: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    async def family(self, prefix: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    async def family(self, prefix: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A handle on all queues whose name starts with ``prefix``."""
        handle = await _run(self.limiter, lambda: self.sync.family(prefix, type, **options))
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
        """Entries, and one that is held until all of them have ended; with ``async with``, else as the twin."""
        outer = inside.sync if isinstance(inside, Batch) else inside
        twin = self.sync.batch(_sync_pair(then), on=on, inside=outer, within=within, **options)
        return Batch(twin, self.limiter)

    async def chain(self, *steps: tuple[Queue[Any], Any], **options: Unpack[PutOptions]) -> list[str]:
        """Put entries of which each is held until the one before is done; their ids."""
        return await _run(self.limiter, lambda: self.sync.chain(*map(_sync_pair, steps), **options))

    def unit(self, *, lease: Duration = "60s") -> UnitOfWork:
        """Start a unit of work, in an ``async with`` block."""
        return UnitOfWork(self.sync.unit(lease=lease), self.limiter)

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


def _sync_pair(pair: tuple[Queue[Any], Any]) -> tuple[sync_queue.Queue[Any], Any]:
    """A queue and a value, for the twin; it refuses what is not such a pair."""
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Queue):
        return pair[0].sync, pair[1]
    return cast(Any, pair)


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

    async def put(self, value: T, *, connection: Any = None, **options: Unpack[LinkOptions]) -> PutResult:
        """Put one entry; when this returns it is stored."""
        joined = await _joined({**options, "connection": connection})
        return await _run(self.limiter, lambda: self.sync.put(value, **joined))

    async def put_many(
        self,
        values: Iterable[T],
        *,
        chunk: int | None = None,
        connection: Any = None,
        **options: Unpack[ManyLinkOptions],
    ) -> list[PutResult]:
        """Put many entries as one unit: all or none; ``chunk`` splits it openly."""
        joined = await _joined({**options, "connection": connection})
        return await _run(self.limiter, lambda: self.sync.put_many(values, chunk=chunk, **joined))

    async def result(self, id: str, *, timeout: Duration | None = None) -> Result:
        """What has become of an entry, and what its handler returned; waits in the event loop, not in a thread."""
        seconds = 0.0 if timeout is None else duration(timeout, name="timeout").total_seconds()
        result = await _run(self.limiter, lambda: self.sync.result(id))
        for pause in results.pauses(seconds):
            if result.is_final:
                break
            await anyio.sleep(pause)
            result = await _run(self.limiter, lambda: self.sync.result(id))
        return result

    get = _awaited(sync_queue.Queue[T].get)
    find = _awaited(sync_queue.Queue[T].find)
    dead = _awaited(sync_queue.Queue[T].dead)
    history = _awaited(sync_queue.Queue[T].history)
    counts = _awaited(sync_queue.Queue[T].counts)
    update = _awaited(sync_queue.Queue[T].update)
    reschedule = _awaited(sync_queue.Queue[T].reschedule)
    progress = _awaited(sync_queue.Queue[T].progress)
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


class Batch(_Awaited):
    """Members and what happens after them; see :class:`penstock.Batch`. Only commit and cancel have to be awaited."""

    def __init__(self, sync: sync_batch.Batch, limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_batch.Batch = sync
        self.limiter = limiter
        self.id = sync.id

    def put(self, queue: Queue[T], value: T, **options: Unpack[LinkOptions]) -> str:
        """Add a member; its id."""
        return self.sync.put(queue.sync, value, **options)

    def put_many(self, queue: Queue[T], values: Iterable[T], **options: Unpack[LinkOptions]) -> list[str]:
        """Add a member for each value; their ids."""
        return self.sync.put_many(queue.sync, values, **options)

    commit = _awaited(sync_batch.Batch.commit)
    cancel = _awaited(sync_batch.Batch.cancel)

    async def __aenter__(self) -> Batch:
        """Collect members in an ``async with`` block."""
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Put it all, or nothing if the block failed."""
        await _run(self.limiter, lambda: self.sync.__exit__(error_type, None, None))


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

    async def take(
        self, queue: Queue[T], limit: int = 1, *, attempts: int | None = DEFAULT_RETRY.attempts
    ) -> list[Entry[T]]:
        """Lease up to ``limit`` due entries of a queue."""
        return await _run(self.limiter, lambda: self.sync.take(queue.sync, limit, attempts=attempts))

    def put(self, queue: Queue[T], value: T, **options: Unpack[LinkOptions]) -> str:
        """Put on commit; the id the entry will have."""
        return self.sync.put(queue.sync, value, **options)

    def publish(self, bus: Bus, event: Any, **options: Unpack[PutOptions]) -> str:
        """Publish on commit; the event's id."""
        return self.sync.publish(bus.sync, event, **options)

    commit = _awaited(sync_unit.UnitOfWork.commit)
    rollback = _awaited(sync_unit.UnitOfWork.rollback)

    async def __aenter__(self) -> UnitOfWork:
        """Begin."""
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Roll back unless committed; a cancelled task waits for that."""
        try:
            if error_type is None:
                self.sync.check_committed(stacklevel=2)
        finally:
            await _run(self.limiter, lambda: self.sync.leave(failed=error_type is not None))


class Bus(_Awaited):
    """Publish and subscribe; see :class:`penstock.Bus`."""

    def __init__(self, store: QueueStore) -> None:
        """Cheap to make; all state is in the store."""
        self.sync: sync_bus.Bus = sync_bus.Bus(store.sync)
        self.limiter = store.limiter

    async def subscribe(self, name: str, *types: type[T], **options: Unpack[QueueOptions]) -> Queue[T]:
        """Make or change a durable subscription; its queue."""
        return Queue(await _run(self.limiter, lambda: self.sync.subscribe(name, *types, **options)), self.limiter)

    unsubscribe = _awaited(sync_bus.Bus.unsubscribe)
    subscriptions = _awaited(sync_bus.Bus.subscriptions)

    async def publish(self, event: Any, *, connection: Any = None, **options: Unpack[PutOptions]) -> list[PutResult]:
        """Publish; the entries its subscriptions got."""
        joined = await _joined({**options, "connection": connection})
        return await _run(self.limiter, lambda: self.sync.publish(event, **joined))


# --- logs ------------------------------------------------------------------------------------------------


async def open_logs(url: str, *, clock: Clock | None = None) -> LogStore:
    """Open the log store behind a URL; close it with ``await store.close()`` or ``async with``."""
    return LogStore(await run(opening.open_logs, url, clock=clock))


class LogStore(_Awaited):
    """What keeps logs; see :class:`penstock.LogStore`."""

    def __init__(self, sync: sync_logs.LogStore) -> None:
        """Wrap an opened store; both may be used side by side."""
        self.sync: sync_logs.LogStore = sync
        self.limiter = anyio.CapacityLimiter(THREADS)

    @property
    def signals(self) -> Signals:
        """Everything that happens in this store."""
        return self.sync.signals

    async def create(self, name: str, partitions: int = 1, **settings: Any) -> bool:
        """Create a log; False, and nothing changed, if it exists."""
        return await _run(self.limiter, lambda: self.sync.create(name, partitions, **settings))

    async def log(self, name: str, type: Any = Any, **options: Any) -> Log:
        """A typed handle on one log."""
        return Log(await _run(self.limiter, lambda: self.sync.log(name, type, **options)), self.limiter)

    def batches(
        self, partition: Partition, start: int | None = None, stop: int | None = None
    ) -> AsyncIterator[RecordBatch]:
        """The records of a partition as batches, for ``async for``; without a group."""
        return _each(self.limiter, lambda: self.sync.batches(partition, start, stop))

    async def appender(self, name: str, type: Any = Any, **options: Any) -> Appender:
        """An appender of one log."""
        return Appender(await _run(self.limiter, lambda: self.sync.appender(name, type, **options)), self.limiter)

    async def tailer(self, what: sync_logs.LogOrPartitions, group: str, type: Any = Any, **options: Any) -> Tailer:
        """A tailer of a log or of given partitions."""
        twin = await _run(self.limiter, lambda: self.sync.tailer(what, group, type, **options))
        return Tailer(twin)

    async def subscribe(self, logs: str | Sequence[str], group: str, type: Any = Any, **options: Any) -> Tailer:
        """A tailer whose partitions are dealt out among the group's subscribers."""
        twin = await _run(self.limiter, lambda: self.sync.subscribe(logs, group, type, **options))
        return Tailer(twin)

    def transaction(self, **options: Any) -> Transaction:
        """Appends and offsets that are committed together, in an ``async with`` block."""
        return Transaction(self.sync.transaction(**options), self.limiter)

    names = _awaited(sync_logs.LogStore.names)
    exists = _awaited(sync_logs.LogStore.exists)
    delete = _awaited(sync_logs.LogStore.delete)
    settings = _awaited(sync_logs.LogStore.settings)
    identity = _awaited(sync_logs.LogStore.identity)
    partitions = _awaited(sync_logs.LogStore.partitions)
    bounds = _awaited(sync_logs.LogStore.bounds)
    groups = _awaited(sync_logs.LogStore.groups)
    committed = _awaited(sync_logs.LogStore.committed)
    lag = _awaited(sync_logs.LogStore.lag)
    lags = _awaited(sync_logs.LogStore.lags)
    latency = _awaited(sync_logs.LogStore.latency)
    reset = _awaited(sync_logs.LogStore.reset)
    forget = _awaited(sync_logs.LogStore.forget)
    wait_for = _awaited(sync_logs.LogStore.wait_for)
    enforce_retention = _awaited(sync_logs.LogStore.enforce_retention)
    backup = _awaited(sync_logs.LogStore.backup)
    verify = _awaited(sync_logs.LogStore.verify)
    repair = _awaited(sync_logs.LogStore.repair)
    check = _awaited(sync_logs.LogStore.check)
    close = _awaited(sync_logs.LogStore.close)

    async def __aenter__(self) -> LogStore:
        """Use the store in an ``async with`` block to have it closed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


class Log(_Awaited):
    """A typed handle on one log; see :class:`penstock.Log`."""

    def __init__(self, sync: sync_log.Log[Any], limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_log.Log[Any] = sync
        self.limiter = limiter

    async def append(self, value: Any, **options: Any) -> Offset:
        """Append one record through an appender that the handle keeps."""
        return await _run(self.limiter, lambda: self.sync.append(value, **options))

    async def append_many(self, values: Iterable[Any], **options: Any) -> Appended:
        """Append many records."""
        return await _run(self.limiter, lambda: self.sync.append_many(values, **options))

    bounds = _awaited(sync_log.Log[Any].bounds)
    lag = _awaited(sync_log.Log[Any].lag)
    latency = _awaited(sync_log.Log[Any].latency)
    wait_for = _awaited(sync_log.Log[Any].wait_for)
    close = _awaited(sync_log.Log[Any].close)

    async def appender(self, **options: Any) -> Appender:
        """An appender of its own."""
        return Appender(await _run(self.limiter, lambda: self.sync.appender(**options)), self.limiter)

    async def tailer(self, group: str, partitions: Iterable[int] | None = None, **options: Any) -> Tailer:
        """A tailer of all partitions, or of these."""
        return Tailer(await _run(self.limiter, lambda: self.sync.tailer(group, partitions, **options)))

    async def subscribe(self, group: str, **options: Any) -> Tailer:
        """A tailer whose partitions are dealt out among the group's subscribers."""
        return Tailer(await _run(self.limiter, lambda: self.sync.subscribe(group, **options)))

    def batches(
        self, partition: int | None = None, start: int | None = None, stop: int | None = None
    ) -> AsyncIterator[RecordBatch]:
        """The records of a partition, or of all, as batches, for ``async for``; without a group."""
        return _each(self.limiter, lambda: self.sync.batches(partition, start, stop))

    async def records(
        self, partition: int | None = None, start: int | None = None, stop: int | None = None
    ) -> AsyncIterator[Record[Any]]:
        """The records of a partition, or of all, one by one, for ``async for``; without a group."""
        async for batch in self.batches(partition, start, stop):
            for record in batch.records():
                yield record

    async def __aenter__(self) -> Log:
        """Use it in an ``async with`` block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the appender that it keeps."""
        await self.close()


class Appender(_Awaited):
    """The writer of a log; see :class:`penstock.Appender`. ``send`` only buffers and is called without ``await``."""

    def __init__(self, sync: sync_appender.Appender[Any], limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_appender.Appender[Any] = sync
        self.limiter = limiter
        self.send = sync.send

    append = _awaited(sync_appender.Appender[Any].append)
    append_many = _awaited(sync_appender.Appender[Any].append_many)
    flush = _awaited(sync_appender.Appender[Any].flush)
    close = _awaited(sync_appender.Appender[Any].close)

    async def __aenter__(self) -> Appender:
        """Use it in an ``async with`` block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Flush and close."""
        await self.close()


class Tailer(_Awaited):
    """The reader of a group; see :class:`penstock.Tailer`. One task at a time."""

    def __init__(self, sync: sync_tailer.Tailer[Any]) -> None:
        """Made by a store; it has a thread of its own, so that reads that wait hold up nobody."""
        self.sync: sync_tailer.Tailer[Any] = sync
        self.limiter = anyio.CapacityLimiter(1)
        self.assignment = sync.assignment
        self.position = sync.position

    async def read(self, limit: int = sync_tailer.READ, timeout: Duration = "0s") -> list[Record[Any]]:
        """The next records; a wait ends soon when the task is cancelled, and what was read then comes again."""
        deadline = anyio.current_time() + duration(timeout, name="timeout").total_seconds()
        records: list[Record[Any]] = []
        while True:
            left = deadline - anyio.current_time()
            part = timedelta(seconds=max(0.0, min(left, PATIENCE)))
            try:
                await _run(self.limiter, lambda part=part: records.extend(self.sync.read(limit, part)))  # type: ignore[misc]
            except BaseException:
                for record in reversed(records):
                    self.sync.seek(record)
                raise
            if records or left <= PATIENCE:
                return records
            await anyio.lowlevel.checkpoint()

    commit = _awaited(sync_tailer.Tailer[Any].commit)
    committed = _awaited(sync_tailer.Tailer[Any].committed)
    seek = _awaited(sync_tailer.Tailer[Any].seek)
    to_start = _awaited(sync_tailer.Tailer[Any].to_start)
    to_end = _awaited(sync_tailer.Tailer[Any].to_end)
    to_committed = _awaited(sync_tailer.Tailer[Any].to_committed)
    to_time = _awaited(sync_tailer.Tailer[Any].to_time)
    lag = _awaited(sync_tailer.Tailer[Any].lag)
    close = _awaited(sync_tailer.Tailer[Any].close)

    async def __aiter__(self) -> AsyncIterator[Record[Any]]:
        """All records, waiting for more, until the task is cancelled."""
        while True:
            for record in await self.read(timeout="1h"):
                yield record

    async def __aenter__(self) -> Tailer:
        """Use it in an ``async with`` block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the partitions back."""
        await self.close()


class Transaction(_Awaited):
    """Appends and offsets, visible together or not at all; see :class:`penstock.Transaction`."""

    def __init__(self, sync: sync_transaction.Transaction, limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_transaction.Transaction = sync
        self.limiter = limiter

    append = _awaited(sync_transaction.Transaction.append)
    append_many = _awaited(sync_transaction.Transaction.append_many)
    commit = _awaited(sync_transaction.Transaction.commit)
    rollback = _awaited(sync_transaction.Transaction.rollback)

    async def commit_offsets(self, tailer: Tailer, offsets: dict[Partition, int] | None = None) -> None:
        """Add what a tailer has read to the commit."""
        await _run(self.limiter, lambda: self.sync.commit_offsets(tailer.sync, offsets))

    async def __aenter__(self) -> Transaction:
        """Begin."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Roll back unless committed."""
        if not self.sync.closed:
            await self.rollback()


# --- workers ---------------------------------------------------------------------------------------------


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
        if not isinstance(store, QueueStore):
            raise BadInput(
                f"aio.Worker was given a {type(store).__name__}, which has no calls to await.",
                hint="Open it with aio.open_queues(url), or wrap it: aio.QueueStore(store).",
            )
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
        """Work until SIGTERM, SIGINT, :meth:`stop` or cancellation, then stop in order."""
        async with self, anyio.create_task_group() as tasks:

            async def until_stopped() -> None:
                while not self.sync.is_stopping:
                    await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_stopped)
            if threading.current_thread() is not threading.main_thread():
                await anyio.sleep_forever()
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()
                    return

    async def __aenter__(self) -> Worker:
        """Begin to work."""
        try:
            await self.start()
        except BaseException:
            # Cancelled meanwhile: it has started all the same, and nobody else will stop it.
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop in order."""
        await self.stop()
