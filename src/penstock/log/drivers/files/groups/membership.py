"""Groups on disk: committed offsets in slots, leases as locks with epochs, members as locked files.

``<root>/groups/<group>/``

- ``state``: a counter that changes with members and leases; its first byte is the group's lock, taken shared by
  commits and alone by whoever changes who owns what;
- ``members/<id>``: one file per open tailer, locked while it lives; a heartbeat, its patience, the logs it wants;
- ``leases/<log>``: epoch and owner of each partition; the owner holds a lock on a byte that the epoch chooses, so that
  a hung owner's lock stands in nobody's way once the epoch has moved on;
- ``offsets/<log>``: two slots per partition, written in turn.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock import failpoints
from penstock.errors import Closed, PartitionTaken, StoreFull
from penstock.ids import new_nonce
from penstock.log.drivers.files.locks import LockFile, is_locked
from penstock.log.drivers.files.private import FILE_MODE, make_private
from penstock.log.drivers.shared.source import Membership, fenced
from penstock.log.protocol import LogSettings
from penstock.log.record import Partition
from penstock.log.store import MAX_PARTITIONS
from penstock.process import this_process

logger = logging.getLogger("penstock.log")

_SLOT = struct.Struct("<QQQQI")
SLOT = 64
_LEASE = struct.Struct("<QQ")
_BEAT = struct.Struct("<QQ")
_STRIDE = 16384  # lock bytes per epoch; more than partitions
LOCK = 1 << 40  # lock bytes lie far behind the data
assert _STRIDE > MAX_PARTITIONS  # noqa: S101 - two constants that belong together


class Kept(NamedTuple):
    """One committed offset: which commit it was, by which lease, and the transaction it came with (0: none)."""

    generation: int
    offset: int
    epoch: int
    txn: int


class GroupFolder:
    """Where a group is kept."""

    def __init__(self, root: Path, name: str) -> None:
        """Nothing is made before something has to be."""
        self.name = name
        self.folder = root / "groups" / name
        self.members = self.folder / "members"
        self.leases = self.folder / "leases"
        self.offsets = self.folder / "offsets"

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.members, self.leases, self.offsets):
            make_private(folder, exist_ok=True)

    @property
    def exists(self) -> bool:
        """Whether anybody ever used it."""
        return self.offsets.exists()

    def knows(self, log: str | None) -> bool:
        """Whether there is anything of it in a log, or in any: a group that found no room to begin has nothing."""
        return any(
            folder.is_dir() and any(path.name == log or log is None for path in folder.iterdir())
            for folder in (self.leases, self.offsets)
        )

    def kept(self, log: str, partitions: int) -> list[Kept | None]:
        """The newest whole slot of every partition."""
        try:
            raw = (self.offsets / log).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return [None] * partitions
        return [newest(raw[2 * SLOT * one : 2 * SLOT * (one + 1)]) for one in range(partitions)]


def whole_slots(raw: bytes) -> list[Kept]:
    """The slots of a partition that are whole."""
    found = []
    for at in (0, SLOT):
        if len(raw) < at + _SLOT.size:
            break
        generation, offset, epoch, txn, crc = _SLOT.unpack_from(raw, at)
        if generation and zlib.crc32(raw[at : at + 32]) == crc:
            found.append(Kept(generation, offset, epoch, txn))
    return found


def newest(raw: bytes) -> Kept | None:
    """The newer of two slots that is whole."""
    return max(whole_slots(raw), default=None)


def slot_bytes(kept: Kept) -> bytes:
    """A slot, with its checksum."""
    raw = _SLOT.pack(*kept, 0)
    return raw[:32] + zlib.crc32(raw[:32]).to_bytes(4, "little")


class OffsetsFile:
    """The slots of one group and log, opened for writing."""

    def __init__(self, group: GroupFolder, log: str, partitions: int) -> None:
        """Open it, or create it whole, so that a commit never needs more room."""
        path = group.offsets / log
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        size = 2 * SLOT * partitions
        if os.fstat(self.fd).st_size < size:
            try:
                os.posix_fallocate(self.fd, 0, size)
            except OSError as error:
                os.close(self.fd)
                raise StoreFull(
                    f"there is no room for the offsets of {group.name}: {error}.", hint="Free some."
                ) from error

    def read(self, partition: int) -> Kept | None:
        """What is kept."""
        return newest(os.pread(self.fd, 2 * SLOT, 2 * SLOT * partition))

    def slots(self, partition: int) -> list[Kept]:
        """All that is whole."""
        return whole_slots(os.pread(self.fd, 2 * SLOT, 2 * SLOT * partition))

    def clear(self, partition: int) -> None:
        """Nothing was ever committed."""
        os.pwrite(self.fd, bytes(2 * SLOT), 2 * SLOT * partition)

    def write(self, partition: int, kept: Kept) -> None:
        """Into the older slot: a torn write leaves the other."""
        failpoints.point("log.offset.before")
        os.pwrite(self.fd, slot_bytes(kept), SLOT * (2 * partition + kept.generation % 2))
        failpoints.point("log.offset.after")

    def sync(self) -> None:
        """To disk."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Close."""
        os.close(self.fd)


