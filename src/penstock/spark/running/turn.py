"""One turn of one task, in a worker: the ranges of its errand through the same code that a local runner has.

What a local runner commits in between (before a record that failed is tried alone, when much was produced) is put
aside here: all of it becomes visible with the batch, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import cast

from penstock.clock import Micros, duration_micros
from penstock.errors import BadInput, SchemaMismatch
from penstock.log.record import NewRecords, Partition, RecordBatch
from penstock.log.store import LogStore, Source
from penstock.spark.running.buckets import Kept, StateBuckets
from penstock.spark.running.desk import Desk
from penstock.spark.running.sending import Load
from penstock.spark.running.tickets import Again, Done, Errand
from penstock.spark.stores import logs_at
from penstock.stream.checks import Plan
from penstock.stream.intake import Intake
from penstock.stream.runner import Settings, Status
from penstock.stream.shift import Shift
from penstock.stream.state import Entry
from penstock.stream.task import Task
from penstock.stream.timekeeping import Positions, Timekeeper
from penstock.stream.timers import Timer
from penstock.stream.watermark import LOWEST, SilentInput
from penstock.stream.work import Orders, Stopped, Work

READ = 5_000  # records that are taken at a time
SHORT = timedelta(seconds=1)  # longer pauses between attempts are waited for by the driver
SETTINGS = Settings(checkpoint_records=1 << 60, checkpoint_every="365d", read=READ)


class Ranges(Intake):
    """The records of an errand, as an intake."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.store = turn.store
        self.node = turn.node
        self._locals = {stream: local for local, stream in turn.node.inputs.items()}
        self._coders = {stream: turn.plan.topology.streams[stream].coder for stream in self._locals}
        self._at: dict[Partition, int] = {}
        self._open: list[tuple[Partition, Iterator[RecordBatch]]] = []
        self._ends: dict[Partition, int] = {}
        self._cut: RecordBatch | None = None

    def give(self, index: int, ranges: dict[str, tuple[int, int]]) -> None:
        """The ranges of a turn."""
        self._cut = None
        self._open = []
        self._at = {Partition(log, index): start for log, (start, _) in ranges.items()}
        self._ends = {Partition(log, index): stop for log, (_, stop) in ranges.items()}
        for place, start in self._at.items():
            if start < self._ends[place]:
                self._open.append((place, iter(self.store.batches(place, start, self._ends[place]))))

    @property
    def is_over(self) -> bool:
        """Whether all was read."""
        return not self._open and self._cut is None

    def read(self, limit: int, wait: timedelta) -> Iterator[tuple[int, str, RecordBatch]]:
        """Batches up to ``limit`` records, one input after the other."""
        self._turn.take_up()
        count = 0
        while count < limit and (batch := self._next()) is not None:
            if len(batch) > limit - count:
                self._cut = batch.slice(limit - count, len(batch))
                batch = batch.slice(0, limit - count)
            count += len(batch)
            place = batch.partition
            batch.codec = self._coders[place.log]
            self._at[place] = batch.next_offset
            yield place.index, self._locals[place.log], batch

    def _next(self) -> RecordBatch | None:
        if self._cut is not None:
            batch, self._cut = self._cut, None
            return batch
        while self._open:
            place, batches = self._open[0]
            for batch in batches:
                if len(batch):
                    return batch
            self._at[place] = self._ends[place]  # also behind marks of transactions, which are no records
            self._open.pop(0)
        return None

    def positions(self) -> Iterator[tuple[Source, Partition, int]]:
        """Where every partition is read on."""
        source = cast(Source, self)
        return ((source, place, at) for place, at in self._at.items())

    def follow(self, index: int) -> bool:
        """All inputs are here."""
        return True

    def is_seen(self, index: int, offsets: dict[str, int]) -> bool:
        """State and offsets go together."""
        return True

    def seek(self, index: int, offsets: dict[str, int]) -> dict[Partition, int]:
        """The ticket says where to begin."""
        return {}

    def beat(self) -> list[tuple[int, str, RecordBatch]]:
        """Nobody waits for a sign of life."""
        return []

    def drop(self, index: int) -> None:
        """Nothing to let go."""

    def close(self) -> None:
        """Nothing to let go."""


