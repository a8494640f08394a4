"""FileReader: reads a partition from any offset, frame by frame, up to the visible end."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import OffsetOutOfRange, PenstockError, RecordCorrupt
from penstock.log.drivers.files.format.batch import FrameBatch
from penstock.log.drivers.files.format.control import START, VISIBLE, WRITING, Slot
from penstock.log.drivers.files.format.frames import GAP, HEADER, Header, body_of, read_header
from penstock.log.drivers.files.format.index import locate
from penstock.log.drivers.files.format.segments import corrupt, segment_path
from penstock.log.drivers.shared.membership import Reader
from penstock.log.record import Partition, RecordBatch

CHUNK = 64 * 1024  # at most this much is read; more is mapped
_never = threading.Event()


class FileReader(Reader):
    """Walks over frames and remembers its place, so that reading on needs no search."""

    def __init__(self, folder: Path, partition: Partition, slot: Slot) -> None:
        """Open nothing yet."""
        self._folder = folder
        self._partition = partition
        self._words = slot.words
        self._fd = -1
        self._base = -1
        self._position = 0
        self._next = -1
        self._map: mmap.mmap | bytes = b""
        self._chunk = b""
        self._chunk_at = 0
        self._chunk_until = 0  # records from this offset on were not visible yet when the chunk was read
        self._rest: FrameBatch | None = None

    @property
    def start(self) -> int:
        """The first offset."""
        return int(self._words[START])

    @property
    def end(self) -> int:
        """The offset after the last visible record."""
        return int(self._words[VISIBLE])

    @property
    def is_written(self) -> bool:
        """Whether an append is under way."""
        return bool(self._words[WRITING])

    def read(self, offset: int, limit: int) -> tuple[list[RecordBatch], int]:
        """At most ``limit`` records from ``offset`` on, and where to continue."""
        batches: list[RecordBatch] = []
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
                    if batches:
                        break  # return what was read before the damage, or before retention caught up
                    raise
            if batch is None:
                continue
            if len(batch) > limit:
                self._rest = batch.slice(limit, len(batch))
                batch = batch.slice(0, limit)
            batches.append(batch)
            limit -= len(batch)
            offset = batch.offsets.stop
        return batches, offset

    def frames(self, start: int, stop: int) -> Iterator[FrameBatch]:
        """All frames of a range, cut to the range."""
        while start < stop:
            batch, start = self._frame(start)
            if batch is not None:
                if batch.offsets.stop > stop:
                    batch = batch.slice(0, stop - batch.offsets.start)
                start = batch.offsets.stop
                yield batch

    def _frame(self, offset: int) -> tuple[FrameBatch | None, int]:
        """The records of a frame from an offset on; for a hole, None and the offset after it."""
        tries = 0
        while True:
            try:
                return self._read_frame(offset)
            except (OSError, RecordCorrupt) as error:
                if isinstance(error, PenstockError) and not isinstance(error, RecordCorrupt):
                    raise
                self.close()  # the open file may have been removed or replaced: look for it again
                # Retention moves the start before it removes files.
                if offset < self.start:
                    raise OffsetOutOfRange(
                        f"offset {offset} of {self._partition} was just removed by retention; the first one is now "
                        f"{self.start}.",
                        hint="Read on from the start.",
                    ) from None
                if isinstance(error, RecordCorrupt):
                    raise
                tries += 1
                if tries > 3:  # a repair replaces a file, which is missing only for a moment
                    raise corrupt(
                        self._partition, self._folder, 0, offset, None, f"a segment is missing ({error})"
                    ) from error
                _never.wait(0.001)

    def _read_frame(self, offset: int) -> tuple[FrameBatch | None, int]:
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
            raise corrupt(self._partition, path, position, offset, header.offset, "records are missing")
        if header.flags & GAP:
            self._advance(header)
            return None, header.next_offset
        body = self._body(header, position)
        self._advance(header)
        low = offset - header.offset
        return FrameBatch(self._partition, header, body, low, header.records), offset

    def _advance(self, header: Header) -> None:
        self._position += header.size
        self._next = header.next_offset

    def _header(self) -> Header:
        tries = 0
        while True:
            window, at = self._window(self._position, HEADER)
            header = read_header(window, at, self._base) if window is not None else None
            if header is not None and window is self._chunk and self._chunk_until <= header.offset < self.end:
                # It was not visible when the chunk was read, and may have been replaced since.
                self._forget()
                continue
            if header is not None:
                return header
            if window is None and self._to_next_segment():
                continue
            # If writes were reordered, the end may be visible before the bytes: look again before raising.
            tries += 1
            if tries > 3:
                path, position, first, self._next = (
                    segment_path(self._folder, self._base),
                    self._position,
                    self._next,
                    -1,
                )
                raise corrupt(self._partition, path, position, first, None, "no valid frame")
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
        self._next = -1  # look for the file again, as it may be repaired
        path = segment_path(self._folder, self._base)
        raise corrupt(self._partition, path, position, header.offset, header.next_offset, "a bad checksum")

    def _window(self, position: int, size: int) -> tuple[mmap.mmap | bytes | None, int]:
        """A buffer with these bytes of the segment, and where in it they are; None at the end of the file."""
        if position + size <= len(self._map):
            return self._map, position
        at = position - self._chunk_at
        if at >= 0 and at + size <= len(self._chunk):
            return self._chunk, at
        visible = self.end  # read before the bytes: what is beyond may still be cut and written again
        file_size = os.fstat(self._fd).st_size
        if position + size > file_size:
            return None, 0
        if file_size - position > CHUNK or size > CHUNK:
            self._map = mmap.mmap(self._fd, file_size, access=mmap.ACCESS_READ)
            return self._map, position
        self._chunk = os.pread(self._fd, file_size - position, position)
        self._chunk_at, self._chunk_until = position, visible
        return (self._chunk, 0) if len(self._chunk) >= size else (None, 0)

    def _seek(self, offset: int) -> None:
        located = locate(self._folder, offset)
        if located is None:
            raise corrupt(self._partition, self._folder, 0, offset, None, "all segments are gone")
        base, position = located
        self._open(base)
        header = read_header(os.pread(self._fd, HEADER, position), 0, base)
        if position and (header is None or header.offset > offset):
            position, header = 0, None  # the index is wrong
        self._position = position
        self._next = header.offset if header is not None else base

    def _open(self, base: int) -> None:
        self._close_file()
        self._fd = os.open(segment_path(self._folder, base), os.O_RDONLY | os.O_CLOEXEC)
        self._base = base

    def _to_next_segment(self) -> bool:
        """At the end of a segment, move to the next one. Returns False if there is none."""
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
        """Close the file. Mappings live as long as batches use them; the next read starts with a search."""
        self._next = -1
        self._rest = None
        self._close_file()

    def _close_file(self) -> None:
        self._forget()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Close the file of a reader that was dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
