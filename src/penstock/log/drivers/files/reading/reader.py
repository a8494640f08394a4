"""Reading a partition: from any offset, frame by frame, never beyond what is shown."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import OffsetOutOfRange, PenstockError, RecordCorrupt
from penstock.log.drivers.files.format.control import START, VISIBLE, WRITING, Slot
from penstock.log.drivers.files.format.frame import GAP, HEADER, FrameBatch, Header, body_of, read_header
from penstock.log.drivers.files.format.segment import bases, corrupt, headers, locate, locate_time, mapped, segment_path
from penstock.log.drivers.shared.source import Reader
from penstock.log.record import Partition, RecordBatch

CHUNK = 64 * 1024  # what is read; more than this is mapped
_never = threading.Event()


class FileReader(Reader):
    """Walks over frames; remembers where it is, so that reading on costs no search."""

    def __init__(self, folder: Path, place: Partition, slot: Slot) -> None:
        """Open nothing yet."""
        self._folder = folder
        self._place = place
        self._words = slot.words
        self._fd = -1
        self._base = -1
        self._position = 0
        self._next = -1
        self._map: mmap.mmap | bytes = b""
        self._chunk = b""
        self._chunk_at = 0
        self._chunk_until = 0  # records from here on were not shown yet when the chunk was read
        self._rest: FrameBatch | None = None

    @property
    def start(self) -> int:
        """The first offset that is there."""
        return int(self._words[START])

    @property
    def end(self) -> int:
        """Behind the last one that is shown."""
        return int(self._words[VISIBLE])

    @property
    def is_written(self) -> bool:
        """Whether an append is under way."""
        return bool(self._words[WRITING])

    def read(self, offset: int, limit: int) -> tuple[list[RecordBatch], int]:
        """At most so many records, and where to go on."""
        found: list[RecordBatch] = []
        visible = self.end
        while limit > 0 and offset < visible:
            rest = self._rest
            if rest is not None and rest.offsets.start == offset:
                batch: FrameBatch | None = rest
                self._rest = None
            else:
                self._rest = None
                try:
                    batch, offset = self._frame(offset)
                except (OffsetOutOfRange, RecordCorrupt):
                    if found:
                        break  # retention is at our heels, or damage lies ahead: what was read is handed out
                    raise
            if batch is None:
                continue
            if len(batch) > limit:
                self._rest = batch.slice(limit, len(batch))
                batch = batch.slice(0, limit)
            found.append(batch)
            limit -= len(batch)
            offset = batch.offsets.stop
        return found, offset

    def frames(self, start: int, stop: int) -> Iterator[FrameBatch]:
        """All frames of a range, cut to it."""
        while start < stop:
            batch, start = self._frame(start)
            if batch is not None:
                if batch.offsets.stop > stop:
                    batch = batch.slice(0, stop - batch.offsets.start)
                start = batch.offsets.stop
                yield batch

    def _frame(self, offset: int) -> tuple[FrameBatch | None, int]:
        """The frame of an offset, from there on; None and where to go on for a hole."""
        tries = 0
        while True:
            try:
                return self._frame_there(offset)
            except (OSError, RecordCorrupt) as error:
                if isinstance(error, PenstockError) and not isinstance(error, RecordCorrupt):
                    raise
                self.close()  # whatever is open may be gone: look for it again
                # Retention first says from where on there is something, then removes.
                if offset < self.start:
                    raise OffsetOutOfRange(
                        f"offset {offset} of {self._place} was just removed by retention, which left {self.start} "
                        "and what follows.",
                        hint="Read on from the start.",
                    ) from None
                if isinstance(error, RecordCorrupt):
                    raise
                tries += 1
                if tries > 3:  # a file that is put in place of a repaired one is missing for a moment only
                    raise corrupt(
                        self._place, self._folder, 0, offset, None, f"a segment is missing ({error})"
                    ) from error
                _never.wait(0.001)

    def _frame_there(self, offset: int) -> tuple[FrameBatch | None, int]:
        if offset != self._next:
            self._seek(offset)
        while True:
            header = self._header()
            if header.next_offset > offset:
                break
            self._position += header.size
            self._next = header.next_offset
        position = self._position
        if header.offset > offset:
            self._next = -1
            path = segment_path(self._folder, self._base)
            raise corrupt(self._place, path, position, offset, header.offset, "records are missing")
        if header.flags & GAP:
            self._advance(header)
            return None, header.next_offset
        body = self._body(header, position)
        self._advance(header)
        low = offset - header.offset
        return FrameBatch(self._place, header, body, low, header.records), offset

    def _advance(self, header: Header) -> None:
        self._position += header.size
        self._next = header.next_offset

    def _header(self) -> Header:
        tries = 0
        while True:
            window, at = self._window(self._position, HEADER)
            header = read_header(window, at, self._base) if window is not None else None
            if header is not None and window is self._chunk and self._chunk_until <= header.offset < self.end:
                # It was not a record yet when it was read, and may have become another one since.
                self._forget()
                continue
            if header is not None:
                return header
            if window is None and self._to_next_segment():
                continue
            # The end was shown before the bytes reached us only if memory was reordered: look again before complaining.
            tries += 1
            if tries > 3:
                path, position, first, self._next = (
                    segment_path(self._folder, self._base),
                    self._position,
                    self._next,
                    -1,
                )
                raise corrupt(self._place, path, position, first, None, "no valid frame")
            _never.wait(0.001)
            self._forget()

    def _body(self, header: Header, position: int) -> memoryview:
        for attempt in range(3):
            window, at = self._window(position, header.size)
            if window is not None:
                body = body_of(header, memoryview(window)[at + HEADER : at + header.size])
                if body is not None:
                    return body
            _never.wait(0.001 * attempt)
            self._forget()
        self._next = -1  # look for the file again: it may be repaired
        path = segment_path(self._folder, self._base)
        raise corrupt(self._place, path, position, header.offset, header.next_offset, "a bad checksum")

    def _window(self, position: int, size: int) -> tuple[mmap.mmap | bytes | None, int]:
        """Bytes that hold a place of the segment, and where in them it is; None at the end of the file."""
        if position + size <= len(self._map):
            return self._map, position
        at = position - self._chunk_at
        if at >= 0 and at + size <= len(self._chunk):
            return self._chunk, at
        shown = self.end  # before the bytes: what is behind it may still be cut and written again
        there = os.fstat(self._fd).st_size
        if position + size > there:
            return None, 0
        if there - position > CHUNK or size > CHUNK:
            self._map = mmap.mmap(self._fd, there, access=mmap.ACCESS_READ)
            return self._map, position
        self._chunk = os.pread(self._fd, there - position, position)
        self._chunk_at, self._chunk_until = position, shown
        return (self._chunk, 0) if len(self._chunk) >= size else (None, 0)

    def _seek(self, offset: int) -> None:
        located = locate(self._folder, offset)
        if located is None:
            raise corrupt(self._place, self._folder, 0, offset, None, "all segments are gone")
        base, position = located
        self._open(base)
        header = read_header(os.pread(self._fd, HEADER, position), 0, base)
        if position and (header is None or header.offset > offset):
            position, header = 0, None  # the index is not to be trusted
        self._position = position
        self._next = header.offset if header is not None else base

    def _open(self, base: int) -> None:
        self._close_file()
        self._fd = os.open(segment_path(self._folder, base), os.O_RDONLY | os.O_CLOEXEC)
        self._base = base

    def _to_next_segment(self) -> bool:
        """At the end of a segment: the next one begins with the next offset."""
        if self._next == self._base or not segment_path(self._folder, self._next).exists():
            return False
        if os.fstat(self._fd).st_size > self._position:
            return False
        self._open(self._next)
        self._position = 0
        return True

    def _forget(self) -> None:
        self._map, self._chunk, self._chunk_at = b"", b"", 0

    def close(self) -> None:
        """Close the file; mappings live as long as batches use them, and reading on begins with a search."""
        self._next = -1
        self._rest = None
        self._close_file()

    def _close_file(self) -> None:
        self._forget()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """A reader that was dropped keeps no file open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def offset_at(folder: Path, place: Partition, slot: Slot, micros: int) -> int:
    """The first offset with a timestamp at or after; the end if there is none."""
    for _ in range(100):
        try:
            return _offset_at(folder, place, slot, micros)
        except FileNotFoundError:
            continue  # retention removed what we were looking at
    raise OffsetOutOfRange(f"{place} loses its oldest records faster than they are read.", hint="Try again.")


