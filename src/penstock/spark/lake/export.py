"""Export: a log into a folder of Parquet files, by day; run again, it adds what has come since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import Conflict
from penstock.spark.datasource.options import Options, read_options
from penstock.spark.errors import spark_errors
from penstock.spark.lake.ingest_files import check_folder, read_note, write_note
from penstock.spark.session import check_installed
from penstock.spark.stores import logs_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Exported(msgspec.Struct, frozen=True):
    """What a run came to."""

    records: int
    folder: Path


def prepare(url: str, log: str, folder: Path, *, schema: str | None = None, type: str | None = None) -> Options:
    """Look at everything that can be wrong before Spark is started, and remember which log the folder is of."""
    check_installed()
    given = {"url": url, "log": log, "schema": schema, "type": type}
    asked = read_options({name: value for name, value in given.items() if value is not None})
    logs_at(asked.url).settings(log)
    _check_payload(asked)
    check_folder(folder.absolute(), name="folder")
    return asked


def export(
    spark: SparkSession,
    url: str,
    log: str,
    folder: Path,
    *,
    schema: str | None = None,
    type: str | None = None,
    progress: Callable[[int], object] = lambda records: None,
) -> Exported:
    """Write every record once, by the day of its time; ``schema`` or ``type`` adds what is in its payload."""
    asked = prepare(url, log, folder, schema=schema, type=type)
    target = folder.absolute()
    _remember(target, asked)
    options = {"url": asked.url, "log": log}
    if schema is not None:
        options["schema"] = schema
    if type is not None:
        options["type"] = type
    with spark_errors("the export"):
        rows = spark.readStream.format("penstock").options(**options).load()
        rows = rows.selectExpr("*", "to_date(time) AS day")
        query = (
            rows.writeStream.format("parquet")
            .partitionBy("day")
            .option("path", f"file://{target}")
            .option("checkpointLocation", f"file://{target}/_checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    count = sum(int(one["numInputRows"]) for one in query.recentProgress)
    progress(count)
    return Exported(count, target)


def _check_payload(asked: Options) -> None:
    from penstock.spark.datasource.payloads import column_type, type_of
    from penstock.spark.datasource.schema import columns_of

    if asked.schema is not None:
        columns_of(asked.schema)
    if asked.type is not None:
        column_type(type_of(asked.type))


def _remember(target: Path, asked: Options) -> None:
    """A folder belongs to one log: with another its memory of what was written would be a lie."""
    note = target / "_export.json"
    mine = {"log": asked.log, "url": asked.place}
    there = read_note(note)
    if there is None:
        write_note(note, mine)
    elif there != mine:
        raise Conflict(f"{target} is the export of another log: {there}.", hint="Name another folder.")
