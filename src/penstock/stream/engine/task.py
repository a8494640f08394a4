"""One partition of a computation: its own object, state, timers, watermark and outputs; the unit that moves around."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from penstock.clock import Micros, duration_micros
from penstock.log.record import NewRecords, Partition, Record
from penstock.scalars import MARK, scalar_of
from penstock.stream.chaining import chain
from penstock.stream.columns import ColumnBatches, Columns
from penstock.stream.computation import Computation
from penstock.stream.context import Context, Output
from penstock.stream.engine.changelog import Changelog, Payloads, state_log, timer_changes
from penstock.stream.engine.checkpoint import Appends, InputBatch
from penstock.stream.engine.folding import FEW, MOST_FOLDED, BatchFold, HalfFolded, NotExact, fold_of
from penstock.stream.engine.resolved import ResolvedComputation
from penstock.stream.engine.state_store import Entry, check_texts, value_limit
from penstock.stream.engine.watermark import END, SilentInput, Watermark
from penstock.stream.engine.watermark_log import Ends, WatermarkPublisher, WatermarkReport
from penstock.stream.engine.window_cell import Span, WindowCell
from penstock.stream.timers import Timer, Timers
from penstock.stream.windows import windowed_fold

logger = logging.getLogger("penstock.stream")


class RecordFailed(Exception):
    """``process`` has raised; ``rank`` is that of the record in its batch."""

    def __init__(self, rank: int, error: Exception) -> None:
        """Which one, and how."""
        super().__init__(str(error))
        self.rank = rank
        self.error = error


class Task:
    """A partition of a computation at work."""

    def __init__(self, resolved: ResolvedComputation, index: int, clock: Callable[[], Micros]) -> None:
        """Begin without state; :meth:`restore` brings it back."""
        node = resolved.node
        self.index = index
        self.clock = clock
        self.computation = node.fresh()
        self.timers = Timers()
        self.cells = {state.name: state.cell() for state in self.computation.states}
        self.watermark = watermark_of(resolved, index, clock())
        self.outputs = outputs_of(resolved)
        self.keeps = self.computation.keeps
        self.has_timers = self.computation.overrides("on_timer")
        self.windows = next((cell for cell in self.cells.values() if isinstance(cell, WindowCell)), None)
        self._closing = closing_step(self.computation)
        self._closes_singly = False  # a window has failed since the last checkpoint
        self.ctx = Context(
            node.name, index, self.outputs, self.cells, self.timers,
            codecs={name: known.codec for name, known in resolved.inputs.items()},
            may_set_timers=self.has_timers, clock=clock,
        )  # fmt: skip
        self.ctx.limit = value_limit(resolved.record_limit)
        self._columns: ColumnBatches | None = None
        if isinstance(self.computation.batch, Columns):
            codecs = {name: known.codec for name, known in resolved.inputs.items()}
            self._columns = ColumnBatches(node.name, codecs, list(self.outputs))
        codec = next((known.codec for known in resolved.inputs.values()), None)
        self._fold = fold_of(self.computation, codec)
        self.has_folded = False  # something is not in the state yet
        self.changelog: Changelog | None = None
        if self.keeps:
            self.changelog = Changelog(self.computation, Partition(state_log(node.name), index))
        self.publisher: WatermarkPublisher | None = None
        if resolved.reports_time:
            streams = tuple(node.inputs.values())
            self.publisher = WatermarkPublisher(index, resolved.tasks, resolved.topology, streams, resolved.is_read)
        self._stores_offsets = not resolved.sees_all_commits and not node.is_source
        self._stored: tuple[dict[str, int], Micros] = ({}, self.watermark.low)  # offsets and watermark
        self._storing = self._stored  # with the checkpoint under way; one that fails has stored nothing

    # --- the beginning -----------------------------------------------------------------------------

    def restore(self, payloads: Payloads, *, inputs: Mapping[str, str], start: int, end: int) -> dict[str, int]:
        """Load the state log from ``start`` to ``end``. Returns the input offsets (by stream) of the restored state."""
        assert self.changelog is not None  # noqa: S101 - only tasks that keep something are restored
        offsets = self.changelog.restore(
            payloads, self.cells, self.timers, self.watermark, inputs=inputs, start=start, end=end
        )
        self._stored = self._storing = (dict(offsets), self.watermark.low)
        self.ctx.low = self.watermark.low
        return offsets

    def catch_up(self, payloads: Payloads, computation: Computation, *, end: int) -> None:
        """Load what another owner has stored since, up to ``end``; ``computation`` replaces the outdated object."""
        assert self.changelog is not None  # noqa: S101 - only tasks that keep something can be behind
        offsets = self.changelog.catch_up(payloads, self.cells, self.timers, self.watermark, end=end)
        self._stored = self._storing = ({**self._stored[0], **offsets}, self.watermark.low)
        self.ctx.low = self.watermark.low
        self.computation = computation
        self._closing = closing_step(computation)
        self.begin()

    def resume_time(self, last: Mapping[int, WatermarkReport]) -> None:
        """Continue from the task's own last report, so that event time does not go back."""
        if self.publisher is None:
            return
        mine = last.get(self.index)
        self.publisher.resume(last)
        if mine is not None:
            firm = mine.low if mine.low != END else mine.reached
            self.watermark.resume(firm, mine.reached)
            self.ctx.low = self.watermark.low

    def begin(self) -> None:
        """Call init()."""
        self.ctx.now = self.clock()
        self.ctx.at_timer("", self.ctx.now)
        self.computation.init(self.ctx)

    def destroy(self) -> None:
        """Call destroy(); what it raises is logged."""
        try:
            self.computation.destroy()
        except Exception:
            logger.exception("destroy() of %s failed", self.ctx.computation)

    # --- records -----------------------------------------------------------------------------------

    @property
    def folds(self) -> bool:
        """Whether records are folded, and need not wait for others."""
        return self._fold is not None

    def process(self, batch: InputBatch, *, in_batches: bool) -> int:
        """Process the records of a batch. Returns how many: fewer than all if a checkpoint is wanted.

        Raises :class:`RecordFailed` for what the computation raises.
        """
        ctx = self.ctx
        ctx.now = self.clock()
        is_strict = batch.is_alone or batch.failure is not None
        if self._fold is not None and self._take_folded(self._fold, batch, is_strict=is_strict):
            return len(batch.records)
        ctx.stream = batch.stream
        ctx.has_headers = batch.has_headers
        ctx.strict = is_strict
        record: Record[Any] | None = None
        records = batch.records
        try:
            if in_batches:
                ctx.record, ctx.key_text, ctx.own_key = None, "", None
                if self._columns is not None:
                    self._columns.process(self.computation, batch, ctx)
                else:
                    self.computation.process_batch(list(records), ctx)
                return len(records)
            process = self.computation.process
            for record, key in zip(records, batch.keys, strict=True):
                ctx.record = record
                ctx.own_key = key
                ctx.key_text = key or ""
                process(record, ctx)
                if ctx.full:
                    return _rank(records, record) + 1
        except Exception as error:
            raise RecordFailed(_rank(records, record), error) from error
        return len(records)

    def _take_folded(self, fold: BatchFold, batch: InputBatch, *, is_strict: bool) -> bool:
        """Fold a batch. Returns False, and does nothing, if its records have to be processed one by one."""
        is_taken, is_exact = False, True
        if not is_strict and len(batch.records) >= FEW:
            try:
                is_taken = fold.take(batch, self.ctx.low)
            except NotExact:
                is_exact = False
            except HalfFolded as half:
                # All since the last checkpoint is processed again, record by record.
                self._fold, self.has_folded = None, False
                raise NotExact(str(half.__cause__)) from half
            except Exception:
                logger.debug(
                    "a batch of %s is not folded", batch.partition, exc_info=True
                )  # process() will find the record
        self.has_folded = self.has_folded or is_taken
        if not is_taken or len(fold) > MOST_FOLDED:
            self.put_folded()
        if not is_exact:
            self._fold = None  # more such records will follow
        return is_taken

    def put_folded(self) -> None:
        """Put folded values into the state before it is read. Raises :class:`NotExact` if that is not possible."""
        if self.has_folded and self._fold is not None:
            self.has_folded = False
            self.ctx.at_timer("", self.ctx.now)
            self.ctx.strict = False
            try:
                self._fold.put(self.ctx)
            except Exception as error:
                self._fold = None
                raise NotExact(str(error)) from error

    # --- time --------------------------------------------------------------------------------------

    def move(self, silent: Mapping[str, SilentInput]) -> None:
        """Move the watermark, as a checkpoint does between its records and its timers."""
        self.watermark.move(silent)
        self.ctx.low = self.watermark.low

    def offer_report(self, ends: Ends) -> None:
        """After a checkpoint: offer a report to the readers of the outputs, valid from these offsets on."""
        if self.publisher is not None:
            promise = self.watermark.promise_until(self.next_event())
            if promise is not None:
                self.publisher.offer(promise, self.watermark.low, ends)

    def report(self, *, at_once: bool) -> WatermarkReport | None:
        """The report for the next transaction: about the previous checkpoint, whose offsets are known."""
        if self.publisher is None:
            return None
        report = self.publisher.due(now=at_once)
        if not self.keeps and (len(self.watermark.highs) > 1 or self.watermark.reaches):
            # Only this report stores what silence has decided; it goes with the checkpoint that decides it.
            report = self.publisher.remember(self.watermark.low) or report
        return report

    def take_due(self, now: Micros) -> Timer | None:
        """The next timer that is due: those of event time first, each kind by (time, key)."""
        low = self.watermark.low
        at = self.timers.next("event")
        taken = None if self.windows is None else self.windows.take(low if at is None else min(low, at))
        if taken is not None:
            return timer_of(*taken)
        return self.timers.take("event", low) or self.timers.take("processing", now)

    def next_event(self) -> Micros | None:
        """When the first timer of event time fires or the first window ends, or None."""
        moments = [self.timers.next("event"), None if self.windows is None else self.windows.next_end()]
        return min((at for at in moments if at is not None), default=None)

    def close_windows(self) -> int:
        """Close all windows that have ended, at once. Returns how many timers that stands for.

        Raises :class:`NotExact` if one of them fails: what has made the others' results may have changed their values.
        Until the next checkpoint they are taken one by one then.
        """
        if self._closing is None or self.windows is None or self._closes_singly:
            return 0
        try:
            return self._closing.close_windows(self.ctx)
        except Exception as error:
            logger.debug("windows of %s are closed one by one", self.ctx.computation, exc_info=True)
            self._closes_singly = True
            raise NotExact(str(error)) from error

    def is_due(self, now: Micros) -> bool:
        """Whether a timer of processing time is due."""
        at = self.timers.next("processing")
        return at is not None and at <= now

    def wait(self, now: Micros) -> float:
        """Seconds until a timer of processing time or a report is due; infinite if neither is set."""
        seconds = math.inf
        timer = self.timers.next("processing") if self.has_timers else None
        if timer is not None:
            seconds = max(0.0, (timer - now) / 1e6)
        if self.publisher is not None:
            seconds = min(seconds, max(0.0, self.publisher.wait()))
        return seconds

    def event_time_would_move(self, silent: Mapping[str, SilentInput]) -> bool:
        """Whether event time moves without new records, here or for the readers of the outputs."""
        if self.publisher is not None and self.publisher.wait() <= 0:
            return True
        return self.watermark.would_move(silent)

    def call(self, timer: Timer) -> None:
        """Call on_timer()."""
        self.ctx.at_timer(timer.key, timer.time_us)
        if timer.key.startswith(MARK) or timer.name.startswith(MARK):
            timer = Timer(scalar_of(timer.key), scalar_of(timer.name), timer.time_us, timer.kind)
        self.computation.on_timer(timer, self.ctx)

    # --- the end of the input ----------------------------------------------------------------------

    def end_time(self) -> None:
        """Move the watermark to the end, until :meth:`close_time`."""
        self.ctx.low = END

    def timers_of_event_time(self) -> list[Timer]:
        """All timers of event time that are set, in their order."""
        timers = [
            Timer(key, name, at)
            for kind, key, name in self.timers.places()
            if kind == "event" and (at := self.timers.get(kind, key, name)) is not None
        ]
        if self.windows is not None:
            timers += [timer_of(key, window) for key, window in self.windows.open_windows()]
        return sorted(timers, key=lambda timer: (timer.time_us, timer.key, timer.name))

    def still_set(self, timer: Timer) -> bool:
        """Remove a timer if it is set as it was. Returns whether it was."""
        if self.windows is not None and (window := window_of(timer)) and self.windows.take_one(timer.key, window):
            return True
        if self.timers.get(timer.kind, timer.key, timer.name) != timer.time_us:
            return False
        self.timers.clear(timer.kind, timer.key, timer.name)
        return True

    def drained(self) -> None:
        """Call on_drain()."""
        self.ctx.at_timer("", self.watermark.final())
        self.computation.on_drain(self.ctx)

    def close_time(self) -> None:
        """After the end of the input: event time stays at the newest that was seen."""
        self.watermark.finish()
        self.ctx.low = self.watermark.low

    # --- checkpoints ---------------------------------------------------------------------------------

    def state_records(self, now: Micros, offsets: dict[str, int]) -> Appends:
        """State and timers as records of the state log, or none if nothing changed."""
        if self.changelog is None:
            return []
        changed = self.changed(now)
        # The watermark never goes back, not even over a restart. And where a reader may not see the newest records of
        # a log yet (a dead process left a transaction open), the offsets are how a restore finds out.
        must_store = self.watermark.low != self._stored[1] or (self._stores_offsets and offsets != self._stored[0])
        if not changed and not must_store:
            return []
        self._storing = (dict(offsets), self.watermark.low)
        values = self.changelog.records(changed, self.cells, self.timers, self.watermark, offsets)
        return [(self.changelog.partition, NewRecords(values))]

    def changed(self, now: Micros) -> list[Entry]:
        """The changes of state and timers since the last checkpoint."""
        changed: list[Entry] = []
        for cell in self.cells.values():
            if cell.ttl:
                changed += [gone for place in cell.expired(now) if (gone := cell.forget(*place)) is not None]
            changed += cell.changes()
        changed += timer_changes(self.timers)
        check_texts("".join([entry.key for entry in changed]), "".join([entry.sub for entry in changed]))
        return changed

    def committed(self, ends: Mapping[Partition, int]) -> int | None:
        """Note that the checkpoint was committed. Returns the first needed offset of the state log, if it has moved."""
        for cell in self.cells.values():
            cell.apply()
        if self.has_timers:
            self.timers.apply()
        self.watermark.apply()
        self._stored = self._storing
        self._closes_singly = False
        if self.publisher is not None:
            self.publisher.committed()
        self.ctx.size, self.ctx.full = 0, False
        if self.changelog is None or self.changelog.partition not in ends:
            return None
        return self.changelog.written(ends[self.changelog.partition])

    def rollback(self) -> None:
        """Undo everything since the last checkpoint."""
        if self.has_folded and self._fold is not None:
            self._fold.clear()
            self.has_folded = False
        for cell in self.cells.values():
            cell.rollback()
        self.timers.rollback()
        self.watermark.rollback()
        self._storing = self._stored
        if self.publisher is not None:
            self.publisher.rollback()
        self.ctx.low = self.watermark.low
        for output in self.outputs.values():
            output.clear()
        self.ctx.size, self.ctx.full = 0, False


