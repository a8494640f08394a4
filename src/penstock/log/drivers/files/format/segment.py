"""Segments: the files of a partition, their sparse index, and walking over frames."""

from __future__ import annotations

import logging
import mmap
import os
import stat
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.errors import LogNotFound, RecordCorrupt, StoreCorrupt
from penstock.log.drivers.files.format.control import NO_TIME
from penstock.log.drivers.files.format.frame import GAP, HEADER, MAGIC, TXN, Header, body_of, read_header
from penstock.log.drivers.files.private import write_private
from penstock.log.record import Partition

logger = logging.getLogger("penstock.log")

INTERVAL = 64 * 1024  # one index entry for so many bytes of frames
_ENTRY = struct.Struct("<QqQI4x")
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
OURS = (".seg", ".idx", ".prod", ".damaged", ".fresh")


class Entry(NamedTuple):
    """One line of an index: a frame, and the highest timestamp of everything before it.

    On disk offsets count from the segment's first one, and the timestamp of a line may leave out what the first line
    says: so a segment that was written aside gets its place by that one line.
    """

    offset: int
    max_time: int
    position: int


def segment_path(folder: Path, base: int) -> Path:
    """The file that begins with this offset."""
    return folder / f"{base:020d}.seg"


def index_path(folder: Path, base: int) -> Path:
    """Its index."""
    return folder / f"{base:020d}.idx"


def producers_path(folder: Path, base: int) -> Path:
    """What was known of producers when it began."""
    return folder / f"{base:020d}.prod"


def bases(folder: Path) -> list[int]:
    """The first offsets of all segments, sorted; files of others are passed over."""
    found = []
    for name in listed(folder):
        if name.endswith(".seg") and name[:-4].isdecimal() and len(name) == 24:
            found.append(int(name[:-4]))
        elif not name.endswith(OURS):
            logger.warning("%s is not a file of this log and is ignored", folder / name)
    found.sort()
    return found


def listed(folder: Path) -> list[str]:
    """What is in a partition's folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError) as cause:
        if not folder.parent.exists():
            raise LogNotFound(f"log {folder.parent.name} was deleted.", hint="Create it again.") from cause
        raise StoreCorrupt(
            f"{folder.name} of log {folder.parent.name} is gone: {cause}.", hint="Restore it from a backup."
        ) from cause


def mapped(path: Path) -> mmap.mmap | bytes:
    """A segment's bytes as they are now."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode):
            raise StoreCorrupt(f"{path} is not a file.", hint="Move it elsewhere and restore the file from a backup.")
        return mmap.mmap(fd, there.st_size, access=mmap.ACCESS_READ) if there.st_size else b""
    finally:
        os.close(fd)


def headers(data: mmap.mmap | bytes, base: int, position: int, stop: int) -> Iterator[tuple[int, Header]]:
    """The headers of consecutive frames; ends at ``stop`` or at the first header that is not valid."""
    while position + HEADER <= stop:
        header = read_header(data, position, base)
        if header is None or position + header.size > stop:
            return
        yield position, header
        position += header.size


class Scan(NamedTuple):
    """What a scan found: how far all is well, and what the frames say."""

    next: int
    position: int
    max_time: int
    since: int  # when the first frame of the segment was appended, 0 without one


def scan(
    data: mmap.mmap | bytes,
    base: int,
    begin: tuple[int, int] | None = None,
    max_time: int = NO_TIME,
    happened: Callable[[int, int], bool] | None = None,
) -> Scan:
    """Check every byte of a segment from an offset and its position on; ends before the first frame that is not whole.

    With ``happened`` it ends before the first frame of a transaction that never happened, too.
    """
    view = memoryview(data)
    stop, since = len(data), 0
    offset, position = (base, 0) if begin is None else begin
    while position + HEADER <= stop:
        header = read_header(data, position, base)
        if header is None or header.offset != offset or header.size < HEADER or position + header.size > stop:
            break
        if not header.flags & GAP and body_of(header, view[position + HEADER : position + header.size]) is None:
            break
        if happened is not None and header.flags & TXN and not happened(header.txn, header.hint):
            break
        since = since or header.appended
        max_time = max(max_time, header.highest_time)
        offset = header.next_offset
        position += header.size
    return Scan(offset, position, max_time, since)


def good_frame(data: mmap.mmap | bytes, base: int, position: int, offset: int, stop: int) -> tuple[int, int] | None:
    """Offset and position behind the frame of this offset, if it begins here and is whole; else None."""
    if position + HEADER > stop or position + HEADER > len(data):
        return None
    header = read_header(data, position, base)
    if header is None or header.offset != offset or position + header.size > min(stop, len(data)):
        return None
    body = memoryview(data)[position + HEADER : position + header.size]
    if not header.flags & GAP and body_of(header, body) is None:
        return None
    return header.next_offset, position + header.size


def next_good(
    data: mmap.mmap | bytes, base: int, position: int, between: tuple[int, int], stop: int
) -> tuple[int, int]:
    """The next frame that is whole and whose offset lies between two; else the end."""
    offset, following = between
    at = position
    while True:
        at = data.find(MAGIC_BYTES, at + 1, stop)
        if at < 0:
            return stop, following
        if at % 8:
            continue
        header = read_header(data, at, base)
        if header is None or not offset < header.offset < following:
            continue
        if good_frame(data, base, at, header.offset, stop):
            return at, header.offset


