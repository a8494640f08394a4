"""One computation at the driver: it plans a batch, lets Spark compute it, and commits it; after a failure it begins again.

:meth:`ComputationDriver._work` is the loop. The log store says how far a computation is: the offsets of its group, its
state log, and the plan that was written down last. Nothing else is remembered from one start to the next.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock import failpoints
from penstock.clock import FIRST_TIME, LAST_TIME, Micros, duration, from_micros
from penstock.errors import BadInput, Conflict, Fenced, SchemaMismatch, StoreUnavailable, Unsupported
from penstock.ids import new_id
from penstock.log.record import Partition
from penstock.log.store import Committed, LogStore
from penstock.log.tailer import Tailer
from penstock.policy import Retry
from penstock.spark.explaining import explain
from penstock.spark.runner.commit import BatchLog
from penstock.spark.runner.event_time import DriverTime
from penstock.spark.runner.micro_batch import MicroBatch, TaskResult, decoded_result, encoded
from penstock.spark.runner.planner import Planner
from penstock.spark.runner.shipping import TaskSpec, packed
from penstock.spark.runner.task import RunTask
from penstock.stream.engine.changelog import state_log
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.internal_logs import cut_state_log
from penstock.stream.runner import Settings, Status
from penstock.stream.topology import Node
from penstock.stream.validate import ResolvedTopology

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger("penstock.stream")

LOOK = 0.02  # seconds after which a driver that has nothing to do looks around
SIGNS = 4  # of life within max_poll
FATAL = (BadInput, SchemaMismatch, Unsupported, Fenced)  # another attempt would not help

_CAUSE = re.compile(r"^\s*([\w.]+(?:Error|Exception): .+)$", re.MULTILINE)


class Failed(Exception):
    """A computation has failed for good: its policy says stop."""


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
        self.stopping = threading.Event()
        self.killed = threading.Event()
        self.finished = threading.Event()
        self._topology = topology.topology
        self._resolved = topology.computation(store, node)
        self._context = context
        self._spec = spec
        self._settings = settings
        self._every = duration(settings.checkpoint_every, name="checkpoint_every").total_seconds()
        self._max_poll = duration(settings.max_poll, name="max_poll")
        self._last: dict[int, TaskResult] = {}
        self._finishing: bool | None = None  # True: the input has ended; False: only drain
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
        self.stopping.set()

    def kill(self) -> None:
        """End at once."""
        self.killed.set()
        self.stopping.set()

    def finish(self, final: bool) -> None:
        """The input ends where it ends now: do what is left, then end."""
        self._finishing = final

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return self.status.state in ("failed", "stopped")

    def lows(self) -> list[Micros]:
        """The watermarks of its tasks; one that has never had a record holds nobody back."""
        lags = [self.store.lags(stream, self.node.name) for stream in self.node.inputs.values()]
        last = dict(self._last)
        lows = {index: last[index].low if index in last else LOWEST for index in range(self._resolved.tasks)}
        return [
            low for index, low in lows.items()
            if low != LOWEST or any(lag[index].lag for lag in lags if index < len(lag))
        ]  # fmt: skip

    def waits(self, until: Micros) -> bool:
        """Whether a timer up to an event time waits."""
        return any(result.next_event is not None and result.next_event <= until for result in dict(self._last).values())

    # --- life --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Retry(
            attempts=None, backoff=self._settings.restart_backoff, max_backoff=self._settings.restart_backoff_max
        )
        failed_in_a_row = 0
        while not self.stopping.is_set():
            before = self.status.checkpoints
            try:
                self._live()
            except Failed as failed:
                self._note("failed", str(failed), None)
                return
            except BaseException as error:
                if self.stopping.is_set():
                    logger.debug("%s on Spark was broken off", self.node.name, exc_info=error)
                    break
                cause = explain(error) or error
                if isinstance(cause, FATAL) or type(cause) is Conflict:
                    self._note("failed", _line(cause), cause)
                    return
                failed_in_a_row = 1 if self.status.checkpoints > before else failed_in_a_row + 1
                self._note("restarting", _line(cause), cause)
                self.status.restarts += 1
                delay = backoff.delay(failed_in_a_row, self._rng)
                self.stopping.wait(0.0 if delay is None else delay.total_seconds())
        self.status.state = "stopped"

    def _note(self, state: Any, text: str, error: BaseException | None) -> None:
        self.status.state = state
        self.status.error = text
        logger.error("%s on Spark is %s: %s", self.node.name, state, text, exc_info=error)
        self.store.signals.tell(
            "store_error", self.node.name, (), self.store.now(), step=f"on Spark {state}", error=text
        )

    def _live(self) -> None:
        """From the moment it has the computation to itself until it ends or fails."""
        places = [place for index in range(self._resolved.tasks) for place in self._resolved.partitions_of(index)]
        # Whoever has the partitions of the group runs the computation, on Spark or elsewhere.
        with self.store.tailer(list(places), self.node.name, bytes, max_poll=self._max_poll) as tailer:
            drive = _Drive(self, tailer)
            try:
                drive.begin()
                self.status.partitions = list(range(self._resolved.tasks))
                self.status.state = "running"
                drive.work()
            finally:
                self.status.partitions = []
                drive.close()


class _Drive:
    """One life of a driver: what it knows is from the log store, or from its own batches."""

    def __init__(self, owner: ComputationDriver, tailer: Tailer[Any]) -> None:
        """It has the partitions."""
        self._owner = owner
        self._node = owner.node
        self._store = owner.store
        self._tailer = tailer
        self._event_time = DriverTime(owner.store, owner._resolved, owner._topology)
        self._log = BatchLog(owner.store, owner.node.name)
        self._spec = packed(
            TaskSpec(new_id(), owner._spec.url, owner._spec.topology, owner._spec.name, owner._resolved.writers)
        )
        self._repeat: MicroBatch | None = None
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-job-{owner.node.name}")
        self._job_group = f"{owner.node.name} {new_id()}"
        self._sign_of_life = time.monotonic()

    def begin(self) -> None:
        """Raise the epoch, then look up where the computation is: nobody else can move it from here on."""
        last = self._log.begin()
        self._owner._last.clear()
        self._planner = Planner(
            self._store, self._owner._resolved, self._event_time,
            most_records=self._owner._settings.checkpoint_records,
        )  # fmt: skip
        self._event_time.resume()
        self._repeat = self._planner.again(last)
        self._publish(at_once=True)

    def close(self) -> None:
        """End."""
        self._jobs.shutdown(wait=False, cancel_futures=True)
        self._event_time.close()

    # --- the loop ----------------------------------------------------------------------------------------

    def work(self) -> None:
        """Plan, write the plan down, let Spark compute it, commit it; until told to stop."""
        owner = self._owner
        # State is to be seen once: timers may be due. And init() is called whether records come or not.
        everybody = self._node.computation.keeps or self._node.computation.overrides("init")
        began = float("-inf")
        while not owner.stopping.is_set() and not owner.finished.is_set():
            self._show_life()
            if owner._finishing is None and time.monotonic() - began < owner._every:
                owner.stopping.wait(LOOK)
                continue
            if owner._finishing is not None and self._planner.ends is None:
                self._planner.end_input()
            batch = self._repeat or self._planner.next(
                everybody=everybody, finish=owner._finishing, skipped=owner.status.skipped
            )
            self._repeat = None
            if batch is None:
                if owner._finishing is not None and self._planner.is_read():
                    owner.finished.set()
                    continue
                self._report()
                owner.stopping.wait(LOOK)
                continue
            began = time.monotonic()
            self._log.plan(batch)
            self._commit(batch, self._computed(batch))
            everybody = False
            self._report()
        if owner.finished.is_set() and owner._finishing:
            self._event_time.offer_end()
        if owner.finished.is_set() or not owner.killed.is_set():
            self._publish(at_once=True)
        if owner.finished.is_set():
            owner.stopping.set()

    def _computed(self, batch: MicroBatch) -> list[TaskResult]:
        """Let Spark compute a batch as one job, of one task for each plan."""
        job: Future[list[bytes]] = self._jobs.submit(
            self._run_job, RunTask(self._spec, encoded(batch)), len(batch.tasks)
        )
        while True:
            try:
                results = job.result(LOOK)
                break
            except TimeoutError:
                if job.done():
                    raise  # the job's own
            self._show_life()
            if self._owner.killed.is_set():
                self._owner._context.cancelJobGroup(self._job_group)
                raise StoreUnavailable(f"{self._node.name} was broken off.")
        failpoints.point("spark.batch.computed")
        return sorted((decoded_result(result) for result in results), key=lambda result: result.index)

    def _run_job(self, task: RunTask, count: int) -> list[bytes]:
        """In a thread of its own: Spark knows jobs by their threads."""
        context = self._owner._context
        context.setJobGroup(self._job_group, f"a batch of {self._node.name}", interruptOnCancel=True)
        return list(context.parallelize(range(count), count).map(task).collect())

    def _commit(self, batch: MicroBatch, results: list[TaskResult]) -> None:
        """Make what a batch did visible, once, and go on from there."""
        before = self._planner.positions
        moved = {
            Partition(log, result.index): offset
            for result in results
            for log, offset in result.positions.items()
            if before.get(Partition(log, result.index)) != offset
        }
        has_appends = any(result.parts or result.staged for result in results)
        committed = Committed()
        if has_appends or moved:
            # Offsets that stay go with it too: whoever has lost its partitions is refused.
            mine = {
                place: offset for place, offset in before.items() if any(place.index == one.index for one in results)
            }
            committed = self._log.commit_batch(results, [(self._tailer.source, {**mine, **moved})])
        written = {place: appended[-1] + 1 for place, appended in committed.offsets.items() if len(appended)}
        self._planner.done(results, written)
        self._event_time.processed(results, has_written=has_appends)
        self._cut_state_logs(results)
        self._show(results)
        if self._owner._finishing is not None and batch.finish is not None:
            if all(result.finished for result in results):
                self._owner.finished.set()

    def _cut_state_logs(self, results: list[TaskResult]) -> None:
        for result in results:
            if result.state_needed_from is not None:
                cut_state_log(
                    self._store, Partition(state_log(self._node.name), result.index), result.state_needed_from
                )

    def _show(self, results: list[TaskResult]) -> None:
        """What the runner shows; raises if a task has failed for good."""
        status, last = self._owner.status, self._owner._last
        for result in results:
            last[result.index] = result
            for count in ("records", "produced", "timers", "failures", "skipped"):
                setattr(status, count, getattr(status, count) + getattr(result, count))
        status.checkpoints += 1
        lows = [result.low for result in last.values() if result.low != LOWEST]
        status.watermark = from_micros(min(max(min(lows), FIRST_TIME), LAST_TIME)) if lows else None
        errors = [result.error for result in results if result.error is not None]
        if errors:
            raise Failed(errors[0])

    # --- between two batches -----------------------------------------------------------------------------

    def _report(self) -> None:
        """Tell those that read the outputs how far they may go."""
        if self._event_time.reports:
            self._event_time.look(self._planner.positions)
            self._event_time.offer(self._planner.waiting)
            self._publish()

    def _publish(self, *, at_once: bool = False) -> None:
        tasks, reports = self._event_time.due(at_once=at_once)
        if tasks:
            # With the offsets: whoever has lost its partitions has nothing to report.
            offsets = {place: at for place, at in self._planner.positions.items() if place.index in tasks}
            self._log.commit(reports, [(self._tailer.source, offsets)])
            self._event_time.published(tasks)

    def _show_life(self) -> None:
        """Read a record, so that the partitions are not taken for abandoned; the tailer's positions mean nothing."""
        if time.monotonic() - self._sign_of_life > self._owner._max_poll.total_seconds() / SIGNS:
            self._sign_of_life = time.monotonic()
            self._tailer.read_batches(1)


def _line(error: BaseException) -> str:
    """An error in one line: of Spark's pages the last cause that is not Spark's own wrapping."""
    text = str(error).strip()
    causes = [
        cause for cause in _CAUSE.findall(text) if not cause.startswith(("py4j.", "pyspark.", "org.apache.spark."))
    ]
    if causes:
        return str(causes[-1])
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
