"""Event time of the tasks of one instance: what their inputs count for, and what they report to those behind them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

from penstock.clock import Micros
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.stream.checks import end_former
from penstock.stream.watermark import SilentInput
from penstock.stream.watermark_log import LogEnds, Report, Upstream, ends_of, last_reports, reports_time

if TYPE_CHECKING:
    from penstock.stream.checks import Plan
    from penstock.stream.task import Task
    from penstock.stream.topology import Node

AGAIN = 5.0  # seconds after which computations that left the topology are looked at again

Positions = Mapping[Partition, int]  # the first offset of each partition that is not processed


class Timekeeper:
    """Reads the reports of the writers of an instance's inputs, and makes those of its own tasks."""

    def __init__(self, store: LogStore, plan: Plan, node: Node) -> None:
        """Of a computation; its tasks come later."""
        self.store = store
        self.node = node
        self.reports = reports_time(plan.topology, node)
        self._log_ends = LogEnds(store)
        self._upstream = Upstream(store, node.inputs, plan.writers, self._log_ends)
        self._topology = plan.topology
        self._end_former_at = time.monotonic() if plan.writers.former else float("inf")
        self._ends: dict[str, list[int]] = {}  # where the outputs end that were written here; never changed in place

    def add(self, index: int) -> None:
        """A task arrives."""
        self._upstream.add(index)

    def drop(self, index: int) -> None:
        """A task leaves."""
        self._upstream.drop(index)

    def close(self) -> None:
        """Read no more."""
        self._upstream.close()

    # --- inputs ------------------------------------------------------------------------------------

    def look(self, tasks: Iterable[Task], positions: Positions) -> None:
        """See how far the inputs count that other computations write, and where those from outside end.

        After the records were read: what waits in a log now must not be made late.
        """
        self._log_ends.forget()
        if not self._upstream:
            return
        if time.monotonic() > self._end_former_at:
            # Computations that left the topology may have run on for a while, in another process.
            running = end_former(self.store, self._topology)
            self._end_former_at = time.monotonic() + AGAIN if running else float("inf")
        self._upstream.look()
        for task in tasks:
            for local in task.watermark.reaches:
                position = positions.get(Partition(self.node.inputs[local], task.index), 0)
                task.watermark.set_reach(local, self._upstream.reach(task.index, local, position))

    def silent(self, task: Task, positions: Positions, now: Micros) -> Mapping[str, SilentInput]:
        """The inputs of a task from outside that are read to their ends and had nothing for a while."""
        if len(task.watermark.highs) < 2 and task.publisher is None:
            return {}  # makes no difference to anybody
        silent = {}
        for local in task.watermark.quiet(now):
            place = Partition(self.node.inputs[local], task.index)
            end = self._log_ends.of(place.log, place.index)
            if end is not None and positions.get(place, -1) >= end:
                silent[local] = SilentInput(place.log, place.index, end)
        return silent

    # --- reports -----------------------------------------------------------------------------------

    def resume(self, arrived: list[Task]) -> bool:
        """Take up what the last owners of tasks have reported; whether some of it must be replaced at once."""
        if not self.reports or not arrived:
            return False
        last = last_reports(self.store, self.node.name)
        for task in arrived:
            task.resume_time(last)
        # The last owner may have written more than it has reported.
        ends = ends_of(self.store, self.node.outputs.values())
        self._ends = {
            stream: [max(pair) for pair in zip_longest(self._ends.get(stream, ()), ends[stream], fillvalue=0)]
            for stream in ends
        }
        announcing = [task for task in arrived if task.publisher is not None and task.publisher.must_announce]
        for task in announcing:
            task.offer_report(self._ends)
        return bool(announcing)

    def due(self, tasks: Iterable[Task], *, at_once: bool) -> list[Report]:
        """What tasks report with the next transaction: of the checkpoint before, whose offsets are known."""
        reports = []
        for task in tasks:
            if task.publisher is not None:
                report = task.publisher.due(now=at_once)
                if not task.computation.keeps and len(task.watermark.highs) > 1:
                    # Nothing else keeps what silence has decided; it goes with the checkpoint that decides it.
                    report = task.publisher.remember(task.watermark.low) or report
                if report is not None:
                    reports.append(report)
        return reports

    def committed(self, tasks: Iterable[Task], positions: Positions, ends: Mapping[Partition, int]) -> None:
        """A checkpoint holds; its outputs end at ``ends``."""
        written = {place: end for place, end in ends.items() if place.log in self._ends}
        if written:
            self._ends = {stream: list(offsets) for stream, offsets in self._ends.items()}
            for place, end in written.items():
                self._ends[place.log][place.index] = max(self._ends[place.log][place.index], end)
        for task in tasks:
            task.offer_report(self._ends)
            self._upstream.passed(
                task.index, {place.log: at for place, at in positions.items() if place.index == task.index}
            )