# --- the index -------------------------------------------------------------------------------------------------------


def entry_bytes(entry: Entry, base: int) -> bytes:
    """A line of the segment that begins with the offset ``base``, with its checksum."""
    raw = _ENTRY.pack(entry.offset - base, entry.max_time, entry.position, 0)
    return raw[:24] + zlib.crc32(raw[:24]).to_bytes(4, "little") + raw[28:]


def wants_entry(position: int, size: int) -> bool:
    """Whether the frame at this position gets a line: the one that crosses a boundary, whoever writes it."""
    return position // INTERVAL != (position + size) // INTERVAL


def read_index(folder: Path, base: int) -> list[Entry]:
    """The lines of an index that are whole; any may be missing, which costs time only."""
    try:
        raw = index_path(folder, base).read_bytes()
    except FileNotFoundError:
        return []
    found: list[Entry] = []
    for at in range(0, len(raw) - _ENTRY.size + 1, _ENTRY.size):
        offset, max_time, position, crc = _ENTRY.unpack_from(raw, at)
        offset += base
        if zlib.crc32(raw[at : at + 24]) != crc or (found and offset <= found[-1].offset):
            logger.warning("the index of %s is damaged and only used in part; verify", segment_path(folder, base))
            break
        found.append(Entry(offset, max(max_time, found[0].max_time) if found else max_time, position))
    return found


def rebuild_index(folder: Path, base: int, max_time: int, stop: int | None = None) -> int:
    """Write an index again from the frames; the highest timestamp at its end."""
    data = mapped(segment_path(folder, base))
    lines = [entry_bytes(Entry(base, max_time, 0), base)]
    for position, header in headers(data, base, 0, len(data) if stop is None else stop):
        if position and wants_entry(position, header.size):
            lines.append(entry_bytes(Entry(header.offset, max_time, position), base))
        max_time = max(max_time, header.highest_time)
    path = index_path(folder, base)
    fresh = path.with_suffix(".idx.fresh")
    write_private(fresh, b"".join(lines))
    fresh.replace(path)
    return max_time


def locate(folder: Path, offset: int) -> tuple[int, int] | None:
    """The segment of an offset and a position at or before it, or None without any segment."""
    there = listed(folder)
    names = sorted(name for name in there if name.endswith(".seg"))
    if not names:
        return None
    for name in there:
        if not name.endswith(OURS):
            logger.warning("%s is not a file of this log and is ignored", folder / name)
    base = int(names[max(0, bisect_right(names, f"{offset:020d}.seg") - 1)][:20])
    try:
        raw = index_path(folder, base).read_bytes()
    except FileNotFoundError:
        return base, 0
    low, high, position = 0, len(raw) // _ENTRY.size, 0
    while low < high:  # the last line at or before the offset
        middle = (low + high) // 2
        at = middle * _ENTRY.size
        first, _, place, crc = _ENTRY.unpack_from(raw, at)
        if zlib.crc32(raw[at : at + 24]) != crc:
            return base, 0
        if base + first <= offset:
            low, position = middle + 1, place
        else:
            high = middle
    return base, position


def locate_time(folder: Path, all_bases: list[int], micros: int) -> tuple[int, int]:
    """A segment and position such that nothing before has a timestamp so late."""
    low, high = 0, len(all_bases) - 1
    while low < high:  # the last segment that begins before the time was reached
        middle = (low + high + 1) // 2
        lines = read_index(folder, all_bases[middle])
        before = lines[0].max_time if lines else _max_before(folder, all_bases, middle)
        if before < micros:
            low = middle
        else:
            high = middle - 1
    lines = read_index(folder, all_bases[low])
    position = 0
    for line in lines:
        if line.max_time >= micros:
            break
        position = line.position
    return all_bases[low], position


def _max_before(folder: Path, all_bases: list[int], rank: int) -> int:
    """Without an index: look at the headers of what comes before."""
    max_time = NO_TIME
    for base in all_bases[:rank]:
        data = mapped(segment_path(folder, base))
        for _, header in headers(data, base, 0, len(data)):
            max_time = max(max_time, header.highest_time)
    return max_time


def last_header(folder: Path, base: int, stop: int | None = None) -> Header | None:
    """The last frame's header of a segment."""
    try:
        data = mapped(segment_path(folder, base))
    except FileNotFoundError:
        return None
    lines = read_index(folder, base)
    found = None
    end = len(data) if stop is None else min(stop, len(data))
    begin = max((line.position for line in lines if line.position < end), default=0)
    for _, header in headers(data, base, begin, end):
        found = header
    return found


def corrupt(  # noqa: PLR0917 - all of it is told
    place: Partition, path: Path, position: int, first: int, last: int | None, why: str
) -> RecordCorrupt:
    """The error that names file, byte and offsets."""
    span = f"offset {first}" if last is None or last <= first + 1 else f"offsets {first} to {last - 1}"
    return RecordCorrupt(
        f"{place} is damaged at {span}: {why} in {path.name} at byte {position}; nothing was cut.",
        hint="Restore it from a backup, or put the damaged part aside with repair().",
        partition=str(place), offset=first,
    )  # fmt: skip