class TicketTime(Timekeeper):
    """Event time as the ticket says; the driver reads the reports of others and writes those of this computation."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn.store, turn.plan, turn.node)
        self.reports = False
        self._turn = turn

    def look(self, tasks: Iterable[Task], positions: Positions) -> None:
        """How far the inputs count, before the ranges of the errand and once they are processed."""
        job = self._turn.errand.job
        for task in tasks:
            task.watermark.firm = max(task.watermark.firm, job.firm)
            for local, (before, then) in job.reaches.items():
                log = self.node.inputs[local]
                _, end = job.ranges.get(log, (0, 0))
                at = positions.get(Partition(log, task.index), end)
                task.watermark.set_reach(local, then if at >= end else before)

    def silent(self, task: Task, positions: Positions, now: Micros) -> Mapping[str, SilentInput]:
        """As the driver has seen it."""
        return self._turn.errand.job.silent

    def add(self, index: int) -> None:
        """Nothing is read here."""


class KeptTask(Task):
    """A task whose state and timers are in Spark's state store."""

    def __init__(self, turn: Turn, index: int) -> None:
        super().__init__(turn.store, turn.plan, turn.node, index)
        self._changelog = None
        self.publisher = None  # the driver reports
        self._turn = turn
        self.buckets = StateBuckets(self.computation, self.cells, self.timers) if self.computation.keeps else None
        self._changed: list[Entry] = []

    def restore(self) -> dict[str, int]:
        """Read what is kept; without state, what the driver knows of time."""
        if self.buckets is not None:
            assert self._turn.kept is not None  # noqa: S101 - goes with the buckets
            self.buckets.open(self._turn.kept)
            self.buckets.restore(self.watermark)
            self.buckets.need(())
        elif self._turn.errand.job.low != LOWEST:
            self.watermark.load(self._turn.errand.job.low, self._turn.errand.job.highs)
        else:
            self._guess_time()
        self.ctx.low = self.watermark.low
        return {}

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

    def changes(self, now: Micros, offsets: dict[str, int]) -> list[tuple[Partition, NewRecords]]:
        """Nothing for the log; it is noted when the checkpoint holds."""
        self._changed = self.changed(now) if self.buckets is not None else []
        return []

    def committed(self, ends: dict[Partition, int]) -> None:
        """The checkpoint holds."""
        if self.buckets is not None:
            self.buckets.note(self._changed)
            self._changed = []
        super().committed(ends)


