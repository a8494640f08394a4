"""How far event time is in the inputs of a thread's tasks: their writers' reports, and which inputs are silent."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from penstock.clock import Micros
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.stream.engine.event_time import Positions, Silent
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import SilentInput
from penstock.stream.topology import Node
from penstock.stream.validate import ResolvedTopology, end_former
from penstock.stream.watermark_reader import LogEnds, WatermarkReader

AGAIN = 5.0  # seconds after which computations that left the topology are looked at again
GLANCE = 100  # committed records that are looked at for their times


class StoreEventTime:
    """Reads the reports of the writers of a computation's inputs, and where its inputs end."""

    def __init__(self, store: LogStore, topology: ResolvedTopology, node: Node) -> None:
        """Start without tasks; :meth:`add` brings them."""
        self._store = store
        self._node = node
        self._topology = topology.topology
        self._log_ends = LogEnds(store)
        self._reader = WatermarkReader(store, node.inputs, topology.writers, self._log_ends)
        self.follows_writers = bool(self._reader.logs)  # whether other computations write its inputs
        self._end_former_at = time.monotonic() if topology.writers.former else float("inf")

    def add(self, index: int) -> None:
        """Add a task."""
        self._reader.add(index)

    def drop(self, index: int) -> None:
        """Remove a task."""
        self._reader.drop(index)

    def close(self) -> None:
        """Read no more."""
        self._reader.close()

    def observe(self, tasks: Collection[Task], positions: Positions, now: Micros) -> Mapping[int, Silent]:
        """Set how far event time is in inputs that other computations write. Returns the silent ones from outside.

        Called after the records were read: records that wait in a log must not become late.
        """
        # To a task with one input and no readers it makes no difference whether that is silent.
        concerned = [task for task in tasks if task.publisher is not None or len(task.watermark.highs) > 1]
        if self.follows_writers or concerned:
            self._log_ends.forget()
        if self.follows_writers:
            self._read_reports(tasks, positions)
        return {task.index: self._silent(task, positions, now) for task in concerned}

    def _read_reports(self, tasks: Collection[Task], positions: Positions) -> None:
        if time.monotonic() > self._end_former_at:
            # Computations that left the topology may have run on for a while, in another process.
            running = end_former(self._store, self._topology)
            self._end_former_at = time.monotonic() + AGAIN if running else float("inf")
        self._reader.look()
        for task in tasks:
            for name in task.watermark.reaches:
                position = positions.get(Partition(self._node.inputs[name], task.index), 0)
                task.watermark.set_reach(name, self._reader.reach(task.index, name, position))

    def _silent(self, task: Task, positions: Positions, now: Micros) -> Silent:
        """The inputs of a task from outside that are read to their ends and had nothing for a while."""
        silent = {}
        for name in task.watermark.quiet(now):
            partition = Partition(self._node.inputs[name], task.index)
            end = self._log_ends.of(partition.log, partition.index)
            if end is not None and positions.get(partition, -1) >= end:
                silent[name] = SilentInput(partition.log, partition.index, end)
        return silent

    def passed(self, tasks: Collection[Task], positions: Positions) -> None:
        """Forget reports from before these positions: tasks have committed them."""
        for task in tasks:
            mine = {partition.log: at for partition, at in positions.items() if partition.index == task.index}
            self._reader.passed(task.index, mine)


def guess_time(task: Task, store: LogStore, node: Node) -> None:
    """The event time of a task without stored state: at least that of its last committed records."""
    if not store.capabilities.dense:
        return  # finding them would take longer than waiting for the next
    for name, stream in node.inputs.items():
        if task.index >= store.settings(stream).partitions:
            continue
        partition = Partition(stream, task.index)
        end = store.committed(stream, node.name)[task.index]
        start = store.bounds_of(partition).start
        if end is not None and end > start:
            for batch in store.batches(partition, max(start, end - GLANCE), end):
                task.watermark.mark(name, max(batch.times()), store.now())
    task.move({})
    task.watermark.apply()
