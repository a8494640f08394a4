"""The state of a task in a worker: restored from the state log as a local runner does, or brought up to date.

Every result of a task has an id. A batch names the result that the current state comes from, and where the state log
ended after earlier batches. So a worker that has done the last batch of a task continues with what it holds; one
that has done an earlier batch reads what was appended since; any other reads the state log from its beginning.
"""

from __future__ import annotations

from penstock.errors import OffsetOutOfRange
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.spark.runner.micro_batch import StateVersion, TaskPlan
from penstock.stream.engine.changelog import state_log
from penstock.stream.engine.engine import Engine
from penstock.stream.engine.resolved import ResolvedComputation
from penstock.stream.engine.task import Task
from penstock.stream.internal_logs import payloads_of, restore_task
from penstock.stream.local.event_time import guess_time

REMEMBERED = 64  # versions of a task's state that a driver names, so that as many workers can catch up


class WorkerState:
    """Gives an engine the task of a partition, with the current state."""

    def __init__(self, store: LogStore, resolved: ResolvedComputation, engine: Engine, index: int) -> None:
        """Nothing is held yet."""
        self._store = store
        self._resolved = resolved
        self._engine = engine
        self._index = index
        self._held = ""  # the result whose state this is
        self.end = 0  # where the state log ends

    def prepare(self, plan: TaskPlan) -> Task:
        """The task with the state that the plan names."""
        task = self._engine.tasks.get(self._index)
        holds_now = plan.versions[-1] if plan.versions else None
        if task is None or (holds_now is not None and not self._is_known(plan.versions)):
            task = self._restored()
        elif holds_now is not None and self._held != holds_now.result:
            try:
                self._catch_up(task, plan.versions, holds_now.end)
            except OffsetOutOfRange:  # what was appended since has been written again, and its beginning is deleted
                task = self._restored()
        if holds_now is not None:
            self.end = holds_now.end
        if plan.time is not None:
            task.watermark.load(plan.time.low, plan.time.highs)
            task.watermark.heard.update(plan.time.heard)
        else:
            task.watermark.resume(plan.firm, plan.reached)
        task.ctx.low = task.watermark.low
        return task

    def hold(self, result: str) -> None:
        """Note that this is the state after a result, if that is committed."""
        self._held = result

    def _is_known(self, versions: list[StateVersion]) -> bool:
        return any(version.result == self._held for version in versions)

    def _restored(self) -> Task:
        self._engine.abandon()
        task = Task(self._resolved, self._index, self._engine.clock)
        if task.changelog is None:
            guess_time(task, self._store, self._resolved.node)
        else:
            restore_task(self._store, task, self._resolved.node)
        self._engine.add(task, {})
        return task

    def _catch_up(self, task: Task, versions: list[StateVersion], end: int) -> None:
        start = next(version.end for version in reversed(versions) if version.result == self._held)
        partition = Partition(state_log(self._resolved.node.name), self._index)
        payloads = payloads_of(self._store, partition, start, end) if start < end else ()
        task.catch_up(payloads, self._resolved.node.fresh(), end=end)
