"""The loop of a computation on Spark: plan a batch, write the plan down, let Spark compute it, commit it.

It knows what the log store and its own batches say: the offsets of the group, the state log, and the last plan that
was written down tell how far the computation is.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from typing import Any

from penstock import failpoints
from penstock.clock import FIRST_TIME, LAST_TIME, duration, from_micros
from penstock.errors import StoreUnavailable
from penstock.log.protocol import Committed
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer
from penstock.spark.runner.commit import BatchLog
from penstock.spark.runner.event_time import DriverTime
from penstock.spark.runner.jobs import SparkJobs
from penstock.spark.runner.micro_batch import MicroBatch, TaskResult
from penstock.spark.runner.planner import Planner
from penstock.stream.engine.changelog import state_log
from penstock.stream.engine.resolved import ResolvedComputation
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.internal_logs import cut_state_log
from penstock.stream.runner import Settings, Status
from penstock.stream.topology import Topology

LOOK = 0.02  # seconds after which an idle loop checks its orders
SIGNS = 4  # of life within max_poll


class Failed(Exception):
    """A computation has failed for good: its policy says stop."""


class Control:
    """What a loop should do, set by its runner."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.stopping = threading.Event()  # after the batch under way
        self.killed = threading.Event()  # at once
        self.finishing: bool | None = None  # True: the input has ended; False: only drain
        self.finished = threading.Event()  # finishing is done


class BatchLoop:
    """One life of a computation's driver, from the moment it has the computation to itself."""

    def __init__(
        self, store: LogStore, topology: Topology, resolved: ResolvedComputation, tailer: Tailer[Any], jobs: SparkJobs,
        *, settings: Settings, status: Status, control: Control, results: dict[int, TaskResult],
    ) -> None:  # fmt: skip
        """``tailer`` has all partitions; ``results`` gets the last result of each task."""
        self._store = store
        self._node = resolved.node
        self._tailer = tailer
        self._jobs = jobs
        self._status = status
        self._control = control
        self._results = results
        self._every = duration(settings.checkpoint_every, name="checkpoint_every").total_seconds()
        self._life = duration(settings.max_poll, name="max_poll").total_seconds() / SIGNS
        self._sign_of_life = time.monotonic()
        results.clear()
        # The epoch comes first: from here on no other driver can move the computation.
        self._log = BatchLog(store, self._node.name)
        last = self._log.begin()
        self._event_time = DriverTime(store, resolved, topology)
        self._event_time.resume()
        self._planner = Planner(store, resolved, self._event_time, most_records=settings.checkpoint_records)
        self._repeat = self._planner.again(last)  # what the previous driver had planned and not done
        self._publish(at_once=True)

    def close(self) -> None:
        """End."""
        self._event_time.close()

    # --- the loop ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run batch after batch, until told to stop."""
        control = self._control
        # State is looked at once: timers may be due. And init() is called whether records come or not.
        everybody = self._node.computation.keeps or self._node.computation.overrides("init")
        began = float("-inf")
        while not control.stopping.is_set() and not control.finished.is_set():
            self._show_life()
            if control.finishing is None and time.monotonic() - began < self._every:
                control.stopping.wait(LOOK)
                continue
            repeated, self._repeat = self._repeat, None
            batch = repeated or self._next(everybody=everybody)
            if batch is None:
                self._rest()
                continue
            began, everybody = time.monotonic(), everybody and repeated is not None
            self._log.plan(batch)
            self._commit(batch, self._computed(batch))
            self._report()
        if control.finished.is_set() and control.finishing:
            self._event_time.offer_end()
        if not control.killed.is_set():
            self._publish(at_once=True)

    def _next(self, *, everybody: bool) -> MicroBatch | None:
        """The next batch, or None if there is nothing to do."""
        finishing = self._control.finishing
        if finishing is not None and self._planner.ends is None:
            self._planner.end_input()
        return self._planner.next(everybody=everybody, finish=finishing, skipped=self._status.skipped)

    def _rest(self) -> None:
        """With nothing to do: finish if the input has ended, else report event time."""
        # Do not rely on requests: one may have come after the check that found nothing.
        if self._planner.ends is not None and self._planner.is_read():
            self._control.finished.set()
            return
        self._report()
        self._control.stopping.wait(LOOK)

    def _computed(self, batch: MicroBatch) -> list[TaskResult]:
        """Let Spark compute a batch."""
        job = self._jobs.start(batch)
        while not wait((job,), LOOK).done:
            self._show_life()
            if self._control.killed.is_set():
                self._jobs.cancel()
                raise StoreUnavailable(f"{self._node.name} was interrupted.")
        results = job.result()
        failpoints.point("spark.batch.computed")
        return results

    def _commit(self, batch: MicroBatch, results: list[TaskResult]) -> None:
        """Make what a batch did visible: everything in it, or nothing."""
        # 1. One transaction: outputs, state and timers, dead letters, and the input offsets. Offsets that stay go with
        #    it too: a driver that has lost its partitions is refused.
        offsets = {
            **self._planner.positions_of({result.index for result in results}),
            **{Partition(log, result.index): at for result in results for log, at in result.positions.items()},
        }
        has_appends = any(result.parts or result.staged for result in results)
        committed = Committed()
        if has_appends or any(self._planner.positions.get(place) != at for place, at in offsets.items()):
            committed = self._log.commit_batch(results, [(self._tailer.source, offsets)])
        # 2. Where the next batch begins, and which state it uses.
        written = {place: appended[-1] + 1 for place, appended in committed.offsets.items() if len(appended)}
        self._planner.done(results, written)
        self._event_time.processed(results, has_written=has_appends)
        # 3. The state logs lose what was written again.
        for result in results:
            if result.state_needed_from is not None:
                partition = Partition(state_log(self._node.name), result.index)
                cut_state_log(self._store, partition, result.state_needed_from)
        # 4. What the runner shows.
        self._show(results)
        if batch.finish is not None and all(result.finished for result in results):
            self._control.finished.set()

    def _show(self, results: list[TaskResult]) -> None:
        """Update the counts. Raises if a task has failed for good."""
        status = self._status
        for result in results:
            self._results[result.index] = result
            for count in ("records", "produced", "timers", "failures", "skipped"):
                setattr(status, count, getattr(status, count) + getattr(result, count))
        status.checkpoints += 1
        lows = [result.low for result in self._results.values() if result.low != LOWEST]
        status.watermark = from_micros(min(max(min(lows), FIRST_TIME), LAST_TIME)) if lows else None
        errors = [result.error for result in results if result.error is not None]
        if errors:
            raise Failed(errors[0])

    # --- between two batches -----------------------------------------------------------------------------

    def _report(self) -> None:
        """Report event time to the readers of the outputs."""
        if self._event_time.reports:
            self._event_time.look(self._planner.positions)
            self._event_time.offer(self._planner.waiting)
            self._publish()

    def _publish(self, *, at_once: bool = False) -> None:
        tasks, reports = self._event_time.due(at_once=at_once)
        if tasks:
            # With the offsets: a driver that has lost its partitions has nothing to report.
            self._log.commit(reports, [(self._tailer.source, self._planner.positions_of(tasks))])
            self._event_time.published(tasks)

    def _show_life(self) -> None:
        """Read a record, so that the partitions are not taken for abandoned; the tailer's positions mean nothing."""
        if time.monotonic() - self._sign_of_life > self._life:
            self._sign_of_life = time.monotonic()
            self._tailer.read_batches(1)
