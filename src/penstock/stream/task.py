"""One partition of a computation: its own object, state, timers, watermark and outputs; the unit that moves around."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.clock import Micros, duration_micros
from penstock.log.partitioner import partitioner
from penstock.log.record import NewRecords, Partition
from penstock.log.store import LogStore
from penstock.stream.changelog import Changelog, timer_changes
from penstock.stream.context import Context, Output
from penstock.stream.state import AROUND, LARGEST, Entry, check_texts
from penstock.stream.timers import Timer, Timers
from penstock.stream.watermark import END, SilentInput, Watermark
from penstock.stream.watermark_log import Ends, Publisher, Report, reports_time

if TYPE_CHECKING:
    from penstock.stream.checks import Plan
    from penstock.stream.topology import Node


GLANCE = 100  # committed records that are looked at for their times


class Task:
    """A partition of a computation, at work in one instance."""

    def __init__(self, store: LogStore, plan: Plan, node: Node, index: int) -> None:
        """Make it; nothing is read before :meth:`restore`."""
        self.index = index
        self.node = node
        self.store = store
        self.computation = node.fresh()
        self.timers = Timers()
        self.cells = {one.name: one.cell() for one in self.computation.states}
        self.watermark = watermark_of(plan, node, index, store.now())
        self.outputs = outputs_of(store, plan, node)
        self.ctx = Context(
            node.name, index, self.outputs, self.cells, self.timers,
            coders={local: plan.topology.streams[stream].coder for local, stream in node.inputs.items()},
            may_set_timers=self.computation.overrides("on_timer"), reading=store.now,
        )  # fmt: skip
        self.ctx.limit = state_limit(store)
        self._changelog = Changelog(store, node, index) if self.computation.keeps else None
        self._noted: tuple[dict[str, int], Micros] = ({}, self.watermark.low)
        reports = reports_time(plan.topology, node)
        self.publisher = (
            Publisher(index, plan.tasks[node.name], plan.topology.name, tuple(node.inputs.values()))
            if reports
            else None
        )

    def restore(self) -> dict[str, int]:
        """Read state and timers back; the offsets (by stream) that go with them."""
        if self._changelog is None:
            self._guess_time()
            return {}
        offsets = self._changelog.restore(self.cells, self.timers, self.watermark)
        self._noted = (dict(offsets), self.watermark.low)
        self.ctx.low = self.watermark.low
        return offsets

    def resume_time(self, last: Mapping[int, Report]) -> None:
        """Take up what the task has reported before, so that event time does not go back."""
        if self.publisher is None:
            return
        mine = last.get(self.index)
        self.publisher.resume(last)
        if mine is not None:
            firm = mine.low if mine.low != END else mine.reached
            self.watermark.resume(firm, mine.reached)
            self.ctx.low = self.watermark.low

    def _guess_time(self) -> None:
        """Without a changelog: event time was at least where the last records are that were committed."""
        if not self.store.capabilities.dense:
            return  # finding them would take longer than waiting for the next
        for local, stream in self.node.inputs.items():
            if self.index >= self.store.settings(stream).partitions:
                continue
            place = Partition(stream, self.index)
            end = self.store.committed(stream, self.node.name)[self.index]
            start = self.store.bounds_of(place).start
            if end is not None and end > start:
                for batch in self.store.batches(place, max(start, end - GLANCE), end):
                    self.watermark.mark(local, max(batch.times()), self.store.now())
        self.move({})
        self.watermark.apply()

    def begin(self) -> None:
        """Call init()."""
        self.ctx.now = self.store.now()
        self.ctx.at_timer("", self.ctx.now)
        self.computation.init(self.ctx)

    # --- time --------------------------------------------------------------------------------------

    def move(self, silent: Mapping[str, SilentInput]) -> None:
        """Move the watermark, as a checkpoint does between its records and its timers."""
        self.watermark.move(silent)
        self.ctx.low = self.watermark.low

    def offer_report(self, ends: Ends) -> None:
        """After a checkpoint: what it means to those who read the outputs, behind these offsets."""
        if self.publisher is not None:
            promise = self.watermark.promise_until(self.timers.next("event"))
            if promise is not None:
                self.publisher.offer(promise, self.watermark.low, ends)

    def take_due(self, now: Micros) -> Timer | None:
        """The next timer that is due: those of event time first, each kind by (time, key)."""
        return self.timers.take("event", self.watermark.low) or self.timers.take("processing", now)

    def is_due(self, now: Micros) -> bool:
        """Whether a timer is due, or the watermark would move."""
        at = self.timers.next("processing")
        return at is not None and at <= now

    def call(self, timer: Timer) -> None:
        """Call on_timer()."""
        self.ctx.at_timer(timer.key, timer.time_us)
        self.computation.on_timer(timer, self.ctx)

    def end_of_input(self) -> list[Timer]:
        """All event-time timers, in their order, with the watermark at the end."""
        self.ctx.low = END
        found = [
            Timer(key, name, at)
            for kind, key, name in self.timers.places()
            if kind == "event" and (at := self.timers.get(kind, key, name)) is not None
        ]
        return sorted(found, key=lambda one: (one.time_us, one.key, one.name))

    def still_set(self, timer: Timer) -> bool:
        """Whether a timer is as it was; if so it is taken."""
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

    def produced(self) -> list[tuple[Partition, NewRecords]]:
        """The outputs, ready to be appended."""
        return [made for out in self.outputs.values() for made in out.records()]

    def changes(self, now: Micros, offsets: dict[str, int]) -> list[tuple[Partition, NewRecords]]:
        """The records of state and timers, ready to be appended; none if nothing changed."""
        if self._changelog is None:
            return []
        changed = self.changed(now)
        if not changed and not self._must_note(offsets):
            return []
        self._noted = (dict(offsets), self.watermark.low)
        values = self._changelog.records(changed, self.cells, self.timers, self.watermark, offsets)
        return [(self._changelog.place, NewRecords(values))]

    def changed(self, now: Micros) -> list[Entry]:
        """What became of state and timers since the last checkpoint."""
        changed: list[Entry] = []
        for cell in self.cells.values():
            if cell.ttl:
                changed += [gone for place in cell.expired(now) if (gone := cell.forget(*place)) is not None]
            changed += cell.changes()
        changed += timer_changes(self.timers)
        check_texts("".join([one.key for one in changed]), "".join([one.sub for one in changed]))
        return changed

    def _must_note(self, offsets: dict[str, int]) -> bool:
        """Whether the changelog has to be written although no state changed.

        The watermark never goes back, over a restart neither. And where a reader may not see the newest records of a
        log yet (a dead process left a transaction open), the offsets are how a restore finds out.
        """
        if self.watermark.low != self._noted[1]:
            return True
        return not self.store.capabilities.dense and not self.node.is_source and offsets != self._noted[0]

    def committed(self, ends: dict[Partition, int]) -> None:
        """The checkpoint holds."""
        for cell in self.cells.values():
            cell.apply()
        self.timers.apply()
        self.watermark.apply()
        if self.publisher is not None:
            self.publisher.committed()
        self._forget()
        if self._changelog is not None and self._changelog.place in ends:
            self._changelog.written(ends[self._changelog.place])

    def rollback(self) -> None:
        """Nothing since the last checkpoint ever was."""
        for cell in self.cells.values():
            cell.rollback()
        self.timers.rollback()
        self.watermark.rollback()
        if self.publisher is not None:
            self.publisher.rollback()
        self.ctx.low = self.watermark.low
        self._forget()

    def _forget(self) -> None:
        for out in self.outputs.values():
            out.clear()
        self.ctx.size = 0
        self.ctx.full = False


def watermark_of(plan: Plan, node: Node, index: int, now: Micros) -> Watermark:
    """A watermark over those inputs of a computation that have a partition of that number."""
    made = node.computation
    inputs = {local: stream for local, stream in node.inputs.items() if index < plan.partitions[stream]}
    inner = [local for local, stream in inputs.items() if plan.writers.reporting[stream]]
    return Watermark(
        inputs, duration_micros(made.lateness), None if made.idle is None else duration_micros(made.idle), now,
        inner=inner, mixed=[local for local in inner if inputs[local] in plan.writers.fed],
        output_delay=duration_micros(made.output_delay),
    )  # fmt: skip


def outputs_of(store: LogStore, plan: Plan, node: Node) -> dict[str, Output]:
    """Where a task of a computation produces to, by the computation's own names."""
    return {local: _output(store, plan, stream) for local, stream in node.outputs.items()}


def state_limit(store: LogStore) -> int:
    """How many bytes a value of a state may have: it has to fit into a record."""
    return min(LARGEST, max(store.record_limit - AROUND, store.record_limit // 2))


def _output(store: LogStore, plan: Plan, stream: str) -> Output:
    settings = store.settings(stream)
    coder = plan.topology.streams[stream].coder
    return Output(stream, coder, settings.partitions, partitioner(settings.partitioner), store.record_limit)
