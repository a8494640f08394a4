"""PartitionFile: the append protocol of one partition.

An append writes at the end that the control file names, over whatever a dead process left beyond it. Then it moves the
end, and then what readers may see. In the durable profile, the last step waits until the bytes are on disk.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock import failpoints
from penstock.clock import duration_micros
from penstock.errors import StoreCorrupt, StoreFull
from penstock.log.drivers.files.disk import disk_error
from penstock.log.drivers.files.format.control import (
    BOOT,
    EPOCH,
    PRODUCERS,
    VISIBLE,
    WRITING,
    End,
    Slot,
    boot_id,
)
from penstock.log.drivers.files.format.frames import Encoded
from penstock.log.drivers.files.format.index import IndexEntry, entry_bytes, read_index, rebuild_index, wants_entry
from penstock.log.drivers.files.format.segments import index_path, listed, producers_path, segment_path
from penstock.log.drivers.files.locks import PartitionLock
from penstock.log.drivers.files.private import FILE_MODE, write_private
from penstock.log.drivers.files.writing.durability import Durability, sync_folder
from penstock.log.drivers.files.writing.producers import ProducerStamp, ProducerTable
from penstock.log.drivers.files.writing.recovery import recover
from penstock.log.record import Partition

if TYPE_CHECKING:
    from penstock.log.settings import LogSettings

logger = logging.getLogger("penstock.log")

CHECK_ROOM_EVERY = 1024 * 1024  # bytes appended between checks of the free disk space
MAX_BUFFERS = 1000  # of one pwritev


class PartitionListener(Protocol):
    """What a partition asks and tells the driver, under the partition's lock."""

    def is_committed(self, txn: int, hint: int) -> bool:
        """Whether a transaction was committed; ``hint`` is where to look for it in the journal."""
        ...

    def rolled(self, part: PartitionFile) -> None:
        """A segment ended and the next one began."""
        ...

    def truncated(self, part: PartitionFile, offset: int) -> None:
        """Recovery cut the partition at an offset."""
        ...

    def written(self, part: PartitionFile) -> None:
        """Records were appended that are not on disk yet."""
        ...


