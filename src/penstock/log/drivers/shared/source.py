"""What the embedded stores share: a source over partitions that can be read at any offset, and groups made of leases.

A *lease* is the right to read one partition for a group. Whoever takes it gets a new epoch; commits carry the epoch and
are refused once somebody else has a higher one. There is no coordinator: every member computes the same assignment from
the same list of live members, gives back what is no longer its own, and takes what is free.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.errors import Fenced, OffsetOutOfRange, PartitionTaken, RecordCorrupt
from penstock.log.group import Listener, sticky
from penstock.log.protocol import LogSettings, Source
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.store import LogStore, OutOfRange
from penstock.process import this_process

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN = 0.00005  # seconds until we look again at what is being written this moment
TICK = 0.05  # seconds between looks at the other members, when nothing told of a change
HOT = 0.03  # ... and for how long after a change we look every millisecond: a dying process lets go in steps
RESCAN = 0.01  # seconds after which all partitions are looked at, even while some have more
OPEN_READERS = 200  # partitions of a tailer whose files stay open when there is nothing to read
QUANTUM = 1000  # records that a partition gives at least while it is its turn
BEATS = 10  # heartbeats within the time after which a member counts as hung


class Reader(ABC):
    """Reads one partition at any offset; of one thread."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The first offset that is there."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Behind the last offset that is there."""

    @property
    def is_written(self) -> bool:
        """Whether something is about to be shown."""
        return False

    @abstractmethod
    def read(self, offset: int, limit: int) -> tuple[list[RecordBatch], int]:
        """At most ``limit`` records from ``offset`` on, and where to read on (damaged records were passed over)."""

    def close(self) -> None:  # noqa: B027 - not every reader holds files
        """Let go of files."""


class Membership(ABC):
    """One member's view of its group: who else lives, and which partitions it may take."""

    id: str

    @abstractmethod
    def version(self) -> int:
        """Another number whenever members or leases changed; deaths excepted."""

    @abstractmethod
    def beat(self) -> None:
        """Say that this member lives and reads."""

    @abstractmethod
    def members(self) -> Mapping[str, Sequence[str]]:
        """The subscribed members that live, this one included, with the logs they want."""

    @abstractmethod
    def owner(self, partition: Partition) -> str | None:
        """The member whose lease is in force; what it does, alive or not, is not asked."""

    @abstractmethod
    def take(self, partition: Partition) -> int | None:
        """The epoch of a new lease, or None while somebody who lives has it."""

    @abstractmethod
    def holds(self, partition: Partition, epoch: int) -> bool:
        """Whether that lease is still this member's."""

    @abstractmethod
    def give_back(self, partition: Partition, epoch: int) -> None:
        """End a lease; harmless when it was lost."""

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        """Keep offsets (offset, epoch), all of them or, if one lease is lost, none: ``Fenced``."""

    @abstractmethod
    def committed(self, partition: Partition) -> int | None:
        """What the group has committed."""

    @abstractmethod
    def leave(self) -> None:
        """End the membership."""


class Watch(ABC):
    """Waits for new records of some partitions and for changes of a group."""

    heard = False  # whether the last wait ended because a partition was written to

    @abstractmethod
    def follow(self, partitions: Sequence[Partition]) -> None:
        """Wake for these from now on."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Sleep until something has happened since the last call. Returns True if the group may have changed."""

    @abstractmethod
    def wake(self) -> None:
        """End a wait of another thread."""

    @abstractmethod
    def close(self) -> None:
        """End."""


