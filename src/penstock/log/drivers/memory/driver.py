"""Logs in the memory of one process: for tests, for trying out, and as the contract in its plainest form."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.clock import Clock, Micros, duration_micros
from penstock.errors import AppenderTaken, BadInput, Conflict, Fenced, PartitionTaken
from penstock.ids import new_id, new_nonce
from penstock.log.drivers.shared.source import EmbeddedSource, Membership, Reader, Watch, fenced
from penstock.log.group import Listener
from penstock.log.protocol import Commit, Committed, LogCapabilities, LogSettings, Removed, Sink, Source, Stage, Staged
from penstock.log.record import (
    NO_HEADERS,
    Bounds,
    Headers,
    ListBatch,
    NewRecords,
    Partition,
    RecordBatch,
    key_bytes,
)
from penstock.log.store import CommitWatch, LogStore, OutOfRange

if TYPE_CHECKING:
    from penstock.location import Location

REMEMBERED = 5  # sequences of a producer whose offsets are known


class MemoryPartition:
    """The records of one partition, as columns that only grow at the end and shrink at the start."""

    def __init__(self) -> None:
        self.start = 0
        self.payloads: list[bytes] = []
        self.keys: list[str | None] = []
        self.times: list[Micros] = []
        self.appended: list[Micros] = []  # when, by the store's clock: retention goes by this
        self.headers: list[Headers] = []
        self.size = 0
        self.producers: dict[str, list[tuple[int, range]]] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.payloads)

    def add(self, records: NewRecords, now: Micros) -> range:
        first, count = self.end, len(records)
        self.payloads += records.values
        self.keys += [
            None if key is None else key_bytes(key).decode("utf-8", "surrogateescape")
            for key in records.keys or [None] * count
        ]
        self.times += records.times or [now] * count
        self.appended += [now] * count
        self.headers += [dict(one) if one else NO_HEADERS for one in records.headers or [None] * count]
        self.size += sum(map(len, records.values))
        return range(first, first + count)

    def part(self, place: Partition, offset: int, limit: int) -> ListBatch:
        low = offset - self.start
        high = min(low + limit, len(self.payloads))
        return ListBatch(
            place, range(offset, self.start + high), self.payloads[low:high], self.times[low:high],
            self.keys[low:high], self.headers[low:high],
        )  # fmt: skip

    def cut(self, start: int) -> tuple[int, int]:
        count = start - self.start
        size = sum(map(len, self.payloads[:count]))
        for column in (self.payloads, self.keys, self.times, self.appended, self.headers):
            del column[:count]
        self.start, self.size = start, self.size - size
        return count, size


class MemoryLog:
    """One log: its settings, its partitions and who has it open."""

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self.identity = new_id()
        self.partitions = [MemoryPartition() for _ in range(settings.partitions)]
        self.appenders = 0
        self.exclusive: MemoryLogStore | None = None  # the handle whose appender keeps it to itself


class MemoryGroup:
    """One group: committed offsets, leases and members."""

    def __init__(self) -> None:
        self.offsets: dict[Partition, int] = {}
        self.epochs: dict[Partition, int] = {}
        self.owners: dict[Partition, str] = {}
        self.members: dict[str, tuple[tuple[str, ...], float, float]] = {}  # logs, last beat, patience
        self.version = 0


class MemoryState:
    """What handles of one address share."""

    def __init__(self) -> None:
        self.bell = threading.Condition(threading.RLock())
        self.rings = 0
        self.logs: dict[str, MemoryLog] = {}
        self.groups: dict[str, MemoryGroup] = {}
        self.producers: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        self.staged: dict[str, list[tuple[int, NewRecords]]] = {}
        self.handles = 0

    def ring(self) -> None:
        self.rings += 1
        self.bell.notify_all()

    def group(self, name: str) -> MemoryGroup:
        return self.groups.setdefault(name, MemoryGroup())


_shared: dict[str, MemoryState] = {}
_shared_lock = threading.Lock()


def open_store(location: Location, clock: Clock) -> MemoryLogStore:
    """Open ``memory://``, a store of its own, or ``memory://NAME``, shared within the process."""
    location.reject_unknown_options(frozenset({"record_limit"}))
    if location.space != "penstock":
        raise BadInput(f"logs know no spaces ({location.masked}).", hint="Use another name: memory://NAME.")
    limit = location.options.get("record_limit", str(MemoryLogStore.record_limit))
    if not limit.isdecimal() or int(limit) < 1:
        raise BadInput(f"record_limit {limit!r} in {location.masked} is not a size.", hint="Give a number of bytes.")
    return MemoryLogStore(location.path, clock, location.masked, record_limit=int(limit))


