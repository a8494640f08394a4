"""Staging: records that many processes write aside, for one process to commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Micros
from penstock.errors import StoreUnavailable
from penstock.ids import new_nonce
from penstock.log.drivers.files.disk import disk_errors
from penstock.log.drivers.files.format.arrow import encode_arrow
from penstock.log.drivers.files.format.control import NO_TIME
from penstock.log.drivers.files.format.frames import (
    HEADER,
    MAX_FRAME,
    TXN,
    Encoded,
    body_of,
    encode,
    read_header,
    split,
)
from penstock.log.drivers.files.format.index import IndexEntry, entry_bytes, wants_entry
from penstock.log.drivers.files.format.segments import mapped
from penstock.log.drivers.files.private import make_private, open_private, write_private
from penstock.log.drivers.files.writing.durability import sync_folder
from penstock.log.drivers.shared.errors import staged_gone
from penstock.log.protocol import Stage, Staged, StagedFile
from penstock.log.record import NewRecords, Partition
from penstock.log.settings import LogSettings

if TYPE_CHECKING:
    import pyarrow as pa

WRITE_BYTES = 4 * 1024 * 1024  # of one write; much larger ones are slower


class FileStage(Stage):
    """Files like segments whose first offset is 0, with their indexes; one or more per partition."""

    def __init__(self, root: Path, settings: LogSettings, now: Callable[[], Micros], *, durable: bool) -> None:
        """Create a folder. ``now`` is the time for records without one."""
        self._settings = settings
        self._durable = durable
        self._now = now
        self._name = new_nonce()
        self._folder = root / "staged" / self._name
        make_private(self._folder)
        self._files: dict[int, list[_StageFile]] = {}

    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        """Write more records."""
        compression = self._settings.compression
        for partition, records in parts:
            self._write(partition, (encode(part, compression) for part in split(records, MAX_FRAME // 2)))

    def append_arrow(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """Write columns as they are, without decoding records."""
        for partition, batch in parts:
            self._write(partition, encode_arrow(batch, self._settings.compression))

    def _write(self, partition: int, frames: Iterable[Encoded]) -> None:
        with disk_errors("staged records"):
            for frame in frames:
                self._file(partition, frame.size).write(frame, self._now())

    def _file(self, partition: int, size: int) -> _StageFile:
        """The last file of a partition, or a new one if that has reached the size of a segment."""
        files = self._files.setdefault(partition, [])
        if not files or files[-1].size + size > self._settings.segment_bytes:
            files.append(_StageFile(self._folder / f"{partition:05d}-{len(files):05d}"))
        return files[-1]

    def close(self) -> Staged:
        """Bring the files and their names to disk."""
        with disk_errors("staged records"):
            files = [
                file.finished(partition, durable=self._durable)
                for partition, partition_files in sorted(self._files.items())
                for file in partition_files
            ]
            if self._durable:
                sync_folder(self._folder)
                sync_folder(self._folder.parent)
        counts: dict[int, int] = {}
        for file in files:
            counts[file.partition] = counts.get(file.partition, 0) + file.count
        return Staged(self._name, self._settings.name, counts, files)

    def discard(self) -> None:
        """Remove the files."""
        _remove(self._folder)


class _StageFile:
    """One staged file, and its index."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0
        self._count = 0
        self._highest = NO_TIME
        self._index = [entry_bytes(IndexEntry(0, NO_TIME, 0), 0)]

    def write(self, frame: Encoded, now: Micros) -> None:
        """Append a frame."""
        with open_private(self._path, "ab") as out:
            out.write(frame.header(self._count, now))
            out.writelines(frame.parts)
        if self.size and wants_entry(self.size, frame.size):
            self._index.append(entry_bytes(IndexEntry(self._count, self._highest, self.size), 0))
        self.size += frame.size
        self._count += frame.count
        self._highest = max(self._highest, frame.highest_time if frame.dated else now)

    def finished(self, partition: int, *, durable: bool) -> StagedFile:
        """Write the index and bring the frames to disk."""
        write_private(staged_index(self._path), b"".join(self._index))
        if durable:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        return StagedFile(partition, self._path.name, self._count, self.size, self._highest)


def staged_path(root: Path, name: str, file: StagedFile) -> Path:
    """The path of a staged file."""
    return root / "staged" / name / file.name


def staged_index(path: Path) -> Path:
    """The index of a staged file."""
    return path.with_suffix(".idx")


def staged_frames(path: Path, file: StagedFile, partition: Partition) -> Iterator[list[Encoded]]:
    """The frames of a staged file, a few MiB at a time."""
    try:
        data = memoryview(mapped(path))
    except FileNotFoundError:
        raise staged_gone(partition.log) from None
    if len(data) != file.size:
        raise staged_damaged(path, partition)
    frames: list[Encoded] = []
    position = count = size = 0
    while position < len(data):
        header = read_header(data, position, 0)
        if header is None or header.offset != count:
            raise staged_damaged(path, partition)
        body = data[position + HEADER : position + header.size]
        if body_of(header, body) is None:
            raise staged_damaged(path, partition)
        frames.append(
            Encoded(
                [body], len(body), header.body_crc, header.compression, header.flags & ~TXN, header.records,
                header.lowest_time, header.highest_time, header.raw_body, header.values, header.keys,
                header.headers, True,
            )
        )  # fmt: skip
        count += header.records
        position += header.size
        size += header.size
        if size >= WRITE_BYTES:
            yield frames
            frames, size = [], 0
    if frames:
        yield frames


def sweep(root: Path, before: float) -> None:
    """Remove staged records of processes that died: those that nobody has touched since a time."""
    for folder in (root / "staged").iterdir():
        try:
            if max(path.stat().st_mtime for path in (folder, *folder.iterdir())) < before:
                _remove(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue  # another process removed it, or it is not ours


def discard(root: Path, names: Sequence[str]) -> None:
    """Remove staged records."""
    for name in names:
        _remove(root / "staged" / name)


def _remove(folder: Path) -> None:
    if folder.exists():
        for path in list(folder.iterdir()):
            path.unlink(missing_ok=True)
        folder.rmdir()


def staged_damaged(path: Path, partition: Partition) -> StoreUnavailable:
    """The error for a damaged staged file. Nothing of it is in a log yet, so the records can be staged again."""
    return StoreUnavailable(f"the staged file {path.name} for {partition} is damaged.", hint="Stage the records again.")
