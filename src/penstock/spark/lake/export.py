"""Export: a log into Parquet or ORC files by day, on any file system that Spark knows. Each run adds what is new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import CannotOpen, Conflict
from penstock.spark.datasource.options import Options, read_options
from penstock.spark.errors import spark_errors
from penstock.spark.lake.filesystem import FileSystem, lake_url, local_path
from penstock.spark.lake.formats import FORMATS, check_format
from penstock.spark.lake.ingest_files import check_folder
from penstock.spark.session import check_installed
from penstock.spark.stores import logs_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NOTE = "_export.json"


class Exported(msgspec.Struct, frozen=True):
    """The result of a run."""

    records: int
    folder: str  # as a URL


def prepare(
    url: str, log: str, folder: str | Path, *, schema: str | None = None, type: str | None = None,
    file_format: str = FORMATS[0],
) -> Options:  # fmt: skip
    """Check everything that can be checked before Spark is started."""
    check_installed()
    check_format(file_format, "an export")
    given = {"url": url, "log": log, "schema": schema, "type": type}
    asked = read_options({name: value for name, value in given.items() if value is not None})
    logs_at(asked.url).settings(log)
    _check_payload(asked)
    here = local_path(lake_url(folder))
    if here is not None:
        check_folder(here, name="folder")
    return asked


def export(
    spark: SparkSession,
    url: str,
    log: str,
    folder: str | Path,
    *,
    schema: str | None = None,
    type: str | None = None,
    file_format: str = FORMATS[0],
    progress: Callable[[int], object] = lambda records: None,
) -> Exported:
    """Write every record once, by the day of its time; ``schema`` or ``type`` adds columns from its payload.

    All runs into a folder have the same ``file_format``: parquet or orc.
    """
    asked = prepare(url, log, folder, schema=schema, type=type, file_format=file_format)
    target = lake_url(folder)
    _remember(FileSystem(spark, target), asked, file_format)
    options = {"url": asked.url, "log": log}
    if schema is not None:
        options["schema"] = schema
    if type is not None:
        options["type"] = type
    with spark_errors("the export"):
        rows = spark.readStream.format("penstock").options(**options).load()
        rows = rows.selectExpr("*", "to_date(time) AS day")
        query = (
            rows.writeStream.format(file_format)
            .partitionBy("day")
            .option("path", target)
            .option("checkpointLocation", f"{target}/_checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    count = sum(int(progress_of_batch["numInputRows"]) for progress_of_batch in query.recentProgress)
    progress(count)
    return Exported(count, target)


def _check_payload(asked: Options) -> None:
    from penstock.spark.datasource.payloads import column_type, type_of
    from penstock.spark.datasource.schema import columns_of

    if asked.schema is not None:
        columns_of(asked.schema)
    if asked.type is not None:
        column_type(type_of(asked.type))


def _remember(target: FileSystem, asked: Options, file_format: str) -> None:
    """Check that a folder belongs to this log: its memory of what was written is about one log in one format."""
    mine = {"log": asked.log, "url": asked.place, "format": file_format}
    if NOTE not in target.names(""):
        target.write_new(NOTE, msgspec.json.encode(mine))
        return
    try:
        note = msgspec.json.decode(target.read(NOTE))
    except msgspec.DecodeError as cause:
        raise CannotOpen(
            f"{target.url}/{NOTE} is broken, so which log the folder is of is not known.",
            hint="Name another folder, or delete this one; either way everything comes again.",
        ) from cause
    if note.get("format") != file_format and note == {**mine, "format": note.get("format")}:
        raise Conflict(
            f"{target.url} has files of format {note.get('format')}, not {file_format}.",
            hint="Ask for that format, or name another folder.",
        )
    if note != mine:
        raise Conflict(f"{target.url} is the export of another log: {note}.", hint="Name another folder.")
