"""Writing to logs: tasks write records aside, the driver commits them all in one transaction.

The transaction carries the query as its producer and the batch as its sequence, so the store itself knows what has
happened: a batch that Spark runs again, after whatever crash, is recognised and changes nothing. What tasks that failed
or were run twice have written aside is never named in the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock import chaos
from penstock.clock import check_time
from penstock.errors import BadInput
from penstock.log.partitioner import partitioner
from penstock.log.record import from_arrow
from penstock.log.store import LogSettings, LogStore, Staged
from penstock.names import check_name, did_you_mean
from penstock.spark.columns import header_blobs, merged
from penstock.spark.identity import Writing, one_write, streams_batch, task_number
from penstock.spark.options import Options
from penstock.spark.stores import logs_at

COLUMNS = ("value", "key", "partition", "time", "headers", "log")
_TEXTS = (t.StringType, t.BinaryType)
_SIZED = ("value", "key", "headers")  # what counts against the limit of a record
_KINDS: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "value": (_TEXTS, "STRING or BINARY"),
    "key": (_TEXTS, "STRING or BINARY"),
    "partition": ((t.IntegerType, t.LongType, t.ShortType, t.ByteType), "INT"),
    "time": ((t.TimestampType,), "TIMESTAMP"),
    "headers": ((t.MapType,), "MAP<STRING, STRING> or MAP<STRING, BINARY>"),
    "log": ((t.StringType,), "STRING"),
}


class LogsWritten(WriterCommitMessage):
    """What a task tells the driver: where its records lie, and what they belong to."""

    def __init__(self, writing: Writing, staged: Sequence[Staged]) -> None:
        """Nothing of the records themselves goes through the driver."""
        self.writing = writing
        self.staged = list(staged)


class _LogWriting:
    """What batches and streams share."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Check the columns, and the log if it is always the same."""
        check_columns(schema, options.log)
        self.options = options
        if options.log is not None:
            logs_at(options.url).settings(options.log)

    def stage(self, batches: Iterable[pa.RecordBatch], writing: Writing) -> LogsWritten:
        """In a task: write everything aside."""
        desk = Staging(logs_at(self.options.url), self.options.log, task_number())
        try:
            for batch in merged(batches, limit=4 * 10_000):
                desk.add(batch)
            return LogsWritten(writing, desk.close())
        except BaseException:
            desk.discard()
            raise

    def publish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: make all of it visible at once, if that has not happened before."""
        told = [one for one in messages if isinstance(one, LogsWritten)]
        if told:
            commit_staged(logs_at(self.options.url), told[0].writing, [one for tell in told for one in tell.staged])

    def throw_away(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: the batch failed."""
        store = logs_at(self.options.url)
        for one in messages:
            if isinstance(one, LogsWritten):
                store.discard(*one.staged)


class LogWriter(_LogWriting, DataSourceArrowWriter):
    """A DataFrame into logs."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Give the write its name here: tasks and commit get copies of this object."""
        super().__init__(options, schema)
        self.writing = one_write(options.producer, options.sequence)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self.stage(iterator, self.writing)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver."""
        self.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver."""
        self.throw_away(messages)


class LogStreamWriter(_LogWriting, DataSourceStreamArrowWriter):
    """A stream into logs."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self.stage(iterator, streams_batch())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver."""
        self.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver."""
        self.throw_away(messages)


def commit_staged(store: LogStore, writing: Writing, staged: Sequence[Staged]) -> bool:
    """One transaction for what many processes wrote aside; False if this write had happened before."""
    chaos.point("spark.commit.before")
    with store.transaction(producer=writing.producer, sequence=writing.sequence) as transaction:
        transaction.append_staged(*staged)
        done = transaction.commit()
    chaos.point("spark.commit.after")
    return not done.duplicate


class Staging:
    """Writes Arrow batches aside, for one log or for those that a column ``log`` names."""

    def __init__(self, store: LogStore, log: str | None, turn: int) -> None:
        """``turn`` is where dealing out records without a key begins, so that tasks begin at different partitions."""
        self.store = store
        self.log = log
        self._turn = turn
        self._desks: dict[str, _Desk] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Columns value, and key, partition, time, headers, log where there are any; others are refused before."""
        if not batch.num_rows:
            return
        if self.log is not None:
            self._desk(self.log).add(batch)
            return
        names = batch.column("log")
        for name in pc.unique(names).to_pylist():
            if name is None:
                raise BadInput("a row names no log: its column log is null.", hint="Say for every row where it goes.")
            self._desk(name).add(batch.filter(pc.equal(names, name)))

    def close(self) -> list[Staged]:
        """What the transaction takes; nothing for logs that got nothing."""
        return [desk.stage.close() for desk in self._desks.values()]

    def discard(self) -> None:
        """Throw it away."""
        for desk in self._desks.values():
            desk.stage.discard()

    def _desk(self, name: str) -> _Desk:
        found = self._desks.get(name)
        if found is None:
            settings = self.store.settings(check_name(name, kind="log"))
            found = self._desks[name] = _Desk(self.store, settings, self._turn)
        return found


