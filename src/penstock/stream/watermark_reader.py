"""How far event time is in a computation's inputs: their writers' reports, from the logs ``<computation>.low``."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from penstock.clock import Micros
from penstock.errors import LogNotFound
from penstock.ids import new_id
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer
from penstock.stream.engine.watermark import END, LOWEST, Reach, SilentInput
from penstock.stream.engine.watermark_log import WatermarkGate, WatermarkReport, Writers, decoded, low_log

REMEMBERED = 20_000  # reports of a computation that are held for tasks that arrive later


class ReportLog:
    """The reports of one computation that were read so far."""

    def __init__(self, store: LogStore, computation: str) -> None:
        """Nothing is read before :meth:`read`."""
        self.computation = computation
        self.reports: deque[WatermarkReport] = deque(maxlen=REMEMBERED)
        self._store = store
        self._partition = Partition(low_log(computation), 0)
        self._next = 0
        self._tail: Tailer[Any] | None = None

    def read(self) -> list[WatermarkReport]:
        """Read what was reported since the last call."""
        new = [
            decoded(payload, self._partition, offset)
            for batch in self._batches()
            for offset, payload in zip(batch.offsets, batch.payloads(), strict=True)
        ]
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


class LogEnds:
    """Where logs end; each is asked once until :meth:`forget`."""

    def __init__(self, store: LogStore) -> None:
        """Nothing is known yet."""
        self._store = store
        self._bounds: dict[str, list[Bounds]] = {}

    def forget(self) -> None:
        """Forget the ends; the next call asks again."""
        self._bounds.clear()

    def of(self, log: str, partition: int) -> int | None:
        """The end of a partition, or None if there is none."""
        if log not in self._bounds:
            try:
                self._bounds[log] = self._store.bounds(log)
            except LogNotFound:
                self._bounds[log] = []
        bounds = self._bounds[log]
        return bounds[partition].end if partition < len(bounds) else None

    def are_silent(self, inputs: Collection[SilentInput]) -> bool:
        """Whether nothing was appended since they were found silent."""
        return all(self.of(silent.log, silent.partition) == silent.end for silent in inputs)


def counted(report: WatermarkReport | None, ends: LogEnds) -> Micros:
    """How far a reader may go by a report: a record that waits in a silent input must not be made late."""
    if report is None:
        return LOWEST
    return report.idle_low if report.idle_low is not None and ends.are_silent(report.silent) else report.low


class WatermarkReader:
    """What comes before a computation in its topology: how far each input of each of its tasks may count."""

    def __init__(self, store: LogStore, inputs: Mapping[str, str], written: Writers, ends: LogEnds) -> None:
        """``inputs``: streams by the computation's own names."""
        writers = written.reporting
        self._former = written.former
        self.inner = {local: stream for local, stream in inputs.items() if writers.get(stream)}
        self._writers = writers
        names = {name for stream in self.inner.values() for name in writers[stream]}
        self.logs = {name: ReportLog(store, name) for name in sorted(names)}
        self._gates: dict[tuple[int, str], WatermarkGate] = {}
        self._ends = ends

    def add(self, index: int) -> None:
        """Add a task."""
        for local, stream in self.inner.items():
            gate = self._gates[index, local] = WatermarkGate(
                Partition(stream, index), self._writers[stream], self._former
            )
            for name in self._writers[stream]:
                for report in self.logs[name].reports:
                    gate.feed(name, report)

    def drop(self, index: int) -> None:
        """Remove a task."""
        for local in self.inner:
            self._gates.pop((index, local), None)

    def look(self) -> None:
        """Read what was reported since."""
        for name, log in self.logs.items():
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
        for log in self.logs.values():
            log.close()
