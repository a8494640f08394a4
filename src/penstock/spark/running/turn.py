"""One turn of one task, in a worker: the ranges of its errand through the same engine that a local runner has.

What a local runner commits in between (before a record that failed is tried alone, when much was produced) is put
aside here: all of it becomes visible with the batch, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import cast

from penstock.clock import Micros
from penstock.errors import BadInput, SchemaMismatch
from penstock.log.record import Partition, RecordBatch
from penstock.log.store import Commit, LogStore
from penstock.spark.running.buckets import Kept, StateBuckets
from penstock.spark.running.desk import Desk
from penstock.spark.running.sending import Load
from penstock.spark.running.tickets import Again, Done, Errand
from penstock.spark.stores import logs_at
from penstock.stream.engine.checkpoint import Appends, Checkpoint, Counts
from penstock.stream.engine.engine import Engine
from penstock.stream.engine.event_time import Positions, Silent
from penstock.stream.engine.resolved import ResolvedComputation
from penstock.stream.engine.retry import Stopped
from penstock.stream.engine.state_store import Entry
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import LOWEST, SilentInput
from penstock.stream.local.event_time import guess_time
from penstock.stream.timers import Timer
from penstock.stream.validate import ResolvedTopology

READ = 5_000  # records that are taken at a time
SHORT = 1.0  # seconds; longer pauses between attempts are waited for by the driver
NEVER = 1 << 60  # records, and seconds: one turn, one checkpoint, but for what has to be put aside at once


class Ranges:
    """The records of an errand."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.positions: dict[Partition, int] = {}
        self._open: list[tuple[Partition, Iterator[RecordBatch]]] = []
        self._ends: dict[Partition, int] = {}
        self._cut: RecordBatch | None = None

    def give(self, index: int, ranges: Mapping[str, tuple[int, int]]) -> None:
        """The ranges of a turn."""
        self._cut = None
        self._open = []
        self.positions = {Partition(log, index): start for log, (start, _) in ranges.items()}
        self._ends = {Partition(log, index): stop for log, (_, stop) in ranges.items()}
        for partition, start in self.positions.items():
            if start < self._ends[partition]:
                batches = self._store.batches(partition, start, self._ends[partition])
                self._open.append((partition, iter(batches)))

    @property
    def is_over(self) -> bool:
        """Whether all was read."""
        return not self._open and self._cut is None

    def read(self, limit: int) -> Iterator[RecordBatch]:
        """Batches up to ``limit`` records, one input after the other."""
        count = 0
        while count < limit and (batch := self._next()) is not None:
            if len(batch) > limit - count:
                self._cut = batch.slice(limit - count, len(batch))
                batch = batch.slice(0, limit - count)
            count += len(batch)
            self.positions[batch.partition] = batch.next_offset
            yield batch

    def _next(self) -> RecordBatch | None:
        if self._cut is not None:
            batch, self._cut = self._cut, None
            return batch
        while self._open:
            partition, batches = self._open[0]
            for batch in batches:
                if len(batch):
                    return batch
            self.positions[partition] = self._ends[partition]  # also behind marks of transactions
            self._open.pop(0)
        return None