def ranges_in_time(
    folder: Path, place: Partition, slot: Slot, span: tuple[int, int], times: tuple[int, int]
) -> list[tuple[int, int]]:
    """Ranges of offsets within ``span`` that hold every record with a time from the first to before the second."""
    for _ in range(100):
        try:
            return _ranges_in_time(folder, slot, span, times)
        except FileNotFoundError:
            continue  # retention removed what we were looking at
    raise OffsetOutOfRange(f"{place} loses its oldest records faster than they are read.", hint="Try again.")


def _ranges_in_time(folder: Path, slot: Slot, span: tuple[int, int], times: tuple[int, int]) -> list[tuple[int, int]]:
    """Headers alone say it: each has the lowest and the highest time of its frame."""
    start, stop = max(span[0], int(slot.words[START])), min(span[1], int(slot.words[VISIBLE]))
    since, until = times
    ranges: list[tuple[int, int]] = []
    all_bases = bases(folder)
    base, position = locate_time(folder, all_bases, since)
    for one in all_bases[all_bases.index(base) :]:
        if one >= stop:
            break
        data = mapped(segment_path(folder, one))
        for _, header in headers(data, one, position if one == base else 0, len(data)):
            low, high = max(header.offset, start), min(header.next_offset, stop)
            if low >= high or header.highest_time < since or header.lowest_time >= until:
                continue
            if ranges and ranges[-1][1] == low:
                low = ranges.pop()[0]
            ranges.append((low, high))
    return ranges


def _offset_at(folder: Path, place: Partition, slot: Slot, micros: int) -> int:
    start, end = int(slot.words[START]), int(slot.words[VISIBLE])
    all_bases = bases(folder)
    base, position = locate_time(folder, all_bases, micros)
    for one in all_bases[all_bases.index(base) :]:
        data = mapped(segment_path(folder, one))
        for at, header in headers(data, one, position if one == base else 0, len(data)):
            if header.offset >= end:
                return end
            if header.highest_time < micros or header.next_offset <= start or header.flags & GAP:
                continue
            body = body_of(header, memoryview(data)[at + HEADER : at + header.size])
            if body is None:
                path = segment_path(folder, one)
                raise corrupt(place, path, at, header.offset, header.next_offset, "a bad checksum")
            batch = FrameBatch(place, header, body, 0, header.records)
            rank = next(rank for rank, time in enumerate(batch.times()) if time >= micros)
            if header.offset + rank >= start:
                return header.offset + rank
    return end
