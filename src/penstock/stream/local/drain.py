"""Exact draining: by captured end offsets, one computation after the other in the order of the topology.

The ends of a computation's inputs are captured when everything before it has ended, so nothing that was there when the
drain began is missed, and no one has to wait for silence.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from penstock.clock import Micros
from penstock.log.record import Bounds, Partition
from penstock.log.store import LogStore
from penstock.stream.topology import Node
from penstock.stream.validate import ResolvedTopology

LOOK = 0.005


class DrainTarget(Protocol):
    """The threads of a runner, wherever they are."""

    def hurry(self, node: Node) -> None:
        """Batches are not waited for any more."""

    def is_quiet(self, node: Node) -> bool:
        """Whether a source has no timer that is due."""

    def has_failed(self, node: Node) -> bool:
        """Whether an instance has ended with an error."""

    def owned(self, node: Node) -> int:
        """How many partitions the instances have."""

    def freeze(self, node: Node, on: bool, seconds: float) -> bool:
        """Stop all instances from reading, so that no partition moves, or let them read. Returns False if too slow."""

    def finish(self, node: Node, final: bool, seconds: float) -> bool:
        """Let all instances finish at the end of the input, then end them. Returns False if not in time."""


def drain(store: LogStore, topology: ResolvedTopology, target: DrainTarget, *, final: bool, seconds: float) -> bool:
    """Drain. Returns False if it did not succeed in time, or a computation has failed."""
    deadline = time.monotonic() + seconds
    for node in topology.order:
        if node.concurrency == 0:
            continue
        if not _drain_one(store, topology, target, node, final=final, deadline=deadline):
            return False
    return True


def _drain_one(
    store: LogStore, topology: ResolvedTopology, target: DrainTarget, node: Node, *, final: bool, deadline: float
) -> bool:
    ends = _ends(store, node)
    target.hurry(node)
    never = threading.Event()
    look = LOOK if store.capabilities.dense else 20 * LOOK
    while True:
        if target.has_failed(node):
            return False
        left = max(0.0, deadline - time.monotonic())
        if _is_ready(topology, target, node) and all(
            _is_read(store, node, stream, ends) for stream in node.inputs.values()
        ):
            # Partitions may be on their way from one instance to another: freeze them before finishing.
            if target.freeze(node, True, left) and _is_ready(topology, target, node):
                return target.finish(node, final, left)
            target.freeze(node, False, left)
        if time.monotonic() > deadline:
            return False
        never.wait(look)


def _is_ready(topology: ResolvedTopology, target: DrainTarget, node: Node) -> bool:
    return target.owned(node) == topology.tasks[node.name] and (not node.is_source or target.is_quiet(node))


def _ends(store: LogStore, node: Node) -> dict[Partition, Bounds]:
    return {
        Partition(stream, bounds.partition): bounds
        for stream in node.inputs.values()
        for bounds in store.bounds(stream)
    }


def _is_read(store: LogStore, node: Node, stream: str, ends: dict[Partition, Bounds]) -> bool:
    committed = store.committed(stream, node.name)
    for index, offset in enumerate(committed):
        bounds = ends[Partition(stream, index)]
        at = bounds.start if offset is None else max(offset, bounds.start)
        if at < bounds.end and not is_empty(store, Partition(stream, index), at, bounds.end):
            return False
    return True


def is_empty(store: LogStore, place: Partition, start: int, end: int) -> bool:
    """Whether there are no records: where offsets have holes, an end need not be behind a record."""
    return not store.capabilities.dense and not any(len(batch) for batch in store.batches(place, start, end))


def is_done(
    store: LogStore, topology: ResolvedTopology, moment: Micros, lows: dict[str, list[Micros]], waits: dict[str, bool]
) -> bool:
    """Whether everything up to an event time has gone through, checked in the order of the topology.

    A computation has done its part when its inputs are read to their ends, or its watermark has passed the moment, and
    no event-time timer up to the moment waits (``waits``).
    """
    for node in topology.order:
        if node.concurrency == 0:
            continue
        read = all(_is_read(store, node, stream, _ends(store, node)) for stream in node.inputs.values())
        passed = bool(lows[node.name]) and min(lows[node.name]) > moment
        if waits[node.name] or not (read or passed):
            return False
    return True
