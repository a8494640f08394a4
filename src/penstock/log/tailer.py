"""Tailer: the typed reader of a group: read, seek, commit; manual partitions or dealt out among subscribers."""

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
from penstock.log.protocol import Source
from penstock.log.record import Lag, Offset, Partition, Record, RecordBatch
from penstock.log.routing import check_codec
from penstock.log.store import MAX_POLL, LogStore, OutOfRange, Place
from penstock.names import check_name

T = TypeVar("T")

READ = 1000  # records of one read
_ENDLESS = 3600.0


class Tailer(Generic[T]):
    """Reads partitions for a group, from where the group committed, or from the earliest record.

    Not for two threads at once; ``close()`` may be called from another one and ends a read that waits.

    ``out_of_range`` says what to do when retention removed what comes next: raise (the default), or go on at the
    ``"earliest"`` or ``"latest"`` record, which is told as the signal ``skipped``. A tailer that does not read for
    ``max_poll`` counts as hung, and its partitions may be taken by others of the group.
    """

    def __init__(self, store: LogStore, source: Source, group: str, codec: Codec[T], listener: Listener) -> None:
        """Made by :meth:`LogStore.tailer` and :meth:`LogStore.subscribe`."""
        self.store = store
        self.group = group
        self.codec = codec
        self.closed = False
        self._closing = False
        self._source = source
        self._listener = listener
        self._buffer: deque[Record[T]] = deque()
        self._positions: dict[Partition, int] = {}
        self._using = threading.RLock()
        store.register(self)

    @classmethod
    def manual(
        cls,
        store: LogStore,
        what: Place,
        group: str,
        type: Any = Any,
        *,
        codec: Codec[Any] | None = None,
        out_of_range: OutOfRange = "error",
        max_poll: Duration = MAX_POLL,
    ) -> Tailer[Any]:
        """A tailer that owns exactly these partitions; an empty list is allowed and reads nothing."""
        reader = codec or codec_for(type)
        partitions: list[Partition] = []
        for one in [what] if isinstance(what, str | Partition) else what:
            if isinstance(one, str):
                partitions += store.partitions(one)
            else:
                store.check_partition(one)
                partitions.append(one)
            check_codec(store.settings(one if isinstance(one, str) else one.log), reader)
        if len(set(partitions)) != len(partitions):
            raise BadInput("a partition is named twice for one tailer.", hint="Name each once.")
        source = store.open_assigned(
            partitions, check_name(group, kind="group"), out_of_range=_policy(out_of_range),
            max_poll=duration(max_poll, name="max_poll"),
        )  # fmt: skip
        return cls(store, source, group, reader, Listener())

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
        """A tailer whose partitions follow the group; it owns none before its first read."""
        reader = codec or codec_for(type)
        names = [logs] if isinstance(logs, str) else list(logs)
        if not names:
            raise BadInput("a subscription to no log reads nothing.", hint="Name at least one log.")
        settings = [store.settings(name) for name in dict.fromkeys(names)]
        for one in settings:
            check_codec(one, reader)
        told = Listener(on_assigned, on_revoked, on_lost)
        inner = Listener()
        source = store.open_subscribed(
            settings, check_name(group, kind="group"), inner, out_of_range=_policy(out_of_range),
            max_poll=duration(max_poll, name="max_poll"),
        )  # fmt: skip
        tailer = cls(store, source, group, reader, told)
        inner.on_assigned = lambda partitions: tailer._changed("assigned", partitions, told.on_assigned)
        inner.on_revoked = lambda partitions: tailer._changed("revoked", partitions, told.on_revoked)
        inner.on_lost = lambda partitions: tailer._changed("lost", partitions, told.on_lost)
        return tailer

    # --- reading -----------------------------------------------------------------------------------

    def read(self, limit: int = READ, timeout: Duration = timedelta(0)) -> list[Record[T]]:
        """The next records, at most ``limit``; waits up to ``timeout`` for the first, and may give none.

        Partitions take turns, so that none starves. Records of one partition come in order.
        """
        if not isinstance(limit, int) or limit < 1:
            raise BadInput(f"read(limit={limit!r}) reads nothing.", hint='Use 1 or more; to wait, say timeout="5s".')
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
        """The same as whole columns: cheaper than records, and ready for Arrow (``batch.arrow()``)."""
        seconds = duration(timeout, name="timeout").total_seconds()
        with self._using:
            self._check()
            if self._buffer:
                raise BadInput("next() has read ahead.", hint="Use either next() or read(), or seek first.")
            batches = self._poll(limit, seconds)
            for batch in batches:
                batch.codec = self.codec
                self._positions[batch.partition] = batch.next_offset
        return batches

    def next(self, timeout: Duration = timedelta(0)) -> Record[T] | None:
        """The next record, or None if there is none in time."""
        with self._using:
            if not self._buffer:
                seconds = duration(timeout, name="timeout").total_seconds()
                self._check()
                for batch in self._poll(READ, seconds):
                    batch.codec = self.codec
                    # The source is behind the whole batch now; what was handed out decides where we are.
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
        """All records, waiting for more, until the tailer is closed."""
        while not self.closed:
            try:
                record = self.next(timedelta(seconds=_ENDLESS))
            except Closed:
                return
            if record is not None:
                yield record

    # --- positions ---------------------------------------------------------------------------------

    def assignment(self) -> list[Partition]:
        """The partitions this tailer reads now."""
        return sorted(self._source.assignment())

    def position(self, partition: Partition) -> Offset:
        """The next record that will be handed out."""
        with self._using:
            self._check_owned(partition)
            return Offset(partition.log, partition.index, self._position(partition))

    def to_start(self) -> None:
        """Go to the earliest records of all partitions."""
        self._move({one: self.store.bounds_of(one).start for one in self.assignment()})

    def to_end(self) -> None:
        """Go behind the last records of all partitions."""
        self._move({one: self.store.bounds_of(one).end for one in self.assignment()})

    def to_committed(self) -> None:
        """Go back to what the group committed, or to the earliest records."""
        target = {}
        for log in {one.log for one in self.assignment()}:
            committed = self.store.committed(log, self.group)
            bounds = self.store.bounds(log)
            for one in self.assignment():
                if one.log == log:
                    kept = committed[one.index]
                    target[one] = bounds[one.index].start if kept is None else kept
        self._move(target)

    def to_time(self, moment: datetime) -> None:
        """Go to the first record of each partition with a timestamp at or after a moment."""
        self._move({one: self.store.offset_at(one, moment).value for one in self.assignment()})

    def seek(self, offset: Offset | Record[Any]) -> None:
        """Go to one place; other partitions stay where they are."""
        place = offset.place if isinstance(offset, Record) else offset
        if not isinstance(place, Offset):
            raise BadInput(f"{offset!r} is not a place in a log.", hint="Give an Offset or a Record.")
        bounds = self.store.bounds_of(place.place)
        self._check_owned(place.place)
        if not bounds.start <= place.value <= bounds.end:
            raise self.store.out_of_range(place.place, place.value, bounds)
        self._move({place.place: place.value})

    # --- committing --------------------------------------------------------------------------------

    def commit(self, offsets: Partition | Mapping[Partition, int | Offset] | None = None) -> dict[Partition, int]:
        """Keep positions for the group: of all partitions, of one, or the offsets given (next to read).

        Commits what was handed out, read or not; gives what was committed. Raises ``Fenced`` for a partition that was
        taken away.
        """
        with self._using:
            self._check()
            chosen: dict[Partition, int]
            if offsets is None:
                chosen = {one: self._position(one) for one in self._source.assignment()}
            elif isinstance(offsets, Partition):
                self._check_owned(offsets)
                chosen = {offsets: self._position(offsets)}
            else:
                chosen = {}
                for one, offset in offsets.items():
                    self._check_owned(one)
                    chosen[one] = self._possible(one, offset.value if isinstance(offset, Offset) else offset)
            if chosen:
                self._source.commit(chosen)
                if self.store.signals.wants("committed"):
                    self.store.signals.tell(
                        "committed", next(iter(chosen)).log, (), self.store.now(), group=self.group,
                        offsets={str(one): offset for one, offset in chosen.items()},
                    )  # fmt: skip
            return chosen

    def _possible(self, place: Partition, offset: object) -> int:
        """An offset that may be committed: what lies behind the end would be skipped when it comes."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise BadInput(
                f"{offset!r} is not an offset of {place}.", hint="Commit that of the next record to be read."
            )
        if offset > self._source.position(place):  # what was handed out needs no look at the store
            bounds = self.store.bounds_of(place)
            if offset > bounds.end:
                raise self.store.out_of_range(place, offset, bounds)
        return offset

    def committed(self, partition: Partition) -> Offset | None:
        """What the group has committed in a partition."""
        kept = self.store.committed(partition.log, self.group)[partition.index]
        return None if kept is None else Offset(partition.log, partition.index, kept)

    def reset(self, partition: Partition | None = None) -> None:
        """Go to the earliest record and commit that: of one partition, or of all."""
        if partition is not None:
            self._check_owned(partition)
        chosen = self.assignment() if partition is None else [partition]
        self._move({one: self.store.bounds_of(one).start for one in chosen})
        self.commit({one: self._position(one) for one in chosen})

    def positions(self) -> dict[Partition, int]:
        """The next record of every partition: what ``commit()`` would keep, and what a transaction takes."""
        with self._using:
            self._check()
            return {one: self._position(one) for one in self._source.assignment()}

    def lag(self) -> Lag:
        """How far the assigned partitions are behind their ends, by what was committed."""
        lags = {log: self.store.lags(log, self.group) for log in {one.log for one in self.assignment()}}
        return Lag.total(lags[one.log][one.index] for one in self.assignment())

    # --- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the partitions back; what was not committed is read again by the next one."""
        if self.closed:
            return
        self._closing = True
        self._source.wake()
        with self._using:
            if self.closed:
                return
            self._closing = False  # no other thread comes in here, and on_revoked may commit
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
        """What a transaction commits through."""
        return self._source

    def _position(self, partition: Partition) -> int:
        if partition not in self._positions:
            self._positions[partition] = self._source.position(partition)
        return self._positions[partition]

    def _move(self, target: Mapping[Partition, int]) -> None:
        with self._using:
            self._check()
            if self._buffer:
                # What next() had read ahead in other partitions has to come again.
                for one in {record.batch.partition for record in self._buffer}:
                    if one not in target:
                        self._source.seek(one, self._position(one))
                self._buffer.clear()
            for one, offset in target.items():
                self._source.seek(one, offset)
                self._positions[one] = offset

    def _changed(self, kind: str, partitions: list[Partition], callback: Callback | None) -> None:
        if kind == "revoked":
            # The callback may commit what was handed out, not what next() had read ahead.
            self._drop_buffered(partitions)
            if callback is not None:
                callback(partitions)
        for one in partitions:
            self._positions.pop(one, None)
        if kind != "revoked":
            self._drop_buffered(partitions)
            if callback is not None:
                callback(partitions)
        for log in sorted({one.log for one in partitions}):
            numbers = [one.index for one in partitions if one.log == log]
            self.store.signals.tell(kind, log, (), self.store.now(), group=self.group, partitions=numbers)

    def _drop_buffered(self, partitions: list[Partition]) -> None:
        if self._buffer:
            gone = set(partitions)
            self._buffer = deque(record for record in self._buffer if record.batch.partition not in gone)

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


def _policy(out_of_range: Any) -> OutOfRange:
    if out_of_range not in ("error", "earliest", "latest"):
        raise BadInput(f"out_of_range={out_of_range!r} is unknown.", hint='Use "error", "earliest" or "latest".')
    return out_of_range  # type: ignore[no-any-return]
