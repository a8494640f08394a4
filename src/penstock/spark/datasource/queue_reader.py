"""Reading queues: their history, live entries or dead letters, in ranges of sequence numbers.

Nothing above the store's mark is read: a writer may have drawn a lower number and not committed yet, and a reader that
went past it would never see that row. Below the mark the history is what it is, so ranges can be read in parallel and
a query can continue where it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.clock import to_micros
from penstock.errors import BadInput, Conflict, Unsupported
from penstock.ids import is_another
from penstock.names import did_you_mean
from penstock.queue.entry import LIVE, REMOVED, AttemptState
from penstock.queue.protocol import ROW, Find
from penstock.spark.datasource.arrow_batches import arrow_fields, in_calendar
from penstock.spark.datasource.options import Kind, Options, read_moment
from penstock.spark.datasource.payloads import PAYLOAD_COLUMNS, Payloads
from penstock.spark.datasource.pushdown import micros_of, span_of, values_of
from penstock.spark.stores import queues_at

QUEUE_COLUMNS: dict[str, str] = {
    "seq": "BIGINT NOT NULL",
    "id": "STRING NOT NULL",
    "queue": "STRING NOT NULL",
    "state": "STRING NOT NULL",
    "generation": "INT NOT NULL",
    "attempt": "INT NOT NULL",
    "owner": "STRING",
    "created": "TIMESTAMP NOT NULL",
    "due": "TIMESTAMP NOT NULL",
    "started": "TIMESTAMP",
    "ended": "TIMESTAMP",
    "error": "STRING",
    "labels": "MAP<STRING, STRING>",
    "headers": "MAP<STRING, STRING>",
    "codec": "STRING NOT NULL",
    "type": "STRING NOT NULL",
    "payload": "BINARY",
    "gap": "STRING",  # why there is no payload
}
NO_PAYLOAD = "the payload was removed with its dead letter"
PAGE = 10_000
TASKS = 4
FIRST, LAST = -(1 << 62), 1 << 62  # outside of all times and numbers
STATES: dict[Kind, frozenset[str]] = {
    "history": frozenset(get_args(AttemptState)), "live": frozenset(LIVE), "dead": frozenset({"dead"}),
}  # fmt: skip
_MAPS = pa.map_(pa.string(), pa.string())
_TIMES = frozenset({"created", "due", "started", "ended"})


class QueueRange(InputPartition):
    """Rows with ``after < seq <= until``: what one task reads."""

    def __init__(self, after: int, until: int) -> None:
        """The range of sequence numbers."""
        super().__init__(after)
        self.after = after
        self.until = until


class _QueueRanges:
    """The common part of batch and stream."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Read one queue, or all."""
        self.options = options
        self.kind: Kind = options.kind or "history"
        self.payloads = Payloads.of(options, schema)
        self.fields = arrow_fields(schema, QUEUE_COLUMNS, PAYLOAD_COLUMNS if self.payloads is not None else ())
        self.ended_from, self.ended_before = _moment(options.start), _moment(options.stop)
        _check_queue(options, self.kind)

    def first(self) -> int:
        """A number below that of the first row that is read."""
        text = self.options.start
        if text not in (None, "earliest", "latest") and self.ended_from is None:
            return int(str(text)) - 1
        if text == "latest":
            return self.mark(0)
        rows = queues_at(self.options.url).driver.rows(self.kind, Find(limit=1), until=LAST)
        return rows[0][0] - 1 if rows else 0

    def mark(self, after: int) -> int:
        """The number up to which rows are final."""
        return queues_at(self.options.url).driver.mark(self.kind, after=after)

    def ranges(self, after: int, until: int) -> list[InputPartition]:
        """Tasks for the rows in between."""
        span = until - after
        if span <= 0:
            return []
        pieces = (
            min(self.options.tasks or TASKS, -(-span // PAGE)) if self.options.tasks is None else self.options.tasks
        )
        step = -(-span // max(1, min(pieces, span)))
        return [QueueRange(begin, min(until, begin + step)) for begin in range(after, until, step)]

    def where(self) -> Find:
        """What the store is asked for, whatever the range."""
        where = Find(queue=self.options.queue, limit=PAGE)
        if self.kind == "live":
            return where  # its times are when entries are due
        return replace(where, from_us=self.ended_from, before_us=self.ended_before)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of a range, page by page."""
        if not isinstance(partition, QueueRange):  # Spark makes one of its own for an empty batch
            return
        driver, where = queues_at(self.options.url).driver, self.where()
        after = partition.after
        while after < partition.until:
            rows = driver.rows(self.kind, replace(where, after=after), until=partition.until)
            if rows:
                batch = self._shaped(self._chosen(_table(rows)))
                if batch.num_rows:
                    yield batch
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _chosen(self, table: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Leave out what the store cannot: live entries are chosen by when they were created."""
        if self.kind != "live" or (self.ended_from is None and self.ended_before is None):
            return table
        times = table["created"].cast(pa.int64())
        keep = pc.greater_equal(times, self.ended_from if self.ended_from is not None else -(1 << 62))
        if self.ended_before is not None:
            keep = pc.and_(keep, pc.less(times, self.ended_before))
        return _keep(table, keep)

    def _shaped(self, table: dict[str, pa.Array]) -> pa.RecordBatch:
        columns: dict[str, Any] = dict(table)
        if self.payloads is not None:
            columns |= self.payloads.parse(table["payload"])
            gap = pc.if_else(pc.is_null(table["gap"]), pa.scalar(None, pa.string()), NO_PAYLOAD)
            columns["bad"] = pc.coalesce(columns["bad"], gap)
        return pa.RecordBatch.from_arrays([columns[field.name] for field in self.fields], schema=self.fields)


class QueueReader(_QueueRanges, DataSourceReader):
    """What a queue keeps, as it is now."""

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges below the mark."""
        after = self.first()
        until = self.mark(after)
        text = self.options.stop
        if text not in (None, "latest") and self.ended_before is None:
            until = min(until, int(str(text)) - 1)
        return self.ranges(after, until)


class FilteringQueueReader(QueueReader):
    """A queue reader that skips what the query's filters rule out.

    ``seq``, one ``queue``, ``state`` and ``ended`` reach the store; of several queues, the task that reads them leaves
    out the others before it sends anything to Spark.
    """

    filters: tuple[Filter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember the filters. Spark applies them again to the rows that are left."""
        self.filters = tuple(filters)
        return filters

    def ranges(self, after: int, until: int) -> list[InputPartition]:
        """Tasks for the numbers that the filters leave."""
        low, high = span_of(self.filters, "seq").within(after + 1, until + 1)
        return [] if self._leave_nothing() else super().ranges(low - 1, high - 1)

    def _leave_nothing(self) -> bool:
        """Whether no row can match, whatever its number."""
        queues, chosen = values_of(self.filters, "queue"), self.options.queue
        if queues is not None and (not queues or (chosen is not None and chosen not in queues)):
            return True
        return self._states() == () or (self.kind == "live" and span_of(self.filters, "ended", micros_of).is_bounded)

    def where(self) -> Find:
        """What the options and the filters leave."""
        where = replace(super().where(), states=self._states())
        queues = values_of(self.filters, "queue")
        if where.queue is None and queues is not None and len(queues) == 1:
            where = replace(where, queue=next(iter(queues)))
        if self.kind != "live":
            ended = span_of(self.filters, "ended", micros_of)
            since, before = ended.within(_or(where.from_us, FIRST), _or(where.before_us, LAST))
            where = replace(
                where, from_us=None if since == FIRST else since, before_us=None if before == LAST else before
            )
        return where

    def _states(self) -> tuple[str, ...] | None:
        """The states that the filters leave, of those that there are."""
        states = values_of(self.filters, "state")
        return None if states is None else tuple(sorted(states & STATES[self.kind]))

    def _chosen(self, table: dict[str, pa.Array]) -> dict[str, pa.Array]:
        table, queues = super()._chosen(table), values_of(self.filters, "queue")
        return table if queues is None else _keep(table, pc.is_in(table["queue"], pa.array(list(queues), pa.string())))


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


class QueueStreamReader(_QueueRanges, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The history, followed. An offset is which space it is of, and the last number that was read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Refuse kinds that change: only the history can be followed."""
        super().__init__(options, schema)
        if self.kind != "history":
            raise Unsupported(
                f"kind={self.kind} cannot be followed: entries come and go.",
                hint="Follow the history, or read batches.",
            )
        self._final: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        return self._offset(self.identity(), self.first())

    def identity(self) -> str:
        """Which space this is, whatever its URL."""
        return queues_at(self.options.url).driver.identity()

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a batch reads."""
        return ReadAllAvailable() if self.options.limit is None else ReadMaxRows(self.options.limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the current end."""
        self._final = self.mark(0)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        identity = self._same(start)
        after = int(start["after"])
        try:
            until = self.mark(after) if self._final is None else self._final
        except Conflict:
            return start  # open transactions hold the mark back: nothing can be read yet, the next trigger looks again
        if not start.get("id") and 0 < until < after:  # numbers only rise, and the oldest rows go first
            raise self._another(f"it ends at {until} there, and {after} was read before")
        if isinstance(limit, ReadMaxRows):
            until = min(until, after + limit.max_rows)
        return self._offset(identity, max(after, until))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one batch."""
        self._same(start)
        self._same(end)
        return self.ranges(int(start["after"]), int(end["after"]))

    def _offset(self, identity: str, after: int) -> dict[str, Any]:
        return {"kind": self.kind, "queue": self.options.queue, "id": identity, "after": after}

    def _same(self, offset: dict[str, Any]) -> str:
        """Check that an offset is of this space. Returns the space's identity."""
        if offset.get("kind") != self.kind or offset.get("queue") != self.options.queue:
            raise BadInput(
                f"the checkpoint is of {offset.get('kind')} of queue {offset.get('queue')!r}, not of {self.kind} of "
                f"{self.options.queue!r}.",
                hint="Give every query a checkpointLocation of its own.",
            )
        identity = self.identity()
        if is_another(offset.get("id", ""), identity):
            raise self._another("it was created again, or the URL is another one")
        return identity

    def _another(self, why: str) -> BadInput:
        return BadInput(
            f"the checkpoint is of another {self.kind} than the one in {self.options.place}: {why}.",
            hint="Use a new checkpointLocation; numbers of one space say nothing about another.",
        )


def _check_queue(options: Options, kind: Kind) -> None:
    if options.queue is None:
        return
    store = queues_at(options.url)
    names = [counts.queue for counts in store.counts()]
    if options.queue not in names and not store.driver.rows(kind, Find(queue=options.queue, limit=1), until=LAST):
        raise BadInput(
            f"there is no queue {options.queue!r} in {store.name}.",
            hint=f"{did_you_mean(options.queue, names)}`penstock queue list` shows them.",
        )


def _moment(text: str | None) -> int | None:
    if text is None or text in ("earliest", "latest") or text.lstrip("-").isdecimal():
        return None
    moment = read_moment(text)
    return None if moment is None else to_micros(moment)


def _keep(table: dict[str, pa.Array], mask: pa.Array) -> dict[str, pa.Array]:
    return {name: column.filter(mask) for name, column in table.items()}


def _table(rows: list[tuple[Any, ...]]) -> dict[str, pa.Array]:
    """Rows of a store as Arrow columns."""
    columns: dict[str, pa.Array] = {}
    for name, values in zip(ROW, zip(*rows, strict=True), strict=True):
        if name in _TIMES:
            columns[name] = in_calendar(pa.array(values, pa.int64()).cast(pa.timestamp("us", tz="UTC")))
        elif name == "seq":
            columns[name] = pa.array(values, pa.int64())
        elif name in ("generation", "attempt"):
            columns[name] = pa.array(values, pa.int32())
        elif name in ("labels", "headers"):
            columns[name] = _maps(values)
        elif name == "payload":
            columns[name] = pa.array(values, pa.binary())
        else:
            columns[name] = pa.array(values, pa.string())
    columns["gap"] = pc.if_else(pc.is_null(columns["payload"]), REMOVED, pa.scalar(None, pa.string()))
    return columns


def _maps(texts: Sequence[str | None]) -> pa.Array:
    if not any(texts):
        return pa.nulls(len(texts), _MAPS)
    known: dict[str | None, Any] = {None: None, "": None}
    for text in set(texts) - {None, ""}:
        known[text] = list(msgspec.json.decode(text, type=dict[str, str]).items())  # type: ignore[arg-type]
    return pa.array([known[text] for text in texts], _MAPS)
