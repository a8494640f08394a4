"""How event time comes from one computation to the next: its tasks report how far they are, in ``<computation>.low``.

Records of several tasks meet in the partitions of the next computation, some early and some late, so the newest event
time there says little. A report does: "behind these offsets of my output partitions I write nothing older than this".
A reader applies it when it has processed its partition up to the offset in the report, and never goes beyond the least
of what all tasks of all writers have reported by then. A task that has reported nothing holds its readers.

A report is written when its offsets are known: in a transaction after the one with the outputs it speaks of. It stays
true whatever happens in between, so a crash only delays it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.clock import Micros, duration_micros
from penstock.codec import prepared
from penstock.errors import LogNotFound, PartitionTaken
from penstock.ids import new_id
from penstock.log.record import Bounds, NewRecords, Partition, RecordBatch
from penstock.log.store import Commit, LogStore, Retention
from penstock.log.tailer import Tailer
from penstock.stream.watermark import END, LOWEST, Promise, Reach, SilentInput

if TYPE_CHECKING:
    from penstock.stream.topology import Node, Topology

EVERY = 0.2  # seconds between two reports of a task
AGAIN = 600.0  # seconds after which an unchanged report is written again, so that retention never takes the last one
KEPT = timedelta(minutes=15)
SEGMENT = 1024 * 1024
REMEMBERED = 20_000  # reports of a computation that are held for tasks that arrive later
ALL = -1  # in place of a task's number: no report from before holds any more

Ends = Mapping[str, Sequence[int]]  # by stream: an offset in each of its partitions


@prepared
class Report(msgspec.Struct, array_like=True, frozen=True):
    """One record of such a log: what one task promises to those that read its outputs."""

    task: int
    low: Micros  # nothing older comes
    ends: Ends  # ... behind these offsets
    tasks: int  # how many the computation has
    topology: str
    idle_low: Micros | None = None  # nothing older comes while the inputs in ``silent`` stay silent
    silent: tuple[SilentInput, ...] = ()
    reached: Micros = LOWEST  # the task's own watermark, for its next owner
    inputs: tuple[str, ...] = ()  # what the computation reads: whoever owns them speaks for it
    is_read: bool = True  # whether its outputs are read in its topology


_DECODER = msgspec.msgpack.Decoder(Report)


def low_log(computation: str) -> str:
    """The log in which the tasks of a computation report their low watermarks."""
    return f"{computation}.low"


def make_low_log(store: LogStore, computation: str) -> None:
    """Create it."""
    store.create(low_log(computation), 1, retention=Retention(age=KEPT), segment_bytes=SEGMENT)


def has_reports(node: Node) -> bool:
    """Whether a computation has a log of reports: one without inputs has no event time of its own."""
    return not node.is_source and (bool(node.outputs) or _remembers(node))


def _remembers(node: Node) -> bool:
    """Whether nothing else keeps what silence has decided: several inputs and no state."""
    return len(node.inputs) > 1 and not node.computation.keeps


def reports_time(topology: Topology, node: Node) -> bool:
    """Whether the tasks of a computation report all the time: others go by it, or it remembers by it."""
    if node.is_source:
        return False
    return _remembers(node) or any(topology.all_readers(stream) for stream in node.outputs.values())


def encoded(reports: Iterable[Report]) -> NewRecords:
    """Reports as records."""
    return NewRecords([msgspec.msgpack.encode(report) for report in reports])


def ends_of(store: LogStore, streams: Iterable[str]) -> dict[str, list[int]]:
    """Where streams end now; one that is not there is left out."""
    return {stream: [bounds.end for bounds in store.bounds(stream)] for stream in set(streams) if store.exists(stream)}


def forget_reports(store: LogStore, node: Node, topology: str) -> None:
    """The computation begins anew: no report from before holds for what it writes from now on."""
    if store.exists(low_log(node.name)):
        ends = ends_of(store, node.outputs.values())
        _append(store, node.name, [Report(ALL, LOWEST, ends, 0, topology)])


def end_reports(store: LogStore, computation: str, last: Mapping[int, Report]) -> bool:
    """The computation will never speak again: whoever has read its last record need not wait for it any more.

    False, and nothing done, while somebody still runs it.
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
        _append(store, computation, ended)
    return True


