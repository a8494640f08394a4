"""Committed offsets on disk: two slots per partition, written in turn."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from penstock import failpoints
from penstock.errors import StoreFull
from penstock.log.drivers.files.private import FILE_MODE, make_private

_SLOT = struct.Struct("<QQQQI")
SLOT = 64
PARTITION_SLOTS = 2 * SLOT  # bytes per partition


class CommittedOffset(NamedTuple):
    """A committed offset: the number of the commit, the epoch of its lease, and its transaction (0 if none)."""

    generation: int
    offset: int
    epoch: int
    txn: int


class GroupFolder:
    """The folder of a group."""

    def __init__(self, root: Path, name: str) -> None:
        """Create nothing yet."""
        self.name = name
        self.folder = root / "groups" / name
        self.members = self.folder / "members"
        self.leases = self.folder / "leases"
        self.offsets = self.folder / "offsets"

    def make(self) -> None:
        """Create the folders."""
        for folder in (self.members, self.leases, self.offsets):
            make_private(folder, exist_ok=True)

    @property
    def exists(self) -> bool:
        """Whether the group was ever used."""
        return self.offsets.exists()

    def knows(self, log: str | None) -> bool:
        """Whether the group has offsets or leases in a log, or in any log."""
        return any(
            folder.is_dir() and any(path.name == log or log is None for path in folder.iterdir())
            for folder in (self.leases, self.offsets)
        )

    def committed(self, log: str, partitions: int) -> list[CommittedOffset | None]:
        """The newest whole slot of every partition."""
        try:
            raw = (self.offsets / log).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return [None] * partitions
        return [newest(raw[PARTITION_SLOTS * index : PARTITION_SLOTS * (index + 1)]) for index in range(partitions)]


def whole_slots(raw: bytes) -> list[CommittedOffset]:
    """The whole slots of a partition."""
    slots = []
    for at in (0, SLOT):
        if len(raw) < at + _SLOT.size:
            break
        generation, offset, epoch, txn, crc = _SLOT.unpack_from(raw, at)
        if generation and zlib.crc32(raw[at : at + 32]) == crc:
            slots.append(CommittedOffset(generation, offset, epoch, txn))
    return slots


def newest(raw: bytes) -> CommittedOffset | None:
    """The newest whole slot."""
    return max(whole_slots(raw), default=None)


def slot_bytes(committed: CommittedOffset) -> bytes:
    """The bytes of a slot, with its checksum."""
    raw = _SLOT.pack(*committed, 0)
    return raw[:32] + zlib.crc32(raw[:32]).to_bytes(4, "little")


class OffsetsFile:
    """The slots of one group and log, open for writing."""

    def __init__(self, group: GroupFolder, log: str, partitions: int) -> None:
        """Open the file, or create it at its full size, so that a commit never needs more room."""
        path = group.offsets / log
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        size = PARTITION_SLOTS * partitions
        if os.fstat(self.fd).st_size < size:
            try:
                os.posix_fallocate(self.fd, 0, size)
            except OSError as error:
                os.close(self.fd)
                raise StoreFull(
                    f"there is no room for the offsets of {group.name}: {error}.", hint="Free some space."
                ) from error

    def read(self, partition: int) -> CommittedOffset | None:
        """The newest whole slot."""
        return newest(os.pread(self.fd, PARTITION_SLOTS, PARTITION_SLOTS * partition))

    def slots(self, partition: int) -> list[CommittedOffset]:
        """All whole slots."""
        return whole_slots(os.pread(self.fd, PARTITION_SLOTS, PARTITION_SLOTS * partition))

    def clear(self, partition: int) -> None:
        """Clear both slots, as if nothing was ever committed."""
        os.pwrite(self.fd, bytes(PARTITION_SLOTS), PARTITION_SLOTS * partition)

    def write(self, partition: int, committed: CommittedOffset) -> None:
        """Overwrite the older slot; a torn write leaves the newer one."""
        failpoints.point("log.offset.before")
        os.pwrite(self.fd, slot_bytes(committed), SLOT * (2 * partition + committed.generation % 2))
        failpoints.point("log.offset.after")

    def sync(self) -> None:
        """Bring it to disk."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Close."""
        os.close(self.fd)
