"""LogStore: what :func:`penstock.open_logs` returns; the user's calls, over a :class:`LogDriver`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from penstock.clock import Clock, Duration, Micros, duration, to_micros
from penstock.errors import BadInput, Closed, OffsetOutOfRange, Unsupported
from penstock.log.driver import LogDriver
from penstock.log.limits import check_records
from penstock.log.partitioner import DEFAULT
from penstock.log.protocol import Commit, Committed, Finding, LogCapabilities, Removed, Stage, Staged
from penstock.log.record import Bounds, Lag, Latency, NewRecords, Offset, Partition, RecordBatch
from penstock.log.settings import LogSettings, Retention, checked_settings
from penstock.names import check_name
from penstock.process import this_process
from penstock.signals import Signals
from penstock.tracing import Tracing

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.log.appender import Appender
    from penstock.log.log import Log
    from penstock.log.tailer import Tailer
    from penstock.log.transaction import Transaction

T = TypeVar("T")

LogOrPartitions = str | Partition | Sequence["str | Partition"]


class LogStore:
    """The logs at one URL, and everything that reads or writes them.

    Throughout:
        name: of the log
        group: whose offsets count
        partition: one partition
        type: of the values: a ``msgspec.Struct``, dataclass, pydantic model, JSON type or ``bytes``
        codec: how values become bytes; by default by type
        dry_run: only say what would be done
        timeout: how long to wait
        limit: at most so many
        start, stop: offsets: from the first, up to but not including the second; by default all there is
        moment: an aware ``datetime``
        offset: of a record
        value: of the log's type
        values: of the log's type
        key: decides the partition: text, bytes or a JSON scalar
        keys: one for each value
        timestamp: the event time; now by default
        timestamps: one for each value
        headers: text or bytes by name
    """

    def __init__(self, driver: LogDriver, url: str = "") -> None:
        """Wrap a driver. ``url`` is what another process opens the store with, credentials included."""
        self.driver = driver
        self.url = url or driver.name
        self.name: str = driver.name
        self.clock: Clock = driver.clock
        self.signals: Signals = driver.signals
        self.capabilities: LogCapabilities = driver.capabilities
        self.tracing: Tracing | None = None
        self._open: set[Any] = set()  # appenders and tailers, closed with the store
        self._open_lock = threading.Lock()
        self._is_closing = False
        self._process = this_process()

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self.driver.closed

    @property
    def record_limit(self) -> int:
        """The largest record in bytes: its value, key and headers."""
        return self.driver.record_limit

    @property
    def transaction_bytes(self) -> int:
        """The most bytes of values that one transaction may append."""
        return self.driver.transaction_bytes

    # --- logs ------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        partitioner: str = DEFAULT,
        retention: Retention | None = None,
        **settings: Any,
    ) -> bool:
        """Create a log.

        Args:
            partitions: how many; fixed from then on
            partitioner: how a key finds its partition: ``"crc32"``, ``"java"`` or ``"murmur2"``
            retention: what is removed, and when; by default what is older than 4 days
            **settings: ``segment_bytes``, ``segment_age``, ``compression``, ``codec``: see :class:`LogSettings`

        Returns:
            False, and nothing was changed, if it exists
        """
        checked = checked_settings(name, partitions, partitioner, retention, settings)
        self.driver.check_open()
        return self.driver.create(checked)

    def settings(self, name: str) -> LogSettings:
        """The settings of a log.

        Raises:
            LogNotFound: there is none of this name
        """
        return self.driver.settings(name)

    def identity(self, name: str) -> str:
        """A text that no other log has, not even one with the same name in another store or at another time.

        It survives restarts, and a restored backup keeps it. A log that is deleted and created again gets a new one.
        Empty for a log that was created before logs had an identity.
        """
        check_name(name, kind="log")
        self.driver.check_open()
        identity = self.driver.find_identity(name)
        if identity is None:
            raise self.driver.log_not_found(name)
        return identity

    def exists(self, name: str) -> bool:
        """Whether the log exists."""
        check_name(name, kind="log")
        self.driver.check_open()
        return self.driver.find_settings(name) is not None

    def delete(self, name: str) -> bool:
        """Delete a log with its records and every group's offsets in it.

        Returns:
            False if it does not exist

        Raises:
            Conflict: an appender or tailer has it open, or its folder holds files of other programs
        """
        check_name(name, kind="log")
        self.driver.check_open()
        return self.driver.delete(name)

    def names(self) -> list[str]:
        """The names of all logs, sorted."""
        return self.driver.names()

    def partitions(self, name: str) -> list[Partition]:
        """The partitions of a log."""
        return [Partition(name, index) for index in range(self.settings(name).partitions)]

    def bounds(self, name: str) -> list[Bounds]:
        """The bounds of every partition, in order."""
        return self.driver.bounds(self.settings(name))

    def bounds_of(self, partition: Partition) -> Bounds:
        """The bounds of one partition."""
        return self.driver.bounds_of(partition)

    # --- writing and reading -----------------------------------------------------------------------

    @overload
    def log(self, name: str, type: type[T], **options: Any) -> Log[T]: ...

    @overload
    def log(self, name: str, type: Any = ..., **options: Any) -> Log[Any]: ...

    def log(self, name: str, type: Any = Any, **options: Any) -> Log[Any]:
        """A typed handle on a log, which must exist.

        Args:
            **options: ``codec``, and ``partitions``: the number it must have

        Raises:
            LogNotFound: there is none of this name
            Conflict: it has another number of partitions, or another codec
        """
        from penstock.log.log import Log

        return Log(self, name, type, **options)

    def appender(self, name: str, type: Any = Any, **options: Any) -> Appender[Any]:
        """An appender for a log.

        Args:
            **options: those of :class:`penstock.Appender`
        """
        from penstock.log.appender import Appender

        return Appender(self, name, type, **options)

    def tailer(self, what: LogOrPartitions, group: str, type: Any = Any, **options: Any) -> Tailer[Any]:
        """A tailer that owns given partitions.

        Args:
            what: a log, one :class:`Partition`, or a list of either
            **options: ``codec``, ``out_of_range`` and ``max_poll``: see :class:`penstock.Tailer`
        """
        from penstock.log.tailer import Tailer

        return Tailer.manual(self, what, group, type, **options)

    def subscribe(self, logs: str | Sequence[str], group: str, type: Any = Any, **options: Any) -> Tailer[Any]:
        """A tailer that shares the partitions with all subscribers of the group, and is rebalanced as they come and go.

        Args:
            logs: one or several
            **options: ``on_assigned``, ``on_revoked`` and ``on_lost``, which are called with lists of partitions,
                inside ``read``; ``codec``, ``out_of_range`` and ``max_poll``: see :class:`penstock.Tailer`
        """
        from penstock.log.tailer import Tailer

        return Tailer.subscribed(self, logs, group, type, **options)

    def transaction(self, **options: Any) -> Transaction:
        """A transaction: appends and offsets that are committed together. Rolls back unless ``commit()`` is called.

        Args:
            **options: ``producer`` and ``sequence``: the commit can be repeated, and happens once
        """
        from penstock.log.transaction import Transaction

        return Transaction(self, **options)

    def transact(self, commit: Commit) -> Committed:
        """Commit a transaction that is already collected; user code calls :meth:`transaction`."""
        return self.driver.transact(commit)

    def batches(self, partition: Partition, start: int | None = None, stop: int | None = None) -> Iterator[RecordBatch]:
        """The records from ``start`` up to, but not including, ``stop``, without a group. By default, all there are."""
        bounds = self.bounds_of(partition)
        start = bounds.start if start is None else start
        stop = bounds.end if stop is None else min(stop, bounds.end)
        if start < bounds.start or start > bounds.end:
            raise self.out_of_range(partition, start, bounds)
        return self.driver.batches(partition, start, stop)

    def arrow(
        self, partition: Partition, start: int | None = None, stop: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same records as Arrow batches (see :func:`penstock.log.record.arrow_schema`)."""
        for batch in self.batches(partition, start, stop):
            yield batch.arrow()

    def offset_at(self, partition: Partition, moment: datetime) -> Offset:
        """The first record with a timestamp at or after a moment, or the end if there is none."""
        micros = to_micros(moment)
        self.bounds_of(partition)
        return Offset(partition.log, partition.index, self.driver.offset_at(partition, micros))

    def ranges_in_time(
        self, partition: Partition, span: tuple[int, int], since: Micros, until: Micros
    ) -> list[tuple[int, int]]:
        """Ranges of offsets in ``span`` that contain every record with a time from ``since`` up to ``until``.

        They may contain other records too: the driver answers without reading records.
        """
        return self.driver.ranges_in_time(partition, span, (since, until)) if since < until else []

    # --- groups ------------------------------------------------------------------------------------

    def groups(self, name: str) -> list[str]:
        """The groups that have committed in a log, sorted."""
        self.settings(name)
        return self.driver.groups(name)

    def committed(self, name: str, group: str) -> list[int | None]:
        """For each partition, the next offset the group reads, or None if it has never committed there."""
        check_name(group, kind="group")
        return self.driver.committed(self.settings(name), group)

    def lags(self, name: str, group: str) -> list[Lag]:
        """The lag of every partition. A group that has never committed lags by all records."""
        check_name(group, kind="group")
        # Before the bounds: a committed offset is never beyond an end that is read later.
        committed = self.driver.committed_now(self.settings(name), group)
        return [Lag.of(bounds, offset) for bounds, offset in zip(self.bounds(name), committed, strict=True)]

    def lag(self, name: str, group: str) -> Lag:
        """The lag over all partitions."""
        return Lag.total(self.lags(name, group))

    def latencies(self, name: str, group: str) -> list[Latency]:
        """For each partition with a lag, the age of the last committed record."""
        now = self.now()
        lags = self.lags(name, group)
        return [self._latency(Partition(name, bounds.partition), lags[bounds.partition], bounds, now)
                for bounds in self.bounds(name)]  # fmt: skip

    def _latency(self, partition: Partition, lag: Lag, bounds: Bounds, now: Micros) -> Latency:
        if not lag.lag:
            return Latency(0, timedelta(0))
        offset = max(bounds.start, lag.lower - 1)
        batches = self.batches(partition, offset, offset + 1)
        record = next((batch.records()[0] for batch in batches if len(batch)), None)
        if record is None:  # the offset is a hole, or retention has just removed the record
            return Latency(lag.lag, timedelta(0))
        age = timedelta(microseconds=max(0, now - record.time_us))
        was_committed = lag.lower > bounds.start
        return Latency(lag.lag, age, record.time_us if was_committed else None, record.key if was_committed else None)

    def latency(self, name: str, group: str) -> Latency:
        """The latency of the partition that is furthest behind in time, with the total lag."""
        latencies = self.latencies(name, group)
        worst = max(latencies, key=lambda partition: partition.latency)
        return Latency(sum(partition.lag for partition in latencies), worst.latency, worst.committed_us, worst.key)

    def reset(self, group: str, offsets: Mapping[Partition, int | Offset]) -> None:
        """Set a group's offsets from outside.

        Args:
            offsets: the next to read, by partition

        Raises:
            PartitionTaken: a tailer owns one of the partitions
            OffsetOutOfRange: the log does not hold such an offset
        """
        check_name(group, kind="group")
        if not isinstance(offsets, Mapping):
            raise BadInput(f"reset to {offsets!r} names no partition.", hint="Give {Partition(log, 0): offset, ...}.")
        checked = {}
        for partition, offset in offsets.items():
            bounds = self.bounds_of(partition)
            value = offset.value if isinstance(offset, Offset) else offset
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadInput(f"{value!r} is not an offset of {partition}.", hint="Give a number, or an Offset.")
            if not bounds.start <= value <= bounds.end:
                raise self.out_of_range(partition, value, bounds)
            checked[partition] = value
        self.driver.reset(group, checked)

    def forget(self, group: str, name: str | None = None) -> bool:
        """Delete a group's offsets in one log, or in all.

        Returns:
            False if it has none

        Raises:
            PartitionTaken: the group has an open tailer
        """
        check_name(group, kind="group")
        if name is not None:
            self.settings(name)
        self.driver.check_open()
        return self.driver.forget(group, name)

    def wait_for(self, offset: Offset, group: str, timeout: Duration = timedelta(0)) -> bool:
        """Wait until the group has committed past this record.

        Returns:
            False after the timeout
        """
        check_name(group, kind="group")
        settings = self.driver.check_partition(offset.log_partition)
        deadline = time.monotonic() + duration(timeout, name="timeout").total_seconds()
        with self.driver.commit_watch(group) as wait:
            while True:
                committed = self.driver.committed(settings, group)[offset.partition]
                if committed is not None and committed > offset.value:
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                wait(left)

    # --- staging and maintenance -------------------------------------------------------------------

    def stage(self, name: str) -> Stage:
        """Write records aside, for a transaction of another process (see :meth:`Transaction.append_staged`)."""
        if not self.capabilities.staging:
            raise self.unsupported("staging")
        return self.driver.stage(self.settings(name))

    def staged_commit(self) -> str:
        """Describe what the committing process does with the bytes of staged records."""
        return self.driver.staged_commit()

    def discard(self, *staged: Staged) -> None:
        """Discard staged records that will not be committed; records that are already gone are not an error."""
        if not self.capabilities.staging:
            raise self.unsupported("staging")
        self.driver.discard(staged)

    def enforce_retention(self, name: str | None = None, *, dry_run: bool = False) -> list[Removed]:
        """Remove the records that the retention of a log, or of all logs, lets go of.

        Appends do this too, each time a segment is full.
        """
        if not self.capabilities.retention:
            raise self.unsupported("retention by Penstock")
        removals = []
        for log in [name] if name is not None else self.names():
            removals += self.driver.enforce_retention(self.settings(log), dry_run)
        if not dry_run:
            for removed in removals:
                self.signals.tell(
                    "retained", removed.partition.log, (), self.now(), partition=removed.partition.index,
                    offset=removed.start,
                )  # fmt: skip
        return removals

    def backup(self, target: str, *, dry_run: bool = False) -> list[Finding]:
        """Copy everything to an empty folder, as it is at one moment, while appends continue.

        Args:
            target: the folder
        """
        return self.driver.backup(target, dry_run=dry_run)

    def verify(self, name: str | None = None) -> list[Finding]:
        """Check every byte of a log, or of all. Damage is returned as findings that name the file and the byte."""
        return self.driver.verify(name)

    def repair(self, name: str, *, dry_run: bool = False) -> list[Finding]:
        """Move damaged records aside so that reading continues after them; their offsets stay empty."""
        return self.driver.repair(name, dry_run=dry_run)

    def check(self) -> list[Finding]:
        """What ``penstock doctor`` reports about this store."""
        return self.driver.check()

    def sync(self) -> None:
        """Return once everything appended so far survives a power cut; only the fast profile needs this."""
        self.driver.sync()

    def now(self) -> Micros:
        """The time of a fake clock, else the store's own time."""
        return self.driver.now()

    # --- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store and every appender and tailer that was opened from it."""
        if self.closed:
            return
        if self._process is not this_process():
            self.driver.closed = True  # in a forked child everything open belongs to the parent
            return
        with self._open_lock:
            self._is_closing = True
            opened = list(self._open)
        for handle in opened:
            handle.close()
        self.driver.close()

    def __enter__(self) -> LogStore:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """The URL without its password."""
        return f"<{type(self).__name__} {self.name}>"

    # --- for appenders, tailers and transactions -----------------------------------------------------

    def unsupported(self, what: str) -> Unsupported:
        """The error for a call that this store does not offer."""
        return self.driver.unsupported(what)

    def out_of_range(self, partition: Partition, offset: int, bounds: Bounds) -> OffsetOutOfRange:
        """The error for an offset outside the bounds of a partition."""
        return self.driver.out_of_range(partition, offset, bounds)

    def check_records(self, name: str, records: NewRecords) -> None:
        """Raise for records that no partition could hold."""
        check_records(name, records, self.driver.record_limit)

    def check_partition(self, partition: Partition) -> LogSettings:
        """The settings of the partition's log. Raises if the log or the partition does not exist."""
        return self.driver.check_partition(partition)

    def register(self, opened: Any) -> None:
        """Close this appender or tailer with the store, or at once if the store is being closed."""
        with self._open_lock:
            if not self._is_closing:
                self._open.add(opened)
                return
        opened.close()
        raise Closed(f"{self.name} was closed.", hint="Open it again to continue.")

    def unregister(self, opened: Any) -> None:
        """Forget an appender or tailer that was closed."""
        with self._open_lock:
            self._open.discard(opened)