def begin_reports(store: LogStore, topology: Topology, node: Node, tasks: int) -> None:
    """A run begins: say what a computation writes, and take back that it has ended, before anything is produced.

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
        is_read = any(topology.all_readers(stream) for stream in ends)
        begun = [
            Report(task, LOWEST, ends, tasks, topology.name, inputs=inputs, is_read=is_read) for task in range(tasks)
        ]
    if begun:
        _append(store, node.name, begun)


def _append(store: LogStore, computation: str, reports: list[Report]) -> None:
    store.transact(Commit([(Partition(low_log(computation), 0), encoded(reports))], []))


class ReportLog:
    """The reports of one computation, as far as they were read."""

    def __init__(self, store: LogStore, computation: str) -> None:
        """Nothing is read before :meth:`read`."""
        self.computation = computation
        self.reports: deque[Report] = deque(maxlen=REMEMBERED)
        self._store = store
        self._partition = Partition(low_log(computation), 0)
        self._next = 0
        self._tail: Tailer[Any] | None = None

    def read(self) -> list[Report]:
        """What was reported since."""
        new = [_DECODER.decode(payload) for batch in self._batches() for payload in batch.payloads()]
        self.reports.extend(new)
        return new

    def _batches(self) -> Iterable[RecordBatch]:
        if self._store.capabilities.dense:
            bounds = self._store.bounds_of(self._partition)
            start, self._next = max(bounds.start, self._next), bounds.end
            return self._store.batches(self._partition, start, bounds.end) if start < bounds.end else ()
        if self._tail is None:  # opening a reader takes too long to do it each time
            group = f"{self._partition.log}-{new_id()}"
            self._tail = self._store.tailer(self._partition, group, bytes, out_of_range="earliest")
        return self._tail.read_batches(1000)

    def close(self) -> None:
        """Read no more."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def last_reports(store: LogStore, computation: str) -> dict[int, Report]:
    """The newest report of every task of a computation; none of those before a reset."""
    last: dict[int, Report] = {}
    partition = Partition(low_log(computation), 0)
    if not store.exists(partition.log):
        return last
    for batch in store.batches(partition):
        for payload in batch.payloads():
            report = _DECODER.decode(payload)
            if report.task == ALL:
                last.clear()
            else:
                last[report.task] = report
    return last


class Publisher:
    """What one task has reported, and what it has to report next."""

    def __init__(self, task: int, tasks: int, topology: str, inputs: tuple[str, ...]) -> None:
        """Nothing was reported yet."""
        self._task = task
        self._tasks = tasks
        self._topology = topology
        self._inputs = inputs
        self._published: Report | None = None
        self._published_at = float("-inf")
        self._pending: Report | None = None
        self._sent: Report | None = None
        self.must_announce = False  # before anything is produced

    def resume(self, last: Mapping[int, Report]) -> None:
        """Take up what the tasks of the computation have reported before."""
        mine = self._published = last.get(self._task)
        # Readers must not take a task that comes back for ended, nor overlook one that was not there before.
        self.must_announce = (mine is not None and mine.low == END) or any(
            (report.tasks, report.topology) != (self._tasks, self._topology) for report in last.values()
        )

    def offer(self, promise: Promise, reached: Micros, ends: Ends) -> None:
        """What holds after a checkpoint."""
        low, idle_low, silent = promise
        report = Report(
            self._task, low, ends, self._tasks, self._topology, idle_low, silent, reached, self._inputs
        )  # fmt: skip
        self._pending = report if self.must_announce or self._is_news(report) else None

    def _is_news(self, report: Report) -> bool:
        if self._published is None:
            return report.low != LOWEST or report.idle_low is not None
        return not self._is_same(report, self._published)

    @staticmethod
    def _is_same(report: Report, other: Report) -> bool:
        return (report.low, report.idle_low, report.silent) == (other.low, other.idle_low, other.silent)

    def due(self, *, now: bool = False) -> Report | None:
        """The report that is to be written with the next transaction; it counts with :meth:`committed`."""
        self._sent = self._pending if now or self.wait() <= 0 else None
        return self._sent

    def remember(self, reached: Micros) -> Report | None:
        """With the transaction of a checkpoint: how far its watermark has come, if that is not known from before."""
        before = self._sent or self._published
        if reached == LOWEST or (before is not None and before.reached >= reached):
            return None
        if before is None:
            before = Report(self._task, LOWEST, {}, self._tasks, self._topology, inputs=self._inputs)
        self._sent = msgspec.structs.replace(before, reached=reached)
        return self._sent

    def wait(self) -> float:
        """How many seconds the next report still has to wait; endless if there is none."""
        now = time.monotonic()
        if self._pending is None and self._published is not None and self._published_at + AGAIN < now:
            self._pending = self._published
        return float("inf") if self._pending is None else self._published_at + EVERY - now

    def committed(self) -> None:
        """The transaction happened."""
        if self._sent is not None:
            if self._pending is not None and self._is_same(self._pending, self._sent):
                self._pending = None
            self._published, self._published_at = self._sent, time.monotonic()
            self._sent = None
            self.must_announce = False

    def rollback(self) -> None:
        """It did not; what is pending still is."""
        self._sent = None


