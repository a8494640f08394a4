"""The logs a computation has beside its streams: its state, its watermark reports, its dead letters, its plans.

Here they are created, read back, and ended in a store. The contents of their records are defined in
:mod:`penstock.stream.engine.changelog` and :mod:`penstock.stream.engine.watermark_log`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import timedelta
from typing import Any

import msgspec

from penstock.clock import duration_micros
from penstock.errors import Conflict, PartitionTaken, PenstockError
from penstock.log.protocol import Commit
from penstock.log.record import Partition
from penstock.log.settings import Retention
from penstock.log.store import LogStore
from penstock.stream.engine.changelog import (
    Change,
    check_inputs,
    check_shapes,
    decoded_change,
    probe_entry,
    start_over,
    state_log,
)
from penstock.stream.engine.state_store import Entry
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import END, LOWEST
from penstock.stream.engine.watermark_log import ALL, Ends, WatermarkReport, decoded, encoded, is_read, low_log
from penstock.stream.topology import Node, Topology

logger = logging.getLogger("penstock.stream")

STATE_SEGMENT = 4 * 1024 * 1024
REPORT_SEGMENT = 1024 * 1024
REPORTS_KEPT = timedelta(minutes=15)


def reset(store: LogStore, node: Node, topology: str) -> None:
    """Forget a computation's offsets and state."""
    store.forget(node.name)
    if store.exists(state_log(node.name)):
        store.forget(state_log(node.name))
        store.delete(state_log(node.name))
    if store.exists(batch_log(node.name)):
        store.delete(batch_log(node.name))
    forget_reports(store, node, topology)


def batch_log(computation: str) -> str:
    """The log in which a runner that plans its batches writes them down before they run."""
    return f"{computation}.batches"


# --- state -----------------------------------------------------------------------------------------------


def make_state_log(store: LogStore, computation: str, partitions: int) -> None:
    """Create the state log, or check that an existing one has as many partitions."""
    name = state_log(computation)
    retention = Retention(age=None)
    if store.capabilities.retention:
        retention = Retention(age=None, keep_for=(name,), consumed=True)
    store.create(name, partitions, retention=retention, segment_bytes=STATE_SEGMENT)
    existing = store.settings(name).partitions
    if existing != partitions:
        raise Conflict(
            f"the state of {computation} is kept for {existing} partitions, and its inputs have {partitions} now.",
            hint=f"Keep the number of partitions, or start over with {start_over(computation)}.",
        )


def restore_task(store: LogStore, task: Task, node: Node) -> dict[str, int]:
    """Read the state and the timers of a task back; returns the input offsets (by stream) that go with them."""
    assert task.changelog is not None  # noqa: S101 - only tasks that keep something are restored
    inputs = {stream: store.identity(stream) for stream in node.inputs.values()}
    payloads, start, end = state_payloads(store, task.changelog.partition)
    return task.restore(payloads, inputs=inputs, start=start, end=end)


def state_payloads(store: LogStore, partition: Partition) -> tuple[Iterator[tuple[int, bytes]], int, int]:
    """The records of a state log that make up the state, and the offsets from and up to which they were read."""
    bounds = store.bounds_of(partition)
    start = bounds.start
    if store.capabilities.dense:  # on other stores reading the end costs as much as reading all of it
        last = last_change(store, partition)
        start = max(start, 0 if last is None else last.base)
    return payloads_of(store, partition, start), start, bounds.end