class TicketTime:
    """Event time as the ticket says; the driver reads the reports of others and writes those of this computation."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def observe(self, tasks: Collection[Task], positions: Positions, now: Micros) -> Mapping[int, Silent]:
        """How far the inputs count, before the ranges of the errand and once they are processed."""
        job = self._turn.errand.job
        for task in tasks:
            task.watermark.firm = max(task.watermark.firm, job.firm)
            for local, (before, then) in job.reaches.items():
                log = self._turn.engine.node.inputs[local]
                _, end = job.ranges.get(log, (0, 0))
                at = positions.get(Partition(log, task.index), end)
                task.watermark.set_reach(local, then if at >= end else before)
        return {task.index: job.silent for task in tasks}


class KeptTask(Task):
    """A task whose state and timers are in Spark's state store."""

    def __init__(self, turn: Turn, resolved: ResolvedComputation) -> None:
        super().__init__(resolved, turn.index, turn.store.now)
        self.changelog = None
        self._turn = turn
        self.buckets = StateBuckets(self.computation, self.cells, self.timers) if self.computation.keeps else None
        self._changed: list[Entry] = []

    def load_kept(self) -> None:
        """Read what is kept; without state, what the driver knows of time."""
        job = self._turn.errand.job
        if self.buckets is not None:
            assert self._turn.kept is not None  # noqa: S101 - goes with the buckets
            self.buckets.open(self._turn.kept)
            self.buckets.restore(self.watermark)
            self.buckets.need(())
        elif job.low != LOWEST:
            self.watermark.load(job.low, job.highs)
        else:
            guess_time(self, self._turn.store, self._turn.engine.node)
        self.ctx.low = self.watermark.low

    def move(self, silent: Mapping[str, SilentInput]) -> None:
        """Move the watermark, and read the timers that are due then."""
        super().move(silent)
        if self.buckets is not None:
            self.buckets.need_timers("event", self.watermark.low)
            self.buckets.need_timers("processing", self._turn.errand.now)
            if any(cell.ttl for cell in self.cells.values()):
                self.buckets.sweep()

    def end_of_input(self) -> list[Timer]:
        """All event-time timers."""
        if self.buckets is not None:
            self.buckets.need_timers("event", 1 << 62)
        return super().end_of_input()

    def state_records(self, now: Micros, offsets: dict[str, int]) -> Appends:
        """Nothing for the log; it is noted when the checkpoint holds."""
        self._changed = self.changed(now) if self.buckets is not None else []
        return []

    def committed(self, ends: Mapping[Partition, int]) -> int | None:
        """The checkpoint holds."""
        if self.buckets is not None:
            self.buckets.note(self._changed)
            self._changed = []
        return super().committed(ends)