class Turn(Shift):
    """A task in a worker; kept there for its next turns."""

    def __init__(self, load: Load, task: int) -> None:
        """Nothing is read yet."""
        self.load = load
        self.index = task
        self.kept: Kept | None = None
        self.errand: Errand
        self.later: Again | None = None
        self._rested = self._finished = False
        self._desk = Desk(logs_at(load.url))
        store = cast(LogStore, self._desk)
        plan = Plan(load.topology, store, create=False, writers=load.writers)
        super().__init__(
            store, plan, load.topology.nodes[load.name], settings=SETTINGS, status=Status(load.name, task),
            orders=Orders(),
        )  # fmt: skip
        self.orders.draining = True  # a batch takes what there is

    def _make_intake(self) -> Intake:
        return Ranges(self)

    def _make_timekeeper(self) -> Timekeeper:
        return TicketTime(self)

    def _make_task(self, index: int) -> Task:
        return KeptTask(self, index)

    @property
    def ranges(self) -> Ranges:
        """The intake."""
        return cast(Ranges, self._intake)

    @property
    def task(self) -> KeptTask:
        """The one task it has."""
        return cast(KeptTask, self.tasks[self.index])

    @property
    def buckets(self) -> StateBuckets | None:
        """Where its state is; None if it has none, or has not begun."""
        return self.task.buckets if self.tasks else None

    def is_current(self, kept: Kept | None) -> bool:
        """Whether it has exactly the state that the state store has."""
        if not self.tasks:
            return False
        return kept is None or (self.buckets is not None and self.buckets.mark == StateBuckets.mark_of(kept))

    def __len__(self) -> int:
        """How many entries of state it holds."""
        return 0 if self.buckets is None else len(self.buckets)

    def take_up(self) -> None:
        """Before the first records."""
        if not self.tasks and not self.arrived:
            self._taken([self.index])

    def run(self, errand: Errand, kept: Kept | None) -> Done:
        """Do an errand; raises for what another attempt may help against."""
        self.errand, self.kept, self.later, self._finished = errand, kept, None, False
        self.orders.stopping.clear()
        self._rested = errand.job.again is not None
        self._desk.begin(errand.now)
        self.status = Status(self.node.name, self.index, skipped=errand.skipped)
        self.ranges.give(self.index, errand.job.ranges)
        self._kept = {Partition(log, self.index): start for log, (start, _) in errand.job.ranges.items()}
        if self.buckets is not None and kept is not None:
            self.buckets.open(kept)
        error: str | None = None
        try:
            self._go(errand.finish)
        except Stopped as stopped:
            error = _text(stopped.__cause__ or stopped)
        except (SchemaMismatch, BadInput) as bad:
            error = _text(bad)  # trying again would not help
        except BaseException:
            self._desk.discard()
            raise
        return self._done(error)

    def _go(self, finish: bool | None) -> None:
        while True:
            self.turn()
            if self.later is None and not (self.ranges.is_over and not self._backlog and not self._filling):
                continue
            if self.later is not None:
                self._backlog.clear()
                return  # what came before it was committed when it was found
            self.checkpoint()
            if not self._backlog:
                break
        if finish is not None:
            self.finish(finish)
            self._finished = True

    def _done(self, error: str | None) -> Done:
        self._rollback()
        self._backlog.clear()
        self._filling.clear()
        status, task = self.status, self.tasks.get(self.index)
        done = Done(
            self.index, self.errand.turn, {place.log: at for place, at in self._kept.items()}, [], status.records,
            status.produced, status.timers, status.failures, status.skipped - self.errand.skipped, error=error,
            again=self.later, finished=self._finished,
        )  # fmt: skip
        if isinstance(task, KeptTask):
            done.low, done.highs = task.watermark.kept()
            done.heard = dict(task.watermark.heard)
            done.firm, done.promise = task.watermark.firm, task.watermark.promise
            if task.buckets is not None:
                task.buckets.save(task.watermark, done.positions)
                done.next_event = task.buckets.next("event")
                done.next_processing = task.buckets.next("processing")
        done.staged = self._desk.staged()
        return done

    # --- what is different from a local runner -----------------------------------------------------------

    def _is_due(self, *, idle: bool) -> bool:
        """One turn, one checkpoint; but for what has to be put aside at once."""
        return any(task.ctx.full for task in self.tasks.values())

    def _take(self, index: int, stream: str, batch: RecordBatch) -> int:
        if self.buckets is not None:
            self.buckets.need(batch.keys())
        again = self.errand.job.again
        if again is None or again.log != batch.partition.log or again.offset != batch.offsets[0]:
            return super()._take(index, stream, batch)
        first = batch.slice(0, 1)
        first.codec = batch.codec
        bad = Work(
            self.tasks[index], stream, batch.partition, first.records(), list(first.keys()), list(first.times()),
            any(first.headers()),
        )  # fmt: skip
        bad.error, bad.attempt = RuntimeError(again.error), again.attempt
        self._backlog.append(bad)
        rest = batch.slice(1, len(batch))
        rest.codec = batch.codec
        return 1 + (super()._take(index, stream, rest) if len(rest) else 0)

    def _pause(self, delay: timedelta) -> bool:
        if self._rested:
            self._rested = False  # the driver has waited
            return True
        if delay > SHORT and self._backlog and (work := self._backlog[0]).error is not None:
            self.later = Again(
                work.place.log, work.records[0].offset, work.attempt, _text(work.error), duration_micros(delay)
            )
            self.orders.stopping.set()  # for this turn
            return False
        return super()._pause(delay)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
