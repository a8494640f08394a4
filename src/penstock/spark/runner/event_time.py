"""Event time at the driver: how far it is in each task, and what it reports to the readers of the outputs.

Tasks compute with the event time in the plan. Between two batches the driver reads the reports of other computations,
finds silent inputs, and writes its own reports.
"""

from __future__ import annotations

import time

from penstock.clock import Micros
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.spark.runner.micro_batch import TaskPlan, TaskResult, TaskTime
from penstock.stream.engine.checkpoint import Appends
from penstock.stream.engine.resolved import ResolvedComputation
from penstock.stream.engine.task import watermark_of
from penstock.stream.engine.watermark import END, LOWEST, Promise, SilentInput, Watermark
from penstock.stream.engine.watermark_log import WatermarkPublisher, encoded, low_log
from penstock.stream.internal_logs import ends_of, last_reports
from penstock.stream.local.event_time import AGAIN
from penstock.stream.topology import Topology
from penstock.stream.validate import end_former
from penstock.stream.watermark_reader import LogEnds, WatermarkReader


class DriverTime:
    """The event time of one computation, from the start of its driver on."""

    def __init__(self, store: LogStore, resolved: ResolvedComputation, topology: Topology) -> None:
        """Nothing is known of the tasks yet."""
        self._topology = topology
        self._end_former_at = time.monotonic() if resolved.writers.former else float("inf")
        self._store = store
        self._resolved = resolved
        self._node = resolved.node
        self._tasks = range(resolved.tasks)
        self._since = store.now()
        self._log_ends = LogEnds(store)
        self._reader = WatermarkReader(store, self._node.inputs, resolved.writers, self._log_ends)
        for index in self._tasks:
            self._reader.add(index)
        self.last: dict[int, TaskResult] = {}  # the last result of each task
        self._positions: dict[Partition, int] = {}
        self._publishers: dict[int, WatermarkPublisher] = {}
        self._output_ends: dict[str, list[int]] = {}
        self._resumed: dict[int, tuple[Micros, Micros]] = {}  # what was promised, and reached, before this driver

    def close(self) -> None:
        """Read no more."""
        self._reader.close()

    def look(self, positions: dict[Partition, int]) -> None:
        """Read what the writers of the inputs have reported; records up to these positions are processed."""
        self._positions = positions
        self._log_ends.forget()
        if time.monotonic() > self._end_former_at:
            # Computations that left the topology may have run on for a while, in another process.
            running = end_former(self._store, self._topology)
            self._end_former_at = time.monotonic() + AGAIN if running else float("inf")
        self._reader.look()

    def processed(self, results: list[TaskResult], *, has_written: bool) -> None:
        """Take the results of a committed batch."""
        if self._publishers and has_written:
            self._output_ends = ends_of(self._store, self._node.outputs.values())
        for result in results:
            self.last[result.index] = result
            self._reader.passed(result.index, result.positions)

    # --- plans -------------------------------------------------------------------------------------------

    def add_to(self, plan: TaskPlan, now: Micros) -> None:
        """Add to a plan how far event time is in the task's inputs, before its ranges and at their ends."""
        last = self.last.get(plan.index)
        if last is not None:
            plan.time = TaskTime(last.low, last.highs, last.heard)
        plan.reached = self.reached(plan.index)
        watermark = self._watermark(plan.index)
        plan.firm = watermark.firm
        for local in watermark.reaches:
            log = self._node.inputs[local]
            position = self._positions.get(Partition(log, plan.index), 0)
            start, stop = plan.ranges.get(log, (position, position))
            plan.reaches[local] = (
                self._reader.reach(plan.index, local, start), self._reader.reach(plan.index, local, stop)
            )  # fmt: skip
        silent = self._silent(plan.index, now)
        plan.silent = {local: known for local, known in silent.items() if self._node.inputs[local] not in plan.ranges}

    def reached(self, index: int) -> Micros:
        """How far a task was before this driver, by its reports."""
        return self._resumed.get(index, (LOWEST, LOWEST))[1]

    def is_due(self, index: int, now: Micros) -> bool:
        """Whether a task has something to do without records: a timer, or a watermark that an idle input held."""
        last = self.last.get(index)
        if last is None:
            return False
        if last.next_processing is not None and last.next_processing <= now:
            return True
        return self._node.computation.keeps and self._watermark(index).next(self._silent(index, now)) > last.low

    def _watermark(self, index: int) -> Watermark:
        """The watermark of a task that has processed everything up to the positions it has committed."""
        watermark = watermark_of(self._resolved, index, self._since)
        last = self.last.get(index)
        firm, reached = self._resumed.get(index, (LOWEST, LOWEST))
        if last is not None:
            watermark.load(last.low, last.highs)
            watermark.heard.update(last.heard)
            firm, reached = max(firm, last.firm), last.low
        watermark.resume(firm, reached)
        for local in watermark.reaches:
            position = self._positions.get(Partition(self._node.inputs[local], index), 0)
            watermark.reaches[local] = self._reader.reach(index, local, position)
        return watermark

    def _silent(self, index: int, now: Micros) -> dict[str, SilentInput]:
        """The inputs of a task from outside that are read to their ends and had nothing for a while."""
        silent = {}
        for local in self._watermark(index).quiet(now):
            place = Partition(self._node.inputs[local], index)
            end = self._log_ends.of(place.log, place.index)
            if end is not None and self._positions.get(place, 0) >= end:
                silent[local] = SilentInput(place.log, place.index, end)
        return silent

    # --- reports -----------------------------------------------------------------------------------------

    @property
    def reports(self) -> bool:
        """Whether another computation uses what this one reports."""
        return bool(self._publishers)

    def resume(self) -> None:
        """Continue from earlier reports. Those that no longer hold are replaced before anything is produced."""
        if not self._resolved.reports_time:
            return
        streams = tuple(self._node.inputs.values())
        tasks, topology, is_read = self._resolved.tasks, self._resolved.topology, self._resolved.is_read
        self._publishers = {
            index: WatermarkPublisher(index, tasks, topology, streams, is_read) for index in self._tasks
        }
        self._output_ends = ends_of(self._store, self._node.outputs.values())
        last = last_reports(self._store, self._node.name)
        for index, publisher in self._publishers.items():
            publisher.resume(last)
            if index in last:
                report = last[index]
                self._resumed[index] = (report.reached if report.low == END else report.low, report.reached)
            if publisher.must_announce:
                firm, reached = self._resumed.get(index, (LOWEST, LOWEST))
                publisher.offer(Promise(firm), reached, self._output_ends)

    def offer(self, waiting: set[int]) -> None:
        """Between two batches: find what can be reported; tasks in ``waiting`` have a record to try again first."""
        now = self._store.now()
        for index, publisher in self._publishers.items():
            watermark, silent = self._watermark(index), self._silent(index, now)
            if index in waiting or (self._node.computation.keeps and watermark.next(silent) > watermark.low):
                continue  # its timers come first: with its next batch
            watermark.move(silent)
            last = self.last.get(index)
            promise = watermark.promise_until(None if last is None else last.next_event)
            if promise is not None:
                publisher.offer(promise, watermark.low, self._output_ends)

    def offer_end(self) -> None:
        """The input has ended."""
        for index, publisher in self._publishers.items():
            reached = self.last[index].low if index in self.last else LOWEST
            publisher.offer(Promise(END), reached, self._output_ends)

    def due(self, *, at_once: bool = False) -> tuple[list[int], Appends]:
        """The tasks whose reports are to be written now, and the reports as records."""
        reports = {
            index: report
            for index, publisher in self._publishers.items()
            if (report := publisher.due(now=at_once)) is not None
        }
        if not reports:
            return [], []
        return list(reports), [(Partition(low_log(self._node.name), 0), encoded(reports.values()))]

    def published(self, tasks: list[int]) -> None:
        """Note that their reports were written."""
        for index in tasks:
            self._publishers[index].committed()
