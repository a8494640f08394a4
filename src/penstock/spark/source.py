"""The data source behind ``format("penstock")``: reads options, then hands over to what reads or writes."""

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
from penstock.spark.columns import LOG_COLUMNS, chosen_columns
from penstock.spark.options import Options, read_options
from penstock.spark.payloads import column_type, type_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class PenstockSource(DataSource):
    """Logs and queues as tables and streams, and the way back."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Runs on the driver; what is wrong with the options is said here."""
        super().__init__(options)
        self.asked: Options = read_options(options)

    @classmethod
    def name(cls) -> str:
        """For ``format(...)``."""
        return "penstock"

    def schema(self) -> StructType | str:
        """The columns, as chosen."""
        return schema_of(self.asked)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch."""
        if self._is_log():
            from penstock.spark.log_source import LogReader

            return LogReader(self.asked, schema)
        from penstock.spark.queue_source import QueueReader

        return QueueReader(self.asked, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream."""
        if self._is_log():
            from penstock.spark.log_source import LogStreamReader

            return LogStreamReader(self.asked, schema)
        from penstock.spark.queue_source import QueueStreamReader

        return QueueStreamReader(self.asked, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A DataFrame, appended."""
        if overwrite:
            raise BadInput("penstock does not overwrite.", hint='Write with .mode("append").')
        if self._writes_log(schema):
            from penstock.spark.log_sink import LogWriter

            return LogWriter(self.asked, schema)
        from penstock.spark.queue_sink import QueueWriter

        return QueueWriter(self.asked, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A stream, appended batch by batch."""
        if overwrite:
            raise BadInput("penstock only appends.", hint='Use outputMode("append") or "update".')
        if self.asked.producer is not None:
            raise BadInput("producer and sequence are for batches.", hint="A stream has its own: query and batch id.")
        if self._writes_log(schema):
            from penstock.spark.log_sink import LogStreamWriter

            return LogStreamWriter(self.asked, schema)
        from penstock.spark.queue_sink import QueueStreamWriter

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
        """A target may also be named row by row."""
        if self.asked.log is None and self.asked.queue is None:
            names = set(schema.fieldNames()) & {"log", "queue"}
            if len(names) == 1:
                return names == {"log"}
            raise BadInput(
                "no target was named.",
                hint='Add .option("log", NAME), .option("queue", NAME), or a column log or queue.',
            )
        return self.asked.log is not None


def schema_of(options: Options) -> StructType | str:
    """The columns that a read gives."""
    columns = dict(LOG_COLUMNS)
    if options.log is None:
        from penstock.spark.queue_source import QUEUE_COLUMNS

        columns = dict(QUEUE_COLUMNS)
    data: DataType | None = None
    if options.schema is not None:
        columns["data"] = f"STRUCT<{options.schema}>"
    elif options.type is not None:
        data = column_type(type_of(options.type))
        columns["data"] = ""
    if "data" in columns:
        columns["bad"] = "STRING"
    chosen = chosen_columns(columns, options.columns)
    if data is None or "data" not in chosen:
        return ", ".join(f"{name} {columns[name]}" for name in chosen)
    made = [StructField("data", data) if name == "data" else _field(name, columns[name]) for name in chosen]
    return StructType(made)


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