class GroupState:
    """The counter and the lock of a group."""

    def __init__(self, group: GroupFolder) -> None:
        """Open or create."""
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
        """Nobody's lease changes meanwhile; others may commit."""
        with self._file.held(LOCK, shared=True):
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Alone; everybody hears of it afterwards."""
        with self._file.held(LOCK):
            yield
            try:
                # Written, not stored: a mapped store wakes nobody.
                os.pwrite(self._file.fd, (self._words[0] + 1).to_bytes(8, "little"), 0)
            except OSError as error:
                # What was changed is changed. The others look every now and then, and commits of the old are refused.
                logger.warning("%s: others hear of a change later: %s", self._file.path, error)

    def version(self) -> int:
        """The counter."""
        return self._words[0]

    def close(self) -> None:
        """Close."""
        self._file.close()


class Leases:
    """Epochs and owners of a log's partitions for one group, through one member's own descriptor."""

    def __init__(self, group: GroupFolder, log: str, partitions: int) -> None:
        """Open or create."""
        self._file = LockFile(str(group.leases / log))
        size = _LEASE.size * partitions
        if os.fstat(self._file.fd).st_size < size:
            os.ftruncate(self._file.fd, size)
        self._map = mmap.mmap(self._file.fd, size)
        self._words = memoryview(self._map).cast("Q")

    def read(self, partition: int) -> tuple[int, int]:
        """Epoch and owner."""
        return self._words[2 * partition], self._words[2 * partition + 1]

    def is_held(self, partition: int) -> bool:
        """Whether somebody else's lock is on the current epoch."""
        return self._file.is_locked(self._byte(partition, self._words[2 * partition]))

    def take(self, partition: int, owner: int) -> int:
        """Begin a new epoch."""
        epoch = self._words[2 * partition] + 1
        self._file.lock(self._byte(partition, epoch))
        self._words[2 * partition + 1] = owner
        self._words[2 * partition] = epoch
        return epoch

    def give_back(self, partition: int, epoch: int) -> None:
        """Unlock an epoch."""
        self._file.unlock(self._byte(partition, epoch))

    def close(self) -> None:
        """Close, which gives everything back."""
        self._file.close()

    @staticmethod
    def _byte(partition: int, epoch: int) -> int:
        return LOCK + epoch * _STRIDE + partition


