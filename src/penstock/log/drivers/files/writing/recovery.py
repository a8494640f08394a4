"""Recovery of a partition: finding its true end after a process died or the machine restarted."""

from __future__ import annotations

import logging
import mmap
import os
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.log.drivers.files.format.control import (
    BOOT,
    NO_TIME,
    PRODUCERS,
    START,
    VISIBLE,
    WRITING,
    End,
    boot_id,
)
from penstock.log.drivers.files.format.frames import TXN, read_header
from penstock.log.drivers.files.format.index import ENTRY_BYTES, read_index, rebuild_index
from penstock.log.drivers.files.format.segments import (
    Scan,
    bases,
    corrupt,
    good_frame,
    headers,
    index_path,
    mapped,
    next_good,
    scan,
    segment_path,
)

if TYPE_CHECKING:
    from penstock.log.drivers.files.writing.partition import PartitionFile

logger = logging.getLogger("penstock.log")

LAST_OFFSET = 1 << 63


def recover(part: PartitionFile) -> None:
    """Under the lock: find the true end, keep the whole frames, cut what is torn.

    In the boot in which the control file was written, its end is right, and only what a dead process left beyond it is
    checked. After a restart, or without a control file, the segments are read from the durable mark on. Damage below
    that mark is left alone: reading it raises.
    """
    slot, words = part.slot, part.slot.words
    part.close()
    for half_linked in part.folder.glob("*.fresh"):  # first: it may be a second name of a file that stays
        half_linked.unlink()
    same_boot = words[BOOT] == boot_id()
    base, good = _trusted_end(part) if same_boot else _scanned_end(part)
    failpoints.point("log.recover.scanned")
    path = segment_path(part.folder, base)
    size = path.stat().st_size
    if size > good.position:
        logger.info("%s: %d bytes beyond offset %d were never acknowledged and are cut", part.partition,
                    size - good.position, good.next)  # fmt: skip
        if good.position:
            os.truncate(path, good.position)
        else:
            part.replace_with_empty(base)
        part.listener.truncated(part, good.next)
    _trim_index(part, base, good)
    part.durability.fdatasync(part.current_segment(base).fd)
    end = End(good.next, good.position, base)
    slot.set_end(*end)
    slot.max_time = good.max_time
    slot.since = good.since
    slot.set_durable(end)
    words[VISIBLE] = good.next
    if not same_boot:
        first = bases(part.folder)[0]
        words[START] = max(words[START], first) if words[START] <= good.next else first
        words[PRODUCERS] = 1  # there may be some, and looking costs little
    part.producers.forget()
    words[BOOT] = boot_id()
    words[WRITING] = 0
    failpoints.point("log.recover.after")


def cut_at(part: PartitionFile, offset: int) -> None:
    """Under the lock, after a restart: cut the partition before a frame, because its transaction is not whole."""
    part.close()
    all_bases = bases(part.folder)
    base = max(candidate for candidate in all_bases if candidate <= offset or candidate == all_bases[0])
    for later in all_bases:
        if later > base:
            part.remove_segment(later)
    path = segment_path(part.folder, base)
    data = mapped(path)
    position, first = len(data), part.slot.end().next
    for at, header in headers(data, base, 0, len(data)):
        if header.offset >= offset:
            position, first = at, header.offset
            break
    os.truncate(path, position)
    cut = End(first, position, base)
    highest, since = _highest_before(part, [earlier for earlier in all_bases if earlier < base], cut)
    part.slot.set_end(*cut)
    part.slot.set_durable(cut)
    part.slot.words[VISIBLE] = first
    part.slot.since, part.slot.max_time = since, highest
    part.producers.forget()
    _trim_index(part, base, Scan(first, position, highest, since))
    part.listener.truncated(part, first)


def _trusted_end(part: PartitionFile) -> tuple[int, Scan]:
    """The segment of the true end and what is good in it, starting from the control file's end."""
    end = part.slot.end()
    path = segment_path(part.folder, end.base)
    if not path.exists() or path.stat().st_size < end.position:
        size = path.stat().st_size if path.exists() else 0
        raise corrupt(part.partition, path, size, end.base, end.next, "bytes that were there are gone")
    data = mapped(path)
    good = scan(data, end.base, (end.next, end.position), part.slot.max_time, part.listener.is_committed)
    good = good._replace(since=part.slot.since or good.since)
    return _through_later(part, end.base, data, good, [base for base in bases(part.folder) if base > end.base])


