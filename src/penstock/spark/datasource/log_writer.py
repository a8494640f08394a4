"""Writing to logs: tasks write records aside, the driver commits them all in one transaction.

The transaction carries the query as its producer and the batch as its sequence, so the store itself knows what has
happened: a batch that Spark runs again, after whatever crash, is recognised and changes nothing. What tasks that failed
or were run twice have written aside is never named in the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock import failpoints
from penstock.errors import BadInput
from penstock.log.protocol import Staged
from penstock.log.store import LogStore
from penstock.names import did_you_mean
from penstock.spark.datasource.options import Options
from penstock.spark.datasource.query_identity import Writing, one_write, streams_batch, task_number
from penstock.spark.stores import logs_at

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("value", "key", "partition", "time", "headers", "log")
_TEXTS = (t.StringType, t.BinaryType)
_KINDS: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "value": (_TEXTS, "STRING or BINARY"),
    "key": (_TEXTS, "STRING or BINARY"),
    "partition": ((t.IntegerType, t.LongType, t.ShortType, t.ByteType), "INT"),
    "time": ((t.TimestampType,), "TIMESTAMP"),
    "headers": ((t.MapType,), "MAP<STRING, STRING> or MAP<STRING, BINARY>"),
    "log": ((t.StringType,), "STRING"),
}


class LogsWritten(WriterCommitMessage):
    """A task's message to the driver: where its records are staged, and which write they belong to."""

    def __init__(self, writing: Writing, staged: Sequence[Staged]) -> None:
        """The records themselves do not go through the driver."""
        self.writing = writing
        self.staged = list(staged)


class _LogWriting:
    """The common part of batches and streams."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Check the columns, and the log if the options name it."""
        check_columns(schema, options.log)
        self.options = options
        if options.log is not None:
            logs_at(options.url).settings(options.log)

    def stage(self, batches: Iterable[pa.RecordBatch], writing: Writing) -> LogsWritten:
        """In a task: stage all records."""
        from penstock.spark.datasource.arrow_batches import merged
        from penstock.spark.datasource.staging import Staging

        staging = Staging(logs_at(self.options.url), self.options.log, task_number())
        try:
            for batch in merged(batches, limit=4 * 10_000):
                staging.add(batch)
            return LogsWritten(writing, staging.close())
        except BaseException:
            staging.discard()
            raise

    def publish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: make everything visible at once, unless an earlier attempt did."""
        written = [message for message in messages if isinstance(message, LogsWritten)]
        if written:
            commit_staged(
                logs_at(self.options.url), written[0].writing, [staged for tell in written for staged in tell.staged]
            )

    def throw_away(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: discard what a failed batch staged."""
        store = logs_at(self.options.url)
        for message in messages:
            if isinstance(message, LogsWritten):
                store.discard(*message.staged)


class LogWriter(_LogWriting, DataSourceArrowWriter):
    """A DataFrame into logs."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Name the write here: tasks and commit get copies of this object."""
        super().__init__(options, schema)
        self.writing = one_write(options.producer, options.sequence)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its records."""
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
        """In a task: stage its records."""
        return self.stage(iterator, streams_batch())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver."""
        self.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver."""
        self.throw_away(messages)


def commit_staged(store: LogStore, writing: Writing, staged: Sequence[Staged]) -> bool:
    """Commit what many processes staged in one transaction. Returns False if this write was committed before."""
    failpoints.point("spark.commit.before")
    with store.transaction(producer=writing.producer, sequence=writing.sequence) as transaction:
        transaction.append_staged(*staged)
        done = transaction.commit()
    failpoints.point("spark.commit.after")
    return not done.duplicate


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
