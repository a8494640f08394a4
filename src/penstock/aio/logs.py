"""Logs, appenders, tailers and transactions with ``await``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Unpack

import anyio
import anyio.lowlevel

from penstock import opening
from penstock.aio.calling import THREADS, Awaited, awaited, each, in_thread, run
from penstock.clock import Clock, Duration, duration
from penstock.log import appender as sync_appender
from penstock.log import log as sync_log
from penstock.log import store as sync_logs
from penstock.log import tailer as sync_tailer
from penstock.log import transaction as sync_transaction
from penstock.log.appender import AppendManyOptions, AppendOptions
from penstock.log.record import Appended, Offset, Partition, Record, RecordBatch
from penstock.signals import Signals

PATIENCE = 0.25  # seconds of one wait for records: a cancelled task waits no longer than that


async def open_logs(url: str, *, clock: Clock | None = None) -> LogStore:
    """Open the log store behind a URL; close it with ``await store.close()`` or ``async with``."""
    return LogStore(await run(opening.open_logs, url, clock=clock))


class LogStore(Awaited):
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
        return await in_thread(self.limiter, lambda: self.sync.create(name, partitions, **settings))

    async def log(self, name: str, type: Any = Any, **options: Any) -> Log:
        """A typed handle on one log."""
        return Log(await in_thread(self.limiter, lambda: self.sync.log(name, type, **options)), self.limiter)

    def batches(
        self, partition: Partition, start: int | None = None, stop: int | None = None
    ) -> AsyncIterator[RecordBatch]:
        """The records of a partition as batches, for ``async for``; without a group."""
        return each(self.limiter, lambda: self.sync.batches(partition, start, stop))

    async def appender(self, name: str, type: Any = Any, **options: Any) -> Appender:
        """An appender of one log."""
        return Appender(await in_thread(self.limiter, lambda: self.sync.appender(name, type, **options)), self.limiter)

    async def tailer(self, what: sync_logs.LogOrPartitions, group: str, type: Any = Any, **options: Any) -> Tailer:
        """A tailer of a log or of given partitions."""
        twin = await in_thread(self.limiter, lambda: self.sync.tailer(what, group, type, **options))
        return Tailer(twin)

    async def subscribe(self, logs: str | Sequence[str], group: str, type: Any = Any, **options: Any) -> Tailer:
        """A tailer whose partitions are dealt out among the group's subscribers."""
        twin = await in_thread(self.limiter, lambda: self.sync.subscribe(logs, group, type, **options))
        return Tailer(twin)

    def transaction(self, **options: Any) -> Transaction:
        """Appends and offsets that are committed together, in an ``async with`` block."""
        return Transaction(self.sync.transaction(**options), self.limiter)

    names = awaited(sync_logs.LogStore.names)
    exists = awaited(sync_logs.LogStore.exists)
    delete = awaited(sync_logs.LogStore.delete)
    settings = awaited(sync_logs.LogStore.settings)
    identity = awaited(sync_logs.LogStore.identity)
    partitions = awaited(sync_logs.LogStore.partitions)
    bounds = awaited(sync_logs.LogStore.bounds)
    groups = awaited(sync_logs.LogStore.groups)
    committed = awaited(sync_logs.LogStore.committed)
    lag = awaited(sync_logs.LogStore.lag)
    lags = awaited(sync_logs.LogStore.lags)
    latency = awaited(sync_logs.LogStore.latency)
    reset = awaited(sync_logs.LogStore.reset)
    forget = awaited(sync_logs.LogStore.forget)
    wait_for = awaited(sync_logs.LogStore.wait_for)
    enforce_retention = awaited(sync_logs.LogStore.enforce_retention)
    backup = awaited(sync_logs.LogStore.backup)
    verify = awaited(sync_logs.LogStore.verify)
    repair = awaited(sync_logs.LogStore.repair)
    check = awaited(sync_logs.LogStore.check)
    close = awaited(sync_logs.LogStore.close)

    async def __aenter__(self) -> LogStore:
        """Use the store in an ``async with`` block to have it closed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


class Log(Awaited):
    """A typed handle on one log; see :class:`penstock.Log`."""

    def __init__(self, sync: sync_log.Log[Any], limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_log.Log[Any] = sync
        self.limiter = limiter

    async def append(self, value: Any, **options: Unpack[AppendOptions]) -> Offset:
        """Append one record through an appender that the handle keeps."""
        return await in_thread(self.limiter, lambda: self.sync.append(value, **options))

    async def append_many(self, values: Iterable[Any], **options: Unpack[AppendManyOptions]) -> Appended:
        """Append many records."""
        return await in_thread(self.limiter, lambda: self.sync.append_many(values, **options))

    bounds = awaited(sync_log.Log[Any].bounds)
    lag = awaited(sync_log.Log[Any].lag)
    latency = awaited(sync_log.Log[Any].latency)
    wait_for = awaited(sync_log.Log[Any].wait_for)
    close = awaited(sync_log.Log[Any].close)

    async def appender(self, **options: Any) -> Appender:
        """An appender of its own."""
        return Appender(await in_thread(self.limiter, lambda: self.sync.appender(**options)), self.limiter)

    async def tailer(self, group: str, partitions: Iterable[int] | None = None, **options: Any) -> Tailer:
        """A tailer of all partitions, or of these."""
        return Tailer(await in_thread(self.limiter, lambda: self.sync.tailer(group, partitions, **options)))

    async def subscribe(self, group: str, **options: Any) -> Tailer:
        """A tailer whose partitions are dealt out among the group's subscribers."""
        return Tailer(await in_thread(self.limiter, lambda: self.sync.subscribe(group, **options)))

    def batches(
        self, partition: int | None = None, start: int | None = None, stop: int | None = None
    ) -> AsyncIterator[RecordBatch]:
        """The records of a partition, or of all, as batches, for ``async for``; without a group."""
        return each(self.limiter, lambda: self.sync.batches(partition, start, stop))

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


