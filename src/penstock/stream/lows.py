"""How event time comes from one computation to the next: the tasks of each tell their low watermarks in a log.

Records of one task meet those of others in the partitions of the next computation, some early and some late, so the
newest event time there says little. What the writers have told does: with a checkpoint that moves its watermark a task
appends it to ``<computation>.low``, in the same transaction as its outputs. A reader goes no further than the least of
its writers' tasks, and not before it has read everything that was in its partition when it saw what they told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import Micros
from penstock.ids import new_id
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.store import LogStore, Retention
from penstock.log.tailer import Tailer
from penstock.stream.watermark import END, LOWEST, Watermark

if TYPE_CHECKING:
    from penstock.stream.checks import Plan
    from penstock.stream.topology import Node, Topology

AGAIN: Micros = 60_000_000  # a low watermark that stays is told again, so that retention never takes the last word
KEPT = timedelta(minutes=10)
SEGMENT = 1024 * 1024
FORGET = -1  # told in place of a task's number: what all have told does not hold any more


class Told(msgspec.Struct, array_like=True):
    """One record of such a log."""

    task: int
    low: Micros


def low_log(computation: str) -> str:
    """The log in which the tasks of a computation tell their low watermarks."""
    return f"{computation}.low"


def make_low_log(store: LogStore, computation: str) -> None:
    """Create it."""
    store.create(low_log(computation), 1, retention=Retention(age=KEPT), segment_bytes=SEGMENT)


def tells(topology: Topology, node: Node) -> bool:
    """Whether others go by the event time of a computation: one without inputs has none."""
    return not node.is_source and any(topology.readers(stream) for stream in node.outputs.values())


def records_of(lows: Mapping[int, Micros]) -> list[bytes]:
    """What tasks tell with a checkpoint, as the payloads of records."""
    return [msgspec.msgpack.encode(Told(task, low)) for task, low in lows.items()]


def forget_lows(store: LogStore, computation: str) -> None:
    """The computation begins anew."""
    if store.exists(low_log(computation)):
        with closing(store.appender(low_log(computation), bytes)) as appender:
            appender.append(msgspec.msgpack.encode(Told(FORGET, LOWEST)))


class Teller:
    """What one task has told, and what it has to tell."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self._told: tuple[Micros, Micros] = (LOWEST, 0)  # a low watermark, and when
        self._telling = self._told

    def next(
        self, watermark: Watermark, now: Micros, timer: Micros | None, *, busy: bool = False, over: bool = False
    ) -> Micros | None:
        """How far those may go that come after the task; None: nothing new. It counts with :meth:`committed`.

        ``timer`` is its next event-time timer; ``busy``: records wait for it; ``over``: its input has ended.
        """
        quiet = None if busy else watermark.silent(now)
        low = END if over else watermark.low if quiet is None else quiet
        if timer is not None and timer <= watermark.low:
            low = min(low, timer)  # it is still to be fired, and produces at its own time
        if low == LOWEST or (low == self._told[0] and now - self._told[1] < AGAIN):
            return None
        self._telling = (low, now)
        return low

    def committed(self) -> None:
        """It was told."""
        self._told = self._telling

    def rollback(self) -> None:
        """It was not."""
        self._telling = self._told


class Lows:
    """What the tasks of one computation have told."""

    def __init__(self, store: LogStore, computation: str, tasks: int) -> None:
        """Nothing is read before :meth:`look`."""
        self._store = store
        self._place = Partition(low_log(computation), 0)
        self._tasks = tasks
        self._known: dict[int, Micros] = {}
        self._next = 0
        self._tail: Tailer[Any] | None = None

    def look(self) -> None:
        """Take what was told since."""
        for batch in self._news():
            for payload in batch.payloads():
                one = msgspec.msgpack.decode(payload, type=Told)
                if one.task == FORGET:
                    self._known.clear()
                else:
                    self._known[one.task] = one.low

    def _news(self) -> Iterable[RecordBatch]:
        if self._store.capabilities.dense:
            bounds = self._store.bounds_of(self._place)
            start, self._next = max(bounds.start, self._next), bounds.end
            return self._store.batches(self._place, start, bounds.end) if start < bounds.end else ()
        if self._tail is None:  # opening a reader takes too long to do it each time
            self._tail = self._store.tailer(
                self._place, f"{self._place.log}-{new_id()}", bytes, out_of_range="earliest"
            )
        return self._tail.read_batches(1000)

    @property
    def least(self) -> Micros:
        """The least of all tasks; one that has told nothing holds everybody, a computation that never ran nobody."""
        if not self._known:
            return END
        return min(self._known.get(task, LOWEST) for task in range(self._tasks))

    def close(self) -> None:
        """Read no more."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None


class Upstream:
    """What comes before a computation in its topology: how far each of its inputs may count."""

    def __init__(self, store: LogStore, plan: Plan, node: Node) -> None:
        """Of inputs that come from elsewhere, or from a source, nothing is known."""
        self._store = store
        self._writers: dict[str, list[Lows]] = {}
        made: dict[str, Lows] = {}
        for local, stream in node.inputs.items():
            for writer in plan.topology.writers(stream):
                if not plan.topology.nodes[writer].is_source:
                    lows = made.setdefault(writer, Lows(store, writer, plan.tasks[writer]))
                    self._writers.setdefault(local, []).append(lows)
        self._streams = {local: node.inputs[local] for local in self._writers}
        self._all = list(made.values())

    def __bool__(self) -> bool:
        """Whether there is anything before it."""
        return bool(self._all)

    def look(self) -> dict[str, Micros]:
        """What each input may count for, to somebody who has read what is in it now."""
        for one in self._all:
            one.look()
        return {local: min(one.least for one in writers) for local, writers in self._writers.items()}

    def ends(self) -> dict[str, list[Bounds]]:
        """Where these inputs end now."""
        return {local: self._store.bounds(stream) for local, stream in self._streams.items()}

    def close(self) -> None:
        """Read no more."""
        for one in self._all:
            one.close()


class Holds:
    """What the inputs of one task may count for: granted when it has read what was there at that time."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._waiting: dict[str, tuple[Micros, int]] = {}

    def grant(self, local: str, low: Micros, at: int, end: int) -> Micros | None:
        """What an input may count for with everything before ``at`` processed; None: what it did before."""
        waiting = self._waiting.get(local)
        if at >= end:
            self._waiting.pop(local, None)
            return low
        if waiting is None:
            self._waiting[local] = (low, end)
            return None
        if at < waiting[1]:
            return None
        self._waiting[local] = (low, end)
        return waiting[0]
