"""MemoryDriver: the log contract in its plainest form, for tests and for trying things out."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.clock import Clock, Micros, duration_micros
from penstock.errors import BadInput, Conflict
from penstock.log.commit_watch import CommitWatch
from penstock.log.driver import LogDriver
from penstock.log.drivers.memory.group import MemoryCommitWatch, MemoryMembership, MemoryReader, MemoryWatch
from penstock.log.drivers.memory.sink import MemorySink, MemoryStage
from penstock.log.drivers.memory.state import MemoryGroup, MemoryLog, MemoryPartition, MemoryState
from penstock.log.drivers.shared.errors import exclusive_appender, fenced, has_open_tailer, staged_gone
from penstock.log.drivers.shared.source import EmbeddedSource
from penstock.log.group import Listener
from penstock.log.protocol import Commit, Committed, LogCapabilities, OutOfRange, Removed, Sink, Source, Stage, Staged
from penstock.log.record import Bounds, NewRecords, Partition, RecordBatch
from penstock.log.settings import LogSettings

if TYPE_CHECKING:
    from penstock.location import Location

BATCH = 1000  # records of one batch that is read without a group

_shared: dict[str, MemoryState] = {}
_shared_lock = threading.Lock()


def open_driver(location: Location, clock: Clock) -> MemoryDriver:
    """Open ``memory://``, which is private, or ``memory://NAME``, which all handles in the process share."""
    location.reject_unknown_options(frozenset({"record_limit"}))
    if location.space != "penstock":
        raise BadInput(f"logs have no spaces ({location.masked}).", hint="Use another name: memory://NAME.")
    limit = location.options.get("record_limit", str(MemoryDriver.record_limit))
    if not limit.isdecimal() or int(limit) < 1:
        raise BadInput(f"record_limit {limit!r} in {location.masked} is not a size.", hint="Give a number of bytes.")
    return MemoryDriver(location.path, clock, location.masked, record_limit=int(limit))


