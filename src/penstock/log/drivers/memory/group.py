"""Groups in memory: readers, memberships, and waiting for records and commits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.ids import new_nonce
from penstock.log.commit_watch import CommitWatch
from penstock.log.drivers.memory.state import MemoryState
from penstock.log.drivers.shared.errors import fenced
from penstock.log.drivers.shared.membership import Membership, Reader, Watch
from penstock.log.record import Partition, RecordBatch
from penstock.log.settings import LogSettings

if TYPE_CHECKING:
    from penstock.log.drivers.memory.driver import MemoryDriver


class MemoryReader(Reader):
    """Reads under the driver's lock."""

    def __init__(self, driver: MemoryDriver, partition: Partition) -> None:
        """For one partition."""
        self._driver = driver
        self._partition = partition
        self._records = driver.records_of(partition)

    @property
    def start(self) -> int:
        """The first offset."""
        return self._records.start

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self._records.end

    def read(self, offset: int, limit: int) -> tuple[list[RecordBatch], int]:
        """At most ``limit`` records from ``offset`` on, and where to continue."""
        with self._driver.locked():
            if offset >= self._records.end or offset < self._records.start:
                return [], offset
            batch = self._records.batch(self._partition, offset, limit)
            return [batch], batch.next_offset


class MemoryMembership(Membership):
    """Leases in a dictionary. A member is gone when it is closed, and counts as hung when it stops reading."""

    def __init__(self, state: MemoryState, group: str, logs: Sequence[LogSettings], max_poll: timedelta) -> None:
        """Join the group."""
        self.id = new_nonce()
        self._state = state
        self._name = group
        self._logs = tuple(settings.name for settings in logs)
        self._max_poll = max_poll.total_seconds()
        with state.bell:
            self._group = state.group(group)
            self.beat()
            self._changed()

    def refresh(self) -> int:
        """The group's version."""
        return self._group.version

    def beat(self) -> None:
        """Record a heartbeat."""
        self._group.members[self.id] = (self._logs, time.monotonic(), self._max_poll)

    def members(self) -> Mapping[str, Sequence[str]]:
        """The live subscribers and their logs."""
        with self._state.bell:
            members = self._group.members.items()
            return {member: logs for member, (logs, _, _) in members if logs and self._is_alive(member)}

    def owner(self, partition: Partition) -> str | None:
        """The member that holds the lease."""
        return self._group.owners.get(partition)

    def take(self, partition: Partition) -> int | None:
        """Take the lease unless a live member holds it."""
        with self._state.bell:
            owner = self._group.owners.get(partition)
            if owner is not None and self._is_alive(owner):
                return None
            epoch = self._group.epochs[partition] = self._group.epochs.get(partition, 0) + 1
            self._group.owners[partition] = self.id
            self._changed()
            return epoch

    def holds(self, partition: Partition, epoch: int) -> bool:
        """Whether the lease is still this member's."""
        return self._group.epochs.get(partition) == epoch

    def give_back(self, partition: Partition, epoch: int) -> None:
        """End the lease."""
        with self._state.bell:
            if self.holds(partition, epoch):
                self._group.owners.pop(partition, None)
                self._changed()

    def commit(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        """Store all offsets, or none."""
        with self._state.bell:
            for partition, (_, epoch) in offsets.items():
                if not self.holds(partition, epoch):
                    raise fenced(partition, self._name)
            self._group.offsets.update({partition: offset for partition, (offset, _) in offsets.items()})
            self._state.ring()

    def committed(self, partition: Partition) -> int | None:
        """The group's offset."""
        return self._group.offsets.get(partition)

    def leave(self) -> None:
        """Leave the group."""
        with self._state.bell:
            self._group.members.pop(self.id, None)
            self._changed()

    def _is_alive(self, member: str) -> bool:
        known = self._group.members.get(member)
        return known is not None and time.monotonic() - known[1] <= known[2]

    def _changed(self) -> None:
        self._group.version += 1
        self._state.ring()


class MemoryWatch(Watch):
    """Waits for the state's bell, which every append and every change of a group rings."""

    def __init__(self, state: MemoryState) -> None:
        """Nothing seen yet."""
        self._state = state
        self._seen = -1
        self._woken = False

    def follow(self, partitions: Sequence[Partition]) -> None:
        """The bell rings for every partition."""

    def wait(self, seconds: float) -> bool:
        """Wait for the next ring."""
        with self._state.bell:
            if self._seen == self._state.rings and not self._woken:
                self._state.bell.wait(seconds)
            self._seen = self._state.rings
            return False

    def wake(self) -> None:
        """End a wait in another thread."""
        with self._state.bell:
            self._woken = True
            self._state.bell.notify_all()

    def close(self) -> None:
        """Nothing to close."""


class MemoryCommitWatch(CommitWatch):
    """Ends a wait at the next ring."""

    def __init__(self, state: MemoryState) -> None:
        """Nothing seen yet."""
        super().__init__()
        self._state = state
        self._seen = -1

    def wait(self, seconds: float) -> None:
        """Wait for the next ring."""
        with self._state.bell:
            if self._seen == self._state.rings:
                self._state.bell.wait(seconds)
            self._seen = self._state.rings
