"""EmbeddedSource: a group member that reads its partitions, for drivers that can read any partition at any offset."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from penstock.errors import OffsetOutOfRange, RecordCorrupt
from penstock.log.driver import LogDriver
from penstock.log.drivers.shared.errors import fenced, fenced_while_silent, read_by_another
from penstock.log.drivers.shared.membership import Membership, Reader, Watch
from penstock.log.group import Listener, sticky
from penstock.log.protocol import OutOfRange, Source
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.settings import LogSettings
from penstock.process import this_process

WRITE_PAUSE = 0.00005  # seconds between looks at an append that is about to become visible
GROUP_CHECK = 0.05  # seconds between looks at the other members, if nothing announced a change
FAST_CHECK = 0.001  # the same for a moment after a change, as a dying process frees its locks one by one
FAST_CHECK_FOR = 0.03
RESCAN = 0.01  # seconds after which all partitions are checked, even while some have more records
OPEN_READERS = 200  # above this many partitions, readers with nothing to read close their files
QUANTUM = 1000  # the fewest records that a partition may return on its turn
BEATS = 10  # heartbeats within max_poll


class EmbeddedSource(Source):
    """A member of a group, made of readers, a membership and a watch."""

    def __init__(
        self,
        driver: LogDriver,
        membership: Membership,
        watch: Watch,
        reader: Callable[[Partition], Reader],
        *,
        group: str,
        out_of_range: OutOfRange,
        max_poll: timedelta,
        logs: Sequence[LogSettings] = (),
        listener: Listener | None = None,
    ) -> None:
        """Own nothing yet. ``logs`` are the subscribed ones; without any, call :meth:`take_all`."""
        self.driver = driver
        self.group = group
        self.membership = membership
        self.epochs: dict[Partition, int] = {}
        self._watch = watch
        self._open_reader = reader
        self._readers: dict[Partition, Reader] = {}
        self._positions: dict[Partition, int] = {}
        self._order: list[Partition] = []
        self._queue: deque[Partition] = deque()  # partitions with records to read, in the order of their turns
        self._scanned_at = 0.0
        self._out_of_range = out_of_range
        self._logs = {settings.name: settings.partitions for settings in logs}
        self._listener = listener
        self._beat_every = max_poll.total_seconds() / BEATS
        self._beat_at = 0.0
        self._group_checked_at = 0.0
        self._fast_until = 0.0
        self._version = -1
        self._members: dict[str, Sequence[str]] = {}
        self._is_short = False  # a partition of its share still has its former owner
        self._woken = threading.Event()
        self._process = this_process()

    def take_all(self, partitions: Sequence[Partition]) -> None:
        """Take exactly these partitions. If one is taken, close the source and raise ``PartitionTaken``."""
        try:
            for partition in sorted(partitions):
                epoch = self.membership.take(partition)
                if epoch is None:
                    raise read_by_another(partition, self.group)
                self._own(partition, epoch)
            self._watch.follow(self._order)
        except BaseException:
            self.close()
            raise

    # --- the contract ------------------------------------------------------------------------------

    def assignment(self) -> list[Partition]:
        """The partitions it owns now."""
        return list(self._order)

    def poll(self, limit: int, seconds: float) -> list[RecordBatch]:
        """Read the partitions in turn; wait if none has records."""
        now = time.monotonic()
        deadline = now + seconds
        self._tend_group(now)
        while True:
            batches = self._collect(limit)
            if batches or self._woken.is_set():
                return batches
            now = time.monotonic()
            left = deadline - now
            if left <= 0:
                return []
            if self._watch.saw_write and any(self._readers[partition].is_written for partition in self._order):
                self._woken.wait(WRITE_PAUSE)
                continue
            pause = FAST_CHECK if now < self._fast_until else min(GROUP_CHECK, self._beat_every)
            if self._watch.wait(min(left, pause)):
                self._group_checked_at = 0.0
                self._fast_until = time.monotonic() + FAST_CHECK_FOR
            woke = time.monotonic()
            # A record came: the group can wait until it is read, unless this process slept for long.
            if not self._watch.saw_write or woke > self._group_checked_at + 2 * GROUP_CHECK:
                self._tend_group(woke)

    def position(self, partition: Partition) -> int:
        """The next offset to read."""
        return self._positions[partition]

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue at this offset."""
        if partition in self._positions:
            self._positions[partition] = offset
            if partition not in self._queue:
                self._queue.append(partition)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store the offsets if all leases are still this member's."""
        self.membership.commit(self.with_epochs(offsets))

    def with_epochs(self, offsets: Mapping[Partition, int]) -> dict[Partition, tuple[int, int]]:
        """Offsets with the epochs of their leases. Raises ``Fenced`` for a lease that is known to be lost."""
        leased = {}
        for partition, offset in offsets.items():
            if partition not in self.epochs:
                raise fenced(partition, self.group)
            leased[partition] = (offset, self.epochs[partition])
        return leased

    def wake(self) -> None:
        """End a poll."""
        self._woken.set()
        self._watch.wake()

    def close(self) -> None:
        """Give everything back."""
        if self._process is not this_process():
            return  # in a forked child everything belongs to the parent
        try:
            owned = [partition for partition in self._order if self.membership.holds(partition, self.epochs[partition])]
            if owned and self._listener is not None and self._listener.on_revoked is not None:
                self._listener.on_revoked(owned)
        finally:
            for partition in list(self._order):
                self._disown(partition)
            self.membership.leave()
            self._watch.close()

    # --- reading -----------------------------------------------------------------------------------

    def _collect(self, limit: int) -> list[RecordBatch]:
        # With many partitions, checking all of them at every poll would cost more than reading.
        is_due = not self._queue or time.monotonic() > self._scanned_at + RESCAN
        if is_due:
            self._scan()
        batches = self._read_queue(limit)
        if not batches and not is_due:
            self._scan()
            batches = self._read_queue(limit)
        return batches

    def _read_queue(self, limit: int) -> list[RecordBatch]:
        queue, readers, positions = self._queue, self._readers, self._positions
        collected: list[RecordBatch] = []
        if not queue:
            return collected
        # An even share, but not a tiny one: reading a few records out of every frame is expensive.
        share = max(limit // len(queue), min(limit, QUANTUM))
        while limit > 0 and queue:
            partition = queue.popleft()
            try:
                batches, positions[partition] = self._read(partition, min(share, limit))
            except (OffsetOutOfRange, RecordCorrupt):
                queue.appendleft(partition)
                if collected:  # the positions of other partitions have moved, so their records are returned first
                    break
                raise
            collected += batches
            limit -= sum(map(len, batches))
            if positions[partition] != readers[partition].end and batches:
                queue.append(partition)
            elif len(readers) > OPEN_READERS:
                readers[partition].close()  # it has nothing more for now, and a process may open only so many files
        return collected

    def _scan(self) -> None:
        """Queue the partitions that have records; those already queued keep their turn."""
        readers, positions = self._readers, self._positions
        queued = set(self._queue) if self._queue else ()
        self._queue.extend(
            partition
            for partition in self._order
            if partition not in queued and positions[partition] != readers[partition].end
        )
        self._scanned_at = time.monotonic()

    def _read(self, partition: Partition, limit: int) -> tuple[list[RecordBatch], int]:
        reader, position = self._readers[partition], self._positions[partition]
        while True:
            start, end = reader.start, reader.end
            if position < start or position > end:
                position = self._moved_into_range(partition, position, Bounds(partition.index, start, end))
            try:
                return reader.read(position, limit)
            except OffsetOutOfRange:
                if position >= reader.start:
                    raise
                # Retention has just removed the record; try again with the new start.

    def _moved_into_range(self, partition: Partition, position: int, bounds: Bounds) -> int:
        if self._out_of_range == "error":
            raise self.driver.out_of_range(partition, position, bounds)
        target = bounds.start if self._out_of_range == "earliest" else bounds.end
        self.driver.signals.tell(
            "skipped", partition.log, (), self.driver.now(), group=self.group, partition=partition.index,
            offset=target, records=max(0, target - position),
        )  # fmt: skip
        self._positions[partition] = target
        return target

    # --- the group ---------------------------------------------------------------------------------

    def _tend_group(self, now: float) -> None:
        if now >= self._beat_at:
            self.membership.beat()
            self._beat_at = now + self._beat_every
        version = self.membership.refresh()
        if version == self._version and now < self._group_checked_at + GROUP_CHECK:
            return
        changed = version != self._version
        if changed:
            self._drop_lost()
            self._version = version
        self._group_checked_at = now
        if self._logs:
            self._rebalance(changed)

    def _drop_lost(self) -> None:
        lost = [partition for partition, epoch in self.epochs.items() if not self.membership.holds(partition, epoch)]
        if not lost:
            return
        for partition in lost:
            self._disown(partition)
        if self._listener is not None and self._listener.on_lost is not None:
            self._listener.on_lost(lost)
        elif self._listener is None:
            raise fenced_while_silent(", ".join(map(str, lost)), self.group)

    def _rebalance(self, changed: bool) -> None:
        members = dict(self.membership.members())
        if not changed and members == self._members and not self._is_short:
            return
        self._members = members
        partitions = [Partition(log, index) for log, count in self._logs.items() for index in range(count)]
        owners = {
            partition: owner for partition in partitions if (owner := self.membership.owner(partition)) is not None
        }
        share = set(sticky(members, self._logs, owners).get(self.membership.id, ()))
        revoked = [partition for partition in self._order if partition not in share]
        if revoked:
            if self._listener is not None and self._listener.on_revoked is not None:
                self._listener.on_revoked(revoked)
            for partition in revoked:
                self._disown(partition)
        assigned = []
        for partition in sorted(share.difference(self.epochs)):
            epoch = self.membership.take(partition)
            if epoch is not None:
                self._own(partition, epoch)
                assigned.append(partition)
        self._is_short = len(self.epochs) < len(share)
        if assigned:
            self._watch.follow(self._order)
            if self._listener is not None and self._listener.on_assigned is not None:
                self._listener.on_assigned(assigned)

    def _own(self, partition: Partition, epoch: int) -> None:
        self.epochs[partition] = epoch
        reader = self._readers[partition] = self._open_reader(partition)
        committed = self.membership.committed(partition)
        # In the fast profile a power cut may leave the offset ahead of the log; records appended since are new.
        self._positions[partition] = reader.start if committed is None else min(committed, reader.end)
        self._order = sorted(self.epochs)

    def _disown(self, partition: Partition) -> None:
        epoch = self.epochs.pop(partition)
        self._positions.pop(partition, None)
        if partition in self._queue:
            self._queue.remove(partition)
        reader = self._readers.pop(partition, None)
        if reader is not None:
            reader.close()
        self._order = sorted(self.epochs)
        self.membership.give_back(partition, epoch)