def _scanned_end(part: PartitionFile) -> tuple[int, Scan]:
    """The same from the durable mark on, through all segments. Without a mark, only the last segment is scanned."""
    all_bases = bases(part.folder)
    durable = part.slot.durable()
    if not all_bases:
        if durable is not None and durable.next > 0:
            path = segment_path(part.folder, 0)
            raise corrupt(part.partition, path, 0, 0, durable.next, "all segments are gone")
        segment_path(part.folder, 0).touch()
        all_bases = [0]
    begin = _scan_start(part, all_bases, durable)
    path = segment_path(part.folder, begin.base)
    if begin.base not in all_bases or path.stat().st_size < begin.position:
        size = path.stat().st_size if path.exists() else 0
        raise corrupt(part.partition, path, size, begin.base, begin.next, "bytes that were there are gone")
    earlier = [base for base in all_bases if base < begin.base]
    later = [base for base in all_bases if base > begin.base]
    highest, since = _highest_before(part, earlier, begin)
    data = mapped(path)
    good = scan(data, begin.base, (begin.next, begin.position), highest, part.listener.is_committed)
    good = good._replace(since=since or good.since)
    if durable is None:
        good = _past_damage(part, data, begin.base, good)
    return _through_later(part, begin.base, data, good, later)


def _scan_start(part: PartitionFile, all_bases: list[int], durable: End | None) -> End:
    """Where to begin; without a durable mark, segments at the end that do not count are removed first."""
    if durable is None:
        while len(all_bases) > 1 and not _counts(part, all_bases[-1]):
            part.remove_segment(all_bases.pop())
        return End(all_bases[-1], 0, all_bases[-1])
    if durable.base < all_bases[0]:
        # The mark is old, and retention has removed its segment since; it only removes what is synced.
        return End(all_bases[0], 0, all_bases[0])
    return durable


def _through_later(
    part: PartitionFile, base: int, data: mmap.mmap | bytes, good: Scan, later: list[int]
) -> tuple[int, Scan]:
    """Continue through the segments that follow as long as they count, and remove the others.

    Nothing was promised after a torn segment. A roll that died left an empty segment, and a transaction that was never
    committed left those that it had adopted.
    """
    while later and good.position == len(data) and good.next == later[0]:
        data = mapped(segment_path(part.folder, later[0]))
        following = scan(data, later[0], None, good.max_time, part.listener.is_committed)
        if not following.position:
            break
        base, good = later.pop(0), following
    for lost in later:
        part.remove_segment(lost)
    return base, good


def _past_damage(part: PartitionFile, data: mmap.mmap | bytes, base: int, good: Scan) -> Scan:
    """Without a mark, nobody knows what was promised: keep whole frames after damage, which raises when it is read."""
    while good_frame(data, base, good.position, good.next, len(data)) is None:
        until, following = next_good(data, base, good.position, (good.next, LAST_OFFSET), len(data))
        if until >= len(data):
            break
        logger.warning(
            "%s is damaged at offset %d and continues at %d; run verify", part.partition, good.next, following
        )
        after = scan(data, base, (following, until), good.max_time, part.listener.is_committed)
        good = after._replace(since=good.since or after.since)
    return good


def _counts(part: PartitionFile, base: int) -> bool:
    """Whether a segment is more than the leftover of a roll that died or of a transaction that was not committed."""
    data = mapped(segment_path(part.folder, base))
    first = read_header(data, 0, base)
    if not len(data):
        return False
    return first is None or not first.flags & TXN or part.listener.is_committed(first.txn, first.hint)


def _highest_before(part: PartitionFile, earlier: list[int], begin: End) -> tuple[int, int]:
    """The highest timestamp before an end, and when its segment was begun."""
    highest, since = NO_TIME, 0
    if earlier:
        entries = read_index(part.folder, begin.base)
        if entries and entries[0].position == 0 and entries[0].max_time != NO_TIME:
            highest = entries[0].max_time
        else:
            for base in earlier:
                highest = rebuild_index(part.folder, base, highest)
    data = mapped(segment_path(part.folder, begin.base))
    for _, header in headers(data, begin.base, 0, begin.position):
        highest = max(highest, header.highest_time)
        since = since or header.appended
    return highest, since


def _trim_index(part: PartitionFile, base: int, good: Scan) -> None:
    """Rebuild the index if it is damaged or reaches beyond the end."""
    entries = read_index(part.folder, base)
    path = index_path(part.folder, base)
    is_whole = path.exists() and path.stat().st_size == len(entries) * ENTRY_BYTES
    if not is_whole or not entries or entries[-1].position >= max(good.position, 1):
        before = entries[0].max_time if entries and entries[0].position == 0 else NO_TIME
        try:
            rebuild_index(part.folder, base, before, good.position)
        except OSError as error:  # reading works without it
            logger.warning("the index of %s could not be rebuilt: %s", part.partition, error)
