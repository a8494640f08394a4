"""The code path: a task's records go through the engine that a local runner has, one by one.

What a local runner commits in between (before a record that failed is tried alone, when much was produced) is
collected here: all of it becomes visible with the batch, or none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping

from penstock.clock import Micros
from penstock.errors import StoreCorrupt
from penstock.ids import new_nonce
from penstock.log.record import Partition, RecordBatch
from penstock.log.store import LogStore
from penstock.spark.runner.appends import TaskAppends
from penstock.spark.runner.fold_path import CODE, FEW, FOLD, open_fold_path
from penstock.spark.runner.micro_batch import MicroBatch, PostponedRecord, TaskPlan, TaskResult
from penstock.spark.runner.shipping import TaskSpec
from penstock.spark.runner.state import WorkerState
from penstock.spark.stores import logs_at
from penstock.stream.engine.changelog import state_log
from penstock.stream.engine.checkpoint import Checkpoint, Counts
from penstock.stream.engine.engine import Engine
from penstock.stream.engine.event_time import Positions, Silent
from penstock.stream.engine.permanent import failed_at, is_permanent
from penstock.stream.engine.retry import Stopped
from penstock.stream.engine.task import Task
from penstock.stream.validate import ResolvedTopology

logger = logging.getLogger(__name__)

READ = 5_000  # records that are taken at a time
SHORT_PAUSE = 1.0  # seconds; the driver waits for longer pauses between attempts
NEVER = 1 << 60  # records, and seconds: one batch, one checkpoint, but for what has to be collected at once


class PlannedRecords:
    """The records of a task's ranges, one input after the other."""

    def __init__(self, store: LogStore, plan: TaskPlan) -> None:
        """Nothing is read yet."""
        self.positions = {Partition(log, plan.index): start for log, (start, _) in plan.ranges.items()}
        self._ends = {Partition(log, plan.index): stop for log, (_, stop) in plan.ranges.items()}
        self._open: list[tuple[Partition, Iterator[RecordBatch]]] = [
            (partition, iter(store.batches(partition, start, self._ends[partition])))
            for partition, start in self.positions.items()
            if start < self._ends[partition]
        ]
        self._rest: RecordBatch | None = None
        self.damage: StoreCorrupt | None = None  # nothing behind it is read

    @property
    def is_over(self) -> bool:
        """Whether all was read."""
        return not self._open and self._rest is None

    def read(self, limit: int) -> Iterator[RecordBatch]:
        """Batches up to ``limit`` records."""
        count = 0
        while count < limit and (batch := self._next()) is not None:
            if len(batch) > limit - count:
                self._rest = batch.slice(limit - count, len(batch))
                batch = batch.slice(0, limit - count)
            count += len(batch)
            self.positions[batch.partition] = batch.next_offset
            yield batch

    def _next(self) -> RecordBatch | None:
        if self._rest is not None:
            batch, self._rest = self._rest, None
            return batch
        while self._open:
            partition, batches = self._open[0]
            try:
                filled = next((batch for batch in batches if len(batch)), None)
            except StoreCorrupt as damage:
                self.damage = damage
                self._open.clear()
                return None
            if filled is not None:
                return filled
            self.positions[partition] = self._ends[partition]  # also behind marks of transactions
            self._open.pop(0)
        return None


class PlannedTime:
    """Event time from the plan: the driver reads the reports of others and writes those of this computation."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        """``inputs``: streams by the computation's own names."""
        self._inputs = inputs
        self.plan = TaskPlan(0)

    def observe(self, tasks: Collection[Task], positions: Positions, now: Micros) -> Mapping[int, Silent]:
        """How far event time is in the inputs, before the planned ranges and after them."""
        plan = self.plan
        for task in tasks:
            task.watermark.firm = max(task.watermark.firm, plan.firm)
            for local, (before, behind) in plan.reaches.items():
                log = self._inputs[local]
                _, end = plan.ranges.get(log, (0, 0))
                position = positions.get(Partition(log, task.index), end)
                task.watermark.set_reach(local, behind if position >= end else before)
        return {task.index: plan.silent for task in tasks}


