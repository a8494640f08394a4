"""One computation at the driver: its thread, which starts again after a failure and a pause."""

from __future__ import annotations

import logging
import random
import re
import threading
from typing import TYPE_CHECKING, Any

from penstock.clock import Micros
from penstock.errors import Fenced
from penstock.ids import new_id
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.policy import Retry
from penstock.spark.errors import explain
from penstock.spark.runner.batch_loop import BatchLoop, Control, Failed
from penstock.spark.runner.jobs import SparkJobs
from penstock.spark.runner.micro_batch import TaskResult
from penstock.spark.runner.shipping import TaskSpec, packed
from penstock.stream.engine.permanent import failed_at, is_permanent
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.runner import Settings, Status
from penstock.stream.topology import Node
from penstock.stream.validate import ResolvedTopology

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger("penstock.stream")

_CAUSE = re.compile(r"^\s*([\w.]+(?:Error|Exception): .+)$", re.MULTILINE)
_WRAPPINGS = ("py4j.", "pyspark.", "org.apache.spark.")


class ComputationDriver:
    """Runs one computation on Spark, in a thread of its own."""

    def __init__(
        self, store: LogStore, topology: ResolvedTopology, node: Node, *, context: SparkContext, spec: TaskSpec,
        settings: Settings,
    ) -> None:  # fmt: skip
        """Nothing runs before :meth:`start`."""
        self.store = store
        self.node = node
        self.status = Status(node.name, 0)
        self.control = Control()
        self._topology = topology.topology
        self._resolved = topology.computation(store, node)
        self._context = context
        self._spec = spec
        self._settings = settings
        self._results: dict[int, TaskResult] = {}  # the last of each task
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name=f"penstock-spark-{node.name}", daemon=True)

    # --- what the runner asks and tells -----------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for its end."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End after the batch under way."""
        self.control.stopping.set()

    def kill(self) -> None:
        """End at once."""
        self.control.killed.set()
        self.control.stopping.set()

    def finish(self, final: bool) -> None:
        """Take the current end of the input as final: do what is left, then end."""
        self.control.finishing = final

    @property
    def has_finished(self) -> bool:
        """Whether everything that :meth:`finish` asks for is done."""
        return self.control.finished.is_set()

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return self.status.state in ("failed", "stopped")

    def lows(self) -> list[Micros]:
        """The watermarks of its tasks. A task that never had a record does not hold event time back."""
        lags = [self.store.lags(stream, self.node.name) for stream in self.node.inputs.values()]
        results = dict(self._results)
        lows = {index: results[index].low if index in results else LOWEST for index in range(self._resolved.tasks)}
        return [
            low for index, low in lows.items()
            if low != LOWEST or any(lag[index].lag for lag in lags if index < len(lag))
        ]  # fmt: skip

    def waits(self, until: Micros) -> bool:
        """Whether a timer up to an event time waits."""
        timers = [result.next_event for result in dict(self._results).values()]
        return any(timer is not None and timer <= until for timer in timers)

    # --- life --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Retry(
            attempts=None, backoff=self._settings.restart_backoff, max_backoff=self._settings.restart_backoff_max
        )
        stopping = self.control.stopping
        failed_in_a_row = 0
        while not stopping.is_set() and not self.has_finished:
            before = self.status.checkpoints
            try:
                self._live()
            except Failed as failed:
                self._note("failed", str(failed), None)
                return
            except BaseException as error:
                if stopping.is_set():
                    logger.debug("%s on Spark was interrupted", self.node.name, exc_info=error)
                    break
                cause = explain(error) or error
                if isinstance(cause, Fenced) or is_permanent(cause, again=failed_in_a_row > 0):
                    cause = cause if isinstance(cause, Fenced) else failed_at(self.node.name, cause)
                    self._note("failed", _line(cause), cause)
                    return
                failed_in_a_row = 1 if self.status.checkpoints > before else failed_in_a_row + 1
                self._note("restarting", _line(cause), cause)
                self.status.restarts += 1
                delay = backoff.delay(failed_in_a_row, self._rng)
                stopping.wait(0.0 if delay is None else delay.total_seconds())
        self.status.state = "stopped"

    def _note(self, state: Any, text: str, error: BaseException | None) -> None:
        self.status.state = state
        self.status.error = text
        logger.error("%s on Spark is %s: %s", self.node.name, state, text, exc_info=error)
        self.store.signals.tell(
            "store_error", self.node.name, (), self.store.now(), step=f"on Spark {state}", error=text
        )

    def _live(self) -> None:
        """One life, from getting the computation until it ends or fails."""
        spec = TaskSpec(new_id(), self._spec.url, self._spec.topology, self._spec.name, self._resolved.writers)
        jobs = SparkJobs(self._context, self.node.name, packed(spec))
        partitions: list[str | Partition] = [
            partition for index in range(self._resolved.tasks) for partition in self._resolved.partitions_of(index)
        ]
        options = {"max_poll": self._settings.max_poll, "out_of_range": "earliest"}  # its positions mean nothing
        # The owner of the group's partitions runs the computation, on Spark or elsewhere.
        try:
            with self.store.tailer(partitions, self.node.name, bytes, **options) as tailer:
                loop = BatchLoop(
                    self.store, self._topology, self._resolved, tailer, jobs, settings=self._settings,
                    status=self.status, control=self.control, results=self._results,
                )  # fmt: skip
                self.status.partitions = list(range(self._resolved.tasks))
                self.status.state = "running"
                try:
                    loop.run()
                finally:
                    loop.close()
        finally:
            self.status.partitions = []
            jobs.close()


def _line(error: BaseException) -> str:
    """An error in one line; of Spark's errors the last cause that is not a wrapper."""
    text = str(error).strip()
    causes = [cause for cause in _CAUSE.findall(text) if not cause.startswith(_WRAPPINGS)]
    if causes:
        return str(causes[-1])
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
