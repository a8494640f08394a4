"""Where an instance's records come from: tasks follow the partitions of one input, the others go with them.

A group deals out the partitions of each log by itself; a computation over several inputs needs the partitions of one
number together. So an instance subscribes to one input, the leader, and for each partition it gets it takes the same
partition of the other inputs. A source, which has no input, leads by its own changelog: that log's partitions are its
tasks. The leader's offsets go into every checkpoint, so that a former owner is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.errors import PartitionTaken
from penstock.log.record import Offset, Partition, RecordBatch
from penstock.log.store import LogStore, Source
from penstock.log.tailer import Tailer
from penstock.stream.changelog import state_log

if TYPE_CHECKING:
    from penstock.stream.checks import Plan
    from penstock.stream.topology import Node

Told = Callable[[list[int]], None]
BETWEEN = timedelta(milliseconds=10)  # how long one of several inputs is waited for


class Intake:
    """The tailers of one instance."""

    def __init__(
        self, store: LogStore, plan: Plan, node: Node, *, taken: Told, given: Told, lost: Told, max_poll: timedelta
    ) -> None:
        """Join the group; ``taken``, ``given`` and ``lost`` are told numbers of tasks, inside :meth:`read`."""
        self.store = store
        self.node = node
        self._max_poll = max_poll
        self._locals = {stream: local for local, stream in node.inputs.items()}
        if node.is_source:
            self.leader, self._others = state_log(node.name), {}
        else:
            counts = {stream: plan.partitions[stream] for stream in node.inputs.values()}
            self.leader = max(counts, key=lambda one: counts[one])
            self._others = {stream: count for stream, count in counts.items() if stream != self.leader}
        self._coders = {stream: plan.topology.streams[stream].coder for stream in self._locals}
        self._followers: dict[int, Tailer[Any]] = {}
        self._tail: Tailer[Any] = store.subscribe(
            self.leader, node.name, bytes, max_poll=max_poll,
            on_assigned=lambda places: taken([one.index for one in places]),
            on_revoked=lambda places: given([one.index for one in places]),
            on_lost=lambda places: lost([one.index for one in places]),
        )  # fmt: skip

    def follow(self, index: int) -> bool:
        """Take the other inputs of a task; False while somebody else still has them."""
        if not self._others or index in self._followers:
            return True
        places: list[str | Partition] = [
            Partition(stream, index) for stream, count in self._others.items() if index < count
        ]
        try:
            self._followers[index] = self.store.tailer(places, self.node.name, bytes, max_poll=self._max_poll)
        except PartitionTaken:
            return False
        return True

    def drop(self, index: int) -> None:
        """Let the other inputs of a task go."""
        follower = self._followers.pop(index, None)
        if follower is not None:
            follower.close()

    def read(self, limit: int, wait: timedelta) -> Iterator[tuple[int, str, RecordBatch]]:
        """Batches with the numbers of their tasks and the names of their inputs; waits for the first."""
        found = self._tail.read_batches(limit, min(wait, BETWEEN) if self._followers else wait)
        for follower in list(self._followers.values()):
            found += follower.read_batches(limit)
        if self.node.is_source:
            return
        for batch in found:
            stream = batch.partition.log
            batch.codec = self._coders[stream]
            yield batch.partition.index, self._locals[stream], batch

    def beat(self) -> list[tuple[int, str, RecordBatch]]:
        """Show that the instance lives, while it cannot work: at most one record comes with it."""
        return list(self.read(1, timedelta(0)))

    def is_seen(self, index: int, offsets: dict[str, int]) -> bool:
        """Whether a task's state goes with the group's offsets: it may not all be visible yet after a crash."""
        if self.store.capabilities.dense or not self.node.computation.keeps:
            return True
        for place in {place for _, place, _ in self.positions() if place.index == index}:
            committed = self.store.committed(place.log, self.node.name)[index]
            bounds = self.store.bounds_of(place)
            seen = bounds.end if self.node.is_source else offsets.get(place.log, bounds.start)
            if committed is not None and committed > seen:
                return False
        return True

    def seek(self, index: int, offsets: dict[str, int]) -> dict[Partition, int]:
        """Go on where the state of a task says, if that is further on than the group's offsets; where that was so."""
        moved = {}
        for tailer in (self._tail, *([self._followers[index]] if index in self._followers else [])):
            for place in tailer.assignment():
                kept = offsets.get(place.log)
                if place.index == index and kept is not None and tailer.source.position(place) < kept:
                    tailer.seek(Offset(place.log, index, kept))
                    moved[place] = kept
        return moved

    def back(self, batch: RecordBatch) -> None:
        """Read this batch again."""
        for tailer in (self._tail, *self._followers.values()):
            if batch.partition in tailer.assignment():
                tailer.seek(Offset(batch.partition.log, batch.partition.index, batch.offsets[0]))

    def positions(self) -> Iterator[tuple[Source, Partition, int]]:
        """Where every partition is read on, behind all that was handed out."""
        for tailer in (self._tail, *self._followers.values()):
            source = tailer.source
            for place in source.assignment():
                yield source, place, source.position(place)

    def close(self) -> None:
        """Give all partitions back."""
        try:
            self._tail.close()
        finally:
            for follower in list(self._followers.values()):
                follower.close()
            self._followers.clear()
