"""The entry point for Spark: the task of one log partition, and the state that its worker still holds.

Arrow is imported only where it is needed: Spark loads this module in the daemon that forks its workers, where nothing
may start threads.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from penstock.ids import new_nonce
from penstock.spark.runner.code_path import PartitionTask
from penstock.spark.runner.fold_path import CODE
from penstock.spark.runner.micro_batch import MicroBatch, TaskPlan, TaskResult, decoded_batch, encoded
from penstock.spark.runner.shipping import TaskSpec, unpacked
from penstock.stream.engine.permanent import failed_at, is_permanent

logger = logging.getLogger("penstock.stream")

_held: OrderedDict[tuple[str, str, int], PartitionTask] = OrderedDict()


class RunTask:
    """The function that Spark runs for every task of a micro-batch: it maps the task's rank to its result, as bytes."""

    def __init__(self, spec: bytes, batch: bytes) -> None:
        """Take both as they are sent to the workers."""
        self._spec = spec
        self._batch = batch

    def __call__(self, rank: int) -> bytes:
        """Compute the task, in a worker."""
        return run_task(unpacked(self._spec), decoded_batch(self._batch), rank)


def run_task(spec: TaskSpec, batch: MicroBatch, rank: int) -> bytes:
    """Compute one task of a batch, with the state of the last one here if that is still current."""
    plan = batch.tasks[rank]
    place = (spec.url, spec.name, plan.index)
    task = _held.pop(place, None)
    if task is not None and task.spec.id != spec.id:
        task.abandon()
        task = None
    if task is None:
        task = PartitionTask(spec, plan.index)
    try:
        result = _computed(task, batch, plan)
    except BaseException:
        task.abandon()
        raise
    if result.error is None:
        _hold(place, task, spec.state_in_memory)
    else:
        task.abandon()
    return encoded(result)


def _computed(task: PartitionTask, batch: MicroBatch, plan: TaskPlan) -> TaskResult:
    try:
        task.prepare(batch, plan)
    except Exception as error:
        if not is_permanent(error):
            raise
        failed = failed_at(task.spec.name, error, plan.position)
        return TaskResult(plan.index, new_nonce(), CODE, error=f"{type(failed).__name__}: {failed}")
    return task.run(batch, plan)


def _hold(place: tuple[str, str, int], task: PartitionTask, limit: int) -> None:
    """Hold a task here for its next batch; those that were not used for longest are dropped."""
    _held[place] = task
    total = sum(map(len, _held.values()))
    for other in [*_held][:-1]:  # the one that was just used stays
        size = len(_held[other])
        if total <= limit:
            break
        if not size:
            continue
        oldest = _held.pop(other)
        total -= size
        _, name, index = other
        logger.warning(
            "task %s of %s is dropped from memory with %s entries of state, and read again for its next batch: "
            "a worker process holds %s entries. SparkRunner(state_in_memory=...) sets how many.",
            index, name, size, limit,
        )  # fmt: skip
        oldest.abandon()
