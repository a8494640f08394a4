"""The sparse index of a segment: finding an offset or a time without walking over all frames."""

from __future__ import annotations

import logging
import struct
import zlib
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from penstock.log.drivers.files.format.control import NO_TIME
from penstock.log.drivers.files.format.frames import Header
from penstock.log.drivers.files.format.segments import (
    headers,
    index_path,
    listed,
    mapped,
    segment_path,
    warn_if_foreign,
)
from penstock.log.drivers.files.private import write_private

logger = logging.getLogger("penstock.log")

INTERVAL = 64 * 1024  # bytes of frames per index entry
_ENTRY = struct.Struct("<QqQI4x")
ENTRY_BYTES = _ENTRY.size


class IndexEntry(NamedTuple):
    """One entry of an index: a frame, and the highest timestamp of all records before it.

    On disk, offsets are relative to the segment's first one, and the first entry's timestamp counts for all others too.
    So a staged segment gets its place in a partition by a change of that first entry.
    """

    offset: int
    max_time: int
    position: int


def entry_bytes(entry: IndexEntry, base: int) -> bytes:
    """The bytes of an entry, with its checksum, for the segment whose first offset is ``base``."""
    raw = _ENTRY.pack(entry.offset - base, entry.max_time, entry.position, 0)
    return raw[:24] + zlib.crc32(raw[:24]).to_bytes(4, "little") + raw[28:]


def wants_entry(position: int, size: int) -> bool:
    """Whether the frame at this position gets an entry: it does if it crosses a boundary of ``INTERVAL`` bytes."""
    return position // INTERVAL != (position + size) // INTERVAL


def read_index(folder: Path, base: int) -> list[IndexEntry]:
    """The whole entries of an index. A missing entry only costs time."""
    try:
        raw = index_path(folder, base).read_bytes()
    except FileNotFoundError:
        return []
    entries: list[IndexEntry] = []
    for at in range(0, len(raw) - _ENTRY.size + 1, _ENTRY.size):
        offset, max_time, position, crc = _ENTRY.unpack_from(raw, at)
        offset += base
        if zlib.crc32(raw[at : at + 24]) != crc or (entries and offset <= entries[-1].offset):
            logger.warning(
                "the index of %s is damaged; only its first part is used; run verify", segment_path(folder, base)
            )
            break
        entries.append(IndexEntry(offset, max(max_time, entries[0].max_time) if entries else max_time, position))
    return entries


def rebuild_index(folder: Path, base: int, max_time: int, stop: int | None = None) -> int:
    """Write an index from the frames. Returns the highest timestamp at the end of the segment."""
    data = mapped(segment_path(folder, base))
    rows = [entry_bytes(IndexEntry(base, max_time, 0), base)]
    for position, header in headers(data, base, 0, len(data) if stop is None else stop):
        if position and wants_entry(position, header.size):
            rows.append(entry_bytes(IndexEntry(header.offset, max_time, position), base))
        max_time = max(max_time, header.highest_time)
    path = index_path(folder, base)
    fresh = path.with_suffix(".idx.fresh")
    write_private(fresh, b"".join(rows))
    fresh.replace(path)
    return max_time


def locate(folder: Path, offset: int) -> tuple[int, int] | None:
    """The segment of an offset and a position at or before it, or None if the partition has no segment."""
    all_names = listed(folder)
    names = sorted(name for name in all_names if name.endswith(".seg"))
    if not names:
        return None
    for name in all_names:
        warn_if_foreign(folder, name)
    base = int(names[max(0, bisect_right(names, f"{offset:020d}.seg") - 1)][:20])
    try:
        raw = index_path(folder, base).read_bytes()
    except FileNotFoundError:
        return base, 0
    low, high, position = 0, len(raw) // _ENTRY.size, 0
    while low < high:  # find the last entry at or before the offset
        middle = (low + high) // 2
        at = middle * _ENTRY.size
        first, _, entry_position, crc = _ENTRY.unpack_from(raw, at)
        if zlib.crc32(raw[at : at + 24]) != crc:
            return base, 0
        if base + first <= offset:
            low, position = middle + 1, entry_position
        else:
            high = middle
    return base, position


def locate_time(folder: Path, all_bases: list[int], micros: int) -> tuple[int, int]:
    """A segment and a position such that all records before it have earlier timestamps."""
    low, high = 0, len(all_bases) - 1
    while low < high:  # find the last segment that begins before the time was reached
        middle = (low + high + 1) // 2
        entries = read_index(folder, all_bases[middle])
        before = entries[0].max_time if entries else _max_before(folder, all_bases, middle)
        if before < micros:
            low = middle
        else:
            high = middle - 1
    position = 0
    for entry in read_index(folder, all_bases[low]):
        if entry.max_time >= micros:
            break
        position = entry.position
    return all_bases[low], position


def _max_before(folder: Path, all_bases: list[int], rank: int) -> int:
    """The highest timestamp before a segment without an index, from the headers."""
    max_time = NO_TIME
    for base in all_bases[:rank]:
        data = mapped(segment_path(folder, base))
        for _, header in headers(data, base, 0, len(data)):
            max_time = max(max_time, header.highest_time)
    return max_time


def last_header(folder: Path, base: int, stop: int | None = None) -> Header | None:
    """The header of a segment's last frame."""
    try:
        data = mapped(segment_path(folder, base))
    except FileNotFoundError:
        return None
    last = None
    end = len(data) if stop is None else min(stop, len(data))
    begin = max((entry.position for entry in read_index(folder, base) if entry.position < end), default=0)
    for _, header in headers(data, base, begin, end):
        last = header
    return last
