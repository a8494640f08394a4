"""Export: a log into a folder of Parquet files, by day; run again, it adds what has come since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.spark.explaining import plain_errors
from penstock.spark.options import absolute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Exported(msgspec.Struct, frozen=True):
    """What a run came to."""

    records: int
    folder: Path


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
    target = folder.absolute()
    options: dict[str, Any] = {"url": absolute(url), "log": log}
    if schema is not None:
        options["schema"] = schema
    if type is not None:
        options["type"] = type
    with plain_errors():
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
