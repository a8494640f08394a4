"""What the next micro-batch of a computation reads, and which of its tasks have something to do."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping

import msgspec

from penstock.errors import Conflict, StoreUnavailable
from penstock.ids import is_another
from penstock.log.record import Bounds, Partition
from penstock.log.store import LogStore
from penstock.spark.datasource.log_reader import rationed
from penstock.spark.runner.event_time import DriverTime
from penstock.spark.runner.micro_batch import MicroBatch, PostponedRecord, StateVersion, TaskPlan, TaskResult
from penstock.spark.runner.state import REMEMBERED
from penstock.stream.engine.changelog import check_inputs, state_log
from penstock.stream.engine.resolved import ResolvedComputation
from penstock.stream.internal_logs import last_change


class Planner:
    """Plans the batches of one computation, from the start of its driver on."""

    def __init__(
        self, store: LogStore, resolved: ResolvedComputation, event_time: DriverTime, *, most_records: int
    ) -> None:
        """Look up where the computation is; ``most_records`` is the most that one batch reads."""
        self._store = store
        self._node = resolved.node
        self._keeps = resolved.node.computation.keeps
        self._event_time = event_time
        self._most_records = most_records
        self._logs = list(resolved.node.inputs.values())
        self._tasks = range(resolved.tasks)
        self._places = [place for index in self._tasks for place in resolved.partitions_of(index)]
        self._inputs = self._identities()
        self.positions: dict[Partition, int] = {}
        self._retries: dict[int, tuple[PostponedRecord, float]] = {}  # with the moment from which on they may be tried
        self._versions: dict[int, list[StateVersion]] = {}
        self.ends: dict[Partition, int] | None = None  # where the input ends, once it does
        self._look_up()

    def _look_up(self) -> None:
        """Look up where the group is. A group that was deleted or reset may be behind what the state has seen."""
        for log in self._logs:
            for index, offset in enumerate(self._store.committed(log, self._node.name)):
                if offset is not None:
                    self.positions[Partition(log, index)] = offset
        if not self._keeps:
            return
        for index in self._tasks:
            partition = Partition(state_log(self._node.name), index)
            last = last_change(self._store, partition)
            self._versions[index] = [StateVersion("", self._store.bounds_of(partition).end)]
            seen = {} if last is None else last.offsets
            for log, offset in seen.items():
                self._go_on(Partition(log, index), offset)
            self._check_seen(index, seen)

    def _go_on(self, place: Partition, seen: int) -> None:
        if place not in self._places or self.positions.get(place, 0) >= seen:
            return
        end = self._store.bounds_of(place).end
        if end < seen:
            raise Conflict(
                f"the state of {self._node.name} has seen {place} up to {seen}, and it ends at {end}: it was made "
                "again.",
                hint=f"Start over with reset({self._node.name!r}).",
            )
        self.positions[place] = seen

    def _check_seen(self, index: int, seen: Mapping[str, int]) -> None:
        """State may be behind its offsets for a while, where a dead driver has left a transaction open."""
        if self._store.capabilities.dense:
            return
        for log in self._logs:
            place = Partition(log, index)
            if place in self._places and self.positions.get(place, 0) > seen.get(
                log, self._store.bounds_of(place).start
            ):
                raise StoreUnavailable(
                    f"the state of {self._node.name} is behind its offsets in {place}.",
                    hint=f"It is looked for again. If that does not help: reset({self._node.name!r}).",
                )

    def _identities(self) -> dict[str, str]:
        """Which logs the inputs are."""
        return {log: self._store.identity(log) for log in self._logs}

    # --- the next batch ----------------------------------------------------------------------------------

    def next(self, *, everybody: bool, finish: bool | None, skipped: int) -> MicroBatch | None:
        """Plan the next batch. Returns None if there is nothing to do; with ``everybody`` all tasks take part."""
        now = self._store.now()
        plans = self._ranges()
        self._event_time.look(self.positions)
        closing = finish if self.ends is not None and self._closes(plans, finish) else None
        for index in self._tasks:
            if index not in plans and (everybody or closing is not None or self._event_time.is_due(index, now)):
                plans[index] = TaskPlan(index)
        if not plans:
            return None
        for index, plan in plans.items():
            if plan.ranges and index in self._retries:
                plan.retry = self._retries.pop(index)[0]
            plan.positions = {place.log: offset for place, offset in self.positions_of((index,)).items()}
            self._event_time.add_to(plan, now)
            plan.versions = self._versions.get(index, [])
        if any(plan.ranges for plan in plans.values()):
            self._check_inputs()
        return MicroBatch(0, 0, now, list(plans.values()), closing, skipped, self._inputs)

    def again(self, batch: MicroBatch | None) -> MicroBatch | None:
        """Plan a batch of an earlier driver again, if it was not done: the same records.

        Only ranges tell whether it was done, so a task without any is planned again. So is the silence of inputs: a
        record that has come since must not be late for what was planned and never committed.
        """
        if batch is None or batch.inputs != self._inputs:
            return None
        bounds = self._bounds()
        tasks = [plan for plan in batch.tasks if plan.ranges]
        for plan in tasks:
            if plan.index not in self._tasks:
                return None
            for log, (start, stop) in plan.ranges.items():
                place = Partition(log, plan.index)
                known = bounds.get(place)
                if known is None or self.positions.get(place, known.start) != start or stop > known.end:
                    return None
            plan.time, plan.reached = None, self._event_time.reached(plan.index)  # else as the state log says
            plan.positions = {place.log: offset for place, offset in self.positions_of((plan.index,)).items()}
            plan.versions = self._versions.get(plan.index, [])
            plan.silent = {}
        return msgspec.structs.replace(batch, tasks=tasks, finish=None) if tasks else None

    def _ranges(self) -> dict[int, TaskPlan]:
        """The ranges of waiting records, shared out."""
        now = time.monotonic()
        resting = {index for index, (_, until) in self._retries.items() if now < until}
        bounds = self._bounds()
        ends = {place: known.end for place, known in bounds.items()} if self.ends is None else self.ends
        chosen = [place for place in self._places if place.index not in resting]
        starts = {place: self.positions.get(place, bounds[place].start) for place in chosen}
        stops = rationed(
            {rank: starts[place] for rank, place in enumerate(chosen)},
            {rank: ends[place] for rank, place in enumerate(chosen)},
            self._most_records,
        )
        plans: dict[int, TaskPlan] = {}
        for rank, place in enumerate(chosen):
            if stops[rank] > starts[place]:
                plan = plans.setdefault(place.index, TaskPlan(place.index, {}))
                plan.ranges[place.log] = (starts[place], stops[rank])
        return plans

    def _bounds(self) -> dict[Partition, Bounds]:
        return {Partition(log, known.partition): known for log in self._logs for known in self._store.bounds(log)}

    def _check_inputs(self) -> None:
        """Check that the inputs are the logs that the driver started with."""
        now = self._identities()
        if self._keeps:
            check_inputs(self._node.computation, self._inputs, now)
        for log in [log for log in now if is_another(self._inputs[log], now[log])]:
            raise StoreUnavailable(
                f"log {log!r} was created again."
            )  # so is this driver: it begins at the start of the log

    # --- what came of it ---------------------------------------------------------------------------------

    def done(self, results: list[TaskResult], written: Mapping[Partition, int]) -> None:
        """Note that a batch was committed; ``written`` has the ends of the partitions it has appended to."""
        for result in results:
            index = result.index
            self.positions.update({Partition(log, index): offset for log, offset in result.positions.items()})
            if result.retry is not None:
                self._retries[index] = (result.retry, time.monotonic() + result.retry.pause_us / 1e6)
            if self._keeps:
                versions = self._versions[index]
                end = written.get(Partition(state_log(self._node.name), index), versions[-1].end)
                self._versions[index] = [*versions[1 - REMEMBERED :], StateVersion(result.id, end)]

    def positions_of(self, tasks: Container[int]) -> dict[Partition, int]:
        """The positions of these tasks, if they have begun."""
        return {place: offset for place, offset in self.positions.items() if place.index in tasks}

    @property
    def waiting(self) -> set[int]:
        """Tasks with a record that is tried again later."""
        return set(self._retries)

    # --- the end of the input ----------------------------------------------------------------------------

    def end_input(self) -> None:
        """Take the current end of the input as final."""
        self.ends = {place: known.end for place, known in self._bounds().items()}

    def _closes(self, plans: dict[int, TaskPlan], final: bool | None) -> bool:
        """Whether these plans come to the end of the input, and there is something to do there."""
        computation = self._node.computation
        if not computation.overrides("on_drain") and not (final and computation.keeps):
            return False
        stops = {Partition(log, plan.index): stop for plan in plans.values() for log, (_, stop) in plan.ranges.items()}
        return self.is_read(stops)

    def is_read(self, ahead: Mapping[Partition, int] | None = None) -> bool:
        """Whether all is read up to the end of the input, by what is done or about to be done."""
        positions: dict[Partition, int] = {**self.positions, **(ahead or {})}
        bounds = self._bounds()
        return all(positions.get(place, bounds[place].start) >= end for place, end in (self.ends or {}).items())
