"""Tailer: the typed reader of a group."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from penstock.clock import Duration, duration
from penstock.codec import Codec, codec_for
from penstock.errors import BadInput, Closed, PartitionNotFound
from penstock.log.group import Callback, Listener
from penstock.log.protocol import OutOfRange, Source
from penstock.log.record import Lag, Offset, Partition, Record, RecordBatch
from penstock.log.routing import check_codec
from penstock.log.store import LogOrPartitions, LogStore
from penstock.names import check_name

T = TypeVar("T")

READ = 1000  # records of one read
MAX_POLL = timedelta(minutes=5)
_LONG_WAIT = timedelta(hours=1)


class Tailer(Generic[T]):
    """Reads partitions for a group, from the committed offsets on, or from the earliest records.

    Only one thread may use it at a time. Another thread may call ``close()``, which ends a read that waits.

    ``out_of_range`` says what to do if retention has removed the next record: raise (the default), or continue at the
    ``"earliest"`` or ``"latest"`` one, which emits the signal ``skipped``. A tailer that does not read for ``max_poll``
    counts as hung, and other members of the group may take its partitions.
    """

    def __init__(self, store: LogStore, source: Source, group: str, codec: Codec[T]) -> None:
        """Use :meth:`LogStore.tailer` or :meth:`LogStore.subscribe`."""
        self.store = store
        self.group = group
        self.codec = codec
        self.closed = False
        self._closing = False
        self._source = source
        self._buffer: deque[Record[T]] = deque()
        self._positions: dict[Partition, int] = {}
        self._using = threading.RLock()
        store.register(self)

    @classmethod
    def manual(
        cls,
        store: LogStore,
        what: LogOrPartitions,
        group: str,
        type: Any = Any,
        *,
        codec: Codec[Any] | None = None,
        out_of_range: OutOfRange = "error",
        max_poll: Duration = MAX_POLL,
    ) -> Tailer[Any]:
        """A tailer that owns exactly these partitions; with an empty list it reads nothing."""
        reader = codec or codec_for(type)
        partitions: list[Partition] = []
        for item in [what] if isinstance(what, str | Partition) else what:
            if isinstance(item, str):
                partitions += store.partitions(item)
            else:
                store.check_partition(item)
                partitions.append(item)
            check_codec(store.settings(item if isinstance(item, str) else item.log), reader)
        if len(set(partitions)) != len(partitions):
            raise BadInput("a partition is given twice to one tailer.", hint="Give each partition once.")
        source = store.driver.open_assigned(
            partitions, check_name(group, kind="group"), out_of_range=_checked_policy(out_of_range),
            max_poll=duration(max_poll, name="max_poll"),
        )  # fmt: skip
        return cls(store, source, group, reader)

    @classmethod
    def subscribed(
        cls,
        store: LogStore,
        logs: str | Sequence[str],
        group: str,
        type: Any = Any,
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        codec: Codec[Any] | None = None,
        out_of_range: OutOfRange = "error",
        max_poll: Duration = MAX_POLL,
    ) -> Tailer[Any]:
        """A tailer that shares the partitions with its group. It owns none before its first read."""
        reader = codec or codec_for(type)
        names = [logs] if isinstance(logs, str) else list(logs)
        if not names:
            raise BadInput("subscribe() was given no log.", hint="Name at least one log.")
        settings = [store.settings(name) for name in dict.fromkeys(names)]
        for log in settings:
            check_codec(log, reader)
        listener = Listener()
        source = store.driver.open_subscribed(
            settings, check_name(group, kind="group"), listener, out_of_range=_checked_policy(out_of_range),
            max_poll=duration(max_poll, name="max_poll"),
        )  # fmt: skip
        tailer = cls(store, source, group, reader)
        listener.on_assigned = lambda partitions: tailer._changed("assigned", partitions, on_assigned)
        listener.on_revoked = lambda partitions: tailer._changed("revoked", partitions, on_revoked)
        listener.on_lost = lambda partitions: tailer._changed("lost", partitions, on_lost)
        return tailer

    # --- reading -----------------------------------------------------------------------------------

    def read(self, limit: int = READ, timeout: Duration = timedelta(0)) -> list[Record[T]]:
        """The next records.

        Partitions take turns, so that none starves. The records of a partition are in order.

        Returns:
            the records, in a list that is empty after the timeout

        Raises:
            OffsetOutOfRange: retention has removed the next record
            RecordCorrupt: a record is damaged on disk
        """
        if not isinstance(limit, int) or limit < 1:
            raise BadInput(f"read(limit={limit!r}) reads nothing.", hint='Use 1 or more; to wait, give timeout="5s".')
        if self._buffer:
            with self._using:
                taken = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
                for record in taken:
                    self._positions[record.batch.partition] = record.offset + 1
                return taken
        records: list[Record[T]] = []
        for batch in self.read_batches(limit, timeout):
            records += batch.records()
        return records

    def read_batches(self, limit: int = READ, timeout: Duration = timedelta(0)) -> list[RecordBatch]:
        """The same as batches of columns, which are cheaper than records and convert to Arrow (``batch.arrow()``)."""
        seconds = duration(timeout, name="timeout").total_seconds()
        with self._using:
            self._check()
            if self._buffer:
                raise BadInput(
                    "next() has read ahead, so batches cannot be read.",
                    hint="Use either next() or read(), or seek first.",
                )
            batches = self._poll(limit, seconds)
            for batch in batches:
                batch.codec = self.codec
                self._positions[batch.partition] = batch.next_offset
        return batches

    def next(self, timeout: Duration = timedelta(0)) -> Record[T] | None:
        """The next record, or None after the timeout.

        Raises:
            OffsetOutOfRange: retention has removed it
            RecordCorrupt: it is damaged on disk
        """
        with self._using:
            if not self._buffer:
                seconds = duration(timeout, name="timeout").total_seconds()
                self._check()
                for batch in self._poll(READ, seconds):
                    batch.codec = self.codec
                    # The source has moved past the whole batch; our position moves record by record.
                    self._positions.setdefault(batch.partition, batch.offsets[0])
                    self._buffer.extend(batch.records())
            self._check()
            if not self._buffer:
                return None
            record = self._buffer.popleft()
            self._positions[record.batch.partition] = record.offset + 1
            return record

    def _poll(self, limit: int, seconds: float) -> list[RecordBatch]:
        tracing, began = self.store.tracing, time.perf_counter()
        batches = self._source.poll(limit, seconds)
        if tracing is not None:
            for log in {batch.partition.log for batch in batches}:
                headers = [own for batch in batches if batch.partition.log == log for own in batch.headers()]
                tracing.received("read", log, headers, began, self.group)
        return batches

    def __iter__(self) -> Iterator[Record[T]]:
        """Iterate over all records, waiting for more, until the tailer is closed."""
        while not self.closed:
            try:
                record = self.next(_LONG_WAIT)
            except Closed:
                return
            if record is not None:
                yield record

    # --- positions ---------------------------------------------------------------------------------

    def assignment(self) -> list[Partition]:
        """The partitions this tailer reads now."""
        return sorted(self._source.assignment())

    def position(self, partition: Partition) -> Offset:
        """The offset of the next record to be returned."""
        with self._using:
            self._check_owned(partition)
            return Offset(partition.log, partition.index, self._position(partition))

    def to_start(self) -> None:
        """Go to the earliest records of all partitions."""
        self._move({partition: self.store.bounds_of(partition).start for partition in self.assignment()})

    def to_end(self) -> None:
        """Go to the ends of all partitions, after their last records."""
        self._move({partition: self.store.bounds_of(partition).end for partition in self.assignment()})

    def to_committed(self) -> None:
        """Go back to the committed offsets, or to the earliest records."""
        target = {}
        for log in {partition.log for partition in self.assignment()}:
            committed = self.store.committed(log, self.group)
            bounds = self.store.bounds(log)
            for partition in self.assignment():
                if partition.log == log:
                    offset = committed[partition.index]
                    target[partition] = bounds[partition.index].start if offset is None else offset
        self._move(target)

    def to_time(self, moment: datetime) -> None:
        """Go to the first record of each partition with a timestamp at or after a moment."""
        self._move({partition: self.store.offset_at(partition, moment).value for partition in self.assignment()})

    def seek(self, offset: Offset | Record[Any]) -> None:
        """Go to an offset; the other partitions keep their positions.

        Args:
            offset: or a record, to read it again

        Raises:
            OffsetOutOfRange: the log does not hold it
        """
        target = offset.position if isinstance(offset, Record) else offset
        if not isinstance(target, Offset):
            raise BadInput(f"{offset!r} is not a position in a log.", hint="Give an Offset or a Record.")
        partition = target.log_partition
        bounds = self.store.bounds_of(partition)
        self._check_owned(partition)
        if not bounds.start <= target.value <= bounds.end:
            raise self.store.out_of_range(partition, target.value, bounds)
        self._move({partition: target.value})

    # --- committing --------------------------------------------------------------------------------

    def commit(self, offsets: Partition | Mapping[Partition, int | Offset] | None = None) -> dict[Partition, int]:
        """Commit positions for the group.

        Every record that was returned counts as read.

        Args:
            offsets: the next to read, by partition, or one partition; by default all partitions, where the tailer is

        Returns:
            what was committed

        Raises:
            Fenced: another tailer has taken a partition
        """
        with self._using:
            self._check()
            chosen: dict[Partition, int]
            if offsets is None:
                chosen = {partition: self._position(partition) for partition in self._source.assignment()}
            elif isinstance(offsets, Partition):
                self._check_owned(offsets)
                chosen = {offsets: self._position(offsets)}
            else:
                chosen = {}
                for partition, offset in offsets.items():
                    self._check_owned(partition)
                    value = offset.value if isinstance(offset, Offset) else offset
                    chosen[partition] = self._checked_offset(partition, value)
            if chosen:
                self._source.commit(chosen)
                if self.store.signals.wants("committed"):
                    self.store.signals.tell(
                        "committed", next(iter(chosen)).log, (), self.store.now(), group=self.group,
                        offsets={str(partition): offset for partition, offset in chosen.items()},
                    )  # fmt: skip
            return chosen

    def _checked_offset(self, partition: Partition, offset: object) -> int:
        """An offset that may be committed. With one beyond the end, future records would be skipped."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise BadInput(
                f"{offset!r} is not an offset of {partition}.", hint="Commit the offset of the next record to read."
            )
        if offset > self._source.position(partition):  # up to the position, the store need not be asked
            bounds = self.store.bounds_of(partition)
            if offset > bounds.end:
                raise self.store.out_of_range(partition, offset, bounds)
        return offset

    def committed(self, partition: Partition) -> Offset | None:
        """The group's committed offset in a partition, or None."""
        offset = self.store.committed(partition.log, self.group)[partition.index]
        return None if offset is None else Offset(partition.log, partition.index, offset)

    def reset(self, partition: Partition | None = None) -> None:
        """Go to the earliest record of one partition, or of all, and commit that."""
        if partition is not None:
            self._check_owned(partition)
        chosen = self.assignment() if partition is None else [partition]
        self._move({owned: self.store.bounds_of(owned).start for owned in chosen})
        self.commit({owned: self._position(owned) for owned in chosen})

    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition: what ``commit()`` or a transaction would commit."""
        with self._using:
            self._check()
            return {partition: self._position(partition) for partition in self._source.assignment()}

    def lag(self) -> Lag:
        """The lag of the assigned partitions, from the committed offsets."""
        assignment = self.assignment()
        lags = {log: self.store.lags(log, self.group) for log in {partition.log for partition in assignment}}
        return Lag.total(lags[partition.log][partition.index] for partition in assignment)

    # --- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the partitions back. The next tailer reads again what was not committed."""
        if self.closed:
            return
        self._closing = True
        self._source.wake()
        with self._using:
            if self.closed:
                return
            self._closing = False  # this thread has the lock, and on_revoked may commit
            try:
                self._source.close()
            finally:
                self.closed = True
                self._buffer.clear()
                self.store.unregister(self)

    def __enter__(self) -> Tailer[T]:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Group, partitions and store."""
        return f"<tailer of {self.group} on {', '.join(map(str, self.assignment())) or 'nothing'} in {self.store!r}>"

    @property
    def source(self) -> Source:
        """The source, which a transaction commits through."""
        return self._source

    def _position(self, partition: Partition) -> int:
        if partition not in self._positions:
            self._positions[partition] = self._source.position(partition)
        return self._positions[partition]

    def _move(self, target: Mapping[Partition, int]) -> None:
        with self._using:
            self._check()
            if self._buffer:
                # In other partitions, the records that next() has read ahead must come again.
                for partition in {record.batch.partition for record in self._buffer}:
                    if partition not in target:
                        self._source.seek(partition, self._position(partition))
                self._buffer.clear()
            for partition, offset in target.items():
                self._source.seek(partition, offset)
                self._positions[partition] = offset

    def _changed(self, kind: str, partitions: list[Partition], callback: Callback | None) -> None:
        if kind == "revoked":
            # The callback may commit what was returned, but not what next() has read ahead.
            self._drop_buffered(partitions)
            if callback is not None:
                callback(partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
        if kind != "revoked":
            self._drop_buffered(partitions)
            if callback is not None:
                callback(partitions)
        for log in sorted({partition.log for partition in partitions}):
            numbers = [partition.index for partition in partitions if partition.log == log]
            self.store.signals.tell(kind, log, (), self.store.now(), group=self.group, partitions=numbers)

    def _drop_buffered(self, partitions: list[Partition]) -> None:
        if self._buffer:
            dropped = set(partitions)
            self._buffer = deque(record for record in self._buffer if record.batch.partition not in dropped)

    def _check(self) -> None:
        if self.closed or self._closing:
            raise Closed(f"the tailer of group {self.group} was closed.", hint="Open another one.")

    def _check_owned(self, partition: Partition) -> None:
        self._check()
        if partition not in self._source.assignment():
            raise PartitionNotFound(
                f"{partition} is not assigned to this tailer of group {self.group}.",
                hint=f"It has {', '.join(map(str, self.assignment())) or 'none'}.",
            )


def _checked_policy(out_of_range: Any) -> OutOfRange:
    if out_of_range not in ("error", "earliest", "latest"):
        raise BadInput(f"out_of_range={out_of_range!r} is unknown.", hint='Use "error", "earliest" or "latest".')
    return out_of_range  # type: ignore[no-any-return]