class _Desk:
    """Deals the rows of one log out to its partitions."""

    def __init__(self, store: LogStore, settings: LogSettings, turn: int) -> None:
        self.store = store
        self.settings = settings
        self.stage = store.stage(settings.name)
        self._turn = turn
        self._hash = partitioner(settings.partitioner)

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode the columns and write them to their partitions."""
        records = self._records(batch)
        self._check(records)
        count = self.settings.partitions
        places = self._places(batch, records)
        if places is None:
            self.stage.append_arrow([(self._turn % count, records)])
            self._turn += 1
            return
        order = np.argsort(places, kind="stable")
        sizes = np.bincount(places, minlength=count)
        parts = []
        begin = 0
        for index, size in enumerate(sizes.tolist()):
            if size:
                parts.append((index, records.take(pa.array(order[begin : begin + size]))))
                begin += size
        self.stage.append_arrow(parts)

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        columns = {"value": batch.column("value").cast(pa.binary())}
        if "key" in names:
            columns["key"] = batch.column("key").cast(pa.binary())
        if "time" in names:
            times = batch.column("time").cast(pa.timestamp("us", tz="UTC"))
            if times.null_count:
                times = times.fill_null(pa.scalar(self.store.now(), pa.int64()).cast(times.type))
            columns["time"] = times
        if "headers" in names:
            blobs = header_blobs(batch.column("headers"))
            if blobs is not None:
                columns["headers"] = blobs
        return pa.RecordBatch.from_pydict(columns)

    def _check(self, records: pa.RecordBatch) -> None:
        values = records.column("value")
        if values.null_count:
            raise BadInput(
                f"a record for log {self.settings.name} has no value.", hint='Leave such rows out: "value IS NOT NULL".'
            )
        names = records.schema.names
        sizes = [pc.max(pc.binary_length(records.column(one))).as_py() or 0 for one in _SIZED if one in names]
        if sum(sizes) > self.store.record_limit:  # the longest of each together: only then a record may be too large
            self.store.check_records(self.settings.name, from_arrow(records))
        if "time" in names:
            ends = pc.min_max(records.column("time").cast(pa.int64())).as_py()
            for micros in ends.values():
                check_time(micros, name=f"column time: {micros} microseconds since 1970")

    def _places(self, batch: pa.RecordBatch, records: pa.RecordBatch) -> np.ndarray | None:
        """The partition of every row; None for a whole batch that may go anywhere."""
        count = self.settings.partitions
        names = records.schema.names
        given = batch.column("partition") if "partition" in batch.schema.names else None
        keys = records.column("key") if "key" in names else None
        if given is None and (keys is None or keys.null_count == len(keys)):
            return None
        if count == 1 and given is None:
            return np.zeros(len(records), np.int64)
        places = np.full(len(records), -1, np.int64)
        if keys is not None and keys.null_count < len(keys):
            coded = keys.dictionary_encode()
            hashed = np.array([self._hash(key, count) for key in coded.dictionary.to_pylist()], np.int64)
            ranks = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            places = np.where(ranks >= 0, hashed[ranks], -1)
        if given is not None:
            wanted = given.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            if len(wanted) and (wanted.max() >= count or wanted.min() < -1):
                raise BadInput(
                    f"log {self.settings.name} has no partition {wanted.max()}; it has {count}.",
                    hint=f"Use 0 to {count - 1}, or null to have it chosen by the key.",
                )
            places = np.where(wanted >= 0, wanted, places)
        open_ = np.flatnonzero(places < 0)
        if len(open_):
            places[open_] = (np.arange(len(open_)) + self._turn) % count
            self._turn += len(open_)
        return places


def check_columns(schema: t.StructType, log: str | None) -> None:
    """Refuse a DataFrame that is not shaped like records."""
    names = schema.fieldNames()
    if "value" not in names:
        raise BadInput(
            f"the rows have no column value (they have {', '.join(names)}).",
            hint="Make one: to_json(struct('*')).alias('value').",
        )
    for field in schema.fields:
        if field.name not in COLUMNS and field.name != "offset":
            meant = did_you_mean(field.name, COLUMNS)
            raise BadInput(
                f"a log has no column {field.name!r}.", hint=f"{meant}Known: {', '.join(COLUMNS)}; drop the others."
            )
        kinds, words = _KINDS.get(field.name, ((t.DataType,), ""))
        kind = field.dataType
        if not isinstance(kind, kinds) or (isinstance(kind, t.MapType) and not _is_header_map(kind)):
            raise BadInput(f"column {field.name} is {kind.simpleString()}.", hint=f"A log needs {words} there.")
    if log is None and "log" not in names:
        raise BadInput("no target was named.", hint='Add .option("log", NAME), or a column log.')
    if log is not None and "log" in names:
        raise BadInput(
            f"the option log={log} and a column log both say where the rows go.",
            hint='Give one of them: leave the option out, or .drop("log").',
        )


def _is_header_map(kind: t.MapType) -> bool:
    return isinstance(kind.keyType, t.StringType) and isinstance(kind.valueType, _TEXTS)
