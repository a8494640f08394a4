"""The lock and the leases of a group."""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.log.drivers.files.groups.offsets import GroupFolder
from penstock.log.drivers.files.locks import LockFile
from penstock.log.drivers.shared.errors import has_open_tailer
from penstock.log.record import Partition
from penstock.log.settings import MAX_PARTITIONS, LogSettings

logger = logging.getLogger("penstock.log")

_LEASE = struct.Struct("<QQ")
_STRIDE = 16384  # lock bytes per epoch; more than partitions
LOCK = 1 << 40  # lock bytes are far beyond the data
assert _STRIDE > MAX_PARTITIONS  # noqa: S101 - two constants that belong together


class GroupState:
    """The lock of a group, and a counter that changes with its members and leases."""

    def __init__(self, group: GroupFolder) -> None:
        """Open or create the file."""
        group.make()
        self._file = LockFile(str(group.folder / "state"))
        try:
            if os.fstat(self._file.fd).st_size < 8:
                os.pwrite(self._file.fd, bytes(8), 0)
            self._map = mmap.mmap(self._file.fd, 8)
        except OSError:
            self._file.close()
            raise
        self._words = memoryview(self._map).cast("Q")

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Hold the lock shared: leases do not change, and others may commit."""
        with self._file.held(LOCK, shared=True):
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock alone, and change the counter at the end."""
        with self._file.held(LOCK):
            yield
            try:
                # With pwrite, as a write to mapped memory would wake nobody.
                os.pwrite(self._file.fd, (self._words[0] + 1).to_bytes(8, "little"), 0)
            except OSError as error:
                # The change itself is done. Other members also check regularly, and commits of old leases are refused.
                logger.warning("%s: other members see a change later: %s", self._file.path, error)

    def version(self) -> int:
        """The counter."""
        return self._words[0]

    def close(self) -> None:
        """Close."""
        self._file.close()


class Leases:
    """The epochs and owners of a log's partitions in one group, through a member's own descriptor."""

    def __init__(self, group: GroupFolder, log: str, partitions: int) -> None:
        """Open or create the file."""
        self._file = LockFile(str(group.leases / log))
        size = _LEASE.size * partitions
        if os.fstat(self._file.fd).st_size < size:
            os.ftruncate(self._file.fd, size)
        self._map = mmap.mmap(self._file.fd, size)
        self._words = memoryview(self._map).cast("Q")

    def read(self, partition: int) -> tuple[int, int]:
        """The epoch and the owner."""
        return self._words[2 * partition], self._words[2 * partition + 1]

    def is_held(self, partition: int) -> bool:
        """Whether another member holds the lock of the current epoch."""
        return self._file.is_locked(self._byte(partition, self._words[2 * partition]))

    def take(self, partition: int, owner: int) -> int:
        """Begin a new epoch. Returns it."""
        epoch = self._words[2 * partition] + 1
        self._file.lock(self._byte(partition, epoch))
        self._words[2 * partition + 1] = owner
        self._words[2 * partition] = epoch
        return epoch

    def give_back(self, partition: int, epoch: int) -> None:
        """Release the lock of an epoch."""
        self._file.unlock(self._byte(partition, epoch))

    def close(self) -> None:
        """Close the file, which gives all leases back."""
        self._file.close()

    @staticmethod
    def _byte(partition: int, epoch: int) -> int:
        return LOCK + epoch * _STRIDE + partition


def check_no_owner(group: GroupFolder, settings: LogSettings, partitions: Sequence[int]) -> None:
    """Under the group's lock: raise ``PartitionTaken`` if a tailer owns one of these partitions."""
    if not (group.leases / settings.name).exists():
        return
    leases = Leases(group, settings.name, settings.partitions)
    try:
        for partition in partitions:
            if leases.is_held(partition):
                raise has_open_tailer(Partition(settings.name, partition), group.name)
    finally:
        leases.close()
