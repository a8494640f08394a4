"""How far the computations of a topology are, read from a store alone: it does not matter who runs them, or whether."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.clock import FIRST_TIME, LAST_TIME, Micros, from_micros
from penstock.errors import PenstockError
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.stream.engine.changelog import Change, state_log
from penstock.stream.engine.permanent import failed_at, is_permanent
from penstock.stream.engine.watermark import END, LOWEST
from penstock.stream.internal_logs import check_kept, last_change, last_reports
from penstock.stream.topology import Node, Topology
from penstock.stream.validate import ResolvedTopology
from penstock.stream.watermark_reader import LogEnds, counted


class Progress(msgspec.Struct, frozen=True):
    """One computation: how many records wait for it, how far its event time is, and who holds that back.

    ``problem`` is what would stop it at its next record: the record or its state cannot be read.
    """

    computation: str
    lag: int
    watermark: Micros | None
    held_by: str | None
    problem: str | None = None


def progress_of(store: LogStore, topology: Topology) -> list[Progress]:
    """The progress of all computations, in the order of the topology."""
    plan = ResolvedTopology(topology, store, create=False)
    return [_progress(store, plan, node) for node in plan.order]


def _progress(store: LogStore, plan: ResolvedTopology, node: Node) -> Progress:
    lag = sum(store.lag(stream, node.name).lag for stream in node.inputs.values() if store.exists(stream))
    problem = _problem(store, node)
    if problem is not None:
        return Progress(node.name, lag, None, None, str(problem))
    changes = {} if not node.computation.keeps else _changes(store, node)
    lows = [change.low for change in changes.values()] or [
        report.reached for report in last_reports(store, node.name).values()
    ]
    least = min((low for low in lows if low != LOWEST), default=LOWEST)  # of partitions that had records
    holders = sorted([*_writers(store, plan, node), *_edges(plan, node, changes)])
    held_by = None
    if holders and holders[0][0] != END:
        low, who = holders[0]
        held_by = f"{who}, which has reported nothing yet" if low == LOWEST else f"{who}, which is at {_text(low)}"
    return Progress(node.name, lag, None if least == LOWEST else least, held_by)


def _problem(store: LogStore, node: Node) -> PenstockError | None:
    """A problem that no retry would solve, as far as the store shows it, or None."""
    for stream in node.inputs.values():
        offsets = store.committed(stream, node.name) if store.exists(stream) else ()
        for index, offset in enumerate(offsets):
            place = Partition(stream, index)
            try:
                _read_one(store, place, offset)
            except PenstockError as error:
                if is_permanent(error, again=True):
                    return failed_at(node.name, error, (place, offset or 0))
                raise
    try:
        if node.computation.keeps:
            check_kept(store, node)
            _changes(store, node)
        last_reports(store, node.name)
    except PenstockError as error:
        if is_permanent(error):
            return failed_at(node.name, error)
        raise
    return None


def _read_one(store: LogStore, place: Partition, offset: int | None) -> None:
    """Read the next record of a partition, if there is one."""
    end = store.bounds_of(place).end
    if offset is None or offset < end:
        next((batch for batch in store.batches(place, offset, end) if len(batch)), None)


def _changes(store: LogStore, node: Node) -> dict[int, Change]:
    """The newest record of each partition of the state."""
    log = state_log(node.name)
    if not store.exists(log):
        return {}
    changes = {place.index: last_change(store, place) for place in store.partitions(log)}
    return {index: change for index, change in changes.items() if change is not None}


def _writers(store: LogStore, plan: ResolvedTopology, node: Node) -> Iterator[tuple[Micros, str]]:
    """How far the tasks are that write the inputs, and their names."""
    ends = LogEnds(store)
    for stream in node.inputs.values():
        for writer, tasks in plan.writers.reporting[stream].items():
            last = last_reports(store, writer)
            for task in range(tasks):
                yield counted(last.get(task), ends), f"partition {task} of {writer}"


def _edges(plan: ResolvedTopology, node: Node, changes: dict[int, Change]) -> Iterator[tuple[Micros, str]]:
    """The newest event times of inputs from outside, as far as they are kept."""
    for local, stream in node.inputs.items():
        if not plan.writers.reporting[stream]:
            for index, change in changes.items():
                if change.highs.get(local, LOWEST) != LOWEST:
                    yield change.highs[local], str(Partition(stream, index))


def _text(low: Micros) -> str:
    return from_micros(min(max(low, FIRST_TIME), LAST_TIME)).isoformat()
