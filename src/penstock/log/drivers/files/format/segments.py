"""Segments: the files of a partition, and walking over their frames."""

from __future__ import annotations

import logging
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.errors import LogNotFound, RecordCorrupt, StoreCorrupt
from penstock.log.drivers.files.format.control import NO_TIME
from penstock.log.drivers.files.format.frames import GAP, HEADER, MAGIC, TXN, Header, body_of, read_header
from penstock.log.record import Partition

logger = logging.getLogger("penstock.log")

MAGIC_BYTES = MAGIC.to_bytes(4, "little")
OURS = (".seg", ".idx", ".prod", ".damaged", ".fresh")


def segment_path(folder: Path, base: int) -> Path:
    """The segment whose first offset is ``base``."""
    return folder / f"{base:020d}.seg"


def index_path(folder: Path, base: int) -> Path:
    """The index of a segment."""
    return folder / f"{base:020d}.idx"


def producers_path(folder: Path, base: int) -> Path:
    """The producer table as it was when the segment began."""
    return folder / f"{base:020d}.prod"


def bases(folder: Path) -> list[int]:
    """The first offsets of all segments, sorted. Files of other programs are ignored."""
    offsets = []
    for name in listed(folder):
        if name.endswith(".seg") and name[:-4].isdecimal() and len(name) == 24:
            offsets.append(int(name[:-4]))
        else:
            warn_if_foreign(folder, name)
    offsets.sort()
    return offsets


def listed(folder: Path) -> list[str]:
    """The names in a partition's folder. Raises if the folder is missing."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError) as cause:
        if not folder.parent.exists():
            raise LogNotFound(f"log {folder.parent.name} was deleted.", hint="Create it again.") from cause
        raise StoreCorrupt(
            f"{folder.name} of log {folder.parent.name} is gone: {cause}.", hint="Restore it from a backup."
        ) from cause


def warn_if_foreign(folder: Path, name: str) -> None:
    """Log a warning for a file that is not one of ours."""
    if not name.endswith(OURS):
        logger.warning("%s is not a file of this log and is ignored", folder / name)


def mapped(path: Path) -> mmap.mmap | bytes:
    """Map a segment as it is now."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise StoreCorrupt(f"{path} is not a file.", hint="Move it elsewhere and restore the file from a backup.")
        return mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ) if status.st_size else b""
    finally:
        os.close(fd)


def headers(data: mmap.mmap | bytes, base: int, position: int, stop: int) -> Iterator[tuple[int, Header]]:
    """The headers of consecutive frames, up to ``stop`` or the first header that is not valid."""
    while position + HEADER <= stop:
        header = read_header(data, position, base)
        if header is None or position + header.size > stop:
            return
        yield position, header
        position += header.size


class Scan(NamedTuple):
    """The result of a scan: where the good frames end, and what their headers say."""

    next: int
    position: int
    max_time: int
    since: int  # when the first frame was appended, or 0


def scan(
    data: mmap.mmap | bytes,
    base: int,
    begin: tuple[int, int] | None = None,
    max_time: int = NO_TIME,
    is_committed: Callable[[int, int], bool] | None = None,
) -> Scan:
    """Check every byte of a segment, from an offset and its position up to the first frame that is not whole.

    With ``is_committed``, it also stops before the first frame of a transaction that was never committed.
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
        if is_committed is not None and header.flags & TXN and not is_committed(header.txn, header.hint):
            break
        since = since or header.appended
        max_time = max(max_time, header.highest_time)
        offset = header.next_offset
        position += header.size
    return Scan(offset, position, max_time, since)


def good_frame(data: mmap.mmap | bytes, base: int, position: int, offset: int, stop: int) -> tuple[int, int] | None:
    """The offset and position after the frame that begins here with this offset, or None if it is not whole."""
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
    """The position and offset of the next whole frame whose offset is between two, or the end."""
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


def corrupt(  # noqa: PLR0917 - all of it is in the message
    partition: Partition, path: Path, position: int, first: int, last: int | None, why: str
) -> RecordCorrupt:
    """The error for damage, with the file, the byte and the offsets."""
    span = f"offset {first}" if last is None or last <= first + 1 else f"offsets {first} to {last - 1}"
    return RecordCorrupt(
        f"{partition} is damaged at {span}: {why} in {path.name} at byte {position}; nothing was cut.",
        hint="Restore it from a backup, or move the damaged part aside with repair().",
        partition=str(partition), offset=first,
    )  # fmt: skip
