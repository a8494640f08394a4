"""Finding offsets by time."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import OffsetOutOfRange
from penstock.log.drivers.files.format.batch import FrameBatch
from penstock.log.drivers.files.format.control import START, VISIBLE, Slot
from penstock.log.drivers.files.format.frames import GAP, HEADER, body_of
from penstock.log.drivers.files.format.index import locate_time
from penstock.log.drivers.files.format.segments import bases, corrupt, headers, mapped, segment_path
from penstock.log.record import Partition

TRIES = 100  # while retention removes the segments that are being searched


def offset_at(folder: Path, partition: Partition, slot: Slot, micros: int) -> int:
    """The first offset with a timestamp at or after a time, or the end."""
    for _ in range(TRIES):
        try:
            return _offset_at(folder, partition, slot, micros)
        except FileNotFoundError:
            continue  # retention removed a segment meanwhile
    raise _removed_too_fast(partition)


def ranges_in_time(
    folder: Path, partition: Partition, slot: Slot, span: tuple[int, int], times: tuple[int, int]
) -> list[tuple[int, int]]:
    """Ranges of offsets in ``span`` that contain every record with a time from ``times[0]`` up to ``times[1]``."""
    for _ in range(TRIES):
        try:
            return _ranges_in_time(folder, slot, span, times)
        except FileNotFoundError:
            continue  # retention removed a segment meanwhile
    raise _removed_too_fast(partition)


def _ranges_in_time(folder: Path, slot: Slot, span: tuple[int, int], times: tuple[int, int]) -> list[tuple[int, int]]:
    """Read only headers: each has the lowest and the highest time of its frame."""
    start, stop = max(span[0], int(slot.words[START])), min(span[1], int(slot.words[VISIBLE]))
    since, until = times
    ranges: list[tuple[int, int]] = []
    all_bases = bases(folder)
    base, position = locate_time(folder, all_bases, since)
    for segment in all_bases[all_bases.index(base) :]:
        if segment >= stop:
            break
        data = mapped(segment_path(folder, segment))
        for _, header in headers(data, segment, position if segment == base else 0, len(data)):
            low, high = max(header.offset, start), min(header.next_offset, stop)
            if low >= high or header.highest_time < since or header.lowest_time >= until:
                continue
            if ranges and ranges[-1][1] == low:
                low = ranges.pop()[0]
            ranges.append((low, high))
    return ranges


def _offset_at(folder: Path, partition: Partition, slot: Slot, micros: int) -> int:
    start, end = int(slot.words[START]), int(slot.words[VISIBLE])
    all_bases = bases(folder)
    base, position = locate_time(folder, all_bases, micros)
    for segment in all_bases[all_bases.index(base) :]:
        data = mapped(segment_path(folder, segment))
        for at, header in headers(data, segment, position if segment == base else 0, len(data)):
            if header.offset >= end:
                return end
            if header.highest_time < micros or header.next_offset <= start or header.flags & GAP:
                continue
            body = body_of(header, memoryview(data)[at + HEADER : at + header.size])
            if body is None:
                path = segment_path(folder, segment)
                raise corrupt(partition, path, at, header.offset, header.next_offset, "a bad checksum")
            batch = FrameBatch(partition, header, body, 0, header.records)
            rank = next(rank for rank, time in enumerate(batch.times()) if time >= micros)
            if header.offset + rank >= start:
                return header.offset + rank
    return end


def _removed_too_fast(partition: Partition) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"retention removes the oldest records of {partition} faster than they can be searched.", hint="Try again."
    )
