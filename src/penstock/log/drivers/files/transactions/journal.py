"""Transactions: one frame in a journal is the commit point of appends to many partitions and of offsets.

1. Take the locks of all partitions that are written, in order, then the groups', then the journal's.
2. Write the frames beyond the ends, marked with the transaction's id; nobody sees them.
3. Append one frame to the journal that says what was written where, and which offsets are committed.
4. Move the ends, write the offsets, note in the journal that all of it is done.

Whoever finds marked frames beyond an end looks into the journal: if the id is there they count, else they are cut. So
there are no abort markers, and readers have nothing to filter. Whoever finds the journal ahead of what is done, with
its lock free, finishes it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import failpoints
from penstock.codec import prepared
from penstock.ids import new_nonce
from penstock.log.drivers.files.format.control import APPLIED, START, WRITING, End
from penstock.log.drivers.files.format.frame import GAP, HEADER, MAX_FRAME, Encoded, FrameBatch, body_of, encode, split
from penstock.log.drivers.files.format.segment import bases, headers, mapped, segment_path
from penstock.log.drivers.files.groups.membership import FileMembership, GroupFolder, GroupState, Kept, OffsetsFile
from penstock.log.drivers.files.transactions.writes import Writes
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.drivers.files.writing.producers import Stamp, producer_id
from penstock.log.drivers.files.writing.staging import discard
from penstock.log.drivers.shared.source import EmbeddedSource
from penstock.log.protocol import Commit, Committed, LogSettings, Retention, Staged
from penstock.log.record import NewRecords, Partition

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileLogStore

logger = logging.getLogger("penstock.log")

COPIERS = 4  # partitions that are written at a time, of what was staged
LOOK = 0.02  # seconds between looks for a first transaction of somebody else
SOON = 0.1  # seconds in which a committer that is not stopped ends
HUNG = 1.0  # seconds for which one that did not is not waited for again
JOURNAL = LogSettings("txn", 1, retention=Retention(age=None), segment_bytes=4 * 1024 * 1024)


class Output(msgspec.Struct, array_like=True):
    """Where a transaction wrote."""

    log: str
    partition: int
    first: int
    count: int


class OffsetChange(msgspec.Struct, array_like=True):
    """What a transaction commits for a group."""

    group: str
    log: str
    partition: int
    generation: int
    offset: int
    epoch: int


@prepared
class Happened(msgspec.Struct, array_like=True):
    """One journal record."""

    id: int
    outputs: list[Output]
    offsets: list[OffsetChange]
    staged: list[str] = []


class Journal:
    """The transactions of one store folder."""

    def __init__(self, store: FileLogStore, root: Path) -> None:
        """Open nothing: most stores never see a transaction."""
        self._store = store
        self._root = root
        self._file: PartitionFile | None = None
        self._look_at = 0.0
        self._hung_until = 0.0
        self._ids: tuple[int, int, set[int]] = (0, -1, set())  # transactions between two offsets of the journal

    # --- the file ----------------------------------------------------------------------------------

    def file(self, *, make: bool = False) -> PartitionFile | None:
        """The journal's partition, if there is one."""
        if self._file is None:
            now = time.monotonic()
            if not make and now < self._look_at:
                return None  # looked a moment ago
            self._look_at = now + LOOK
            folder = self._root / "txn"
            if not (folder / "p-0000").exists():
                if not make:
                    return None
                self._store.make_folder(folder, JOURNAL)
            self._file = self._store.open_folder(folder, JOURNAL).partition(0, happened=lambda txn, hint: False)
        return self._file

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()

    def read(self, file: PartitionFile, start: int, stop: int) -> Iterator[tuple[int, Happened]]:
        """Records of the journal by offset, as far as they are there, shown or not."""
        all_bases = bases(file.folder)
        for base, following in zip(all_bases, [*all_bases[1:], stop], strict=False):
            if following <= start:
                continue
            data = mapped(segment_path(file.folder, base))
            for at, header in headers(data, base, 0, len(data)):
                if header.next_offset <= start or header.offset >= stop or header.flags & GAP:
                    continue
                body = body_of(header, memoryview(data)[at + HEADER : at + header.size])
                if body is None:
                    continue
                batch = FrameBatch(file.place, header, body, 0, header.records)
                for offset, payload in zip(batch.offsets, batch.payloads(), strict=True):
                    if start <= offset < stop:
                        yield offset, msgspec.msgpack.decode(payload, type=Happened)

    def happened(self, txn: int, hint: int) -> bool:
        """Whether a transaction is in the journal; asked by recovery, which holds a partition's lock."""
        file = self.file()
        if file is None:
            return False
        with file.line:
            end = file.begin()
            if hint < file.slot.words[START]:
                return True  # so long ago that the journal dropped it, which it does only with what is done everywhere
            start, stop, ids = self._ids
            if stop != end.next or hint < start:
                ids = {record.id for _, record in self.read(file, hint, end.next)}
                self._ids = (hint, end.next, ids)
            return txn in ids

    # --- committing --------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> Committed:
        """All of it or nothing."""
        store = self._store
        outputs: dict[Partition, list[Encoded]] = {}
        for partition, records in commit.outputs:
            outputs.setdefault(partition, []).extend(self._encoded(partition.log, records))
        staged_at = {place for staged in commit.staged for place in _places(staged)}
        sources = [(_membership(source), source.fenced(offsets)) for source, offsets in _embedded(commit.offsets)]
        if not outputs and not sources and not commit.staged and commit.producer is None:
            return Committed()
        journal = self.file(make=True)
        assert journal is not None  # noqa: S101 - just made
        touched = sorted(outputs.keys() | staged_at)
        files = {place: store.folder(place.log).partition(place.index) for place in touched}
        while True:
            self.resolve()
            with ExitStack() as held:
                for place in touched:
                    held.enter_context(files[place].line)
                    files[place].begin()
                for log in {place.log for place in touched}:
                    store.folder(log).check_appendable()
                for membership, _ in sorted(sources, key=lambda one: one[0].group.name):
                    held.enter_context(membership.state.committing())
                held.enter_context(journal.line)
                end = journal.begin()
                if journal.slot.words[APPLIED] != end.next:
                    continue  # somebody died meanwhile
                for membership, offsets in sources:
                    membership.check(offsets)
                done = self._commit_locked(commit, journal, files, outputs, sources)
            self._prune(journal)
            return done

    def _commit_locked(
        self,
        commit: Commit,
        journal: PartitionFile,
        files: Mapping[Partition, PartitionFile],
        outputs: Mapping[Partition, list[Encoded]],
        sources: Sequence[tuple[FileMembership, Mapping[Partition, tuple[int, int]]]],
    ) -> Committed:
        store = self._store
        end = journal.begin()
        stamp = None
        if commit.producer is not None:
            stamp = Stamp(commit.producer, producer_id(commit.producer), 0, commit.sequence)
            journal.producers.read_on(end)
            last = journal.producers.last(stamp.producer)
            if last is not None and commit.sequence is not None and commit.sequence <= last:
                discard(self._root, [one.path for one in commit.staged])
                return Committed(duplicate=True)
        id_ = int(new_nonce(), 16) or 1
        now = store.now()
        writes = Writes(self._root, commit.staged, (id_, end.next), now)
        try:
            _for_each(
                lambda place: writes.write(files[place], outputs.get(place, [])), files, together=bool(commit.staged)
            )
            if store.durable:
                for file in files.values():
                    file.fdatasync_current()
            record = self._record(id_, writes, sources, commit.staged)
            entry = encode(NewRecords([msgspec.msgpack.encode(record)]))
            at, _ = journal.place_for([entry], end, now)
            if at.base != end.base:
                journal.slot.words[APPLIED] = at.next
            failpoints.point("log.transaction.before")
            done = journal.write([entry], at, now, stamp)
            if store.durable:
                try:
                    journal.fdatasync_current()
                except BaseException:
                    journal.abandon(at)
                    raise
        except BaseException:
            for place, begin in writes.before.items():
                writes.abandon(files[place], begin)
            raise
        failpoints.point("log.transaction.committed")
        self._finish(journal, done, files, writes.after, record)
        return Committed({place: writes.span(place) for place in files})

    def _finish(
        self,
        journal: PartitionFile,
        done: End,
        files: Mapping[Partition, PartitionFile],
        after: Mapping[Partition, End],
        record: Happened,
    ) -> None:
        """Behind the commit point: everything here can be done again by anybody."""
        journal.publish(done)
        if self._store.durable:
            journal.shown(done)
        for place, file in files.items():
            base = file.slot.end().base
            file.publish(after[place])
            if self._store.durable:
                file.shown(after[place])
                os.utime(segment_path(file.folder, after[place].base))
            if after[place].base != base:
                file.began(self._store.now())
            failpoints.point("log.transaction.published")
        self._apply_offsets(record, done.next)
        failpoints.point("log.transaction.offsets")
        journal.slot.words[APPLIED] = done.next
        discard(self._root, record.staged)

    def _record(
        self,
        id_: int,
        writes: Writes,
        sources: Sequence[tuple[FileMembership, Mapping[Partition, tuple[int, int]]]],
        staged: Sequence[Staged],
    ) -> Happened:
        spans = {place: writes.span(place) for place in writes.before}
        outputs = [Output(place.log, place.index, span.start, len(span)) for place, span in spans.items()]
        changes = []
        for membership, offsets in sources:
            for place, (offset, epoch) in offsets.items():
                last = membership.file(place.log).read(place.index)
                generation = last.generation + 1 if last else 1
                changes.append(OffsetChange(membership.group.name, place.log, place.index, generation, offset, epoch))
        return Happened(id_, outputs, changes, [one.path for one in staged])

    def _apply_offsets(self, record: Happened, txn: int) -> None:
        for change in record.offsets:
            settings = self._store.settings_or_none(change.log)
            if settings is None:
                continue  # deleted meanwhile
            group = GroupFolder(self._root, change.group)
            group.make()
            file = OffsetsFile(group, change.log, settings.partitions)
            try:
                last = file.read(change.partition)
                if last is None or last.generation < change.generation:
                    file.write(change.partition, Kept(change.generation, change.offset, change.epoch, txn))
            finally:
                file.close()

    # --- finishing what others began -----------------------------------------------------------------

    def resolve(self, logs: Collection[str] | None = None) -> None:
        """Finish transactions whose committer died behind the commit point; costs two looks when there is none.

        With ``logs`` only transactions of these have to be finished: whoever reads them does not wait for a committer
        that was stopped in the middle of something else.
        """
        file = self.file()
        if file is None:
            return
        words = file.slot.words
        if not words[WRITING] and words[APPLIED] == file.slot.end().next:
            return
        if logs is not None and self._is_of_others(file, logs):
            return
        with file.line:
            end = file.begin()
            records = list(self.read(file, words[APPLIED], end.next))
        for offset, record in records:
            for output in record.outputs:
                if self._store.settings_or_none(output.log) is None:
                    continue
                part = self._store.folder(output.log).partition(output.partition)
                with part.line:
                    part.begin()  # recovery asks the journal and keeps the frames
            for group in sorted({change.group for change in record.offsets}):
                state = GroupState(GroupFolder(self._root, group))
                try:
                    with state.committing():
                        self._apply_offsets(record, offset + 1)
                finally:
                    state.close()
            discard(self._root, record.staged)
        with file.line:
            file.begin()
            words[APPLIED] = max(words[APPLIED], end.next)

    def _is_of_others(self, file: PartitionFile, logs: Collection[str]) -> bool:
        """Whether the journal is held by one who lives and does not move, with nothing of these logs past its commit.

        What is not in the journal yet is seen by nobody, so there is nothing to finish either.
        """
        now = time.monotonic()
        if now > self._hung_until:
            if file.line.is_free_within(SOON):
                return False
            self._hung_until = now + HUNG
        try:
            records = [record for _, record in self.read(file, file.slot.words[APPLIED], 1 << 63)]
        except FileNotFoundError:
            return False  # dropped meanwhile: it moves
        touched = {one.log for record in records for one in record.outputs}
        touched |= {one.log for record in records for one in record.offsets}
        return touched.isdisjoint(logs)

    def _prune(self, journal: PartitionFile) -> None:
        """Drop ended segments of the journal, once their transactions are on disk everywhere.

        Offsets of the groups they name are written once more, as the last word on them after a power cut. No lock is
        held while partitions are synced: committers take the journal's lock last.
        """
        if journal.slot.end().base == journal.slot.words[START]:
            return
        all_bases = bases(journal.folder)
        if len(all_bases) <= 2 or self._store.anybody_writes():
            return  # somebody who writes may be a dead one, whose frames only the journal can judge: another time
        keep = all_bases[-2]
        dropped = [record for _, record in self.read(journal, 0, keep)]
        touched = {(one.log, one.partition) for record in dropped for one in record.outputs}
        touched |= {(one.log, one.partition) for record in dropped for one in record.offsets}
        for log, partition in sorted(touched):
            if self._store.settings_or_none(log) is not None:
                self._store.folder(log).partition(partition).sync()
        self._store.sync_offsets()
        with journal.line:
            end = journal.begin()
            if journal.slot.words[APPLIED] != end.next:
                return
            newest: dict[tuple[str, str, int], OffsetChange] = {}
            for _, record in self.read(journal, 0, end.next):
                for change in record.offsets:
                    newest[change.group, change.log, change.partition] = change
            now = self._store.now()
            entry = encode(NewRecords([msgspec.msgpack.encode(Happened(0, [], list(newest.values())))]))
            at, _ = journal.place_for([entry], end, now)
            done = journal.write([entry], at, now)
            journal.publish(done)
            journal.sync_locked()
            failpoints.point("log.journal.before")
            journal.slot.words[APPLIED] = done.next
            journal.slot.words[START] = keep
            for base in all_bases:
                if base < keep:
                    for path in journal.folder.glob(f"{base:020d}.*"):
                        path.unlink(missing_ok=True)
            failpoints.point("log.journal.after")

    # --- after a power cut ---------------------------------------------------------------------------

    def after_restart(self) -> None:
        """All partitions are recovered: go back behind transactions that did not reach the disk whole.

        In the durable profile there are none. In the fast one a transaction counts only if its journal record and
        all its frames are there; else it and everything behind it in those partitions is cut, and the offsets of it
        and of whatever the journal no longer has go back. No half transaction survives.
        """
        file = self.file()
        if file is None:
            return
        with file.line:
            end = file.begin()
        records = list(self.read(file, 0, end.next))
        good = self._whole(records)
        bad = records[len(good) :]
        if bad:
            logger.warning("%d transactions did not reach the disk before the power cut and are undone", len(bad))
            with file.line:
                file.cut_at(bad[0][0])
        for group in (self._root / "groups").glob("*"):
            self._offsets_back(GroupFolder(self._root, group.name), [record for _, record in good])
        with file.line:
            file.slot.words[APPLIED] = file.slot.end().next

    def _whole(self, records: Sequence[tuple[int, Happened]]) -> Sequence[tuple[int, Happened]]:
        """The longest beginning of the journal whose transactions are whole; cuts the rest out of the partitions."""
        for rank, (_, record) in enumerate(records):
            # What it wrote has to be there, and what it read: else that would be appended and read once more.
            needs = [(one.log, one.partition, one.first + one.count) for one in record.outputs]
            needs += [(one.log, one.partition, one.offset) for one in record.offsets]
            if any(self._end(log, partition) < end for log, partition, end in needs):
                self._cut(record for _, record in records[rank:])
                return records[:rank]
        return records

    def _end(self, log: str, partition: int) -> int:
        settings = self._store.settings_or_none(log)
        if settings is None:
            return 1 << 63  # deleted: nothing to compare with
        return self._store.folder(log).partition(partition).slot.end().next

    def _cut(self, records: Iterable[Happened]) -> None:
        for record in records:
            for output in record.outputs:
                if self._store.settings_or_none(output.log) is not None:
                    part = self._store.folder(output.log).partition(output.partition)
                    with part.line:
                        if part.slot.end().next > output.first:
                            part.cut_at(output.first)

    def _offsets_back(self, group: GroupFolder, records: Sequence[Happened]) -> None:
        """Of what slots and journal say, take the newest that really happened."""
        last: dict[tuple[str, int], OffsetChange] = {}
        known = set()
        for record in records:
            for change in record.offsets:
                if change.group == group.name:
                    last[change.log, change.partition] = change
                    known.add((change.log, change.partition, change.generation))
        if not group.exists:
            return
        for log in sorted({path.name for path in group.offsets.iterdir()} | {log for log, _ in last}):
            settings = self._store.settings_or_none(log)
            if settings is None:
                continue
            file = OffsetsFile(group, log, settings.partitions)
            try:
                for partition in range(settings.partitions):
                    said = file.slots(partition)
                    true = [one for one in said if not one.txn or (log, partition, one.generation) in known]
                    final = last.get((log, partition))
                    if final is not None:
                        true.append(Kept(final.generation, final.offset, final.epoch, 0))
                    end = self._store.folder(log).partition(partition).slot.end().next
                    self._set_back(file, partition, said, max(true, default=None), end)
                file.sync()
            finally:
                file.close()

    def _set_back(self, file: OffsetsFile, partition: int, said: Sequence[Kept], true: Kept | None, end: int) -> None:
        if true is None:
            if said:
                file.clear(partition)
            return
        offset = min(true.offset, end)  # a log of the fast profile may have lost more than the group
        newest = max(said, default=None)
        if newest is None or newest.generation != true.generation or newest.offset != offset:
            generation = max(true.generation, newest.generation if newest else 0) + 1
            file.write(partition, Kept(generation, offset, true.epoch, 0))

    def _encoded(self, log: str, records: NewRecords) -> list[Encoded]:
        settings = self._store.settings(log)
        return [encode(part, settings.compression) for part in split(records, MAX_FRAME // 2)]


def _for_each(work: Callable[[Partition], None], places: Collection[Partition], *, together: bool) -> None:
    """One after the other; or together, where there is much to check and to copy, both without the interpreter."""
    if not together or len(places) < 2:
        for place in places:
            work(place)
        return
    with ThreadPoolExecutor(max_workers=min(len(places), COPIERS)) as pool:
        for one in [pool.submit(work, place) for place in places]:
            one.result()


def _places(staged: Staged) -> list[Partition]:
    return [Partition(staged.log, index) for index in staged.counts]


def _embedded(
    offsets: Iterable[tuple[Any, dict[Partition, int]]],
) -> Iterator[tuple[EmbeddedSource, dict[Partition, int]]]:
    for source, chosen in offsets:
        assert isinstance(source, EmbeddedSource)  # noqa: S101 - of this store, as the transaction checked
        if chosen:
            yield source, chosen


def _membership(source: EmbeddedSource) -> FileMembership:
    assert isinstance(source.membership, FileMembership)  # noqa: S101 - of this store
    return source.membership