class MemoryLogStore(LogStore):
    """Logs in the memory of this process, gone with it."""

    capabilities = LogCapabilities(durable=False, copies=False)

    def __init__(self, path: str, clock: Clock, name: str, *, record_limit: int = LogStore.record_limit) -> None:
        """Join the state at ``path``, or start one; an empty path is shared with nobody."""
        super().__init__(clock, name)
        self.record_limit = record_limit
        self._path = path
        with _shared_lock:
            self.state = _shared.setdefault(path, MemoryState()) if path else MemoryState()
            self.state.handles += 1

    @contextmanager
    def using(self) -> Iterator[MemoryState]:
        with self.state.bell:
            self._check_open()
            yield self.state

    # --- logs --------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All logs."""
        with self.using() as state:
            return sorted(state.logs)

    def _create(self, settings: LogSettings) -> bool:
        with self.using() as state:
            if settings.name in state.logs:
                return False
            state.logs[settings.name] = MemoryLog(settings)
            return True

    def _settings(self, name: str) -> LogSettings | None:
        log = self.state.logs.get(name)
        return None if log is None else log.settings

    def _identity(self, name: str) -> str | None:
        log = self.state.logs.get(name)
        return None if log is None else log.identity

    def _delete(self, name: str) -> bool:
        with self.using() as state:
            if name not in state.logs:
                return False
            taken = any(one.log == name for group in state.groups.values() for one in group.owners)
            if state.logs[name].appenders or taken:
                raise Conflict(f"log {name} is in use.", hint="Close its appenders and tailers first.")
            del state.logs[name]
            for group in state.groups.values():
                for one in [one for one in group.offsets if one.log == name]:
                    del group.offsets[one]
            return True

    def _bounds(self, settings: LogSettings) -> list[Bounds]:
        with self.using() as state:
            parts = state.logs[settings.name].partitions
            return [Bounds(index, one.start, one.end, one.size) for index, one in enumerate(parts)]

    def partition_at(self, place: Partition) -> MemoryPartition:
        return self.state.logs[place.log].partitions[place.index]

    def _batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]:
        while start < stop:
            with self.using():
                kept = self.partition_at(partition)
                if start < kept.start:
                    raise self.out_of_range(partition, start, Bounds(partition.index, kept.start, kept.end))
                batch = kept.part(partition, start, min(stop - start, 1000))
            yield batch
            start = batch.next_offset

    def _offset_at(self, partition: Partition, micros: Micros) -> int:
        with self.using():
            kept = self.partition_at(partition)
            rank = next((rank for rank, one in enumerate(kept.times) if one >= micros), len(kept.times))
            return kept.start + rank

    # --- groups ------------------------------------------------------------------------------------

    def _groups(self, name: str) -> list[str]:
        with self.using() as state:
            return sorted(group for group, kept in state.groups.items() if any(one.log == name for one in kept.offsets))

    def _committed(self, settings: LogSettings, group: str) -> list[int | None]:
        with self.using() as state:
            offsets = state.groups[group].offsets if group in state.groups else {}
            return [offsets.get(Partition(settings.name, index)) for index in range(settings.partitions)]

    def _reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        with self.using() as state:
            kept = state.group(group)
            for partition in offsets:
                if partition in kept.owners:
                    raise taken(partition, group)
            kept.offsets.update(offsets)
            state.ring()

    def _forget(self, group: str, name: str | None) -> bool:
        with self.using() as state:
            kept = state.groups.get(group)
            if kept is None:
                return False
            for partition in kept.owners:
                if name in (None, partition.log):
                    raise taken(partition, group)
            going = [one for one in kept.offsets if name in (None, one.log)]
            for one in going:
                del kept.offsets[one]
            return bool(going)

    # --- working -----------------------------------------------------------------------------------

    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink:
        return MemorySink(self, settings, exclusive, producer)

    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        source = self._source(group, (), None, out_of_range, max_poll)
        return EmbeddedSource.assigned(partitions, source)

    def open_subscribed(
        self,
        logs: Sequence[LogSettings],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> Source:
        return self._source(group, logs, listener, out_of_range, max_poll)

    def _source(
        self,
        group: str,
        logs: Sequence[LogSettings],
        listener: Listener | None,
        policy: OutOfRange,
        patience: timedelta,
    ) -> EmbeddedSource:
        self._check_open()
        return EmbeddedSource(
            self, MemoryMembership(self.state, group, logs, patience), MemoryWatch(self.state),
            lambda place: MemoryReader(self, place), group=group, out_of_range=policy, max_poll=patience, logs=logs,
            listener=listener,
        )  # fmt: skip

    def transact(self, commit: Commit) -> Committed:
        with self.using() as state:
            mark = None
            if commit.producer is not None and commit.sequence is not None:
                mark = (commit.producer, commit.sequence)
            if mark is not None and state.marks.get(mark[0], -1) >= mark[1]:
                return Committed(duplicate=True)
            logs = {partition.log for partition, _ in commit.outputs} | {staged.log for staged in commit.staged}
            for name in logs:
                if name in state.logs and state.logs[name].exclusive not in (None, self):
                    raise AppenderTaken(
                        f"log {name} has an appender that was opened with exclusive=True.",
                        hint="Close it first, or commit the transaction through its store.",
                    )
            plans = []
            for source, offsets in commit.offsets:
                assert isinstance(source, EmbeddedSource)  # noqa: S101 - of this store, as the transaction checked
                kept = state.group(source.group)
                for partition, (_, epoch) in source.fenced(offsets).items():
                    if kept.epochs.get(partition) != epoch or partition not in kept.owners:
                        raise fenced(partition, source.group)
                plans.append((kept, offsets))
            outputs = list(commit.outputs)
            for staged in commit.staged:
                if staged.path not in state.staged:
                    raise Conflict(f"what was staged for {staged.log} is gone.", hint="Was it committed already?")
                outputs += [(Partition(staged.log, one), new) for one, new in state.staged.pop(staged.path)]
            now = self.now()
            done: dict[Partition, Sequence[int]] = {}
            for partition, records in outputs:
                span = self.partition_at(partition).add(records, now)
                done[partition] = range(done[partition][0] if partition in done else span[0], span[-1] + 1)
            for kept, offsets in plans:
                kept.offsets.update(offsets)
            if mark is not None:
                state.marks[mark[0]] = mark[1]
            state.ring()
            return Committed(done)

    def _stage(self, settings: LogSettings) -> Stage:
        return MemoryStage(self.state, settings)

    def staged_commit(self) -> str:
        """What is done with the bytes of staged records."""
        return "they are in the memory of this process"

    def _discard(self, staged: Sequence[Staged]) -> None:
        for one in staged:
            self.state.staged.pop(one.path, None)

    def _retain(self, settings: LogSettings, dry_run: bool) -> list[Removed]:
        with self.using() as state:
            removed = []
            for index, kept in enumerate(state.logs[settings.name].partitions):
                place = Partition(settings.name, index)
                start, reason = self._removable(settings, place, kept)
                if start > kept.start:
                    count = start - kept.start
                    size = sum(map(len, kept.payloads[:count]))
                    if not dry_run:
                        kept.cut(start)
                    removed.append(Removed(place, start, count, size, reason))
            return removed

    def _removable(self, settings: LogSettings, place: Partition, kept: MemoryPartition) -> tuple[int, str]:
        rule = settings.retention
        start, reason = kept.start, ""
        if rule.age is not None:
            old = kept.start + bisect_right(kept.appended, self.now() - duration_micros(rule.age) - 1)
            start, reason = max((start, reason), (old, "age"))
        if rule.size is not None:
            start, reason = max((start, reason), (self._beyond(kept, rule.size), "size"))
        if rule.keep_for:
            groups = self.state.groups
            read = min(
                groups[group].offsets.get(place, kept.start) if group in groups else kept.start
                for group in rule.keep_for
            )
            start, reason = (read, "consumed") if rule.consumed else (min(start, read), reason)
        if rule.hard_size is not None:
            start, reason = max((start, reason), (self._beyond(kept, rule.hard_size), "hard_size"))
        return start, reason

    @staticmethod
    def _beyond(kept: MemoryPartition, size: int) -> int:
        over, start = kept.size - size, kept.start
        for payload in kept.payloads:
            if over <= 0:
                break
            over -= len(payload)
            start += 1
        return start

    def _commit_watch(self, group: str) -> CommitWatch:
        return MemoryCommitWatch(self.state)

    def _close(self) -> None:
        with _shared_lock:
            self.state.handles -= 1
            if self._path and self.state.handles == 0:
                _shared.pop(self._path, None)


class MemorySink(Sink):
    """Appends under the one lock."""

    def __init__(self, store: MemoryLogStore, settings: LogSettings, exclusive: bool, producer: str | None) -> None:
        self._store = store
        self._settings = settings
        self._exclusive = exclusive
        self._producer = producer
        self._epoch = 0
        with store.using() as state:
            log = state.logs[settings.name]
            if log.exclusive is not None or (exclusive and log.appenders):
                raise AppenderTaken(
                    f"log {settings.name} has another appender.", hint="Close it, or do without exclusive=True."
                )
            log.appenders += 1
            log.exclusive = store if exclusive else None
            if producer is not None:
                self._epoch = state.producers[producer] = state.producers.get(producer, 0) + 1

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        store = self._store
        with store.using() as state:
            if self._producer is not None and state.producers[self._producer] != self._epoch:
                raise Fenced(
                    f"producer {self._producer} has another appender now.", hint="Only the newest one may append."
                )
            log = state.logs[self._settings.name]
            now = store.now()
            spans: list[Sequence[int]] = []
            for number, records in parts:
                kept = log.partitions[number]
                known = self._known(kept, sequence)
                if known is None:
                    known = kept.add(records, now)
                    if sequence is not None and self._producer is not None:
                        marks = kept.producers.setdefault(self._producer, [])
                        marks.append((sequence, known))
                        del marks[:-REMEMBERED]
                spans.append(known)
            state.ring()
            return spans

    def _known(self, kept: MemoryPartition, sequence: int | None) -> range | None:
        if sequence is None or self._producer is None:
            return None
        marks = kept.producers.get(self._producer, [])
        if not marks or sequence > marks[-1][0]:
            return None
        for number, span in marks:
            if number == sequence:
                return span
        raise too_old(self._producer, sequence, marks[-1][0])

    def last_sequence(self, partition: int) -> int | None:
        if self._producer is None:
            return super().last_sequence(partition)
        with self._store.using() as state:
            marks = state.logs[self._settings.name].partitions[partition].producers.get(self._producer)
            return marks[-1][0] if marks else None

    def close(self) -> None:
        with self._store.state.bell:
            log = self._store.state.logs.get(self._settings.name)
            if log is not None:
                log.appenders -= 1
                if self._exclusive:
                    log.exclusive = None


class MemoryReader(Reader):
    """Reads under the one lock."""

    def __init__(self, store: MemoryLogStore, place: Partition) -> None:
        self._store = store
        self._place = place
        self._kept = store.partition_at(place)

    @property
    def start(self) -> int:
        return self._kept.start

    @property
    def end(self) -> int:
        return self._kept.end

    def read(self, offset: int, limit: int) -> tuple[list[RecordBatch], int]:
        with self._store.using():
            if offset >= self._kept.end or offset < self._kept.start:
                return [], offset
            batch = self._kept.part(self._place, offset, limit)
            return [batch], batch.next_offset


class MemoryMembership(Membership):
    """Leases in a dictionary; a member is gone when it is closed, and hung when it does not read."""

    def __init__(self, state: MemoryState, group: str, logs: Sequence[LogSettings], patience: timedelta) -> None:
        self.id = new_nonce()
        self._state = state
        self._name = group
        self._logs = tuple(one.name for one in logs)
        self._patience = patience.total_seconds()
        with state.bell:
            self._group = state.group(group)
            self.beat()
            self._changed()

    def version(self) -> int:
        return self._group.version

    def beat(self) -> None:
        self._group.members[self.id] = (self._logs, time.monotonic(), self._patience)

    def members(self) -> Mapping[str, Sequence[str]]:
        with self._state.bell:
            return {one: logs for one, (logs, _, _) in self._group.members.items() if logs and self._lives(one)}

    def owner(self, partition: Partition) -> str | None:
        return self._group.owners.get(partition)

    def take(self, partition: Partition) -> int | None:
        with self._state.bell:
            owner = self._group.owners.get(partition)
            if owner is not None and self._lives(owner):
                return None
            epoch = self._group.epochs[partition] = self._group.epochs.get(partition, 0) + 1
            self._group.owners[partition] = self.id
            self._changed()
            return epoch

    def holds(self, partition: Partition, epoch: int) -> bool:
        return self._group.epochs.get(partition) == epoch

    def give_back(self, partition: Partition, epoch: int) -> None:
        with self._state.bell:
            if self.holds(partition, epoch):
                self._group.owners.pop(partition, None)
                self._changed()

    def commit(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        with self._state.bell:
            for partition, (_, epoch) in offsets.items():
                if not self.holds(partition, epoch):
                    raise fenced(partition, self._name)
            self._group.offsets.update({partition: offset for partition, (offset, _) in offsets.items()})
            self._state.ring()

    def committed(self, partition: Partition) -> int | None:
        return self._group.offsets.get(partition)

    def leave(self) -> None:
        with self._state.bell:
            self._group.members.pop(self.id, None)
            self._changed()

    def _lives(self, member: str) -> bool:
        known = self._group.members.get(member)
        return known is not None and time.monotonic() - known[1] <= known[2]

    def _changed(self) -> None:
        self._group.version += 1
        self._state.ring()


class MemoryWatch(Watch):
    """Waits for the bell of the state: any append or change rings it."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._seen = -1
        self._woken = False

    def follow(self, partitions: Sequence[Partition]) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        with self._state.bell:
            if self._seen == self._state.rings and not self._woken:
                self._state.bell.wait(seconds)
            self._seen = self._state.rings
            return False

    def wake(self) -> None:
        with self._state.bell:
            self._woken = True
            self._state.bell.notify_all()

    def close(self) -> None:
        pass


class MemoryCommitWatch(CommitWatch):
    """Ends a wait at the next ring."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__()
        self._state = state
        self._seen = -1

    def wait(self, seconds: float) -> None:
        with self._state.bell:
            if self._seen == self._state.rings:
                self._state.bell.wait(seconds)
            self._seen = self._state.rings


class MemoryStage(Stage):
    """Records aside, in a list."""

    def __init__(self, state: MemoryState, settings: LogSettings) -> None:
        self._state = state
        self._log = settings.name
        self._parts: list[tuple[int, NewRecords]] = []

    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        self._parts += parts

    def close(self) -> Staged:
        path = new_nonce()
        with self._state.bell:
            self._state.staged[path] = self._parts
        counts: dict[int, int] = {}
        for number, records in self._parts:
            counts[number] = counts.get(number, 0) + len(records)
        return Staged(path, self._log, counts)

    def discard(self) -> None:
        self._parts = []


def taken(partition: Partition, group: str) -> PartitionTaken:
    """The error for changing what an open tailer owns."""
    return PartitionTaken(
        f"{partition} is read by an open tailer of group {group}.", hint="Stop the group's readers first."
    )


def too_old(producer: str, sequence: int, last: int) -> Conflict:
    """The error for a sequence whose offsets are forgotten."""
    return Conflict(
        f"producer {producer} is at sequence {last}; {sequence} is too long ago to say where it went.",
        hint="Go on after last_sequence().",
    )
