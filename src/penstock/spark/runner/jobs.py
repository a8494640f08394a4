"""Jobs of Spark: a micro-batch is one job, with a task for each log partition that has something to do."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.ids import new_id
from penstock.spark.runner.micro_batch import MicroBatch, TaskResult, decoded_result, encoded
from penstock.spark.runner.task import RunTask

if TYPE_CHECKING:
    from pyspark import SparkContext


class SparkJobs:
    """The jobs of one computation, one after the other, in a thread of their own: Spark knows jobs by their threads."""

    def __init__(self, context: SparkContext, computation: str, spec: bytes) -> None:
        """``spec`` is what workers need of the computation."""
        self._context = context
        self._computation = computation
        self._spec = spec
        self._group = f"{computation} {new_id()}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-job-{computation}")

    def start(self, batch: MicroBatch) -> Future[list[TaskResult]]:
        """Let Spark compute a batch. The results come by task number."""
        return self._thread.submit(self._run, batch)

    def cancel(self) -> None:
        """Cancel the job under way."""
        self._context.cancelJobGroup(self._group)

    def close(self) -> None:
        """End: no more jobs follow."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, batch: MicroBatch) -> list[TaskResult]:
        self._context.setJobGroup(self._group, f"a batch of {self._computation}", interruptOnCancel=True)
        count = len(batch.tasks)
        # Rows of a DataFrame would go the same way, but every batch would be planned and compiled by Spark first.
        results = self._context.parallelize(range(count), count).map(RunTask(self._spec, encoded(batch))).collect()
        return sorted(map(decoded_result, results), key=lambda result: result.index)
