"""The stream of tickets: what Spark takes for a source.

It runs in a process that Spark starts beside the driver, so the two talk through a folder: the source writes which turn
it is at, the runner writes the next ticket. Everything else is in the tickets themselves, which Spark keeps.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from penstock.ids import is_another
from penstock.spark.running.tickets import Ticket, as_offset, errands, from_offset, pack
from penstock.spark.stores import logs_at

FORMAT = "penstock-tickets"
FIRST = 1.0  # seconds to wait for the first ticket
COLUMNS = "slot INT NOT NULL, errand BINARY NOT NULL"


class Post:
    """The folder through which driver and source talk."""

    def __init__(self, folder: str | Path) -> None:
        """It exists."""
        self._asked = Path(folder) / "asked"
        self._ticket = Path(folder) / "ticket"

    def asked(self) -> int | None:
        """The turn at which the source is; None before it has asked."""
        try:
            return int(self._asked.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def ask(self, turn: int) -> None:
        """The source is at this turn."""
        _write(self._asked, str(turn).encode())

    def ticket(self) -> Ticket | None:
        """The newest ticket."""
        try:
            return msgspec.json.decode(self._ticket.read_bytes(), type=Ticket)
        except FileNotFoundError:
            return None

    def put(self, ticket: Ticket) -> None:
        """The next ticket."""
        _write(self._ticket, msgspec.json.encode(ticket))


def _write(path: Path, content: bytes) -> None:
    """A reader sees all of it or what was there before."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


class Errands(InputPartition):
    """Rows for one Spark task."""

    def __init__(self, rows: list[tuple[int, bytes]]) -> None:
        """Slot and errand."""
        super().__init__(None)
        self.rows = rows


class TicketSource(DataSource):
    """Found by its name once the runner has registered it."""

    @classmethod
    def name(cls) -> str:
        """For ``format(...)``."""
        return FORMAT

    def schema(self) -> str:
        """Where an errand is done, and what it is."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The only thing it can do."""
        return TicketReader(json.loads(self.options["ticket"]))


class TicketReader(DataSourceStreamReader):
    """Hands the runner's tickets to Spark, one after the other."""

    def __init__(self, options: dict[str, Any]) -> None:
        """``slots`` say where each task's state is; none: the tasks keep nothing."""
        self._post = Post(options["post"])
        self._url: str = options["url"]
        self._group: str = options["group"]
        self._slots: list[int] | None = options["slots"]
        self._told = -1

    def initialOffset(self) -> dict[str, Any]:
        """Before the first turn."""
        return as_offset(Ticket())

    def getDefaultReadLimit(self) -> ReadLimit:
        """A ticket is a ticket."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The next ticket, if there is one."""
        ticket = self._post.ticket()
        if ticket is not None and ticket.turn == start["turn"] + 1:
            return as_offset(ticket)
        if start["turn"] != self._told:
            self._told = start["turn"]
            self._post.ask(self._told)
            if self._told == 0 and (ticket := self._wait()) is not None:
                return as_offset(ticket)
        return start

    def _wait(self) -> Ticket | None:
        """A new query makes a batch of whatever it gets first, even of nothing: better of the first ticket."""
        until = time.monotonic() + FIRST
        never = threading.Event()
        while (ticket := self._post.ticket()) is None and time.monotonic() < until:
            never.wait(0.01)
        return ticket

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The errands of a ticket: in one Spark task if they are dealt out by their state, else in one each."""
        ticket = self._as_before(from_offset(end))
        rows = [(0 if self._slots is None else self._slots[one.job.task], pack(one)) for one in errands(ticket)]
        return [Errands([row]) for row in rows] if self._slots is None or not rows else [Errands(rows)]

    def _as_before(self, ticket: Ticket) -> Ticket:
        """A ticket that was committed before a crash: not a record more than then, whatever made it stop there."""
        store = logs_at(self._url)
        logs = {log for job in ticket.jobs for log in job.ranges}
        for log in [one for one in logs if is_another(ticket.inputs.get(one, ""), store.identity(one))]:
            logs.remove(log)  # it was made anew: offsets of one log say nothing about another
            for job in ticket.jobs:
                job.ranges.pop(log, None)
        committed = {log: store.committed(log, self._group) for log in logs}
        ends = {(job.task, log): committed[log][job.task] or 0 for job in ticket.jobs for log in job.ranges}
        if all(ends[job.task, log] <= start for job in ticket.jobs for log, (start, _) in job.ranges.items()):
            return ticket
        for job in ticket.jobs:
            job.ranges = {log: (start, max(start, ends[job.task, log])) for log, (start, _) in job.ranges.items()}
        return ticket

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        """In a Spark task: the rows."""
        if isinstance(partition, Errands):  # Spark makes one of its own for an empty batch
            yield from partition.rows
