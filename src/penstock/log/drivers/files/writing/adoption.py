"""Adoption: a file that was written aside becomes a segment of its partition, without a byte being copied.

The file gets a second name in the partition's folder, and its first frame the transaction's id. Until the journal has
that id nobody reads the segment: the end lies before it, and recovery removes the name again. The first name stays
until the transaction is done, so a commit that died is made again with the same files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock import failpoints
from penstock.clock import Micros
from penstock.errors import StoreUnavailable
from penstock.ids import new_nonce
from penstock.log.drivers.files.format.control import EPOCH, PRODUCERS, WRITING, End
from penstock.log.drivers.files.format.frame import HEADER, TXN, pack_header, read_header
from penstock.log.drivers.files.format.segment import (
    Entry,
    bases,
    entry_bytes,
    index_path,
    producers_path,
    segment_path,
)
from penstock.log.drivers.files.writing.partition import PartitionFile, sync_folder
from penstock.log.drivers.files.writing.staging import damaged, gone, staged_index, staged_path
from penstock.log.protocol import Staged, StagedFile
from penstock.log.record import Partition

WORTH = 1024 * 1024  # bytes of the mean file from which on files are adopted: smaller ones would be many segments
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Aside(NamedTuple):
    """A file that was written aside for a partition."""

    path: Path
    file: StagedFile


def files_for(root: Path, staged: Sequence[Staged], place: Partition) -> list[Aside]:
    """All that was written aside for a partition, in order."""
    return [
        Aside(staged_path(root, one.path, file), file)
        for one in staged
        if one.log == place.log
        for file in one.files
        if file.partition == place.index
    ]


def is_adopted(part: PartitionFile, asides: Sequence[Aside]) -> bool:
    """Under the lock: whether the files become segments; by their mean, so copying others costs as little a file."""
    if not asides or sum(aside.file.size for aside in asides) < WORTH * len(asides):
        return False
    part.slot.words[WRITING] = 1  # from here on a death is recovered from, which also removes what is half named
    return can_link(staged_index(asides[0].path), part.folder)


def can_link(source: Path, folder: Path) -> bool:
    """Whether a file can have a second name in a folder: on another disk, and on some file systems, it cannot."""
    probe = folder / f"{new_nonce()}.fresh"
    try:
        os.link(source, probe)
    except FileNotFoundError:
        return True  # for whoever looks for the file to say
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    probe.unlink()
    return True


def adopt(part: PartitionFile, asides: Sequence[Aside], end: End, now: Micros, txn: tuple[int, int]) -> End:
    """Under the lock: put the files behind the end, which stays where it is."""
    for aside in asides:
        end = _adopted(part, aside, end, now, txn)
    if part.durable:
        sync_folder(part.folder)
    return end


def give_back(part: PartitionFile, end: End) -> None:
    """Under the lock: take the names in the partition's folder away again."""
    if end.position == 0 and segment_path(part.folder, end.base).stat().st_size:
        part.begin_again(end.base)
    for base in bases(part.folder):
        if base > end.base:
            part.remove_segment(base)


def _adopted(part: PartitionFile, aside: Aside, end: End, now: Micros, txn: tuple[int, int]) -> End:
    base = end.next
    _mark(part, aside, now, txn)
    index = staged_index(aside.path)
    with index.open("r+b") as lines:
        lines.write(entry_bytes(Entry(base, part.slot.max_time, 0), base))
    words = part.slot.words
    words[WRITING] = 1
    if words[PRODUCERS]:
        part.producers.read_on(end)
        part.producers.save(producers_path(part.folder, base), base)
    if end.position == 0:  # an empty segment of that name is there: handles that have it open must not write to it
        part.close()
        words[EPOCH] += 1
    _link(aside.path, segment_path(part.folder, base))  # first: recovery goes by the segments
    failpoints.point("log.adopt.segment")
    _link(index, index_path(part.folder, base))
    failpoints.point("log.adopt.index")
    part.slot.max_time = max(part.slot.max_time, aside.file.highest_time)
    part.unsynced += aside.file.size
    return End(base + aside.file.count, aside.file.size, base)


def _mark(part: PartitionFile, aside: Aside, now: Micros, txn: tuple[int, int]) -> None:
    """Write the transaction into the first frame: recovery asks the journal for it."""
    try:
        fd = os.open(aside.path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise gone(part.place) from None
    try:
        header = read_header(os.pread(fd, HEADER, 0), 0, 0)
        if header is None or header.offset or os.fstat(fd).st_size != aside.file.size:
            raise damaged(aside.path, part.place)
        marked = header._replace(flags=header.flags | TXN, txn=txn[0], hint=txn[1], appended=now)
        if os.pwrite(fd, pack_header(marked, 0), 0) != HEADER:
            raise StoreUnavailable(f"{aside.path.name} for {part.place} could not be marked.", hint="Look at the disk.")
        if part.durable:
            part.fdatasync(fd)
    finally:
        os.close(fd)


def _link(source: Path, target: Path) -> None:
    """A second name; whatever had it loses it."""
    fresh = target.with_name(f"{target.name}.fresh")
    fresh.unlink(missing_ok=True)
    os.link(source, fresh)
    os.rename(fresh, target)
