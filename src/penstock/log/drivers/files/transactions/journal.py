"""Journal: a log of one partition whose frames are the commit points of transactions.

1. Take the locks of all partitions to be written, in order, then the groups' locks, then the journal's.
2. Write the frames beyond the ends, stamped with the transaction's id; nobody sees them.
3. Append one frame to the journal that says what was written where, and which offsets are committed.
4. Move the ends, write the offsets, and record in the journal's slot that all of it is done.

A process that finds stamped frames beyond an end looks in the journal: if the id is there they count, else they are
cut. So there are no abort markers, and readers have nothing to filter. A process that finds the journal ahead of what
is done, with its lock free, finishes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.log.drivers.files.format.batch import FrameBatch
from penstock.log.drivers.files.format.control import APPLIED, START, WRITING
from penstock.log.drivers.files.format.frames import GAP, HEADER, body_of
from penstock.log.drivers.files.format.segments import bases, headers, mapped, segment_path
from penstock.log.drivers.files.groups.leases import GroupState
from penstock.log.drivers.files.groups.offsets import CommittedOffset, GroupFolder, OffsetsFile
from penstock.log.drivers.files.transactions.records import JournalRecord
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.drivers.files.writing.staging import discard
from penstock.log.settings import LogSettings, Retention

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileDriver

CHECK_EVERY = 0.02  # seconds between checks whether another process has made the journal
SOON = 0.1  # seconds in which a committer that is not stopped finishes
HUNG_FOR = 1.0  # seconds for which a committer that did not finish is not waited for again
LAST_OFFSET = 1 << 63
JOURNAL = LogSettings("txn", 1, retention=Retention(age=None), segment_bytes=4 * 1024 * 1024)


class JournalListener:
    """The listener of the journal's own partition. The journal has no transactions and prunes itself."""

    def __init__(self, driver: FileDriver) -> None:
        """For the journal of a driver."""
        self._driver = driver

    def is_committed(self, txn: int, hint: int) -> bool:
        """No frame of the journal belongs to a transaction."""
        return False

    def rolled(self, part: PartitionFile) -> None:
        """Retention does not apply."""

    def truncated(self, part: PartitionFile, offset: int) -> None:
        """Users do not see the journal."""

    def written(self, part: PartitionFile) -> None:
        """Sync it in the background."""
        self._driver.written(part)


class Journal:
    """The journal of a store's folder."""

    def __init__(self, driver: FileDriver, root: Path) -> None:
        """Open nothing: most stores never see a transaction."""
        self.driver = driver
        self.root = root
        self._file: PartitionFile | None = None
        self._check_at = 0.0
        self._hung_until = 0.0
        self._ids: tuple[int, int, set[int]] = (0, -1, set())  # transactions between two offsets of the journal

    # --- the file ----------------------------------------------------------------------------------

    def file(self) -> PartitionFile | None:
        """The journal's partition, or None if there was no transaction yet."""
        if self._file is None:
            now = time.monotonic()
            if now < self._check_at:
                return None
            self._check_at = now + CHECK_EVERY
            if not (self.root / "txn" / "p-0000").exists():
                return None
            self._open()
        return self._file

    def made_file(self) -> PartitionFile:
        """The journal's partition, which is created if needed."""
        if self._file is None:
            folder = self.root / "txn"
            if not (folder / "p-0000").exists():
                self.driver.make_folder(folder, JOURNAL)
            self._open()
        assert self._file is not None  # noqa: S101 - opened above
        return self._file

    def _open(self) -> None:
        listener = JournalListener(self.driver)
        self._file = self.driver.open_journal_folder(self.root / "txn", JOURNAL, listener).partition(0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def read(self, file: PartitionFile, start: int, stop: int) -> Iterator[tuple[int, JournalRecord]]:
        """The journal's records and their offsets, visible or not."""
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
                batch = FrameBatch(file.partition, header, body, 0, header.records)
                for offset, payload in zip(batch.offsets, batch.payloads(), strict=True):
                    if start <= offset < stop:
                        yield offset, msgspec.msgpack.decode(payload, type=JournalRecord)

    def is_committed(self, txn: int, hint: int) -> bool:
        """Whether the journal has a transaction. Recovery asks this, holding the lock of a partition."""
        file = self.file()
        if file is None:
            return False
        with file.lock:
            end = file.begin()
            if hint < file.slot.words[START]:
                return True  # it was pruned, and only transactions that are done everywhere are
            start, stop, ids = self._ids
            if stop != end.next or hint < start:
                ids = {record.id for _, record in self.read(file, hint, end.next)}
                self._ids = (hint, end.next, ids)
            return txn in ids

    # --- finishing transactions ----------------------------------------------------------------------

    def apply_offsets(self, record: JournalRecord, txn: int) -> None:
        """Write a transaction's offsets, unless newer ones are there."""
        for change in record.offsets:
            settings = self.driver.find_settings(change.log)
            if settings is None:
                continue  # the log was deleted meanwhile
            group = GroupFolder(self.root, change.group)
            group.make()
            file = OffsetsFile(group, change.log, settings.partitions)
            try:
                last = file.read(change.partition)
                if last is None or last.generation < change.generation:
                    file.write(change.partition, CommittedOffset(change.generation, change.offset, change.epoch, txn))
            finally:
                file.close()

    def resolve(self, logs: Collection[str] | None = None) -> None:
        """Finish transactions whose committer died after the commit point. Cheap if there are none.

        With ``logs``, only transactions of these logs must be finished: their readers do not wait for a committer that
        was stopped in the middle of another transaction.
        """
        file = self.file()
        if file is None:
            return
        words = file.slot.words
        if not words[WRITING] and words[APPLIED] == file.slot.end().next:
            return
        if logs is not None and self._concerns_only_others(file, logs):
            return
        with file.lock:
            end = file.begin()
            records = list(self.read(file, words[APPLIED], end.next))
        for offset, record in records:
            self._finish(offset, record)
        with file.lock:
            file.begin()
            words[APPLIED] = max(words[APPLIED], end.next)

    def _finish(self, offset: int, record: JournalRecord) -> None:
        for output in record.outputs:
            if self.driver.find_settings(output.log) is None:
                continue
            part = self.driver.folder(output.log).partition(output.partition)
            with part.lock:
                part.begin()  # recovery asks the journal and keeps the frames
        for group in sorted({change.group for change in record.offsets}):
            state = GroupState(GroupFolder(self.root, group))
            try:
                with state.committing():
                    self.apply_offsets(record, offset + 1)
            finally:
                state.close()
        discard(self.root, record.staged)

    def _concerns_only_others(self, file: PartitionFile, logs: Collection[str]) -> bool:
        """Whether a stopped process holds the journal, and no committed transaction that is not done has these logs.

        Nobody sees a transaction that is not in the journal yet, so there is nothing to finish either.
        """
        now = time.monotonic()
        if now > self._hung_until:
            if file.lock.is_free_within(SOON):
                return False
            self._hung_until = now + HUNG_FOR
        try:
            records = [record for _, record in self.read(file, file.slot.words[APPLIED], LAST_OFFSET)]
        except FileNotFoundError:
            return False  # a segment was pruned meanwhile, so the holder is not stopped
        touched = {output.log for record in records for output in record.outputs}
        touched |= {change.log for record in records for change in record.offsets}
        return touched.isdisjoint(logs)
