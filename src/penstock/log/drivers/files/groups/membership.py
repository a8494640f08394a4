"""FileMembership: one open tailer in a group.

``<root>/groups/<group>/``

- ``state``: a counter that changes with members and leases. Its lock is held shared by commits, and alone by whoever
  changes an owner;
- ``members/<id>``: one file per open tailer, locked while it lives, with its heartbeat, its ``max_poll`` and its logs;
- ``leases/<log>``: the epoch and the owner of each partition. The owner holds a lock on a byte that depends on the
  epoch, so that the lock of a hung owner is in nobody's way after the next epoch began;
- ``offsets/<log>``: two slots per partition, written in turn.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import msgspec

from penstock import failpoints
from penstock.errors import Closed
from penstock.ids import new_nonce
from penstock.log.drivers.files.groups.leases import GroupState, Leases
from penstock.log.drivers.files.groups.offsets import CommittedOffset, GroupFolder, OffsetsFile
from penstock.log.drivers.files.locks import LockFile, is_locked
from penstock.log.drivers.shared.errors import fenced
from penstock.log.drivers.shared.membership import Membership
from penstock.log.record import Partition
from penstock.log.settings import LogSettings
from penstock.process import this_process

_HEARTBEAT = struct.Struct("<QQ")  # the time of the last one, and max_poll, in nanoseconds
MEMBER_BYTES = 65536  # the largest file of a member


class FileMembership(Membership):
    """One open tailer in a group, subscribed or with fixed partitions."""

    def __init__(
        self,
        group: GroupFolder,
        logs: Sequence[LogSettings],
        max_poll: timedelta,
        *,
        settings: Mapping[str, LogSettings],
        durable: bool,
        resolve: Callable[[], None],
    ) -> None:
        """Join. ``settings`` has all logs whose partitions it may own; ``resolve`` finishes dead transactions."""
        self.id = new_nonce()
        self.group = group
        self._durable = durable
        self._resolve = resolve
        self._process = this_process()
        self.state = GroupState(group)
        self._leases = {name: Leases(group, name, log.partitions) for name, log in settings.items()}
        self._offsets: dict[str, OffsetsFile] = {}
        self._partitions = {name: log.partitions for name, log in settings.items()}
        # Locked before it is renamed into the folder of members, so that nobody takes it for a dead member.
        self._file = LockFile(str(group.folder / f"{self.id}.new"))
        self._file.lock(0)
        names = [log.name for log in logs]
        raw = _HEARTBEAT.pack(time.monotonic_ns(), int(max_poll.total_seconds() * 1e9)) + msgspec.json.encode(names)
        os.pwrite(self._file.fd, raw, 0)
        self._map = mmap.mmap(self._file.fd, len(raw))
        self._heartbeat = memoryview(self._map)[:8].cast("Q")
        with self.state.changing():
            os.rename(group.folder / f"{self.id}.new", group.members / self.id)

    def refresh(self) -> int:
        """Finish the transactions of dead processes, then return the group's counter."""
        if self._process is not this_process():
            raise Closed(
                f"the tailer of group {self.group.name} was opened by the parent of this process.",
                hint="Open it in the child, after the fork.",
            )
        self._resolve()
        return self.state.version()

    def beat(self) -> None:
        """Write the heartbeat to mapped memory, which wakes nobody."""
        self._heartbeat[0] = time.monotonic_ns()

    def members(self) -> Mapping[str, Sequence[str]]:
        """The live subscribers: those with a locked file and a recent heartbeat. Files of dead members are removed."""
        alive: dict[str, Sequence[str]] = {}
        for name in os.listdir(self.group.members):
            if name == self.id:
                alive[name] = msgspec.json.decode(self._map[16:], type=list[str])
            else:
                logs = self._logs_of(name, remove_dead=True)
                if logs is not None:
                    alive[name] = logs
        return {name: logs for name, logs in alive.items() if logs}

    def _logs_of(self, name: str, *, remove_dead: bool = False) -> Sequence[str] | None:
        """The logs that a member wants, or None if it is not alive."""
        path = self.group.members / name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if not is_locked(fd):
                if remove_dead:
                    path.unlink(missing_ok=True)
                return None
            raw = os.pread(fd, MEMBER_BYTES, 0)
        finally:
            os.close(fd)
        if len(raw) < _HEARTBEAT.size:
            return None
        heartbeat, max_poll = _HEARTBEAT.unpack_from(raw)
        if time.monotonic_ns() - heartbeat > max_poll:
            return None
        return msgspec.json.decode(raw[_HEARTBEAT.size :], type=list[str])

    def owner(self, partition: Partition) -> str | None:
        """The member that holds the lock of the current epoch."""
        leases = self._leases[partition.log]
        epoch, owner = leases.read(partition.index)
        if not epoch:
            return None
        is_own = owner == int(self.id, 16)
        return f"{owner:016x}" if is_own or leases.is_held(partition.index) else None

    def take(self, partition: Partition) -> int | None:
        """Take the lease if its holder is dead or hung, or gave it back."""
        leases = self._leases[partition.log]
        if self._has_live_owner(partition):
            return None
        with self.state.changing():
            if self._has_live_owner(partition):
                return None
            failpoints.point("log.lease.before")
            epoch = leases.take(partition.index, int(self.id, 16))
            failpoints.point("log.lease.after")
            return epoch

    def _has_live_owner(self, partition: Partition) -> bool:
        leases = self._leases[partition.log]
        if not leases.is_held(partition.index):
            return False
        return self._logs_of(f"{leases.read(partition.index)[1]:016x}") is not None

    def holds(self, partition: Partition, epoch: int) -> bool:
        """Whether this is still the current epoch."""
        return self._leases[partition.log].read(partition.index)[0] == epoch

    def give_back(self, partition: Partition, epoch: int) -> None:
        """Release the lock, and let the others know."""
        with self.state.changing():
            self._leases[partition.log].give_back(partition.index, epoch)

    def commit(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        """Store all offsets, or none if a lease is lost."""
        with self.state.committing():
            self.check(offsets)
            for partition, (offset, epoch) in offsets.items():
                file = self.file(partition.log)
                last = file.read(partition.index)
                file.write(partition.index, CommittedOffset(last.generation + 1 if last else 1, offset, epoch, 0))
        if self._durable:
            for log in {partition.log for partition in offsets}:
                self.file(log).sync()

    def check(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        """Under the group's lock: raise ``Fenced`` unless all leases are current."""
        for partition, (_, epoch) in offsets.items():
            if not self.holds(partition, epoch):
                raise fenced(partition, self.group.name)

    def file(self, log: str) -> OffsetsFile:
        """The offsets file of a log."""
        if log not in self._offsets:
            self._offsets[log] = OffsetsFile(self.group, log, self._partitions[log])
        return self._offsets[log]

    def committed(self, partition: Partition) -> int | None:
        """The group's offset, after finishing the transactions of dead processes."""
        self._resolve()
        committed = self.file(partition.log).read(partition.index)
        return None if committed is None else committed.offset

    def leave(self) -> None:
        """Give all leases back and remove the member's file."""
        if self._file.fd < 0:
            return
        for leases in self._leases.values():
            leases.close()
        (self.group.members / self.id).unlink(missing_ok=True)
        self._file.close()
        with self.state.changing():
            pass
        self.state.close()
        for file in self._offsets.values():
            file.close()
