"""One partition on disk: the append protocol, group commit, rolling, and recovery of its tail.

An append writes at the end that the control file tells (so what a dead process left beyond it is written over), then
moves the end, then what readers may see. In the durable profile the last step comes after the bytes are on disk.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.clock import duration_micros
from penstock.errors import StoreCorrupt, StoreFull, StoreReadOnly
from penstock.log.drivers.files.disk import disk_error
from penstock.log.drivers.files.format.control import (
    BOOT,
    DURABLE,
    EPOCH,
    NO_TIME,
    PRODUCERS,
    START,
    VISIBLE,
    WRITING,
    End,
    Slot,
    boot,
)
from penstock.log.drivers.files.format.frame import TXN, Encoded, read_header
from penstock.log.drivers.files.format.segment import (
    Entry,
    Scan,
    bases,
    corrupt,
    entry_bytes,
    good_frame,
    headers,
    index_path,
    listed,
    mapped,
    next_good,
    producers_path,
    read_index,
    rebuild_index,
    scan,
    segment_path,
    wants_entry,
)
from penstock.log.drivers.files.locks import Line
from penstock.log.drivers.files.private import FILE_MODE, write_private
from penstock.log.drivers.files.writing.producers import ProducerTable, Stamp
from penstock.log.record import Partition

if TYPE_CHECKING:
    from penstock.log.protocol import LogSettings

logger = logging.getLogger("penstock.log")

LOOK_AT_ROOM = 1024 * 1024  # bytes between looks at the free space of the disk


class Segment:
    """The segment that is written: its file and its index."""

    def __init__(self, folder: Path, base: int, *, fresh: int = 0) -> None:
        """Open both; ``fresh`` is O_TRUNC for a segment that begins."""
        self.base = base
        # One that is gone is not created again: what was in it would be a hole full of zeros.
        create = os.O_CREAT if fresh else 0
        self.fd = os.open(segment_path(folder, base), os.O_RDWR | os.O_CLOEXEC | create | fresh, FILE_MODE)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | fresh
        try:
            self.index = os.open(index_path(folder, base), flags, FILE_MODE)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Close both."""
        os.close(self.fd)
        os.close(self.index)


