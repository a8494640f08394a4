"""How event time passes from one computation to the next: tasks report how far they are, in ``<computation>.low``.

Records of several tasks meet in the partitions of the next computation, some early and some late, so the newest event
time there says little. A report does: "after these offsets of my output partitions I write nothing older than this".
A reader applies it when it has processed its partition up to the offset in the report, and never goes beyond the least
of what all tasks of all writers have reported by then. A task that has reported nothing holds its readers back.

A report is written when its offsets are known: in a transaction after the one with the outputs it speaks of. It stays
true whatever happens in between, so a crash only delays it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.errors import Undecodable
from penstock.log.record import NewRecords, Partition
from penstock.stream.engine.watermark import END, LOWEST, Promise, SilentInput

if TYPE_CHECKING:
    from penstock.stream.topology import Node, Topology

EVERY = 0.2  # seconds between two reports of a task
AGAIN = 600.0  # seconds after which an unchanged report is written again, so that retention never takes the last one
ALL = -1  # in place of a task's number: earlier reports do not hold any more

Ends = Mapping[str, Sequence[int]]  # by stream: an offset in each of its partitions


@prepared
class WatermarkReport(msgspec.Struct, array_like=True, frozen=True):
    """One record of such a log: what one task promises to the readers of its outputs."""

    task: int
    low: Micros  # nothing older will be written
    ends: Ends  # ... after these offsets
    tasks: int  # how many the computation has
    topology: str
    idle_low: Micros | None = None  # nothing older will be written while the inputs in ``silent`` stay silent
    silent: tuple[SilentInput, ...] = ()
    reached: Micros = LOWEST  # the task's own watermark, for its next owner
    inputs: tuple[str, ...] = ()  # what the computation reads: the owner of these partitions reports for it
    is_read: bool = True  # whether its outputs are read in its topology


_DECODER = msgspec.msgpack.Decoder(WatermarkReport)


def low_log(computation: str) -> str:
    """The log in which the tasks of a computation report their low watermarks."""
    return f"{computation}.low"


def has_reports(topology: Topology, node: Node) -> bool:
    """Whether a computation has a log of reports: one without inputs has no event time of its own."""
    return not node.is_source and (bool(node.outputs) or _remembers(topology, node))


def is_read(topology: Topology, node: Node) -> bool:
    """Whether a computation of the topology reads what this one writes."""
    return any(topology.all_readers(stream) for stream in node.outputs.values())


def _remembers(topology: Topology, node: Node) -> bool:
    """Whether only reports store what silence has decided: no state, and several inputs or one that is computed."""
    if node.computation.keeps:
        return False
    writers = [writer for stream in node.inputs.values() for writer in topology.all_writers(stream)]
    return len(node.inputs) > 1 or any(not writer.is_source for writer in writers)


def reports_time(topology: Topology, node: Node) -> bool:
    """Whether the tasks of a computation report all the time: others use it, or its state expires by it."""
    if node.is_source:
        return False
    return _remembers(topology, node) or is_read(topology, node)


def encoded(reports: Iterable[WatermarkReport]) -> NewRecords:
    """Encode reports as records."""
    return NewRecords([msgspec.msgpack.encode(report) for report in reports])


def decoded(payload: bytes, partition: Partition, offset: int) -> WatermarkReport:
    """Decode a record as a report."""
    try:
        return _DECODER.decode(payload)
    except msgspec.MsgspecError as cause:
        raise Undecodable(
            f"offset {offset} of {partition} is not a report of event time: {cause}.",
            hint=f"Only runners may append to it. Stop all runners of the topology, and delete the log "
            f"{partition.log!r}.",
            partition=str(partition), offset=offset,
        ) from cause  # fmt: skip


class WatermarkPublisher:
    """What one task has reported, and what it has to report next."""

    def __init__(self, task: int, tasks: int, topology: str, inputs: tuple[str, ...], is_read: bool = True) -> None:
        """Nothing was reported yet. ``is_read``: somebody in the topology reads what the computation writes."""
        self._task = task
        self._tasks = tasks
        self._topology = topology
        self._inputs = inputs
        self._is_read = is_read
        self._published: WatermarkReport | None = None
        self._published_at = float("-inf")
        self._pending: WatermarkReport | None = None
        self._sent: WatermarkReport | None = None
        self.must_announce = False  # before anything is produced

    def resume(self, last: Mapping[int, WatermarkReport]) -> None:
        """Continue from what the tasks of the computation reported before."""
        mine = self._published = last.get(self._task)
        # Readers must not take a returning task for ended, nor overlook a new one.
        self.must_announce = (mine is not None and mine.low == END) or any(
            (report.tasks, report.topology) != (self._tasks, self._topology) for report in last.values()
        )

    def offer(self, promise: Promise, reached: Micros, ends: Ends) -> None:
        """Offer what holds after a checkpoint."""
        low, idle_low, silent = promise
        report = WatermarkReport(
            self._task, low, ends, self._tasks, self._topology, idle_low, silent, reached, self._inputs,
            self._is_read,
        )  # fmt: skip
        self._pending = report if self.must_announce or self._is_news(report) else None

    def _is_news(self, report: WatermarkReport) -> bool:
        if self._published is None:
            return report.low != LOWEST or report.idle_low is not None
        return not self._is_same(report, self._published)

    @staticmethod
    def _is_same(report: WatermarkReport, other: WatermarkReport) -> bool:
        return (report.low, report.idle_low, report.silent) == (other.low, other.idle_low, other.silent)

    def due(self, *, now: bool = False) -> WatermarkReport | None:
        """The report to write with the next transaction; it counts from :meth:`committed` on."""
        self._sent = self._pending if now or self.wait() <= 0 else None
        return self._sent

    def remember(self, reached: Micros) -> WatermarkReport | None:
        """The report of the watermark to write with a checkpoint's transaction, unless an earlier one says it."""
        before = self._sent or self._published
        if reached == LOWEST or (before is not None and before.reached >= reached):
            return None
        if before is None:
            before = WatermarkReport(
                self._task, LOWEST, {}, self._tasks, self._topology, inputs=self._inputs, is_read=self._is_read
            )
        self._sent = msgspec.structs.replace(before, reached=reached)
        return self._sent

    def wait(self) -> float:
        """Seconds until the next report may be written; infinite if there is none."""
        now = time.monotonic()
        if self._pending is None and self._published is not None and self._published_at + AGAIN < now:
            self._pending = self._published
        return float("inf") if self._pending is None else self._published_at + EVERY - now

    def committed(self) -> None:
        """Note that the transaction was committed."""
        if self._sent is not None:
            if self._pending is not None and self._is_same(self._pending, self._sent):
                self._pending = None
            self._published, self._published_at = self._sent, time.monotonic()
            self._sent = None
            self.must_announce = False

    def rollback(self) -> None:
        """Note that the transaction failed: its report is still pending."""
        self._sent = None