def payloads_of(
    store: LogStore, partition: Partition, start: int, stop: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """The records of a partition, with their offsets."""
    for batch in store.batches(partition, start, stop):
        yield from zip(batch.offsets, batch.payloads(), strict=True)


def cut_state_log(store: LogStore, partition: Partition, start: int) -> None:
    """Delete what comes before an offset: it was written again after it."""
    if store.capabilities.retention:
        store.reset(partition.log, {partition: start})
        store.enforce_retention(partition.log)
        return
    try:
        store.driver.delete_before({partition: start})
    except PenstockError as error:  # the log stays longer than it needs to be, and is cut after the next round
        logger.warning("%s was not cut before offset %s: %s", partition, start, error)


def last_change(store: LogStore, place: Partition) -> Change | None:
    """The newest record of a changelog."""
    last = last_payload(store, place)
    return None if last is None else decoded_change(last[1], place, last[0])


def last_payload(store: LogStore, place: Partition) -> tuple[int, bytes] | None:
    """The newest record of a partition, and its offset."""
    bounds = store.bounds_of(place)
    back = 1 if store.capabilities.dense else 16  # offsets of transaction marks, where there are such
    while bounds.start < bounds.end:
        start = max(bounds.start, bounds.end - back)
        payloads = list(payloads_of(store, place, start))
        if payloads:
            return payloads[-1]
        if start == bounds.start:
            return None
        back *= 8
    return None


def check_kept(store: LogStore, node: Node) -> None:
    """Check before a run that a partition's newest record fits the code and the inputs; a restore checks the others."""
    computation = node.computation
    name = state_log(node.name)
    if not store.exists(name):
        return
    cells = {state.name: state.cell() for state in computation.states}
    for place in store.partitions(name):
        last = last_change(store, place)
        if last is None:
            continue
        check_shapes(computation, last)
        check_inputs(
            computation, last.inputs, {log: store.identity(log) for log in node.inputs.values() if store.exists(log)}
        )
        if last.version == computation.version:
            for raw in last.entries[-20:]:
                entry = Entry(*raw)
                if entry.state in cells and entry.payload is not None:
                    probe_entry(computation, cells[entry.state], entry)
        return


# --- watermark reports -----------------------------------------------------------------------------------


def make_low_log(store: LogStore, computation: str) -> None:
    """Create the log of watermark reports."""
    store.create(low_log(computation), 1, retention=Retention(age=REPORTS_KEPT), segment_bytes=REPORT_SEGMENT)


def ends_of(store: LogStore, streams: Iterable[str]) -> dict[str, list[int]]:
    """Where streams end now. Streams that do not exist are left out."""
    return {stream: [bounds.end for bounds in store.bounds(stream)] for stream in set(streams) if store.exists(stream)}


def forget_reports(store: LogStore, node: Node, topology: str) -> None:
    """Write that a computation starts over: reports from before do not hold for what it writes from now on."""
    if store.exists(low_log(node.name)):
        ends = ends_of(store, node.outputs.values())
        append_reports(store, node.name, [WatermarkReport(ALL, LOWEST, ends, 0, topology)])


def end_reports(store: LogStore, computation: str, last: Mapping[int, WatermarkReport]) -> bool:
    """Write that a computation has ended for good: readers that have its last record stop waiting for it.

    Returns False, and does nothing, while an instance still runs.
    """
    inputs = {log for report in last.values() for log in report.inputs if store.exists(log)}
    owning: AbstractContextManager[Any] = nullcontext()
    if inputs:
        partitions: list[str | Partition] = [place for log in sorted(inputs) for place in store.partitions(log)]
        try:
            owning = closing(store.tailer(partitions, computation, bytes))
        except PartitionTaken:
            return False
    with owning:
        ends = ends_of(store, (stream for report in last.values() for stream in report.ends))
        ended = [
            msgspec.structs.replace(report, low=END, ends=ends, idle_low=None, silent=()) for report in last.values()
        ]
        append_reports(store, computation, ended)
    return True


def begin_reports(store: LogStore, topology: Topology, node: Node, tasks: int) -> None:
    """Before a run produces anything: report what a computation writes, and take back that it has ended.

    A task that comes back late must not be taken for ended while others run ahead.
    """
    last = last_reports(store, node.name)
    inputs = tuple(node.inputs.values())
    delay = duration_micros(node.computation.output_delay)
    begun = [
        msgspec.structs.replace(
            report, low=max(LOWEST, report.reached - delay), tasks=tasks, topology=topology.name, inputs=inputs
        )
        for report in last.values()
        if report.low == END
    ]
    if not last:
        ends: Ends = {stream: [] for stream in node.outputs.values()}
        has_readers = is_read(topology, node)
        begun = [
            WatermarkReport(task, LOWEST, ends, tasks, topology.name, inputs=inputs, is_read=has_readers)
            for task in range(tasks)
        ]
    if begun:
        append_reports(store, node.name, begun)


def append_reports(store: LogStore, computation: str, reports: list[WatermarkReport]) -> None:
    store.transact(Commit([(Partition(low_log(computation), 0), encoded(reports))], []))


def last_reports(store: LogStore, computation: str) -> dict[int, WatermarkReport]:
    """The newest report of every task of a computation; none of those before a reset."""
    last: dict[int, WatermarkReport] = {}
    partition = Partition(low_log(computation), 0)
    if not store.exists(partition.log):
        return last
    for offset, payload in payloads_of(store, partition, store.bounds_of(partition).start):
        report = decoded(payload, partition, offset)
        if report.task == ALL:
            last.clear()
        else:
            last[report.task] = report
    return last
