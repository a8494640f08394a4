"""The control file of a log: where each partition ends, mapped by everybody.

It is a hint with a lock: appenders trust it only under the partition's lock and only in the boot in which it was
written, readers use the visible end as an upper bound and still check every checksum.
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
WORDS = 24  # of 8 bytes, for each partition
SLOT = WORDS * 8

# The words of a slot.
(BOOT, WRITING, SIDE, NEXT_A, POS_A, BASE_A, NEXT_B, POS_B, BASE_B, VISIBLE, DURABLE, DURABLE_POS, DURABLE_BASE,
 DURABLE_CHECK, START, EPOCH, MAX_TIME, SINCE, PRODUCERS, APPLIED) = range(20)  # fmt: skip
_ZERO_TIME = 1 << 63  # times may lie before 1970


class End(NamedTuple):
    """Where the next frame goes: its offset, its position, and the segment's first offset."""

    next: int
    position: int
    base: int


class Control:
    """The mapped file."""

    def __init__(self, path: Path, partitions: int) -> None:
        """Map it; make it if it is missing, with every partition marked as not looked at in this boot."""
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
        """Ask for it to be on disk."""
        self._map.flush()


class Slot:
    """One partition's words. Two copies of the end take turns, so that one of them is always whole."""

    __slots__ = ("words",)

    def __init__(self, words: memoryview) -> None:
        """Over mapped memory."""
        self.words = words

    def end(self) -> End:
        """Where the next frame goes."""
        words = self.words
        at = NEXT_B if words[SIDE] else NEXT_A
        return End(words[at], words[at + 1], words[at + 2])

    def set_end(self, next_: int, position: int, base: int) -> None:
        """Move it; one store makes it count."""
        words = self.words
        side = 0 if words[SIDE] else 1
        at = NEXT_B if side else NEXT_A
        words[at], words[at + 1], words[at + 2] = next_, position, base
        words[SIDE] = side

    def durable(self) -> End | None:
        """Up to where everything is known to be on disk, or None if that is not known."""
        words = self.words
        end = End(words[DURABLE], words[DURABLE_POS], words[DURABLE_BASE])
        return end if words[DURABLE_CHECK] == _check(end) else None

    def set_durable(self, end: End) -> None:
        """Everything before is on disk."""
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
        """When the first record of the current segment was appended; 0: none yet."""
        return self.words[SINCE]

    @since.setter
    def since(self, value: int) -> None:
        self.words[SINCE] = value


NO_TIME = -_ZERO_TIME


def _check(end: End) -> int:
    return zlib.crc32(repr(tuple(end)).encode()) | 1 << 32


def _boot() -> int:
    try:
        raw = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return 0
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") or 1


_boot_id = 0


def boot() -> int:
    """A number for the time since this machine was started; another one after a restart."""
    global _boot_id  # noqa: PLW0603 - read once
    if not _boot_id:
        _boot_id = _boot()
    return _boot_id