class FileMembership(Membership):
    """One open tailer in a group, dynamic or manual."""

    def __init__(
        self,
        group: GroupFolder,
        logs: Sequence[LogSettings],
        patience: timedelta,
        *,
        settings: Mapping[str, LogSettings],
        durable: bool,
        resolve: Callable[[], None],
    ) -> None:
        """Join; ``settings`` are of all logs it may own partitions of, ``resolve`` finishes dead transactions."""
        self.id = new_nonce()
        self.group = group
        self._durable = durable
        self._resolve = resolve
        self._process = this_process()
        self.state = GroupState(group)
        self._leases = {name: Leases(group, name, one.partitions) for name, one in settings.items()}
        self.offsets: dict[str, OffsetsFile] = {}
        self._partitions = {name: one.partitions for name, one in settings.items()}
        # Locked before it is where members are looked for: nobody takes it for a dead one's.
        self._file = LockFile(str(group.folder / f"{self.id}.new"))
        self._file.lock(0)
        names = [one.name for one in logs]
        raw = _BEAT.pack(time.monotonic_ns(), int(patience.total_seconds() * 1e9)) + msgspec.json.encode(names)
        os.pwrite(self._file.fd, raw, 0)
        self._map = mmap.mmap(self._file.fd, len(raw))
        self._beat = memoryview(self._map)[:8].cast("Q")
        with self.state.changing():
            os.rename(group.folder / f"{self.id}.new", group.members / self.id)

    def version(self) -> int:
        """The group's counter; on the way, what a dead transaction left is put right."""
        if self._process is not this_process():
            raise Closed(
                f"the tailer of group {self.group.name} was opened by the parent of this process.",
                hint="Open it in the child, after the fork.",
            )
        self._resolve()
        return self.state.version()

    def beat(self) -> None:
        """A mapped store: it wakes nobody."""
        self._beat[0] = time.monotonic_ns()

    def members(self) -> Mapping[str, Sequence[str]]:
        """Those whose files are locked and whose hearts beat; files of the dead are removed."""
        living: dict[str, Sequence[str]] = {}
        for name in os.listdir(self.group.members):
            if name == self.id:
                living[name] = msgspec.json.decode(self._map[16:], type=list[str])
            else:
                wants = self._look(name, remove=True)
                if wants is not None:
                    living[name] = wants
        return {name: wants for name, wants in living.items() if wants}

    def _look(self, name: str, *, remove: bool = False) -> Sequence[str] | None:
        """The logs a member wants, if it lives."""
        path = self.group.members / name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if not is_locked(fd):
                if remove:
                    path.unlink(missing_ok=True)
                return None
            raw = os.pread(fd, 65536, 0)
        finally:
            os.close(fd)
        if len(raw) < _BEAT.size:
            return None
        beat, patience = _BEAT.unpack_from(raw)
        if time.monotonic_ns() - beat > patience:
            return None
        return msgspec.json.decode(raw[_BEAT.size :], type=list[str])

    def owner(self, partition: Partition) -> str | None:
        """Whoever holds the lock of the current epoch, this member included."""
        leases = self._leases[partition.log]
        epoch, owner = leases.read(partition.index)
        if not epoch:
            return None
        mine = owner == int(self.id, 16)
        return f"{owner:016x}" if mine or leases.is_held(partition.index) else None

    def take(self, partition: Partition) -> int | None:
        """A new lease if the old one's holder is gone, silent, or gave it back."""
        leases = self._leases[partition.log]
        if leases.is_held(partition.index) and self._look(f"{leases.read(partition.index)[1]:016x}") is not None:
            return None
        with self.state.changing():
            if leases.is_held(partition.index) and self._look(f"{leases.read(partition.index)[1]:016x}") is not None:
                return None
            failpoints.point("log.lease.before")
            epoch = leases.take(partition.index, int(self.id, 16))
            failpoints.point("log.lease.after")
            return epoch

    def holds(self, partition: Partition, epoch: int) -> bool:
        """Whether the epoch has not moved on."""
        return self._leases[partition.log].read(partition.index)[0] == epoch

    def give_back(self, partition: Partition, epoch: int) -> None:
        """Unlock, and tell the others."""
        with self.state.changing():
            self._leases[partition.log].give_back(partition.index, epoch)

    def commit(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        """All or none, unless fenced."""
        with self.state.committing():
            self.check(offsets)
            for partition, (offset, epoch) in offsets.items():
                file = self.file(partition.log)
                last = file.read(partition.index)
                file.write(partition.index, Kept(last.generation + 1 if last else 1, offset, epoch, 0))
        if self._durable:
            for log in {partition.log for partition in offsets}:
                self.file(log).sync()

    def check(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        """Under the group's lock: raise unless all leases are current."""
        for partition, (_, epoch) in offsets.items():
            if not self.holds(partition, epoch):
                raise fenced(partition, self.group.name)

    def file(self, log: str) -> OffsetsFile:
        """The slots of a log."""
        if log not in self.offsets:
            self.offsets[log] = OffsetsFile(self.group, log, self._partitions[log])
        return self.offsets[log]

    def committed(self, partition: Partition) -> int | None:
        """What is kept; transactions of the dead are finished first."""
        self._resolve()
        kept = self.file(partition.log).read(partition.index)
        return None if kept is None else kept.offset

    def leave(self) -> None:
        """Unlock everything and remove the file."""
        if self._file.fd < 0:
            return
        for leases in self._leases.values():
            leases.close()
        (self.group.members / self.id).unlink(missing_ok=True)
        self._file.close()
        with self.state.changing():
            pass
        self.state.close()
        for file in self.offsets.values():
            file.close()


def free_of_owners(group: GroupFolder, settings: LogSettings, partitions: Sequence[int]) -> None:
    """Under the group's lock: raise while a tailer owns one of these partitions."""
    if not (group.leases / settings.name).exists():
        return
    leases = Leases(group, settings.name, settings.partitions)
    try:
        for partition in partitions:
            if leases.is_held(partition):
                raise PartitionTaken(
                    f"{Partition(settings.name, partition)} is read by an open tailer of group {group.name}.",
                    hint="Stop the group's readers first.",
                )
    finally:
        leases.close()
