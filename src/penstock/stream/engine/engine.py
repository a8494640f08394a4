"""The engine: it is fed batches of records and gives checkpoints. It has no threads and no store.

The story of a record: :meth:`Engine.feed` lets it wait; :meth:`Engine.step` lets the computation process what waits,
until a checkpoint is due, then moves the watermarks, fires the timers that are due, and gives all that has come of it
as one :class:`Checkpoint`. The caller commits that, and then calls :meth:`Engine.committed`.

Work since the last checkpoint can always be undone and done again. When a record fails, that is done up to the record;
what came before it is committed, and the record is tried alone, as the policy says. The same goes for timers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.log.record import Partition, RecordBatch
from penstock.stream.engine.checkpoint import (
    Appends,
    Checkpoint,
    Counts,
    Folded,
    InputBatch,
    Processed,
    check_sizes,
    gathered,
)  # fmt: skip
from penstock.stream.engine.ending import InputEnd
from penstock.stream.engine.event_time import NOT_SILENT, EventTime, Positions
from penstock.stream.engine.failed_timers import FailedTimers
from penstock.stream.engine.folding import NotExact
from penstock.stream.engine.input_queue import InputQueue
from penstock.stream.engine.reporting import Reporting
from penstock.stream.engine.resolved import ResolvedComputation, dead_log
from penstock.stream.engine.retry import (
    Failure,
    FailurePolicy,
    Stopped,
    TimerFailed,
    WrongState,
    call_timer,
    letter_of_record,
)
from penstock.stream.engine.task import RecordFailed, Task
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.engine.watermark_log import WatermarkReport, encoded, low_log
from penstock.stream.timers import Timer

logger = logging.getLogger("penstock.stream")


class Engine:
    """Runs a computation over the partitions it is given."""

    def __init__(
        self, resolved: ResolvedComputation, event_time: EventTime, *, clock: Callable[[], Micros], counts: Counts,
        checkpoint_records: int, checkpoint_seconds: float,
    ) -> None:  # fmt: skip
        """``clock`` gives processing time. A checkpoint is due after so many records, or so many seconds."""
        self.node = resolved.node
        self.tasks: dict[int, Task] = {}
        self.read_to: dict[Partition, int] = {}  # where each input partition is read on
        self.retrying: Failure | None = None  # the last step gave nothing because this is not tried again yet
        self.is_stopping = False  # no more work is begun
        self.is_hurried = False  # batches are not waited for
        self._event_time = event_time
        self.clock = clock
        self._counts = counts
        self._checkpoint_records = checkpoint_records
        self._checkpoint_seconds = checkpoint_seconds
        self._record_limit = resolved.record_limit
        self._in_batches = resolved.node.computation.batch is not None
        self.queue = InputQueue(resolved.node.computation.batch)
        self._processed = Processed()
        self._committed: dict[Partition, int] = {}
        self._reports_time = resolved.reports_time
        self._reporting = Reporting()
        self._failures = FailurePolicy(self.node.name, self.node.policy, counts)
        self._failed_timers = FailedTimers(self._failures, counts)
        self._input_end: InputEnd | None = None

    # --- tasks come and go -----------------------------------------------------------------------------

    def add(self, task: Task, positions: Positions) -> None:
        """Add a task. Its state already includes what comes before these positions."""
        self.tasks[task.index] = task
        self._committed.update(positions)
        task.begin()

    def drop(self, indexes: Collection[int]) -> None:
        """Remove tasks. A checkpoint holds the work of all tasks, so the others do their uncommitted work again."""
        gone = set(indexes)
        if gone & self.tasks.keys():
            processed = self._processed.batches
            self.rollback()
            self.queue.put_back(processed)
        for index in gone & self.tasks.keys():
            self.tasks.pop(index).destroy()
        self.queue.drop(gone)
        if self._input_end is not None:
            self._input_end.drop(gone)
        self.read_to = {place: offset for place, offset in self.read_to.items() if place.index not in gone}
        self._committed = {place: offset for place, offset in self._committed.items() if place.index not in gone}

    def abandon(self) -> None:
        """Drop all tasks, and everything that was not committed."""
        for task in self.tasks.values():
            task.destroy()
        self.tasks.clear()
        self.drop_work()
        self.seek({})

    def drop_work(self) -> None:
        """Drop everything that was not committed; the tasks stay."""
        self.rollback()
        self.queue.clear()
        self._failed_timers.clear()
        self._input_end = None

    # --- records come in -------------------------------------------------------------------------------

    def feed(self, index: int, stream: str, batch: RecordBatch, failure: Failure | None = None) -> int:
        """Queue the records of a batch that are not committed yet. Returns how many.

        ``stream`` is the computation's own name for it. ``failure``: the batch is one record that has failed before.
        """
        committed = self._committed.get(batch.partition)
        if committed is not None:
            batch = batch.from_offset(committed)
        if not len(batch):
            return 0
        fed = InputBatch(
            self.tasks[index], stream, batch.partition, batch.records(), list(batch.keys()), list(batch.times()),
            any(batch.headers()), failure,
        )  # fmt: skip
        if self._in_batches and failure is None and not fed.task.folds:
            self.queue.fill(fed)
        else:
            self.queue.waiting.append(fed)
        return len(fed.records)

    def feed_failed(self, index: int, stream: str, batch: RecordBatch, error: BaseException, attempts: int) -> None:
        """Queue one record that failed ``attempts`` times in another engine; its pause is over."""
        self.feed(index, stream, batch, self._failures.known_failure(error, attempts))

    def seek(self, positions: Positions) -> None:
        """Read on at these positions."""
        self._committed = dict(positions)
        self.read_to = dict(positions)

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits and nothing that failed is tried again: a checkpoint would hold everything."""
        return not self.queue.waiting and not self.queue.filling and not self._failed_timers.fire_alone

    @property
    def position(self) -> tuple[Partition, int] | None:
        """The first record that is not committed: where the work under way began."""
        batches = [*self._processed.batches, *self.queue.waiting, *(batch for _, batch in self.queue.filling.values())]
        return (batches[0].partition, batches[0].records[0].offset) if batches else None

    def waiting_records(self) -> int:
        """How many records wait."""
        return sum(len(batch.records) for batch in self.queue.waiting)

    def wait(self, seconds: float) -> float:
        """How long the engine has nothing to do without new records, at most ``seconds``."""
        if self._processed.batches:
            return 0.0
        if self.queue.filling:
            seconds = min(seconds, self.queue.linger / 4)
        now = self.clock()
        return min([seconds, *(task.wait(now) for task in self.tasks.values())])

    # --- the work --------------------------------------------------------------------------------------

    def step(self, *, idle: bool = False) -> Checkpoint | None:
        """Work until a checkpoint is due, and give it. Returns None if nothing has to be committed now.

        ``idle`` says that no records came. A checkpoint has to be committed, and :meth:`committed` called, before the
        next step. Raises :class:`Stopped` when a record has failed for good and the policy says so.
        """
        self.retrying = None
        if self._failed_timers.fire_alone:
            return self._fire_next_timer()
        if self._in_batches:
            self.queue.take_filled(hurried=self.is_hurried)
        waiting = self.queue.waiting
        while waiting and not self.is_stopping:
            if waiting[0].failure is not None:
                return self._retry(waiting[0], waiting[0].failure)
            self._process(waiting.popleft())
            if waiting and self._is_due(idle=False):
                return self.checkpoint()
        if self._input_end is not None and not waiting:
            return self._end_next_task(self._input_end)
        if self.is_stopping or not self._is_due(idle=idle):
            return None
        return self.checkpoint()

    def interrupt(self) -> None:
        """Make :meth:`step` return after the current record. Other threads may call it."""
        for task in list(self.tasks.values()):
            task.ctx.full = True

    def tick(self) -> None:
        """Interrupt work once a checkpoint is due. Other threads may call it."""
        since = self._processed.since
        if since and time.monotonic() - since > self._checkpoint_seconds:
            self.interrupt()

    def _process(self, batch: InputBatch) -> None:
        """Run a batch; a record that fails waits again, behind those that came before it."""
        if not self._processed.since:
            self._processed.since = time.monotonic()
        try:
            done = batch.task.process(batch, in_batches=self._in_batches)
        except RecordFailed as failed:
            self._isolate_record(batch, failed)
            return
        except NotExact:
            self._unfold(batch)
            return
        if done < len(batch.records):
            self.queue.waiting.appendleft(batch.cut(done))
            batch = batch.cut(0, done)
        batch.failure = None
        self._processed.batches.append(batch)
        self._processed.records += done
        batch.task.watermark.mark(batch.stream, max(batch.times), batch.task.ctx.now)

    def _is_due(self, *, idle: bool) -> bool:
        """Whether a checkpoint is due."""
        if self._processed.batches and (
            idle
            or self._processed.records >= self._checkpoint_records
            or time.monotonic() - self._processed.since >= self._checkpoint_seconds
        ):
            return True
        now = self.clock()
        if any(task.ctx.full or (task.has_timers and task.is_due(now)) for task in self.tasks.values()):
            return True
        if not idle:
            return False
        positions = self.queue.first_offsets(self.read_to)
        silent = self._event_time.observe(self.tasks.values(), positions, now)
        if any(task.event_time_would_move(silent.get(task.index, NOT_SILENT)) for task in self.tasks.values()):
            return True
        # Positions may move without records too: marks of transactions have offsets.
        return any(self._committed.get(place, offset) != offset for place, offset in positions.items())

    def fold(self, index: int, work: Callable[[Task], Folded]) -> Checkpoint:
        """Let ``work`` fold all records of a task up to :attr:`read_to` at once, and give the checkpoint.

        Nothing may wait. If ``work`` or a timer raises, everything is undone: the records can be fed instead.
        """
        task, timers_before = self.tasks[index], self._counts.timers
        task.ctx.now = self.clock()
        task.ctx.at_timer("", task.ctx.now)
        task.ctx.strict = False
        try:
            folded = work(task)
            if folded.newest is not None:
                task.watermark.mark(folded.stream, folded.newest, task.ctx.now)
            self._processed.records = folded.records
            self._fire(self.clock())
            return self._gather(report_at_once=False, ending=None)
        except Exception:
            self.rollback()
            self._counts.timers = timers_before
            raise

    def _fire(self, now: Micros) -> None:
        """Move the watermarks, and fire the timers that are due."""
        silent = self._event_time.observe(self.tasks.values(), self.queue.first_offsets(self.read_to), now)
        for task in self.tasks.values():
            task.move(silent.get(task.index, NOT_SILENT))
            self._counts.timers += task.close_windows()
            while task.has_timers and (timer := task.take_due(now)) is not None:
                call_timer(task, timer, self._counts)

    # --- checkpoints -----------------------------------------------------------------------------------

    def checkpoint(
        self, *, fire: bool = True, report_at_once: bool = False, ending: int | None = None
    ) -> Checkpoint | None:
        """Move the watermarks and ``fire`` the timers that are due, then gather all that has come of the work so far.

        None if a value does not fit its state, or a window that closes with others fails: then everything is undone and
        will be done again, one by one.
        """
        try:
            for task in self.tasks.values():
                if task.has_folded:
                    task.put_folded()
            if fire:
                self._fire(self.clock())
            return self._gather(report_at_once=report_at_once, ending=ending)
        except TimerFailed as failed:
            self._failed_timers.note(failed)
            self._process_again()
            return self.checkpoint(fire=False)
        except NotExact:
            self._unfold()
            return None
        except WrongState as wrong:
            if all(batch.is_alone for batch in self._processed.batches):
                raise wrong.error from None
            self._isolate_all()
            return None

    def _gather(self, *, report_at_once: bool, ending: int | None) -> Checkpoint:
        """Gather outputs, changes of state, dead letters, reports and offsets."""
        now = self.clock()
        positions = self.queue.first_offsets(self.read_to)
        outputs, state = gathered(self.tasks.values(), positions, now)
        extras: Appends = []
        if self._failures.letters:
            extras.append((Partition(dead_log(self.node.name), 0), self._failures.dead_letters()))
        if self._reports_time and ending is None:  # a repeated end of the input writes nothing
            reports = self._reporting.due(self.tasks.values(), at_once=report_at_once)
            if reports:
                extras.append((Partition(low_log(self.node.name), 0), encoded(reports)))
        check_sizes([*outputs, *state, *extras], self._record_limit)
        has_begun = bool(self._processed.batches or self._committed)
        has_moved = has_begun and any(self._committed.get(place) != offset for place, offset in positions.items())
        lows = [task.watermark.low for task in self.tasks.values() if task.watermark.low != LOWEST]
        return Checkpoint(
            outputs, state, extras, positions, min(lows, default=LOWEST),
            records=self._processed.records, produced=sum(len(records) for _, records in outputs), ending=ending,
            is_empty=not (has_moved or outputs or state or extras),
        )  # fmt: skip

    def committed(self, checkpoint: Checkpoint, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """A checkpoint was committed; ``ends`` are the ends of the partitions it has written.

        Returns where the state logs are needed from, for those that can be cut.
        """
        self._committed.update(checkpoint.offsets)
        cuts: dict[Partition, int] = {}
        for task in self.tasks.values():
            needed_from = task.committed(ends)
            if needed_from is not None and task.changelog is not None:
                cuts[task.changelog.partition] = needed_from
        if self._reports_time:
            self._reporting.committed(self.tasks.values(), ends)
        if not checkpoint.is_empty:
            self._counts.checkpoints += 1
            self._counts.produced += checkpoint.produced
            self._counts.records += checkpoint.records
        self._processed = Processed()
        self._failures.letters.clear()
        return cuts

    def rollback(self) -> None:
        """Undo everything since the last checkpoint."""
        for task in self.tasks.values():
            task.rollback()
        self._processed = Processed()
        self._failures.letters.clear()

    # --- reports to those who read the outputs ---------------------------------------------------------

    def resume_reports(
        self, tasks: Collection[Task], last: Mapping[int, WatermarkReport], ends: Mapping[str, Sequence[int]]
    ) -> bool:
        """Take over what the last owners of tasks reported. Returns whether to call :meth:`report` at once."""
        return self._reporting.resume(tasks, last, ends)

    def report(self) -> Checkpoint | None:
        """Report at once how far event time is. Returns None if there is nothing to report."""
        is_due = self._reports_time and self._reporting.due(self.tasks.values(), at_once=True)
        return self.checkpoint(fire=False, report_at_once=True) if is_due else None

    # --- records that fail -----------------------------------------------------------------------------

    def _isolate_record(self, batch: InputBatch, failed: RecordFailed) -> None:
        """Redo everything since the last checkpoint up to the failed record, which then comes alone."""
        attempts = 1 if batch.failure is None else batch.failure.attempts + 1
        failure = self._failures.failure(failed.error, attempts)
        again = self._processed.batches
        if self._in_batches and len(batch.records) > 1:
            again += batch.singles()  # which of them it was is not known
        else:
            again += batch.isolated(failed.rank, failure)
        self.rollback()
        self.queue.put_back(again)

    def _unfold(self, *batches: InputBatch) -> None:
        """Redo everything since the last checkpoint: values could not be folded, or windows not closed, together."""
        again = [*self._processed.batches, *batches]
        self.rollback()
        self.queue.put_back(again)

    def _isolate_all(self) -> None:
        """Let each record come alone: one of them, it is not known which, gave a state a value of a wrong type."""
        singles = [single for batch in self._processed.batches for single in batch.singles()]
        for single in singles:
            single.is_alone = True
        self.rollback()
        self.queue.put_back(singles)

    def _retry(self, batch: InputBatch, failure: Failure) -> Checkpoint | None:
        """Try the failed record at the head of the queue, alone, until it succeeds or its attempts are used up."""
        if self._processed.batches:
            return self.checkpoint()  # what came before it holds, whatever becomes of this one
        if failure.is_final:
            letter = letter_of_record(batch.records[0], batch.keys[0])
            self._failures.give_up(failure, letter, str(batch.partition))
            self.queue.waiting.popleft()
            return self.checkpoint(fire=False)
        if failure.wait > 0:
            self.retrying = failure
            return None
        self._process(self.queue.waiting.popleft())
        # Commit a success after failures at once, so that a later failure does not undo it.
        return self.checkpoint() if self._processed.batches else None

    @property
    def failing_record(self) -> InputBatch | None:
        """The record that is tried again next."""
        first = self.queue.waiting[0] if self.queue.waiting else None
        return None if first is None or first.failure is None else first

    # --- timers ----------------------------------------------------------------------------------------

    def _process_again(self) -> None:
        """Process the records since the last checkpoint again, without timers."""
        processed = self._processed.batches
        self.rollback()
        self.queue.put_back(processed)
        for _ in processed:
            if self.queue.waiting and self.queue.waiting[0].failure is None:
                self._process(self.queue.waiting.popleft())

    def _fire_next_timer(self) -> Checkpoint | None:
        """After a timer has failed: fire the next due timer in a checkpoint of its own."""
        for task in self.tasks.values():
            timer = self._take_due(task)
            if timer is None:
                continue
            try:
                self.retrying = self._failed_timers.fire(task, timer)
            except TimerFailed as failed:
                self.rollback()
                self._failed_timers.note(failed)
                return None
            if self.retrying is not None:
                self.rollback()  # the timer is still set
                return None
            return self.checkpoint(fire=False)
        self._failed_timers.clear()
        return None

    def _take_due(self, task: Task) -> Timer | None:
        now = self.clock()
        silent = self._event_time.observe([task], self.queue.first_offsets(self.read_to), now)
        task.move(silent.get(task.index, NOT_SILENT))
        return task.take_due(now)

    # --- the end of the input --------------------------------------------------------------------------

    def end_input(self, final: bool) -> None:
        """Mark the end of the input: the next steps finish the work, then close the tasks, until :attr:`has_ended`.

        With ``final`` event time goes to its end.
        """
        self._input_end = InputEnd(self.tasks.values(), final=final)

    @property
    def has_ended(self) -> bool:
        """Whether all tasks are closed."""
        return self._input_end is not None and self._input_end.has_ended

    def _end_next_task(self, input_end: InputEnd) -> Checkpoint | None:
        """Commit the last records first, then the end of each task, a checkpoint each."""
        if not input_end.is_closing:
            checkpoint = self.checkpoint()
            input_end.is_closing = checkpoint is not None  # else the records are processed again first
            return checkpoint
        if not input_end.open:
            return None
        end = input_end.open[0]
        if end.failure is not None and end.failure.wait > 0:
            self.retrying = end.failure
            return None
        try:
            end.close(self._failures, self._counts)
        except (PenstockError, Stopped):
            raise
        except Exception as raised:
            self.rollback()
            end.failed(raised, self._failures)
            return None
        input_end.open.popleft()
        return self.checkpoint(fire=False, ending=end.task.index)