def _rank(records: list[Record[Any]], record: Record[Any] | None) -> int:
    """The index of a record in a list, by identity."""
    return next((rank for rank, other in enumerate(records) if other is record), 0)


def closing_step(computation: Computation) -> windowed_fold | None:
    """The step that closes windows for all keys together, if there is one."""
    while type(computation) is chain:
        computation = computation.last
    return computation if type(computation) is windowed_fold and computation.closes_together else None


def timer_of(key: str, window: Span) -> Timer:
    """The end of a window as a timer."""
    return Timer(key, str(window.start), window.end)


def window_of(timer: Timer) -> Span | None:
    """The window whose end a timer may stand for."""
    is_number = timer.kind == "event" and timer.name.removeprefix("-").isdecimal()
    return Span(timer.time_us, int(timer.name)) if is_number else None


def watermark_of(resolved: ResolvedComputation, index: int, now: Micros) -> Watermark:
    """A watermark over those inputs of a computation that have a partition of that number."""
    computation, writers = resolved.node.computation, resolved.writers
    streams = {name: known.stream for name, known in resolved.inputs.items() if index < known.partitions}
    inner = [name for name, stream in streams.items() if writers.reporting[stream]]
    return Watermark(
        streams, {name: resolved.inputs[name].out_of_order for name in streams},
        None if computation.idle is None else duration_micros(computation.idle), now,
        inner=inner, mixed=[name for name in inner if streams[name] in writers.fed],
        output_delay=duration_micros(computation.output_delay),
    )  # fmt: skip


def outputs_of(resolved: ResolvedComputation) -> dict[str, Output]:
    """Where a task of a computation produces to, by the computation's own names."""
    return {name: Output(known, resolved.record_limit) for name, known in resolved.outputs.items()}
