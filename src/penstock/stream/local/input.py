"""Where a thread's records come from: tasks follow the partitions of one input, the others go with them.

A group deals out the partitions of each log by itself; a computation over several inputs needs the partitions of one
number together. So a thread subscribes to one input, the leader, and for each partition it gets it takes the same
partition of the other inputs. A source, which has no input, leads by its own changelog: that log's partitions are its
tasks. The leader's offsets go into every checkpoint, so that a former owner is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.errors import PartitionTaken
from penstock.log.protocol import Source
from penstock.log.record import Offset, Partition, RecordBatch
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer
from penstock.stream.engine.changelog import state_log

if TYPE_CHECKING:
    from penstock.stream.topology import Node
    from penstock.stream.validate import ResolvedTopology

Notify = Callable[[list[int]], None]
BETWEEN = timedelta(milliseconds=10)  # how long one of several inputs is waited for


class Input:
    """The tailers of one thread."""

    def __init__(
        self, store: LogStore, topology: ResolvedTopology, node: Node, *, assigned: Notify, revoked: Notify,
        lost: Notify, max_poll: timedelta,
    ) -> None:  # fmt: skip
        """Join the group; ``assigned``, ``revoked`` and ``lost`` get numbers of tasks, inside :meth:`read`."""
        self.store = store
        self.node = node
        self._max_poll = max_poll
        self._names = {stream: name for name, stream in node.inputs.items()}
        if node.is_source:
            self.leader, self._others = state_log(node.name), {}
        else:
            counts = {stream: topology.partitions[stream] for stream in node.inputs.values()}
            self.leader = max(counts, key=lambda stream: counts[stream])
            self._others = {stream: count for stream, count in counts.items() if stream != self.leader}
        self._codecs = {stream: topology.topology.streams[stream].coder for stream in self._names}
        self._followers: dict[int, Tailer[Any]] = {}
        self._tail: Tailer[Any] = store.subscribe(
            self.leader, node.name, bytes, max_poll=max_poll,
            on_assigned=lambda partitions: assigned([partition.index for partition in partitions]),
            on_revoked=lambda partitions: revoked([partition.index for partition in partitions]),
            on_lost=lambda partitions: lost([partition.index for partition in partitions]),
        )  # fmt: skip

    def follow(self, index: int) -> bool:
        """Take the other inputs of a task. Returns False while somebody else still has them."""
        if not self._others or index in self._followers:
            return True
        partitions: list[str | Partition] = [
            Partition(stream, index) for stream, count in self._others.items() if index < count
        ]
        try:
            self._followers[index] = self.store.tailer(partitions, self.node.name, bytes, max_poll=self._max_poll)
        except PartitionTaken:
            return False
        return True

    def drop(self, index: int) -> None:
        """Close the other inputs of a task."""
        follower = self._followers.pop(index, None)
        if follower is not None:
            follower.close()

    def read(self, limit: int, wait: timedelta) -> list[tuple[int, str, RecordBatch]]:
        """Batches with the numbers of their tasks and the names of their inputs; waits for the first."""
        batches = self._tail.read_batches(limit, min(wait, BETWEEN) if self._followers else wait)
        for follower in list(self._followers.values()):
            batches += follower.read_batches(limit)
        if self.node.inputs:
            for batch in batches:
                batch.codec = self._codecs[batch.partition.log]
            return [(batch.partition.index, self._names[batch.partition.log], batch) for batch in batches]
        return []  # what a source reads is its own state

    def is_seen(self, index: int, offsets: dict[str, int]) -> bool:
        """Whether a task's state goes with the group's offsets: it may not all be visible yet after a crash."""
        if self.store.capabilities.dense or not self.node.computation.keeps:
            return True
        for partition in self.positions([index]):
            committed = self.store.committed(partition.log, self.node.name)[index]
            bounds = self.store.bounds_of(partition)
            seen = bounds.end if self.node.is_source else offsets.get(partition.log, bounds.start)
            if committed is not None and committed > seen:
                return False
        return True

    def seek(self, index: int, offsets: Mapping[str, int]) -> dict[Partition, int]:
        """Read on where the state of a task says, if that is further than the group's offsets; where that was so."""
        moved = {}
        for tailer in (self._tail, *([self._followers[index]] if index in self._followers else [])):
            for partition in tailer.assignment():
                offset = offsets.get(partition.log)
                if partition.index == index and offset is not None and tailer.source.position(partition) < offset:
                    tailer.seek(Offset(partition.log, index, offset))
                    moved[partition] = offset
        return moved

    def rewind(self, batch: RecordBatch) -> None:
        """Read this batch again."""
        for tailer in (self._tail, *self._followers.values()):
            if batch.partition in tailer.assignment():
                tailer.seek(Offset(batch.partition.log, batch.partition.index, batch.offsets[0]))

    def positions(self, tasks: Container[int]) -> dict[Partition, int]:
        """Where the partitions of these tasks are read on, behind all that was handed out."""
        positions = {}
        for tailer in (self._tail, *self._followers.values()):
            source = tailer.source
            for partition in source.assignment():
                if partition.index in tasks:
                    positions[partition] = source.position(partition)
        return positions

    def committed(self, index: int) -> tuple[Partition, int]:
        """Up to where the leading input of a task is done."""
        partition = Partition(self.leader, index)
        offset = self.store.committed(self.leader, self.node.name)[index]
        return partition, self.store.bounds_of(partition).start if offset is None else offset

    def by_source(self, offsets: Mapping[Partition, int]) -> list[tuple[Source, dict[Partition, int]]]:
        """Offsets to commit, each with the source it was read from."""
        parts = []
        for tailer in (self._tail, *self._followers.values()):
            source = tailer.source
            mine = {partition: offsets[partition] for partition in source.assignment() if partition in offsets}
            if mine:
                parts.append((source, mine))
        return parts

    def close(self) -> None:
        """Give all partitions back."""
        try:
            self._tail.close()
        finally:
            for follower in list(self._followers.values()):
                follower.close()
            self._followers.clear()