class WatermarkGate:
    """How far event time is at each position of an input partition: what its writers had reported by then."""

    def __init__(self, partition: Partition, writers: Mapping[str, int], former: Collection[str] = ()) -> None:
        """``writers``: computations, and how many tasks each has at least; ``former``: those that no longer run."""
        self.partition = partition
        self._former = former
        self._writers = writers
        self._tasks = dict(writers)
        self._applied: dict[tuple[str, int], WatermarkReport] = {}
        self._ahead: dict[tuple[str, int], deque[tuple[int, WatermarkReport]]] = {}

    def feed(self, writer: str, report: WatermarkReport) -> None:
        """Take a report, in the order of their log."""
        if report.task == ALL:
            for task in range(self._tasks[writer]):
                self._add(writer, task, report)
        else:
            self._tasks[writer] = max(self._writers[writer], report.tasks)
            self._add(writer, report.task, report)

    def _add(self, writer: str, task: int, report: WatermarkReport) -> None:
        ends = report.ends.get(self.partition.log, ())
        end = ends[self.partition.index] if self.partition.index < len(ends) else 0
        ahead = self._ahead.setdefault((writer, task), deque())
        if ahead and ahead[-1][0] >= end:
            end, _ = ahead.pop()  # both hold from there: the newer one counts
        ahead.append((end, report))

    def at(self, position: int) -> Iterator[tuple[str, int, WatermarkReport | None]]:
        """What each task of each writer had reported when it wrote up to a position, or None if nothing."""
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
        """Forget the reports from before a position: everything before it is committed."""
        for place, ahead in self._ahead.items():
            while ahead and ahead[0][0] <= position:
                self._applied[place] = ahead.popleft()[1]


class Writers(NamedTuple):
    """Who writes the streams of a topology, for event time."""

    reporting: Mapping[str, Mapping[str, int]]  # of each stream: computations that report event time, with their tasks
    fed: Collection[str]  # streams with records that no report speaks of: from outside, or from a source
    former: Collection[str] = ()  # computations that wrote them and are not part of the topology any more