class EmbeddedSource(Source):
    """A member of a group over readers, leases and a watch."""

    def __init__(
        self,
        store: LogStore,
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
        """Own nothing yet; ``logs`` are those subscribed to."""
        self.store = store
        self.group = group
        self.membership = membership
        self.epochs: dict[Partition, int] = {}
        self._watch = watch
        self._open_reader = reader
        self._readers: dict[Partition, Reader] = {}
        self._positions: dict[Partition, int] = {}
        self._order: list[Partition] = []
        self._queue: deque[Partition] = deque()  # partitions that have something, in the order of their turns
        self._scanned_at = 0.0
        self._policy = out_of_range
        self._logs = {one.name: one.partitions for one in logs}
        self._listener = listener
        self._beat_every = max_poll.total_seconds() / BEATS
        self._beat_at = 0.0
        self._looked_at = 0.0
        self._hot_until = 0.0
        self._seen = -1
        self._members: dict[str, Sequence[str]] = {}
        self._waits = False  # for a partition that its owner has not given back yet
        self._woken = threading.Event()
        self._process = this_process()

    @classmethod
    def assigned(cls, partitions: Sequence[Partition], made: EmbeddedSource) -> EmbeddedSource:
        """Take exactly these partitions, all or none."""
        try:
            for partition in sorted(partitions):
                epoch = made.membership.take(partition)
                if epoch is None:
                    raise PartitionTaken(
                        f"{partition} is read by another tailer of group {made.group}.",
                        hint="Close that one first, use another group, or subscribe() to share the partitions.",
                    )
                made._own(partition, epoch)
            made._watch.follow(made._order)
        except BaseException:
            made.close()
            raise
        return made

    # --- the contract ------------------------------------------------------------------------------

    def assignment(self) -> list[Partition]:
        """The partitions it owns now."""
        return list(self._order)

    def poll(self, limit: int, seconds: float) -> list[RecordBatch]:
        """Read in turn; wait if there is nothing."""
        now = time.monotonic()
        deadline = now + seconds
        self._tend(now)
        while True:
            batches = self._collect(limit)
            if batches or self._woken.is_set():
                return batches
            now = time.monotonic()
            left = deadline - now
            if left <= 0:
                return []
            if self._watch.heard and any(self._readers[one].is_written for one in self._order):
                self._woken.wait(AGAIN)
                continue
            tick = 0.001 if now < self._hot_until else min(TICK, self._beat_every)
            if self._watch.wait(min(left, tick)):
                self._looked_at = 0.0
                self._hot_until = time.monotonic() + HOT
            woke = time.monotonic()
            # A record was heard: the group can wait until it is read, unless this process slept for long.
            if not self._watch.heard or woke > self._looked_at + 2 * TICK:
                self._tend(woke)

    def position(self, partition: Partition) -> int:
        """Where it reads on."""
        return self._positions[partition]

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on there."""
        if partition in self._positions:
            self._positions[partition] = offset
            if partition not in self._queue:
                self._queue.append(partition)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep them, if the leases are still ours."""
        self.membership.commit(self.fenced(offsets))

    def fenced(self, offsets: Mapping[Partition, int]) -> dict[Partition, tuple[int, int]]:
        """Offsets with the epochs of their leases; raises for a lease that is known to be lost."""
        chosen = {}
        for partition, offset in offsets.items():
            if partition not in self.epochs:
                raise fenced(partition, self.group)
            chosen[partition] = (offset, self.epochs[partition])
        return chosen

    def wake(self) -> None:
        """End a poll."""
        self._woken.set()
        self._watch.wake()

    def close(self) -> None:
        """Give everything back."""
        if self._process is not this_process():
            return  # a forked child: all of it is the parent's
        try:
            owned = [one for one in self._order if self.membership.holds(one, self.epochs[one])]
            if owned and self._listener is not None and self._listener.on_revoked is not None:
                self._listener.on_revoked(owned)
        finally:
            for partition in list(self._order):
                self._disown(partition)
            self.membership.leave()
            self._watch.close()

    # --- reading -----------------------------------------------------------------------------------

    def _collect(self, limit: int) -> list[RecordBatch]:
        # Looking at every partition for every poll would cost more than reading, where there are many.
        fresh = not self._queue or time.monotonic() > self._scanned_at + RESCAN
        if fresh:
            self._scan()
        found = self._serve(limit)
        if not found and not fresh:
            self._scan()
            found = self._serve(limit)
        return found

    def _serve(self, limit: int) -> list[RecordBatch]:
        queue, readers, positions = self._queue, self._readers, self._positions
        found: list[RecordBatch] = []
        if not queue:
            return found
        # An even share, but no crumbs: a few records out of every frame would cost more than the turn is worth.
        share = max(limit // len(queue), min(limit, QUANTUM))
        while limit > 0 and queue:
            partition = queue.popleft()
            try:
                batches, positions[partition] = self._read(partition, min(share, limit))
            except (OffsetOutOfRange, RecordCorrupt):
                queue.appendleft(partition)
                if found:  # those of the others have been counted as read: they are handed out first
                    break
                raise
            found += batches
            limit -= sum(map(len, batches))
            if positions[partition] != readers[partition].end and batches:
                queue.append(partition)
            elif len(readers) > OPEN_READERS:
                readers[partition].close()  # nothing more for now: a process has only so many files
        return found

    def _scan(self) -> None:
        """Line up the partitions that have something; those in the line keep their place."""
        readers, positions = self._readers, self._positions
        lined = set(self._queue) if self._queue else ()
        self._queue.extend(one for one in self._order if one not in lined and positions[one] != readers[one].end)
        self._scanned_at = time.monotonic()

    def _read(self, partition: Partition, limit: int) -> tuple[list[RecordBatch], int]:
        reader, position = self._readers[partition], self._positions[partition]
        while True:
            start, end = reader.start, reader.end
            if position < start or position > end:
                position = self._back_in_range(partition, position, Bounds(partition.index, start, end))
            try:
                return reader.read(position, limit)
            except OffsetOutOfRange:
                if position >= reader.start:
                    raise
                # Retention was faster: now it shows, and the policy says what to do.

    def _back_in_range(self, partition: Partition, position: int, bounds: Bounds) -> int:
        if self._policy == "error":
            raise self.store.out_of_range(partition, position, bounds)
        target = bounds.start if self._policy == "earliest" else bounds.end
        self.store.signals.tell(
            "skipped", partition.log, (), self.store.now(), group=self.group, partition=partition.index,
            offset=target, records=max(0, target - position),
        )  # fmt: skip
        self._positions[partition] = target
        return target

    # --- the group ---------------------------------------------------------------------------------

    def _tend(self, now: float) -> None:
        if now >= self._beat_at:
            self.membership.beat()
            self._beat_at = now + self._beat_every
        version = self.membership.version()
        if version == self._seen and now < self._looked_at + TICK:
            return
        changed = version != self._seen
        if changed:
            self._drop_lost()
            self._seen = version
        self._looked_at = now
        if self._logs:
            self._rebalance(changed)

    def _drop_lost(self) -> None:
        lost = [one for one, epoch in self.epochs.items() if not self.membership.holds(one, epoch)]
        if not lost:
            return
        for partition in lost:
            self._disown(partition)
        if self._listener is not None and self._listener.on_lost is not None:
            self._listener.on_lost(lost)
        elif self._listener is None:
            raise Fenced(
                f"{', '.join(map(str, lost))} of group {self.group} went to another tailer while this one was silent.",
                hint="Read more often than max_poll, or open another tailer.",
            )

    def _rebalance(self, changed: bool) -> None:
        members = dict(self.membership.members())
        if not changed and members == self._members and not self._waits:
            return
        self._members = members
        all_ = [Partition(log, index) for log, count in self._logs.items() for index in range(count)]
        owners = {one: owner for one in all_ if (owner := self.membership.owner(one)) is not None}
        mine = set(sticky(members, self._logs, owners).get(self.membership.id, ()))
        going = [one for one in self._order if one not in mine]
        if going:
            if self._listener is not None and self._listener.on_revoked is not None:
                self._listener.on_revoked(going)
            for partition in going:
                self._disown(partition)
        got = []
        for partition in sorted(mine.difference(self.epochs)):
            epoch = self.membership.take(partition)
            if epoch is not None:
                self._own(partition, epoch)
                got.append(partition)
        self._waits = len(self.epochs) < len(mine)
        if got:
            self._watch.follow(self._order)
            if self._listener is not None and self._listener.on_assigned is not None:
                self._listener.on_assigned(got)

    def _own(self, partition: Partition, epoch: int) -> None:
        self.epochs[partition] = epoch
        reader = self._readers[partition] = self._open_reader(partition)
        kept = self.membership.committed(partition)
        # After a power cut an offset may be ahead of a log of the fast profile: what comes next is new again.
        self._positions[partition] = reader.start if kept is None else min(kept, reader.end)
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


def fenced(partition: Partition, group: str) -> Fenced:
    """The error for a lease that somebody else has now."""
    return Fenced(
        f"{partition} of group {group} went to another tailer; nothing was committed.",
        hint="Read on: the tailer drops what it lost, and the other one reads from the last commit.",
    )
