"""The control file of a log: where each partition ends. Every process maps it.

Appenders trust it only under the partition's lock, and only in the boot in which it was written. Readers use the
visible end as an upper bound and still check every checksum.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from penstock.log.drivers.files.private import FILE_MODE

MAGIC = b"PNLCTL01"
PAGE = 4096
WORDS = 24  # words of 8 bytes per partition
SLOT = WORDS * 8

# The words of a slot.
(BOOT, WRITING, SIDE, NEXT_A, POS_A, BASE_A, NEXT_B, POS_B, BASE_B, VISIBLE, DURABLE, DURABLE_POS, DURABLE_BASE,
 DURABLE_CHECK, START, EPOCH, MAX_TIME, SINCE, PRODUCERS, APPLIED) = range(20)  # fmt: skip
_ZERO_TIME = 1 << 63  # times may be before 1970


class End(NamedTuple):
    """Where the next frame goes: its offset, its position, and the first offset of its segment."""

    next: int
    position: int
    base: int


class Control:
    """The mapped control file."""

    def __init__(self, path: Path, partitions: int) -> None:
        """Map the file. If it is missing, create it with every partition marked as not recovered in this boot."""
        size = PAGE + partitions * SLOT
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            if os.fstat(self._fd).st_size != size or os.pread(self._fd, 8, 0) != MAGIC:
                os.ftruncate(self._fd, size)
                os.pwrite(self._fd, MAGIC, 0)
            self._map = mmap.mmap(self._fd, size)
        finally:
            os.close(self._fd)
        self._words = memoryview(self._map)[PAGE:].cast("Q")

    def slot(self, partition: int) -> Slot:
        """The words of one partition."""
        return Slot(self._words[partition * WORDS : (partition + 1) * WORDS])

    def flush(self) -> None:
        """Write the file to disk."""
        self._map.flush()


class Slot:
    """One partition's words. Two copies of the end are written in turn, so that one is always whole."""

    __slots__ = ("words",)

    def __init__(self, words: memoryview) -> None:
        """Over a part of the mapped file."""
        self.words = words

    def end(self) -> End:
        """Where the next frame goes."""
        words = self.words
        at = NEXT_B if words[SIDE] else NEXT_A
        return End(words[at], words[at + 1], words[at + 2])

    def set_end(self, next_: int, position: int, base: int) -> None:
        """Move the end; the write of a single word switches to the new copy."""
        words = self.words
        side = 0 if words[SIDE] else 1
        at = NEXT_B if side else NEXT_A
        words[at], words[at + 1], words[at + 2] = next_, position, base
        words[SIDE] = side

    def durable(self) -> End | None:
        """The end of what is known to be on disk, or None if that is not known."""
        words = self.words
        end = End(words[DURABLE], words[DURABLE_POS], words[DURABLE_BASE])
        return end if words[DURABLE_CHECK] == _check(end) else None

    def set_durable(self, end: End) -> None:
        """Record that everything before this end is on disk."""
        words = self.words
        words[DURABLE_CHECK] = 0
        words[DURABLE], words[DURABLE_POS], words[DURABLE_BASE] = end
        words[DURABLE_CHECK] = _check(end)

    @property
    def max_time(self) -> int:
        """The highest timestamp of any record."""
        return self.words[MAX_TIME] - _ZERO_TIME

    @max_time.setter
    def max_time(self, value: int) -> None:
        self.words[MAX_TIME] = value + _ZERO_TIME

    @property
    def since(self) -> int:
        """When the first record of the current segment was appended, or 0."""
        return self.words[SINCE]

    @since.setter
    def since(self, value: int) -> None:
        self.words[SINCE] = value


NO_TIME = -_ZERO_TIME


def _check(end: End) -> int:
    return zlib.crc32(repr(tuple(end)).encode()) | 1 << 32


def _read_boot_id() -> int:
    try:
        raw = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return 0
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") or 1


_boot_id = 0


def boot_id() -> int:
    """A number that changes when the machine restarts."""
    global _boot_id  # noqa: PLW0603 - read once
    if not _boot_id:
        _boot_id = _read_boot_id()
    return _boot_id