class PartitionTask:
    """A task of a computation in a worker; it stays there for its next batches."""

    def __init__(self, spec: TaskSpec, index: int) -> None:
        """Nothing is read yet."""
        self.spec = spec
        self.index = index
        self.store = logs_at(spec.url)
        node = spec.topology.nodes[spec.name]
        topology = ResolvedTopology(spec.topology, self.store, create=False, writers=spec.writers)
        self.resolved = topology.computation(self.store, node)._replace(reports_time=False)  # the driver reports
        self.counts = Counts()
        self._now: Micros = 0
        self.event_time = PlannedTime(node.inputs)
        self.engine = Engine(
            self.resolved, self.event_time, clock=self.now, counts=self.counts, checkpoint_records=NEVER,
            checkpoint_seconds=NEVER,
        )  # fmt: skip
        self.engine.is_hurried = True  # a batch takes what there is
        known = next(iter(self.resolved.inputs.values()))
        self._fold_path = open_fold_path(self.store, node.computation, known.codec)
        self._state = WorkerState(self.store, self.resolved, self.engine, index)
        self._state_partition = Partition(state_log(node.name), index)
        self._streams = {stream: local for local, stream in node.inputs.items()}
        self._positions: dict[Partition, int] = {}
        self._appends = TaskAppends(self.store)
        self._needed_from: int | None = None
        self._retry: PostponedRecord | None = None

    def now(self) -> Micros:
        """The time of the batch: a repeated one has the same."""
        return self._now

    def __len__(self) -> int:
        """How many entries of state it holds."""
        task = self.engine.tasks.get(self.index)
        return 0 if task is None else sum(cell.entry_count() for cell in task.cells.values()) + len(task.timers)

    def abandon(self) -> None:
        """Drop the task: it has no further batches."""
        self.engine.abandon()

    # --- a batch -----------------------------------------------------------------------------------------

    def prepare(self, batch: MicroBatch, plan: TaskPlan) -> Task:
        """Begin a batch, with the current state."""
        self._now = batch.now
        self.event_time.plan = plan
        for name in Counts.__struct_fields__:
            setattr(self.counts, name, 0)
        self.counts.skipped = batch.skipped
        self._appends = TaskAppends(self.store)
        self._needed_from = self._retry = None
        task = self._state.prepare(plan)
        starts = {log: start for log, (start, _) in plan.ranges.items()}
        self._positions = {Partition(log, self.index): at for log, at in {**plan.positions, **starts}.items()}
        self.engine.seek(self._positions)
        return task

    def run(self, batch: MicroBatch, plan: TaskPlan) -> TaskResult:
        """Process all records of the plan, then the end of the input. Raises transient errors."""
        error: str | None = None
        finished, path = False, FOLD
        try:
            if not self._fold(plan):
                path = CODE
                records = PlannedRecords(self.store, plan)
                self._process(records, plan)
                if records.damage is not None and self._retry is None:
                    raise records.damage  # with all that comes before it done
            if batch.finish is not None and self._retry is None:
                finished = self._end_input(batch.finish)
        except Stopped as stopped:
            error = _text(stopped.__cause__ or stopped)
        except Exception as raised:
            if not is_permanent(raised):
                self._appends.discard()
                raise
            error = _text(failed_at(self.spec.name, raised, self.engine.position or plan.position))
        except BaseException:
            self._appends.discard()
            raise
        return self.result(batch, path, error=error, finished=finished)

    def _fold(self, plan: TaskPlan) -> bool:
        """Fold all records of the plan at once. Returns False, and does nothing, if they have to go one by one."""
        fold_path = self._fold_path
        waiting = sum(stop - start for start, stop in plan.ranges.values())
        if fold_path is None or plan.retry is not None or waiting < FEW:
            return False
        ((local, known),) = self.resolved.inputs.items()
        ends = {Partition(log, self.index): stop for log, (_, stop) in plan.ranges.items()}
        self.engine.read_to = {**self._positions, **ends}
        try:
            checkpoint = self.engine.fold(self.index, lambda task: fold_path.run(task, plan, local, known.stream))
        except Exception:
            # A record is bad: processing record by record finds it, and applies the policy.
            logger.debug("%s does not fold this batch", self.spec.name, exc_info=True)
            return False
        self.collect(checkpoint)
        return True

    def _process(self, records: PlannedRecords, plan: TaskPlan) -> None:
        engine = self.engine
        while self._retry is None:
            if not engine.queue.waiting and not records.is_over:
                self._feed(records, plan.retry)
            if self._step() or not engine.is_settled or not records.is_over:
                continue
            checkpoint = engine.checkpoint()
            if checkpoint is not None:
                self.collect(checkpoint)
                if engine.is_settled:
                    return

    def _end_input(self, final: bool) -> bool:
        self.engine.end_input(final)
        while not self.engine.has_ended and self._retry is None:
            self._step()
        return self.engine.has_ended

    def _feed(self, records: PlannedRecords, retry: PostponedRecord | None) -> None:
        for batch in records.read(READ):
            stream = self._streams[batch.partition.log]
            batch.codec = self.resolved.inputs[stream].codec
            failed = 0
            if retry is not None and (retry.log, retry.offset) == (batch.partition.log, batch.offsets[0]):
                error = RuntimeError(retry.error)
                self.engine.feed_failed(self.index, stream, batch.slice(0, 1), error, retry.attempts)
                failed = 1
            self.engine.feed(self.index, stream, batch.slice(failed, len(batch)) if failed else batch)
        self.engine.read_to = {**self.engine.read_to, **records.positions}

    def _step(self) -> bool:
        """Let the engine work. Returns whether a checkpoint was collected or a failed record has to wait."""
        checkpoint = self.engine.step()
        if checkpoint is not None:
            self.collect(checkpoint)
            return True
        failure, record = self.engine.retrying, self.engine.failing_record
        if failure is None:
            return False
        if failure.wait > SHORT_PAUSE and record is not None:
            # What came before it was collected when it failed.
            offset, pause = record.records[0].offset, int(failure.wait * 1e6)
            self._retry = PostponedRecord(record.partition.log, offset, failure.attempts, _text(failure.error), pause)
        else:
            threading.Event().wait(failure.wait)
        return True

    def collect(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint to the batch."""
        if not checkpoint.is_empty:
            self._appends.add(checkpoint.appends())
        # The offsets of its records are not known yet, but they are not before the end of the state log.
        ends = {self._state_partition: self._state.end} if checkpoint.state else {}
        cuts = self.engine.committed(checkpoint, ends)
        self._needed_from = cuts.get(self._state_partition, self._needed_from)
        self._positions.update(checkpoint.offsets)

    def result(self, batch: MicroBatch, path: str, *, error: str | None = None, finished: bool = False) -> TaskResult:
        """The result of the batch."""
        self.engine.drop_work()
        task = self.engine.tasks[self.index]
        parts, staged = self._appends.close()
        counts = self.counts
        low, highs = task.watermark.position()
        result = TaskResult(
            self.index, new_nonce(), path, {place.log: at for place, at in self._positions.items()}, parts, staged,
            counts.records, counts.produced, counts.timers, counts.failures, counts.skipped - batch.skipped, low,
            highs, dict(task.watermark.heard), task.watermark.firm, task.watermark.promise, task.next_event(),
            task.timers.next("processing"), self._needed_from, self._retry, error, finished,
        )  # fmt: skip
        self._state.hold(result.id)
        return result


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
