"""Staging: records that executors write aside, so that one process can commit them all without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import Conflict, StoreUnavailable
from penstock.ids import new_nonce
from penstock.log.protocol import LogSettings, Stage, Staged
from penstock.log.record import NewRecords, Partition
from penstock.log.stores.files.arrow import encode_arrow
from penstock.log.stores.files.disk import disk_errors
from penstock.log.stores.files.frames import HEADER, MAX_FRAME, Encoded, body_of, encode, read_header, split
from penstock.log.stores.files.private import make_private, open_private
from penstock.log.stores.files.segments import mapped

if TYPE_CHECKING:
    import pyarrow as pa

UNDATED = -(1 << 63)  # records without a time get that of the commit
AT_ONCE = 4 * 1024 * 1024  # bytes of one write; much larger ones are slower


class FileStage(Stage):
    """Frames in a file per partition, with offsets that begin at 0."""

    def __init__(self, root: Path, settings: LogSettings, durable: bool) -> None:
        """Make a folder for it."""
        self._settings = settings
        self._durable = durable
        self._name = new_nonce()
        self._folder = root / "staged" / self._name
        make_private(self._folder)
        self._counts: dict[int, int] = {}

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
        with disk_errors("staged records"), open_private(self._folder / f"{partition:05d}", "ab") as out:
            for frame in frames:
                out.write(frame.header(self._counts.get(partition, 0), UNDATED))
                out.writelines(frame.parts)
                self._counts[partition] = self._counts.get(partition, 0) + frame.count

    def close(self) -> Staged:
        """Bring it to disk."""
        if self._durable:
            for path in self._folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        return Staged(self._name, self._settings.name, self._counts)

    def discard(self) -> None:
        """Remove it."""
        _remove(self._folder)


def staged_frames(root: Path, staged: Sequence[Staged], place: Partition) -> Iterator[list[Encoded]]:
    """The frames of all that was staged for a partition, some at a time."""
    for one in staged:
        if one.log != place.log or place.index not in one.counts:
            continue
        path = root / "staged" / one.path / f"{place.index:05d}"
        try:
            data = memoryview(mapped(path))
        except FileNotFoundError:
            raise Conflict(f"what was staged for {one.log} is gone.", hint="Was it committed already?") from None
        found: list[Encoded] = []
        position = count = size = 0
        while position < len(data):
            header = read_header(data, position, 0)
            if header is None or header.offset != count:
                raise _damaged(path, place)
            body = data[position + HEADER : position + header.size]
            if body_of(header, body) is None:
                raise _damaged(path, place)
            dated = header.lowest_time != UNDATED
            found.append(
                Encoded(
                    [body], len(body), header.body_crc, header.compression, header.flags, header.records,
                    header.lowest_time, header.highest_time, header.raw_body, header.values, header.keys,
                    header.headers, dated,
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


def staged_size(root: Path, staged: Sequence[Staged], place: Partition) -> int:
    """How many bytes were staged for a partition."""
    paths = [root / "staged" / one.path / f"{place.index:05d}" for one in staged if one.log == place.log]
    return sum(path.stat().st_size for path in paths if path.exists())


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


def _damaged(path: Path, place: Partition) -> StoreUnavailable:
    """Nothing of it is in a log yet: whoever staged it can do it again."""
    return StoreUnavailable(f"what was staged in {path.name} for {place} is damaged.", hint="Stage it again.")