class PartitionFile:
    """Appends to one partition, for one handle; its lock makes it one of many."""

    def __init__(
        self,
        folder: Path,
        place: Partition,
        settings: LogSettings,
        slot: Slot,
        line: Line,
        *,
        durable: bool,
        min_free: int,
        happened: Callable[[int, int], bool],
        told: Callable[..., None],
        opened: Callable[[PartitionFile], None],
    ) -> None:
        """Open nothing yet."""
        self.folder = folder
        self.place = place
        self.settings = settings
        self.slot = slot
        self.line = line
        self.durable = durable
        self.producers = ProducerTable(folder)
        self._min_free = min_free
        self._happened = happened
        self._told = told
        self._opened = opened
        self._segment: Segment | None = None
        self._epoch = -1
        self._unlooked = LOOK_AT_ROOM
        self._poison: BaseException | None = None
        self._sync_bell = threading.Condition()
        self._syncing = False
        self.dropped = False  # with its log, which was deleted or created again
        self.unsynced = 0
        self._segment_age = duration_micros(settings.segment_age)

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Encoded],
        now: int,
        stamp: Stamp | None = None,
        check: Callable[[], None] | None = None,
    ) -> range:
        """Append frames as one; their offsets, when they are as safe as the profile says.

        ``check`` raises, under the lock, for one that may not append any more.
        """
        with self.line:
            if check is not None:
                check()
            end = self.begin()
            made = None if stamp is None else self._known(stamp, end)
            if made is None:
                end, first = self.place_for(frames, end, now)
                written = self.write(frames, end, now, stamp)
                self.publish(written)
                made = range(first, written.next)
        # Not under the lock: who syncs for us needs it.
        if self.durable:
            self.wait_durable(made.stop)
        return made

    def begin(self) -> End:
        """Under the lock: make sure that the end is right, whatever the last one did."""
        if self._poison is not None:
            raise StoreReadOnly(
                f"{self.place} could not be written to disk before ({self._poison}); nothing more is accepted.",
                hint="Look at the disk, then close the store, open it again and verify().",
            ) from self._poison
        words = self.slot.words
        if words[BOOT] != boot() or words[WRITING]:
            self.recover()
        if words[EPOCH] != self._epoch:  # repaired by somebody: the files are others now
            self.close()
            self._epoch = words[EPOCH]
        return self.slot.end()

    def place_for(self, frames: Sequence[Encoded], end: End, now: int) -> tuple[End, int]:
        """Where the frames go: here, or in a new segment; and the first offset."""
        size = frames[0].size if len(frames) == 1 else sum(frame.size for frame in frames)
        return self.place_of_size(size, end, now)

    def place_of_size(self, size: int, end: End, now: int) -> tuple[End, int]:
        """The same for so many bytes."""
        self._unlooked += size
        if self._unlooked >= LOOK_AT_ROOM:
            self._check_room(size)
        full = end.position + size > self.settings.segment_bytes
        since = self.slot.since
        if end.position and (full or (since and now - since > self._segment_age)):
            end = self.roll(end)
        return end, end.next

    def write(
        self, frames: Sequence[Encoded], end: End, now: int, stamp: Stamp | None = None, txn: tuple[int, int] = (0, 0)
    ) -> End:
        """Write beyond the end, which stays where it is; a failure leaves nothing."""
        words = self.slot.words
        segment = self._current(end.base)
        buffers: list[bytes] = []
        offset = end.next
        stamped = {} if stamp is None else {"producer": stamp.producer, "epoch": stamp.epoch, "sequence": stamp.wire}
        for frame in frames:
            buffers.append(frame.header(offset - end.base, now, txn=txn[0], hint=txn[1], **stamped))
            buffers += frame.parts
            offset += frame.count
        words[WRITING] = 1
        if stamp is not None:
            words[PRODUCERS] = 1  # before the frame: recovery may keep it, and then it has to be looked for
        failpoints.point("log.write.before")
        size = self._write_at(segment.fd, buffers, end)
        failpoints.point("log.write.after")
        position, highest, first = end.position, self.slot.max_time, end.next
        for frame in frames:
            if wants_entry(position, frame.size) and position:
                self._index(segment, Entry(first, highest, position))
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

    def _index(self, segment: Segment, entry: Entry) -> None:
        """A line for a frame; that it may fail costs time only, so a full disk is no reason to fail the append."""
        try:
            os.write(segment.index, entry_bytes(entry, segment.base))
        except OSError as error:
            logger.warning("the index of %s misses a line: %s", self.place, error)

    def publish(self, end: End) -> None:
        """Under the lock: move the end; without waiting for the disk, also what readers see."""
        words = self.slot.words
        self.slot.set_end(*end)
        failpoints.point("log.publish.middle")
        if not self.durable:
            words[VISIBLE] = end.next
            self._opened(self)
        words[WRITING] = 0

    def abandon(self, end: End) -> None:
        """Under the lock: take back what was written beyond the end."""
        try:
            if self._segment is not None and self._segment.base == end.base:
                os.ftruncate(self._segment.fd, end.position)
        except OSError as error:
            logger.warning("%s keeps bytes beyond its end until the next append: %s", self.place, error)
            return  # still marked as being written, so the next one recovers
        self.producers.forget()
        self.slot.words[WRITING] = 0

    def _write_at(self, fd: int, buffers: list[bytes], end: End) -> int:
        size = sum(map(len, buffers))
        try:
            written = os.pwritev(fd, buffers[:1000], end.position) if len(buffers) <= 1000 else 0
            if written < size:
                whole = memoryview(b"".join(buffers))
                while written < size:
                    more = os.pwrite(fd, whole[written:], end.position + written)
                    if more == 0:
                        raise _no_room()
                    written += more
        except OSError as error:
            self.abandon(end)
            raise disk_error(error, str(self.place)) from error
        return size

    def _check_room(self, size: int) -> None:
        try:
            free = os.statvfs(self.folder)
        except FileNotFoundError:
            listed(self.folder)  # says what is gone
            raise
        left = free.f_bavail * free.f_frsize
        if left < self._min_free + size:
            raise StoreFull(
                f"the disk of {self.place} has {left:,} bytes left and min_free keeps {self._min_free:,} of them; "
                "nothing of the call was written.",
                hint="Free some space or shorten the retention; appends then go on by themselves.",
            )
        self._unlooked = 0

    def _current(self, base: int) -> Segment:
        if self._segment is None or self._segment.base != base:
            self.close()
            try:
                self._segment = Segment(self.folder, base)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as cause:
                raise StoreCorrupt(
                    f"{self.place} cannot be written: {cause}.", hint="Restore the folder from a backup."
                ) from cause
            except OSError as error:
                raise disk_error(error, str(self.place)) from error
        return self._segment

    def _known(self, stamp: Stamp, end: End) -> range | None:
        if not self.slot.words[PRODUCERS]:
            return None
        self.producers.read_on(end)
        return self.producers.known(stamp)

    def last_sequence(self, producer: int) -> int | None:
        """The highest sequence of a producer."""
        with self.line:
            end = self.begin()
            if not self.slot.words[PRODUCERS]:
                return None
            self.producers.read_on(end)
            return self.producers.last(producer)

    # --- rolling -----------------------------------------------------------------------------------

    def roll(self, end: End, *, quiet: bool = False) -> End:
        """Under the lock: end the segment and begin another.

        In the durable profile what is in ended segments is on disk. In the fast one that comes with the next sync,
        and recovery begins at the durable mark, in whatever segment that is.
        """
        segment = self._current(end.base)
        if self.slot.words[PRODUCERS]:
            self.producers.read_on(end)
        if self.durable:
            self.fdatasync(segment.fd)
            self.slot.set_durable(end)
        failpoints.point("log.roll.before")
        fresh = End(end.next, 0, end.next)
        try:
            if self.slot.words[PRODUCERS]:
                self.producers.save(producers_path(self.folder, fresh.base), fresh.base)
            # Leftovers of a roll that died are empty, or hold what no reader was ever told of.
            begun = Segment(self.folder, fresh.base, fresh=os.O_TRUNC)
            failpoints.point("log.roll.created")
            os.write(begun.index, entry_bytes(Entry(fresh.base, self.slot.max_time, 0), fresh.base))
            if self.durable:
                sync_folder(self.folder)
        except OSError as error:
            raise disk_error(error, str(self.place)) from error
        self.close()
        self._segment = begun
        self.slot.set_end(*fresh)
        self.slot.since = 0
        if self.durable:
            self.slot.set_durable(fresh)
            self.slot.words[VISIBLE] = max(self.slot.words[VISIBLE], end.next)
        failpoints.point("log.roll.after")
        if not quiet:
            self._told("rolled", self)
        return fresh

    def began(self, now: int) -> None:
        """Under the lock: the segment that is written now was adopted."""
        self.slot.since = now
        self._told("rolled", self)

    def begin_again(self, base: int) -> None:
        """Under the lock: an empty segment in place of one that does not count, which may have another name too."""
        lines = read_index(self.folder, base)
        self.close()
        fresh = segment_path(self.folder, base).with_suffix(".seg.fresh")
        write_private(fresh, b"")
        fresh.replace(segment_path(self.folder, base))
        rebuild_index(self.folder, base, lines[0].max_time if lines else self.slot.max_time)
        self.slot.words[EPOCH] += 1

    # --- durability --------------------------------------------------------------------------------

    def wait_durable(self, target: int) -> None:
        """Return when everything before ``target`` is on disk and seen; one thread syncs for all that wait."""
        words = self.slot.words
        with self._sync_bell:
            while True:
                if words[DURABLE] >= target and words[VISIBLE] >= target:
                    return
                if self._poison is not None:
                    raise StoreReadOnly(
                        f"{self.place} could not be written to disk: {self._poison}.",
                        hint="Look at the disk, then close the store, open it again and verify().",
                    ) from self._poison
                if not self._syncing:
                    self._syncing = True
                    break
                self._sync_bell.wait()
        try:
            self.sync()
        finally:
            with self._sync_bell:
                self._syncing = False
                self._sync_bell.notify_all()

    def sync(self) -> None:
        """Bring everything written so far to disk, then show it."""
        with self.line:
            was_open = self.is_open
            if self.slot.words[WRITING]:
                self.begin()
            end = self.slot.end()
            durable = self.slot.durable()
            fd = os.dup(self._current(end.base).fd)
            if not was_open:
                self.close()  # its folder keeps few files open, and does not know of this one
        try:
            failpoints.point("log.sync.before")
            if durable is None or durable.base != end.base:
                self._sync_ended(durable.base if durable is not None else 0, end.base)
            self.fdatasync(fd)
            failpoints.point("log.sync.after")
            with self.line:
                before = self.slot.words[VISIBLE]
                self.shown(end)
            if before < end.next:
                os.utime(fd)  # readers sleep on the folder, and a mapped word wakes nobody
        finally:
            os.close(fd)

    def sync_locked(self) -> None:
        """Under the lock: everything to disk, here and now."""
        end, durable = self.slot.end(), self.slot.durable()
        self._sync_ended(durable.base if durable is not None else 0, end.base)
        self.fdatasync(self._current(end.base).fd)
        self.shown(end)

    def _sync_ended(self, first: int, current: int) -> None:
        """Segments that ended since the last sync, and the names of all."""
        for base in bases(self.folder):
            if first <= base < current:
                try:
                    fd = os.open(segment_path(self.folder, base), os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # retention was faster
                try:
                    self.fdatasync(fd)
                finally:
                    os.close(fd)
        sync_folder(self.folder)

    def shown(self, end: End) -> None:
        """Under the lock: what is on disk may be seen."""
        words = self.slot.words
        if end.next > words[DURABLE] or self.slot.durable() is None:
            self.slot.set_durable(end)
        words[VISIBLE] = max(words[VISIBLE], end.next)
        self.unsynced = 0

    def fdatasync_current(self) -> None:
        """Under the lock: the written segment to disk; in the durable profile those before are there."""
        self.fdatasync(self._current(self.slot.end().base).fd)

    def fdatasync(self, fd: int) -> None:
        """A file of the partition to disk; after a failure nothing more is accepted."""
        try:
            os.fdatasync(fd)
        except OSError as error:
            # The kernel may have dropped the pages: a second try would lie. Nothing more is accepted here.
            self._poison = error
            raise StoreReadOnly(
                f"{self.place} could not be written to disk: {error}.",
                hint="Look at the disk, then close the store, open it again and verify().",
            ) from error

    # --- recovery ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Under the lock: find the true end, keep what is whole, cut what is torn.

        In the boot in which the control file was written its end is right, and only what a dead process left beyond it
        is looked at. After a restart (or without a control file) the last segment is read from the durable mark on.
        What is damaged below that mark is not touched: reading it will tell.
        """
        words = self.slot.words
        self.close()
        for half_named in self.folder.glob("*.fresh"):  # first: it may be the second name of a file that is to stay
            half_named.unlink()
        same_boot = words[BOOT] == boot()
        base, found = self._trusted_end() if same_boot else self._scanned_end()
        failpoints.point("log.recover.scanned")
        path = segment_path(self.folder, base)
        size = path.stat().st_size
        if size > found.position:
            logger.info("%s: %d bytes beyond offset %d were never acknowledged and are cut", self.place,
                        size - found.position, found.next)  # fmt: skip
            if found.position:
                os.truncate(path, found.position)
            else:
                self.begin_again(base)
            self._told("truncated", self, found.next)
        self._trim_index(base, found)
        segment = self._current(base)
        self.fdatasync(segment.fd)
        end = End(found.next, found.position, base)
        self.slot.set_end(*end)
        self.slot.max_time = found.max_time
        self.slot.since = found.since
        self.slot.set_durable(end)
        words[VISIBLE] = found.next
        if not same_boot:
            all_bases = bases(self.folder)
            words[START] = max(words[START], all_bases[0]) if words[START] <= found.next else all_bases[0]
            words[PRODUCERS] = 1  # perhaps: looking costs little
        self.producers.forget()
        words[BOOT] = boot()
        words[WRITING] = 0
        failpoints.point("log.recover.after")

    def _trusted_end(self) -> tuple[int, Scan]:
        end = self.slot.end()
        base = end.base
        path = segment_path(self.folder, base)
        if not path.exists() or path.stat().st_size < end.position:
            missing = path.stat().st_size if path.exists() else 0
            raise corrupt(self.place, path, missing, end.base, end.next, "bytes that were there are gone")
        data = mapped(path)
        found = scan(data, base, (end.next, end.position), self.slot.max_time, self._happened)
        found = found._replace(since=self.slot.since or found.since)
        return self._scanned_on(base, data, found, [one for one in bases(self.folder) if one > base])

    def _scanned_end(self) -> tuple[int, Scan]:
        """From the durable mark on, through all segments; without a mark only the last one is looked at."""
        all_bases = bases(self.folder)
        durable = self.slot.durable()
        if not all_bases:
            if durable is not None and durable.next > 0:
                raise corrupt(self.place, segment_path(self.folder, 0), 0, 0, durable.next, "all segments are gone")
            segment_path(self.folder, 0).touch()
            all_bases = [0]
        if durable is None:
            while len(all_bases) > 1 and not self._counts(all_bases[-1]):
                self.remove_segment(all_bases.pop())
            begin = End(all_bases[-1], 0, all_bases[-1])
        elif durable.base < all_bases[0]:
            # The mark is old, and retention has removed its segment since, which it does only with what is synced.
            begin = End(all_bases[0], 0, all_bases[0])
        else:
            begin = durable
        path = segment_path(self.folder, begin.base)
        if begin.base not in all_bases or path.stat().st_size < begin.position:
            there = path.stat().st_size if path.exists() else 0
            raise corrupt(self.place, path, there, begin.base, begin.next, "bytes that were there are gone")
        earlier = [base for base in all_bases if base < begin.base]
        later = [base for base in all_bases if base > begin.base]
        highest, since = self._highest_before(earlier, begin)
        base, data = begin.base, mapped(path)
        found = scan(data, base, (begin.next, begin.position), highest, self._happened)
        found = found._replace(since=since or found.since)
        if durable is None:
            found = self._past_damage(data, base, found)
        return self._scanned_on(base, data, found, later)

    def _scanned_on(self, base: int, data: mmap.mmap | bytes, found: Scan, later: list[int]) -> tuple[int, Scan]:
        """Through the segments that follow, as long as they count; the others go.

        Behind a torn one nothing was ever promised; a roll that died left an empty one, and a transaction that never
        happened those that it had adopted.
        """
        while later and found.position == len(data) and found.next == later[0]:
            data = mapped(segment_path(self.folder, later[0]))
            beyond = scan(data, later[0], None, found.max_time, self._happened)
            if not beyond.position:
                break
            base, found = later.pop(0), beyond
        for lost in later:
            self.remove_segment(lost)
        return base, found

    def _past_damage(self, data: mmap.mmap | bytes, base: int, found: Scan) -> Scan:
        """Without a mark nobody knows what was promised: whole frames behind a damaged one stay, and reading tells."""
        while good_frame(data, base, found.position, found.next, len(data)) is None:
            until, following = next_good(data, base, found.position, (found.next, 1 << 63), len(data))
            if until >= len(data):
                break
            logger.warning("%s is damaged at offset %d, and goes on at %d; verify", self.place, found.next, following)
            behind = scan(data, base, (following, until), found.max_time, self._happened)
            found = behind._replace(since=found.since or behind.since)
        return found

    def _counts(self, base: int) -> bool:
        """Whether a segment is more than what a roll that died or a transaction that never happened has left."""
        data = mapped(segment_path(self.folder, base))
        first = read_header(data, 0, base)
        return len(data) > 0 and (first is None or not first.flags & TXN or self._happened(first.txn, first.hint))

    def remove_segment(self, base: int) -> None:
        """Under the lock: a segment and what belongs to it."""
        for file in (segment_path, index_path, producers_path):
            file(self.folder, base).unlink(missing_ok=True)

    def _highest_before(self, earlier: list[int], begin: End) -> tuple[int, int]:
        """The highest timestamp before the durable mark, and when its segment was begun."""
        highest, since = NO_TIME, 0
        if earlier:
            lines = read_index(self.folder, begin.base)
            if lines and lines[0].position == 0 and lines[0].max_time != NO_TIME:
                highest = lines[0].max_time
            else:
                for base in earlier:
                    highest = rebuild_index(self.folder, base, highest)
        data = mapped(segment_path(self.folder, begin.base))
        for _, header in headers(data, begin.base, 0, begin.position):
            highest = max(highest, header.highest_time)
            since = since or header.appended
        return highest, since

    def _trim_index(self, base: int, found: Scan) -> None:
        lines = read_index(self.folder, base)
        raw = index_path(self.folder, base)
        whole = raw.exists() and raw.stat().st_size == len(lines) * 32
        if not whole or not lines or lines[-1].position >= max(found.position, 1):
            before = lines[0].max_time if lines and lines[0].position == 0 else NO_TIME
            try:
                rebuild_index(self.folder, base, before, found.position)
            except OSError as error:  # reading does without
                logger.warning("the index of %s is not rebuilt: %s", self.place, error)

    def cut_at(self, offset: int) -> None:
        """Under the lock, after a restart: go back to an earlier frame, because a transaction is not whole."""
        self.close()
        all_bases = bases(self.folder)
        base = max(one for one in all_bases if one <= offset or one == all_bases[0])
        for later in all_bases:
            if later > base:
                self.remove_segment(later)
        path = segment_path(self.folder, base)
        data = mapped(path)
        position, first = len(data), self.slot.end().next
        for at, header in headers(data, base, 0, len(data)):
            if header.offset >= offset:
                position, first = at, header.offset
                break
        os.truncate(path, position)
        highest, since = self._highest_before([one for one in all_bases if one < base], End(first, position, base))
        cut = End(first, position, base)
        self.slot.set_end(*cut)
        self.slot.set_durable(cut)
        self.slot.words[VISIBLE] = first
        self.slot.since, self.slot.max_time = since, highest
        self.producers.forget()
        self._trim_index(base, Scan(first, position, highest, since))
        self._told("truncated", self, first)

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
        """Whether it holds files."""
        return self._segment is not None


def _no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sync_folder(folder: Path) -> None:
    """Names in a folder to disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