class Appender(Awaited):
    """The writer of a log; see :class:`penstock.Appender`. ``send`` only buffers and is called without ``await``."""

    def __init__(self, sync: sync_appender.Appender[Any], limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_appender.Appender[Any] = sync
        self.limiter = limiter
        self.send = sync.send

    append = awaited(sync_appender.Appender[Any].append)
    append_many = awaited(sync_appender.Appender[Any].append_many)
    flush = awaited(sync_appender.Appender[Any].flush)
    close = awaited(sync_appender.Appender[Any].close)

    async def __aenter__(self) -> Appender:
        """Use it in an ``async with`` block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Flush and close."""
        await self.close()


class Tailer(Awaited):
    """The reader of a group; see :class:`penstock.Tailer`. One task at a time.

    ``assignment`` and ``position`` are called without ``await``.
    """

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
                await in_thread(self.limiter, lambda part=part: records.extend(self.sync.read(limit, part)))  # type: ignore[misc]
            except BaseException:
                for record in reversed(records):
                    self.sync.seek(record)
                raise
            if records or left <= PATIENCE:
                return records
            await anyio.lowlevel.checkpoint()

    commit = awaited(sync_tailer.Tailer[Any].commit)
    committed = awaited(sync_tailer.Tailer[Any].committed)
    seek = awaited(sync_tailer.Tailer[Any].seek)
    to_start = awaited(sync_tailer.Tailer[Any].to_start)
    to_end = awaited(sync_tailer.Tailer[Any].to_end)
    to_committed = awaited(sync_tailer.Tailer[Any].to_committed)
    to_time = awaited(sync_tailer.Tailer[Any].to_time)
    lag = awaited(sync_tailer.Tailer[Any].lag)
    close = awaited(sync_tailer.Tailer[Any].close)

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


class Transaction(Awaited):
    """Appends and offsets, visible together or not at all; see :class:`penstock.Transaction`."""

    def __init__(self, sync: sync_transaction.Transaction, limiter: anyio.CapacityLimiter) -> None:
        """Made by a store."""
        self.sync: sync_transaction.Transaction = sync
        self.limiter = limiter

    append = awaited(sync_transaction.Transaction.append)
    append_many = awaited(sync_transaction.Transaction.append_many)
    commit = awaited(sync_transaction.Transaction.commit)
    rollback = awaited(sync_transaction.Transaction.rollback)

    async def commit_offsets(self, tailer: Tailer, offsets: dict[Partition, int] | None = None) -> None:
        """Add what a tailer has read to the commit."""
        await in_thread(self.limiter, lambda: self.sync.commit_offsets(tailer.sync, offsets))

    async def __aenter__(self) -> Transaction:
        """Begin."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Roll back unless committed."""
        if not self.sync.closed:
            await self.rollback()