class MemoryDriver(LogDriver):
    """Logs in the memory of this process, which are lost when it ends."""

    capabilities = LogCapabilities(durable=False, copies=False)

    def __init__(self, path: str, clock: Clock, name: str, *, record_limit: int = LogDriver.record_limit) -> None:
        """Join the state at ``path``, or create it. An empty path is private."""
        super().__init__(clock, name)
        self.record_limit = record_limit
        self._path = path
        with _shared_lock:
            self.state = _shared.setdefault(path, MemoryState()) if path else MemoryState()
            self.state.handles += 1

    @contextmanager
    def locked(self) -> Iterator[MemoryState]:
        """The state, under its lock."""
        with self.state.bell:
            self.check_open()
            yield self.state

    def records_of(self, partition: Partition) -> MemoryPartition:
        """The records of a partition."""
        return self.state.logs[partition.log].partitions[partition.index]

    # --- logs --------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all logs, sorted."""
        with self.locked() as state:
            return sorted(state.logs)

    def create(self, settings: LogSettings) -> bool:
        """Create a log."""
        with self.locked() as state:
            if settings.name in state.logs:
                return False
            state.logs[settings.name] = MemoryLog(settings)
            return True

    def find_settings(self, name: str) -> LogSettings | None:
        """The settings of a log."""
        log = self.state.logs.get(name)
        return None if log is None else log.settings

    def find_identity(self, name: str) -> str | None:
        """The identity of a log."""
        log = self.state.logs.get(name)
        return None if log is None else log.identity

    def delete(self, name: str) -> bool:
        """Delete a log that nobody has open."""
        with self.locked() as state:
            if name not in state.logs:
                return False
            has_tailer = any(partition.log == name for group in state.groups.values() for partition in group.owners)
            if state.logs[name].appenders or has_tailer:
                raise Conflict(f"log {name} is in use.", hint="Close its appenders and tailers first.")
            del state.logs[name]
            for group in state.groups.values():
                for partition in [partition for partition in group.offsets if partition.log == name]:
                    del group.offsets[partition]
            return True

    def bounds(self, settings: LogSettings) -> list[Bounds]:
        """The bounds of every partition."""
        with self.locked() as state:
            partitions = state.logs[settings.name].partitions
            return [Bounds(index, records.start, records.end, records.size) for index, records in enumerate(partitions)]

    def batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]:
        """The records of a range."""
        while start < stop:
            with self.locked():
                records = self.records_of(partition)
                if start < records.start:
                    raise self.out_of_range(partition, start, Bounds(partition.index, records.start, records.end))
                batch = records.batch(partition, start, min(stop - start, BATCH))
            yield batch
            start = batch.next_offset

    def offset_at(self, partition: Partition, micros: Micros) -> int:
        """The first offset at or after a time."""
        with self.locked():
            records = self.records_of(partition)
            rank = next((rank for rank, time in enumerate(records.times) if time >= micros), len(records.times))
            return records.start + rank

    # --- groups ------------------------------------------------------------------------------------

    def groups(self, name: str) -> list[str]:
        """The groups with offsets in a log."""
        with self.locked() as state:
            return sorted(
                group_name
                for group_name, group in state.groups.items()
                if any(partition.log == name for partition in group.offsets)
            )

    def committed(self, settings: LogSettings, group: str) -> list[int | None]:
        """A group's offsets."""
        with self.locked() as state:
            offsets = state.groups[group].offsets if group in state.groups else {}
            return [offsets.get(Partition(settings.name, index)) for index in range(settings.partitions)]

    def reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Set the offsets of a group without tailers."""
        with self.locked() as state:
            changed = state.group(group)
            for partition in offsets:
                if partition in changed.owners:
                    raise has_open_tailer(partition, group)
            changed.offsets.update(offsets)
            state.ring()

    def forget(self, group: str, name: str | None) -> bool:
        """Delete the offsets of a group without tailers."""
        with self.locked() as state:
            forgotten = state.groups.get(group)
            if forgotten is None:
                return False
            for partition in forgotten.owners:
                if name in (None, partition.log):
                    raise has_open_tailer(partition, group)
            removed = [partition for partition in forgotten.offsets if name in (None, partition.log)]
            for partition in removed:
                del forgotten.offsets[partition]
            return bool(removed)

    def commit_watch(self, group: str) -> CommitWatch:
        """A watch on the bell."""
        return MemoryCommitWatch(self.state)

    # --- writing and reading -----------------------------------------------------------------------

    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink:
        """A sink for an appender."""
        return MemorySink(self, settings, exclusive, producer)

    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        """A source with these partitions."""
        source = self._source(group, (), None, out_of_range, max_poll)
        source.take_all(partitions)
        return source

    def open_subscribed(
        self,
        logs: Sequence[LogSettings],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> Source:
        """A source that follows its group."""
        return self._source(group, logs, listener, out_of_range, max_poll)

    def _source(
        self,
        group: str,
        logs: Sequence[LogSettings],
        listener: Listener | None,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> EmbeddedSource:
        self.check_open()
        return EmbeddedSource(
            self, MemoryMembership(self.state, group, logs, max_poll), MemoryWatch(self.state),
            lambda partition: MemoryReader(self, partition), group=group, out_of_range=out_of_range, max_poll=max_poll,
            logs=logs, listener=listener,
        )  # fmt: skip

    def transact(self, commit: Commit) -> Committed:
        """Check everything, then change everything, under one lock."""
        with self.locked() as state:
            if self._is_duplicate(commit):
                return Committed(duplicate=True)
            self._check_appendable(commit)
            groups = [(self._checked_group(source, offsets), offsets) for source, offsets in commit.offsets]
            outputs = [*commit.outputs, *self._take_staged(commit.staged)]
            now = self.now()
            spans: dict[Partition, Sequence[int]] = {}
            for partition, records in outputs:
                span = self.records_of(partition).add(records, now)
                spans[partition] = range(spans[partition][0] if partition in spans else span[0], span[-1] + 1)
            for group, offsets in groups:
                group.offsets.update(offsets)
            if commit.producer is not None and commit.sequence is not None:
                state.sequences[commit.producer] = commit.sequence
            state.ring()
            return Committed(spans)

    def _is_duplicate(self, commit: Commit) -> bool:
        if commit.producer is None or commit.sequence is None:
            return False
        return self.state.sequences.get(commit.producer, -1) >= commit.sequence

    def _check_appendable(self, commit: Commit) -> None:
        logs = {partition.log for partition, _ in commit.outputs} | {staged.log for staged in commit.staged}
        for name in logs:
            if name in self.state.logs and self.state.logs[name].exclusive not in (None, self):
                raise exclusive_appender(name)

    def _checked_group(self, source: Source, offsets: Mapping[Partition, int]) -> MemoryGroup:
        """The group of a source that still owns these partitions."""
        assert isinstance(source, EmbeddedSource)  # noqa: S101 - the transaction takes tailers of its own store only
        group = self.state.group(source.group)
        for partition, (_, epoch) in source.with_epochs(offsets).items():
            if group.epochs.get(partition) != epoch or partition not in group.owners:
                raise fenced(partition, source.group)
        return group

    def _take_staged(self, all_staged: Sequence[Staged]) -> Iterator[tuple[Partition, NewRecords]]:
        for staged in all_staged:
            if staged.path not in self.state.staged:
                raise staged_gone(staged.log)
            for index, records in self.state.staged.pop(staged.path):
                yield Partition(staged.log, index), records

    def stage(self, settings: LogSettings) -> Stage:
        """A stage for a log."""
        return MemoryStage(self.state, settings)

    def staged_commit(self) -> str:
        """What happens to the bytes of staged records."""
        return "they are in the memory of this process"

    def discard(self, staged: Sequence[Staged]) -> None:
        """Drop staged records."""
        for discarded in staged:
            self.state.staged.pop(discarded.path, None)

    # --- maintenance -------------------------------------------------------------------------------

    def enforce_retention(self, settings: LogSettings, dry_run: bool) -> list[Removed]:
        """Remove what the retention allows."""
        with self.locked() as state:
            removals = []
            for index, records in enumerate(state.logs[settings.name].partitions):
                partition = Partition(settings.name, index)
                start, reason = self._retained_start(settings, partition, records)
                if start > records.start:
                    count = start - records.start
                    size = sum(map(len, records.payloads[:count]))
                    if not dry_run:
                        records.cut(start)
                    removals.append(Removed(partition, start, count, size, reason))
            return removals

    def _retained_start(self, settings: LogSettings, partition: Partition, records: MemoryPartition) -> tuple[int, str]:
        """The first offset that the retention keeps, and the reason for removing what is before it."""
        retention = settings.retention
        start, reason = records.start, ""
        if retention.age is not None:
            oldest = self.now() - duration_micros(retention.age)
            start, reason = max((start, reason), (records.start + bisect_right(records.appended, oldest - 1), "age"))
        if retention.size is not None:
            start, reason = max((start, reason), (records.start_for_size(retention.size), "size"))
        if retention.keep_for:
            groups = self.state.groups
            consumed = min(
                groups[group].offsets.get(partition, records.start) if group in groups else records.start
                for group in retention.keep_for
            )
            start, reason = (consumed, "consumed") if retention.consumed else (min(start, consumed), reason)
        if retention.hard_size is not None:
            start, reason = max((start, reason), (records.start_for_size(retention.hard_size), "hard_size"))
        return start, reason

    def close(self) -> None:
        """Leave the shared state, which is dropped with its last handle."""
        super().close()
        with _shared_lock:
            self.state.handles -= 1
            if self._path and self.state.handles == 0:
                _shared.pop(self._path, None)