class OpenSegment:
    """The segment that is being written: its file and its index."""

    def __init__(self, folder: Path, base: int, *, fresh: int = 0) -> None:
        """Open both files; ``fresh`` is O_TRUNC for a new segment."""
        self.base = base
        # A segment that is gone is not created again: its records would become a hole full of zeros.
        create = os.O_CREAT if fresh else 0
        self.fd = os.open(segment_path(folder, base), os.O_RDWR | os.O_CLOEXEC | create | fresh, FILE_MODE)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | fresh
        try:
            self.index = os.open(index_path(folder, base), flags, FILE_MODE)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Close both files."""
        os.close(self.fd)
        os.close(self.index)


class PartitionFile:
    """Appends to one partition for one store handle. The partition's lock keeps other handles and processes out."""

    def __init__(
        self,
        folder: Path,
        partition: Partition,
        settings: LogSettings,
        slot: Slot,
        lock: PartitionLock,
        *,
        listener: PartitionListener,
        durable: bool,
        min_free: int,
        is_journal: bool = False,
    ) -> None:
        """Open no files yet."""
        self.folder = folder
        self.partition = partition
        self.settings = settings
        self.slot = slot
        self.lock = lock
        self.listener = listener
        self.durable = durable
        self.is_journal = is_journal
        self.producers = ProducerTable(folder)
        self.durability = Durability(self)
        self.dropped = False  # its log was deleted or created again
        self.unsynced = 0  # bytes
        self._min_free = min_free
        self._segment: OpenSegment | None = None
        self._epoch = -1
        self._since_room_check = CHECK_ROOM_EVERY
        self._segment_age = duration_micros(settings.segment_age)

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Encoded],
        now: int,
        stamp: ProducerStamp | None = None,
        check: Callable[[], None] | None = None,
    ) -> range:
        """Append frames in one write. Returns their offsets once they are as safe as the profile promises.

        ``check`` is called under the lock and raises if the appender may no longer append.
        """
        with self.lock:
            if check is not None:
                check()
            end = self.begin()
            span = None if stamp is None else self._earlier_offsets(stamp, end)
            if span is None:
                end, first = self.reserve(frames, end, now)
                written = self.write(frames, end, now, stamp)
                self.publish(written)
                span = range(first, written.next)
        # Outside the lock, which the thread that syncs for us needs.
        if self.durable:
            self.durability.wait(span.stop)
        return span

    def begin(self) -> End:
        """Under the lock: return the end, after recovering from a restart or from an append that died."""
        self.durability.check()
        words = self.slot.words
        if words[BOOT] != boot_id() or words[WRITING]:
            recover(self)
        if words[EPOCH] != self._epoch:  # files were replaced, for example by a repair
            self.close()
            self._epoch = words[EPOCH]
        return self.slot.end()

    def reserve(self, frames: Sequence[Encoded], end: End, now: int) -> tuple[End, int]:
        """Where the frames go (the end, or a new segment), and their first offset."""
        size = frames[0].size if len(frames) == 1 else sum(frame.size for frame in frames)
        return self.reserve_bytes(size, end, now)

    def reserve_bytes(self, size: int, end: End, now: int) -> tuple[End, int]:
        """Where this many bytes go (the end, or a new segment), and their first offset."""
        self._since_room_check += size
        if self._since_room_check >= CHECK_ROOM_EVERY:
            self._check_room(size)
        is_full = end.position + size > self.settings.segment_bytes
        since = self.slot.since
        if end.position and (is_full or (since and now - since > self._segment_age)):
            end = self.roll(end)
        return end, end.next

    def write(
        self,
        frames: Sequence[Encoded],
        end: End,
        now: int,
        stamp: ProducerStamp | None = None,
        txn: tuple[int, int] = (0, 0),
    ) -> End:
        """Write frames beyond the end, which does not move yet. Returns the new end. A failed write leaves nothing."""
        words = self.slot.words
        segment = self.current_segment(end.base)
        buffers: list[bytes] = []
        offset = end.next
        stamped = {} if stamp is None else {"producer": stamp.producer, "epoch": stamp.epoch, "sequence": stamp.wire}
        for frame in frames:
            buffers.append(frame.header(offset - end.base, now, txn=txn[0], hint=txn[1], **stamped))
            buffers += frame.parts
            offset += frame.count
        words[WRITING] = 1
        if stamp is not None:
            words[PRODUCERS] = 1  # before the frame, as recovery may keep it and must then look for sequences
        failpoints.point("log.write.before")
        size = self._write_at(segment.fd, buffers, end)
        failpoints.point("log.write.after")
        position, highest, first = end.position, self.slot.max_time, end.next
        for frame in frames:
            if wants_entry(position, frame.size) and position:
                self._add_to_index(segment, IndexEntry(first, highest, position))
            position += frame.size
            first += frame.count
            highest = max(highest, frame.highest_time if frame.dated else now)
        if stamp is not None:
            self.producers.add(stamp, range(end.next, offset), end.position + size, end.base)
        self.slot.max_time = highest
        if not self.slot.since:
            self.slot.since = now
        self.unsynced += size
        return End(offset, position, end.base)

    def _add_to_index(self, segment: OpenSegment, entry: IndexEntry) -> None:
        """Add an index entry. A missing entry only costs time, so a full disk does not fail the append here."""
        try:
            os.write(segment.index, entry_bytes(entry, segment.base))
        except OSError as error:
            logger.warning("the index of %s is missing an entry: %s", self.partition, error)

    def publish(self, end: End) -> None:
        """Under the lock: move the end. In the fast profile, also move what readers see."""
        words = self.slot.words
        self.slot.set_end(*end)
        failpoints.point("log.publish.middle")
        if not self.durable:
            words[VISIBLE] = end.next
            self.listener.written(self)
        words[WRITING] = 0

    def abandon(self, end: End) -> None:
        """Under the lock: remove what was written beyond the end."""
        try:
            if self._segment is not None and self._segment.base == end.base:
                os.ftruncate(self._segment.fd, end.position)
        except OSError as error:
            logger.warning("%s keeps bytes beyond its end until the next append: %s", self.partition, error)
            return  # it is still marked as being written, so the next append recovers it
        self.producers.forget()
        self.slot.words[WRITING] = 0

    def _write_at(self, fd: int, buffers: list[bytes], end: End) -> int:
        size = sum(map(len, buffers))
        try:
            written = os.pwritev(fd, buffers, end.position) if len(buffers) <= MAX_BUFFERS else 0
            if written < size:
                whole = memoryview(b"".join(buffers))
                while written < size:
                    more = os.pwrite(fd, whole[written:], end.position + written)
                    if more == 0:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    written += more
        except OSError as error:
            self.abandon(end)
            raise disk_error(error, str(self.partition)) from error
        return size

    def _check_room(self, size: int) -> None:
        try:
            status = os.statvfs(self.folder)
        except FileNotFoundError:
            listed(self.folder)  # raises the error that says what is missing
            raise
        free = status.f_bavail * status.f_frsize
        if free < self._min_free + size:
            raise StoreFull(
                f"the disk of {self.partition} has {free:,} bytes left and min_free reserves {self._min_free:,} of "
                "them; nothing of the call was written.",
                hint="Free some space or shorten the retention; appends then work again.",
            )
        self._since_room_check = 0

    def current_segment(self, base: int) -> OpenSegment:
        """The open segment whose first offset is ``base``."""
        if self._segment is None or self._segment.base != base:
            self.close()
            try:
                self._segment = OpenSegment(self.folder, base)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as cause:
                raise StoreCorrupt(
                    f"{self.partition} cannot be written: {cause}.", hint="Restore the folder from a backup."
                ) from cause
            except OSError as error:
                raise disk_error(error, str(self.partition)) from error
        return self._segment

    def _earlier_offsets(self, stamp: ProducerStamp, end: End) -> range | None:
        """The offsets of a sequence that was appended before, or None for a new one."""
        if not self.slot.words[PRODUCERS]:
            return None
        self.producers.catch_up(end)
        return self.producers.offsets_of(stamp)

    def last_sequence(self, producer: int) -> int | None:
        """The highest sequence of a producer."""
        with self.lock:
            end = self.begin()
            if not self.slot.words[PRODUCERS]:
                return None
            self.producers.catch_up(end)
            return self.producers.last(producer)

    # --- rolling -----------------------------------------------------------------------------------

    def roll(self, end: End, *, quiet: bool = False) -> End:
        """Under the lock: end the segment and begin another.

        In the durable profile, an ended segment is on disk. In the fast profile, the next sync writes it, and recovery
        begins at the durable mark, in whichever segment that is.
        """
        segment = self.current_segment(end.base)
        if self.slot.words[PRODUCERS]:
            self.producers.catch_up(end)
        if self.durable:
            self.durability.fdatasync(segment.fd)
            self.slot.set_durable(end)
        failpoints.point("log.roll.before")
        fresh = End(end.next, 0, end.next)
        try:
            if self.slot.words[PRODUCERS]:
                self.producers.save(producers_path(self.folder, fresh.base), fresh.base)
            # A roll that died leaves an empty file, or one with bytes that no reader was ever shown.
            begun = OpenSegment(self.folder, fresh.base, fresh=os.O_TRUNC)
            failpoints.point("log.roll.created")
            os.write(begun.index, entry_bytes(IndexEntry(fresh.base, self.slot.max_time, 0), fresh.base))
            if self.durable:
                sync_folder(self.folder)
        except OSError as error:
            raise disk_error(error, str(self.partition)) from error
        self.close()
        self._segment = begun
        self.slot.set_end(*fresh)
        self.slot.since = 0
        if self.durable:
            self.slot.set_durable(fresh)
            self.slot.words[VISIBLE] = max(self.slot.words[VISIBLE], end.next)
        failpoints.point("log.roll.after")
        if not quiet:
            self.listener.rolled(self)
        return fresh

    def adopted(self, now: int) -> None:
        """Under the lock: the segment that is written now was adopted."""
        self.slot.since = now
        self.listener.rolled(self)

    def replace_with_empty(self, base: int) -> None:
        """Under the lock: put an empty segment in place of an uncommitted one, whose file may have a second name."""
        entries = read_index(self.folder, base)
        self.close()
        fresh = segment_path(self.folder, base).with_suffix(".seg.fresh")
        write_private(fresh, b"")
        fresh.replace(segment_path(self.folder, base))
        rebuild_index(self.folder, base, entries[0].max_time if entries else self.slot.max_time)
        self.slot.words[EPOCH] += 1

    def remove_segment(self, base: int) -> None:
        """Under the lock: delete a segment and the files that belong to it."""
        for path_of in (segment_path, index_path, producers_path):
            path_of(self.folder, base).unlink(missing_ok=True)

    # --- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    @property
    def is_gone(self) -> bool:
        """Whether its log was deleted."""
        return self.dropped or not self.folder.exists()

    @property
    def is_open(self) -> bool:
        """Whether it has files open."""
        return self._segment is not None
