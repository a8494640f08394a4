"""Adoption: a staged file becomes a segment of its partition without being copied.

The file gets a second name (a hard link) in the partition's folder, and its first frame gets the transaction's id.
Until the journal has that id, nobody reads the segment: it is beyond the end, and recovery removes the second name. The
first name stays until the transaction is done, so a commit that died can be repeated with the same files.
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
from penstock.log.drivers.files.format.frames import HEADER, TXN, pack_header, read_header
from penstock.log.drivers.files.format.index import IndexEntry, entry_bytes
from penstock.log.drivers.files.format.segments import bases, index_path, producers_path, segment_path
from penstock.log.drivers.files.writing.durability import sync_folder
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.drivers.files.writing.staging import staged_damaged, staged_index, staged_path
from penstock.log.drivers.shared.errors import staged_gone
from penstock.log.protocol import Staged, StagedFile
from penstock.log.record import Partition

ADOPT_BYTES = 1024 * 1024  # files are adopted if their mean size is at least this; smaller ones are copied
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class StagedSegment(NamedTuple):
    """A staged file for a partition."""

    path: Path
    file: StagedFile


def files_for(root: Path, staged: Sequence[Staged], partition: Partition) -> list[StagedSegment]:
    """All staged files for a partition, in order."""
    return [
        StagedSegment(staged_path(root, records.path, file), file)
        for records in staged
        if records.log == partition.log
        for file in records.files
        if file.partition == partition.index
    ]


def can_adopt(part: PartitionFile, segments: Sequence[StagedSegment]) -> bool:
    """Under the lock: whether the files become segments. Their mean size decides, so the partition gets few of them."""
    if not segments or sum(segment.file.size for segment in segments) < ADOPT_BYTES * len(segments):
        return False
    part.slot.words[WRITING] = 1  # if this process dies from here on, recovery removes the half-linked files
    return can_link(staged_index(segments[0].path), part.folder)


def can_link(source: Path, folder: Path) -> bool:
    """Whether a file can be hard-linked into a folder; it cannot on another disk and on some file systems."""
    probe = folder / f"{new_nonce()}.fresh"
    try:
        os.link(source, probe)
    except FileNotFoundError:
        return True  # whoever opens the file raises the right error
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    probe.unlink()
    return True


def adopt(part: PartitionFile, segments: Sequence[StagedSegment], end: End, now: Micros, txn: tuple[int, int]) -> End:
    """Under the lock: link the files after the end, which does not move yet. Returns the new end."""
    for segment in segments:
        end = _adopt_one(part, segment, end, now, txn)
    if part.durable:
        sync_folder(part.folder)
    return end


def undo_adoption(part: PartitionFile, end: End) -> None:
    """Under the lock: remove the names in the partition's folder again."""
    if end.position == 0 and segment_path(part.folder, end.base).stat().st_size:
        part.replace_with_empty(end.base)
    for base in bases(part.folder):
        if base > end.base:
            part.remove_segment(base)


def _adopt_one(part: PartitionFile, segment: StagedSegment, end: End, now: Micros, txn: tuple[int, int]) -> End:
    base = end.next
    _stamp(part, segment, now, txn)
    index = staged_index(segment.path)
    with index.open("r+b") as entries:
        entries.write(entry_bytes(IndexEntry(base, part.slot.max_time, 0), base))
    words = part.slot.words
    words[WRITING] = 1
    if words[PRODUCERS]:
        part.producers.catch_up(end)
        part.producers.save(producers_path(part.folder, base), base)
    if end.position == 0:  # this replaces an empty segment, which other handles may have open and must not write to
        part.close()
        words[EPOCH] += 1
    _link(segment.path, segment_path(part.folder, base))  # first, as recovery reads the segments
    failpoints.point("log.adopt.segment")
    _link(index, index_path(part.folder, base))
    failpoints.point("log.adopt.index")
    part.slot.max_time = max(part.slot.max_time, segment.file.highest_time)
    part.unsynced += segment.file.size
    return End(base + segment.file.count, segment.file.size, base)


def _stamp(part: PartitionFile, segment: StagedSegment, now: Micros, txn: tuple[int, int]) -> None:
    """Write the transaction's id into the first frame; recovery looks for it in the journal."""
    try:
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise staged_gone(part.partition.log) from None
    try:
        header = read_header(os.pread(fd, HEADER, 0), 0, 0)
        if header is None or header.offset or os.fstat(fd).st_size != segment.file.size:
            raise staged_damaged(segment.path, part.partition)
        stamped = header._replace(flags=header.flags | TXN, txn=txn[0], hint=txn[1], appended=now)
        if os.pwrite(fd, pack_header(stamped, 0), 0) != HEADER:
            raise StoreUnavailable(
                f"the staged file {segment.path.name} for {part.partition} could not be written.",
                hint="Check the disk.",
            )
        if part.durable:
            part.durability.fdatasync(fd)
    finally:
        os.close(fd)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, replacing whatever had that name."""
    fresh = target.with_name(f"{target.name}.fresh")
    fresh.unlink(missing_ok=True)
    os.link(source, fresh)
    os.rename(fresh, target)
