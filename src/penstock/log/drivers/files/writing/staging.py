"""Staging: records that executors write aside, so that one process can commit them all without reading them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Micros
from penstock.errors import Conflict, StoreUnavailable
from penstock.ids import new_nonce
from penstock.log.drivers.files.disk import disk_errors
from penstock.log.drivers.files.format.arrow import encode_arrow
from penstock.log.drivers.files.format.control import NO_TIME
from penstock.log.drivers.files.format.frame import HEADER, MAX_FRAME, TXN, Encoded, body_of, encode, read_header, split
from penstock.log.drivers.files.format.segment import Entry, entry_bytes, mapped, wants_entry
from penstock.log.drivers.files.private import make_private, open_private, write_private
from penstock.log.drivers.files.writing.partition import sync_folder
from penstock.log.protocol import LogSettings, Stage, Staged, StagedFile
from penstock.log.record import NewRecords, Partition

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 4 * 1024 * 1024  # bytes of one write; much larger ones are slower


class FileStage(Stage):
    """Files like segments that begin with offset 0, with their indexes: one or more for each partition."""

    def __init__(self, root: Path, settings: LogSettings, now: Callable[[], Micros], *, durable: bool) -> None:
        """Make a folder for it; ``now`` dates the records that have no time."""
        self._settings = settings
        self._durable = durable
        self._now = now
        self._name = new_nonce()
        self._folder = root / "staged" / self._name
        make_private(self._folder)
        self._written: dict[int, list[_StageFile]] = {}

    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        """Write more."""
        compression = self._settings.compression
        for partition, records in parts:
            self._write(partition, (encode(part, compression) for part in split(records, MAX_FRAME // 2)))

    def append_arrow(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """Write columns as they are."""
        for partition, batch in parts:
            self._write(partition, encode_arrow(batch, self._settings.compression))

    def _write(self, partition: int, frames: Iterable[Encoded]) -> None:
        with disk_errors("staged records"):
            for frame in frames:
                self._file(partition, frame.size).write(frame, self._now())

    def _file(self, partition: int, size: int) -> _StageFile:
        """The last file of a partition, or another one where that is as long as a segment should be."""
        files = self._written.setdefault(partition, [])
        if not files or files[-1].size + size > self._settings.segment_bytes:
            files.append(_StageFile(self._folder / f"{partition:05d}-{len(files):05d}"))
        return files[-1]

    def close(self) -> Staged:
        """Bring it to disk, with its names."""
        with disk_errors("staged records"):
            files = [
                file.finished(partition, durable=self._durable)
                for partition, several in sorted(self._written.items())
                for file in several
            ]
            if self._durable:
                sync_folder(self._folder)
                sync_folder(self._folder.parent)
        counts: dict[int, int] = {}
        for file in files:
            counts[file.partition] = counts.get(file.partition, 0) + file.count
        return Staged(self._name, self._settings.name, counts, files)

    def discard(self) -> None:
        """Remove it."""
        _remove(self._folder)


class _StageFile:
    """One file that is written aside, and the lines of its index."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0
        self._count = 0
        self._highest = NO_TIME
        self._lines = [entry_bytes(Entry(0, NO_TIME, 0), 0)]

    def write(self, frame: Encoded, now: Micros) -> None:
        """Append a frame."""
        with open_private(self._path, "ab") as out:
            out.write(frame.header(self._count, now))
            out.writelines(frame.parts)
        if self.size and wants_entry(self.size, frame.size):
            self._lines.append(entry_bytes(Entry(self._count, self._highest, self.size), 0))
        self.size += frame.size
        self._count += frame.count
        self._highest = max(self._highest, frame.highest_time if frame.dated else now)

    def finished(self, partition: int, *, durable: bool) -> StagedFile:
        """Write the index, and bring the frames to disk."""
        write_private(staged_index(self._path), b"".join(self._lines))
        if durable:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        return StagedFile(partition, self._path.name, self._count, self.size, self._highest)


def staged_path(root: Path, name: str, file: StagedFile) -> Path:
    """Where a file of staged records is."""
    return root / "staged" / name / file.name


def staged_index(path: Path) -> Path:
    """The index of such a file."""
    return path.with_suffix(".idx")


def staged_frames(path: Path, file: StagedFile, place: Partition) -> Iterator[list[Encoded]]:
    """The frames of a file of staged records, some at a time."""
    try:
        data = memoryview(mapped(path))
    except FileNotFoundError:
        raise gone(place) from None
    if len(data) != file.size:
        raise damaged(path, place)
    found: list[Encoded] = []
    position = count = size = 0
    while position < len(data):
        header = read_header(data, position, 0)
        if header is None or header.offset != count:
            raise damaged(path, place)
        body = data[position + HEADER : position + header.size]
        if body_of(header, body) is None:
            raise damaged(path, place)
        found.append(
            Encoded(
                [body], len(body), header.body_crc, header.compression, header.flags & ~TXN, header.records,
                header.lowest_time, header.highest_time, header.raw_body, header.values, header.keys,
                header.headers, True,
            )
        )  # fmt: skip
        count += header.records
        position += header.size
        size += header.size
        if size >= AT_ONCE:
            yield found
            found, size = [], 0
    if found:
        yield found


def sweep(root: Path, before: float) -> None:
    """Remove what was left behind by those who died: whatever nobody touched since a time."""
    for folder in (root / "staged").iterdir():
        try:
            if max(path.stat().st_mtime for path in (folder, *folder.iterdir())) < before:
                _remove(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue  # somebody else was faster, or it is not ours


def discard(root: Path, names: Sequence[str]) -> None:
    """Remove what was committed."""
    for name in names:
        _remove(root / "staged" / name)


def _remove(folder: Path) -> None:
    if folder.exists():
        for path in list(folder.iterdir()):
            path.unlink(missing_ok=True)
        folder.rmdir()


def gone(place: Partition) -> Conflict:
    """The error for what is not there to be committed."""
    return Conflict(f"what was staged for {place.log} is gone.", hint="Was it committed already?")


def damaged(path: Path, place: Partition) -> StoreUnavailable:
    """Nothing of it is in a log yet: whoever staged it can do it again."""
    return StoreUnavailable(f"what was staged in {path.name} for {place} is damaged.", hint="Stage it again.")
