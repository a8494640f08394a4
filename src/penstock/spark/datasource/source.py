"""The data source behind ``format("penstock")``: reads options, then creates the reader or writer."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from penstock.errors import BadInput
from penstock.spark.datasource import pushdown
from penstock.spark.datasource.columns import LOG_COLUMNS, chosen_columns
from penstock.spark.datasource.options import Options, read_options
from penstock.spark.datasource.schema import columns_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class PenstockSource(DataSource):
    """Logs and queues as tables and streams, and the way back."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Runs on the driver; wrong options raise here."""
        super().__init__(options)
        self.asked: Options = read_options(options)

    @classmethod
    def name(cls) -> str:
        """For ``format(...)``."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns, as chosen."""
        return schema_of(self.asked)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch."""
        if self._is_log():
            self.asked.check_for("a batch read of a log")
            from penstock.spark.datasource.log_reader import FilteringLogReader, LogReader

            return (FilteringLogReader if pushdown.is_offered() else LogReader)(self.asked, schema)
        self.asked.check_for("a batch read of queues")
        from penstock.spark.datasource.queue_reader import FilteringQueueReader, QueueReader

        return (FilteringQueueReader if pushdown.is_offered() else QueueReader)(self.asked, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a stream."""
        if self._is_log():
            self.asked.check_for("a stream of a log")
            from penstock.spark.datasource.log_reader import LogStreamReader

            return LogStreamReader(self.asked, schema)
        self.asked.check_for("a stream of queues")
        from penstock.spark.datasource.queue_reader import QueueStreamReader

        return QueueStreamReader(self.asked, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer that appends a DataFrame."""
        if overwrite:
            raise BadInput("penstock does not overwrite.", hint='Write with .mode("append").')
        if self._writes_log(schema):
            self.asked.check_for("a write into logs")
            from penstock.spark.datasource.log_writer import LogWriter

            return LogWriter(self.asked, schema)
        self.asked.check_for("a write into queues")
        from penstock.spark.datasource.queue_writer import QueueWriter

        return QueueWriter(self.asked, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer that appends a stream, batch by batch."""
        if overwrite:
            raise BadInput("penstock only appends.", hint='Use outputMode("append") or "update".')
        if self.asked.producer is not None:
            raise BadInput("producer and sequence are for batches.", hint="A stream has its own: query and batch id.")
        if self._writes_log(schema):
            self.asked.check_for("a write into logs")
            from penstock.spark.datasource.log_writer import LogStreamWriter

            return LogStreamWriter(self.asked, schema)
        self.asked.check_for("a write into queues")
        from penstock.spark.datasource.queue_writer import QueueStreamWriter

        return QueueStreamWriter(self.asked, schema)

    def _is_log(self) -> bool:
        if self.asked.log is not None:
            return True
        if self.asked.queue is None and self.asked.kind is None:
            raise BadInput(
                "neither a log nor a queue was named.",
                hint='Add .option("log", NAME), .option("queue", NAME), or .option("kind", "history") for all queues.',
            )
        return False

    def _writes_log(self, schema: StructType) -> bool:
        """Whether logs are written; rows may name them in a column."""
        if self.asked.log is None and self.asked.queue is None:
            names = set(schema.fieldNames()) & {"log", "queue"}
            if len(names) == 1:
                return names == {"log"}
            raise BadInput(
                "no target was named.",
                hint='Add .option("log", NAME), .option("queue", NAME), or a column log or queue.',
            )
        return self.asked.log is not None


def schema_of(options: Options) -> StructType:
    """The columns that a read gives."""
    columns = dict(LOG_COLUMNS)
    if options.log is None:
        from penstock.spark.datasource.queue_reader import QUEUE_COLUMNS

        columns = dict(QUEUE_COLUMNS)
    data: DataType | None = None
    if options.schema is not None:
        data = columns_of(options.schema)
    elif options.type is not None:
        from penstock.spark.datasource.payloads import column_type, type_of

        data = column_type(type_of(options.type))
    if data is not None:
        columns |= {"data": "", "bad": "STRING"}
    chosen = chosen_columns(columns, options.columns)
    fields = [
        StructField("data", data) if data is not None and name == "data" else _field(name, columns[name])
        for name in chosen
    ]
    return StructType(fields)


def _field(name: str, ddl: str) -> StructField:
    from pyspark.sql import types as t

    kinds: dict[str, Any] = {
        "STRING": t.StringType(),
        "INT": t.IntegerType(),
        "BIGINT": t.LongType(),
        "TIMESTAMP": t.TimestampType(),
        "BINARY": t.BinaryType(),
        "MAP<STRING, BINARY>": t.MapType(t.StringType(), t.BinaryType()),
        "MAP<STRING, STRING>": t.MapType(t.StringType(), t.StringType()),
    }
    return StructField(name, kinds[ddl.removesuffix(" NOT NULL")], nullable=not ddl.endswith(" NOT NULL"))