class Turn:
    """A task in a worker; kept there for its next turns."""

    def __init__(self, load: Load, task: int) -> None:
        """Nothing is read yet."""
        self.load = load
        self.index = task
        self.kept: Kept | None = None
        self.errand: Errand
        self._later: Again | None = None
        self._finished = False
        self._desk = Desk(logs_at(load.url))
        store = self.store = cast(LogStore, self._desk)
        topology = ResolvedTopology(load.topology, store, create=False, writers=load.writers)
        node = load.topology.nodes[load.name]
        resolved = topology.computation(store, node)._replace(reports_time=False)  # the driver reports
        self._resolved = resolved
        self._names = {stream: local for local, stream in node.inputs.items()}
        self._counts = Counts()
        self._positions: dict[Partition, int] = {}
        self._ranges = Ranges(store)
        self.engine = Engine(
            resolved, TicketTime(self), clock=store.now, counts=self._counts, checkpoint_records=NEVER,
            checkpoint_seconds=NEVER,
        )  # fmt: skip
        self.engine.is_hurried = True  # a batch takes what there is

    @property
    def buckets(self) -> StateBuckets | None:
        """Where its state is; None if it has none, or has not begun."""
        task = self.engine.tasks.get(self.index)
        return task.buckets if isinstance(task, KeptTask) else None

    def is_current(self, kept: Kept | None) -> bool:
        """Whether it has exactly the state that the state store has."""
        if not self.engine.tasks:
            return False
        return kept is None or (self.buckets is not None and self.buckets.mark == StateBuckets.mark_of(kept))

    def __len__(self) -> int:
        """How many entries of state it holds."""
        return 0 if self.buckets is None else len(self.buckets)

    def abandon(self) -> None:
        """It has no further turns."""
        self.engine.abandon()

    def run(self, errand: Errand, kept: Kept | None) -> Done:
        """Do an errand; raises for what another attempt may help against."""
        self.errand, self.kept, self._later, self._finished = errand, kept, None, False
        self._desk.begin(errand.now)
        for name in Counts.__struct_fields__:
            setattr(self._counts, name, 0)
        self._counts.skipped = errand.skipped
        self._ranges.give(self.index, errand.job.ranges)
        self._positions = dict(self._ranges.positions)
        self.engine.seek(self._positions)
        if self.buckets is not None and kept is not None:
            self.buckets.open(kept)
        error: str | None = None
        try:
            self._work(errand.finish)
        except Stopped as stopped:
            error = _text(stopped.__cause__ or stopped)
        except (SchemaMismatch, BadInput) as bad:
            error = _text(bad)  # trying again would not help
        except BaseException:
            self._desk.discard()
            raise
        return self._done(error)

    def _work(self, finish: bool | None) -> None:
        engine = self.engine
        if not engine.tasks:
            task = KeptTask(self, self._resolved)
            task.load_kept()
            engine.add(task, {})
        while self._later is None:
            if not engine.queue.waiting and not self._ranges.is_over:
                self._feed()
            if self._step():
                continue
            if not engine.is_settled or not self._ranges.is_over:
                continue
            checkpoint = engine.checkpoint()
            if checkpoint is not None:
                self._put_aside(checkpoint)
                if engine.is_settled:
                    break
        if finish is None or self._later is not None:
            return  # what came before a record that is tried again was put aside when it failed
        engine.end_input(finish)
        while not engine.has_ended and self._later is None:
            self._step()
        self._finished = engine.has_ended

    def _step(self) -> bool:
        """Let the engine work; whether a checkpoint was put aside, or something that failed is to be waited for."""
        checkpoint = self.engine.step()
        if checkpoint is not None:
            self._put_aside(checkpoint)
            return True
        failure, record = self.engine.retrying, self.engine.failing_record
        if failure is None:
            return False
        if failure.wait > SHORT and record is not None:
            offset = record.records[0].offset
            pause = int(failure.wait * 1e6)
            self._later = Again(record.partition.log, offset, failure.attempts, _text(failure.error), pause)
        else:
            threading.Event().wait(failure.wait)
        return True

    def _feed(self) -> None:
        again = self.errand.job.again
        for batch in self._ranges.read(READ):
            stream = self._names[batch.partition.log]
            batch.codec = self._resolved.inputs[stream].codec
            if self.buckets is not None:
                self.buckets.need(batch.keys())
            if again is not None and (again.log, again.offset) == (batch.partition.log, batch.offsets[0]):
                error = RuntimeError(again.error)
                self.engine.feed_failed(self.index, stream, batch.slice(0, 1), error, again.attempt)
                self.engine.feed(self.index, stream, batch.slice(1, len(batch)))
            else:
                self.engine.feed(self.index, stream, batch)
        self.engine.read_to = dict(self._ranges.positions)

    def _put_aside(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.is_empty:
            self._desk.transact(Commit(checkpoint.appends(), []))
        self.engine.committed(checkpoint, {})
        self._positions.update(checkpoint.offsets)

    def _done(self, error: str | None) -> Done:
        self.engine.drop_work()
        counts, task = self._counts, self.engine.tasks.get(self.index)
        done = Done(
            self.index, self.errand.turn, {place.log: at for place, at in self._positions.items()}, [], counts.records,
            counts.produced, counts.timers, counts.failures, counts.skipped - self.errand.skipped, error=error,
            again=self._later, finished=self._finished,
        )  # fmt: skip
        if isinstance(task, KeptTask):
            done.low, done.highs = task.watermark.position()
            done.heard = dict(task.watermark.heard)
            done.firm, done.promise = task.watermark.firm, task.watermark.promise
            if task.buckets is not None:
                task.buckets.save(task.watermark, done.positions)
                done.next_event = task.buckets.next("event")
                done.next_processing = task.buckets.next("processing")
        done.staged = self._desk.staged()
        return done


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