class Gate:
    """How far one input partition may count at each position: by what its writers had reported when they wrote it."""

    def __init__(self, partition: Partition, writers: Mapping[str, int], former: Collection[str] = ()) -> None:
        """``writers``: computations, and how many tasks each has at least; ``former``: those that are no more."""
        self.partition = partition
        self._former = former
        self._writers = writers
        self._tasks = dict(writers)
        self._applied: dict[tuple[str, int], Report] = {}
        self._ahead: dict[tuple[str, int], deque[tuple[int, Report]]] = {}

    def feed(self, writer: str, report: Report) -> None:
        """A report, in the order of their log."""
        if report.task == ALL:
            for task in range(self._tasks[writer]):
                self._add(writer, task, report)
        else:
            self._tasks[writer] = max(self._writers[writer], report.tasks)
            self._add(writer, report.task, report)

    def _add(self, writer: str, task: int, report: Report) -> None:
        ends = report.ends.get(self.partition.log, ())
        end = ends[self.partition.index] if self.partition.index < len(ends) else 0
        ahead = self._ahead.setdefault((writer, task), deque())
        if ahead and ahead[-1][0] >= end:
            end, _ = ahead.pop()  # both hold from there: the newer one counts
        ahead.append((end, report))

    def at(self, position: int) -> Iterator[tuple[str, int, Report | None]]:
        """What each task of each writer had reported when it wrote up to a position; None: nothing."""
        for writer, tasks in self._tasks.items():
            for task in range(tasks):
                report = self._applied.get((writer, task))
                ahead = self._ahead.get((writer, task), ())
                for end, later in ahead:
                    if end > position:
                        break
                    report = later
                if report is None and not ahead and writer in self._former:
                    continue  # it ended so long ago that its last report is gone
                yield writer, task, report

    def passed(self, position: int) -> None:
        """Everything before a position is committed: reports from before are not needed any more."""
        for place, ahead in self._ahead.items():
            while ahead and ahead[0][0] <= position:
                self._applied[place] = ahead.popleft()[1]


class Writers(NamedTuple):
    """Who writes the streams of a topology, as event time goes by them."""

    reporting: Mapping[str, Mapping[str, int]]  # of each stream: computations that report event time, with their tasks
    fed: Collection[str]  # streams with records that no report speaks of: from outside, or from a source
    former: Collection[str] = ()  # computations that wrote them and are not part of the topology any more


class LogEnds:
    """Where logs end; each is asked once until :meth:`forget`."""

    def __init__(self, store: LogStore) -> None:
        """Nothing is known yet."""
        self._store = store
        self._bounds: dict[str, list[Bounds]] = {}

    def forget(self) -> None:
        """Ask again."""
        self._bounds.clear()

    def of(self, log: str, partition: int) -> int | None:
        """The end of a partition; None if there is none."""
        if log not in self._bounds:
            try:
                self._bounds[log] = self._store.bounds(log)
            except LogNotFound:
                self._bounds[log] = []
        bounds = self._bounds[log]
        return bounds[partition].end if partition < len(bounds) else None

    def are_silent(self, inputs: Collection[SilentInput]) -> bool:
        """Whether nothing has come since they were found silent."""
        return all(self.of(silent.log, silent.partition) == silent.end for silent in inputs)


def counted(report: Report | None, ends: LogEnds) -> Micros:
    """How far a reader may go by a report: a record that waits in a silent input must not be made late."""
    if report is None:
        return LOWEST
    return report.idle_low if report.idle_low is not None and ends.are_silent(report.silent) else report.low


class Upstream:
    """What comes before a computation in its topology: how far each input of each of its tasks may count."""

    def __init__(self, store: LogStore, inputs: Mapping[str, str], written: Writers, ends: LogEnds) -> None:
        """``inputs``: streams by the computation's own names."""
        writers = written.reporting
        self._former = written.former
        self.inner = {local: stream for local, stream in inputs.items() if writers.get(stream)}
        self._writers = writers
        names = {name for stream in self.inner.values() for name in writers[stream]}
        self._logs = {name: ReportLog(store, name) for name in sorted(names)}
        self._gates: dict[tuple[int, str], Gate] = {}
        self._ends = ends

    def __bool__(self) -> bool:
        """Whether there is anything before it."""
        return bool(self._logs)

    def add(self, index: int) -> None:
        """A task arrives."""
        for local, stream in self.inner.items():
            gate = self._gates[index, local] = Gate(Partition(stream, index), self._writers[stream], self._former)
            for name in self._writers[stream]:
                for report in self._logs[name].reports:
                    gate.feed(name, report)

    def drop(self, index: int) -> None:
        """A task leaves."""
        for local in self.inner:
            self._gates.pop((index, local), None)

    def look(self) -> None:
        """Read what was reported since."""
        for name, log in self._logs.items():
            for report in log.read():
                for gate in self._gates.values():
                    if name in self._writers[gate.partition.log]:
                        gate.feed(name, report)

    def reach(self, index: int, local: str, position: int) -> Reach:
        """How far an input of a task may count once it is processed up to a position."""
        firm, low = END, END
        silent: set[SilentInput] = set()
        for _, _, report in self._gates[index, local].at(position):
            if report is None:
                return Reach()
            firm = min(firm, report.low)
            low = min(low, counted(report, self._ends))
            if report.idle_low is not None and self._ends.are_silent(report.silent):
                silent.update(report.silent)
        return Reach(firm, low, tuple(sorted(silent)))

    def passed(self, index: int, positions: Mapping[str, int]) -> None:
        """A task has committed these positions of its input streams."""
        for local, stream in self.inner.items():
            if (index, local) in self._gates and stream in positions:
                self._gates[index, local].passed(positions[stream])

    def close(self) -> None:
        """Read no more."""
        for log in self._logs.values():
            log.close()
