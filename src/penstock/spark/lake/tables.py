"""The tables of a lake, as functions from DataFrame to DataFrame: use them in a lake or in a job of your own.

``attempts`` are rows of ``format("penstock")`` with ``kind="history"``, with ``by_time`` applied. The results of
these functions can be added up again: ``merge_hours`` and the like take rows of several runs, or of several hours, and
return what one run over everything would have returned. Quantiles come from sketches (KLL, k = 200) in columns of their
own: they are exact up to 200 values; of more values, the rank is wrong by at most 1.7 % of all (99 % sure).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATES = ("done", "retried", "dead", "reaped", "expired", "cancelled")
TIMES = ("waiting", "processing")
QUANTILES = (50, 95, 99)
ERROR_LENGTH = 200

_QUANTILES = ", ".join(f"{kind}_p{percent} DOUBLE" for kind in TIMES for percent in QUANTILES)
_COUNTS = ", ".join(f"{state} BIGINT" for state in ("attempts", *STATES))
SCHEMAS = {
    "history": "seq BIGINT, id STRING, queue STRING, state STRING, generation INT, attempt INT, created TIMESTAMP, "
    "due TIMESTAMP, started TIMESTAMP, ended TIMESTAMP, owner STRING, error STRING, labels MAP<STRING, STRING>, "
    "store STRING, hour TIMESTAMP, day DATE",
    "lag_samples": "at TIMESTAMP, log STRING, `group` STRING, lag BIGINT, store STRING, partition INT, "
    "`offset` BIGINT, hour TIMESTAMP, day DATE",
    "transitions": "store STRING, circuit STRING, at TIMESTAMP, state STRING, why STRING",
    "hours": f"hour TIMESTAMP, queue STRING, {_COUNTS}, {_QUANTILES}, waiting BINARY, processing BINARY, day DATE",
    "errors": "queue STRING, error STRING, count BIGINT, day DATE",
    "lag": "hour TIMESTAMP, log STRING, `group` STRING, most BIGINT, last BIGINT, last_at TIMESTAMP, day DATE",
    "circuits": "store STRING, circuit STRING, since TIMESTAMP, until TIMESTAMP, why STRING, seconds DOUBLE",
}


def by_time(rows: DataFrame, moment: str = "ended") -> DataFrame:
    """Rows with the day and the hour that they belong to."""
    return rows.selectExpr("*", f"date_trunc('hour', {moment}) AS hour", f"to_date({moment}) AS day")


def hours(attempts: DataFrame) -> DataFrame:
    """One row per queue and hour: how many attempts ended how, and how long entries waited and took, in seconds."""
    from pyspark.sql import functions as f

    waited = f"CASE WHEN attempt = 1 AND started IS NOT NULL THEN {_seconds('due', 'started')} END"
    took = f"CASE WHEN started IS NOT NULL THEN {_seconds('started', 'ended')} END"
    rows = attempts.selectExpr("day", "hour", "queue", "state", f"{waited} AS waited", f"{took} AS took")
    grouped = rows.groupBy("day", "hour", "queue").agg(
        f.expr("count(*) AS attempts"),
        *(f.expr(f"count_if(state = '{state}') AS {state}") for state in STATES),
        f.expr("kll_sketch_agg_double(waited) AS waiting"),
        f.expr("kll_sketch_agg_double(took) AS processing"),
    )
    return _with_quantiles(grouped, "hour")


def merge_hours(rows: DataFrame, *, by: str = "hour") -> DataFrame:
    """Rows of ``hours`` added up: several of one queue and hour become one; with ``by="day"`` whole days do."""
    from pyspark.sql import functions as f

    grouped = rows.groupBy(*dict.fromkeys(("day", by, "queue"))).agg(
        *(f.expr(f"sum({name}) AS {name}") for name in ("attempts", *STATES)),
        *(f.expr(f"kll_merge_agg_double({kind}) AS {kind}") for kind in TIMES),
    )
    return _with_quantiles(grouped, by)


def errors(attempts: DataFrame) -> DataFrame:
    """One row per queue, day and error (the first line of it): how often."""
    first_line = f"left(split(error, '\\n')[0], {ERROR_LENGTH})"
    rows = attempts.where("error IS NOT NULL").selectExpr("day", "queue", f"{first_line} AS error")
    return rows.groupBy("day", "queue", "error").count().select("queue", "error", "count", "day")


def merge_errors(rows: DataFrame) -> DataFrame:
    """Rows of ``errors`` added up."""
    from pyspark.sql import functions as f

    grouped = rows.groupBy("day", "queue", "error").agg(f.sum("count").alias("count"))
    return grouped.select("queue", "error", "count", "day")


def lag(samples: DataFrame) -> DataFrame:
    """One row per log, group and hour: how far behind, at most and at last."""
    return merge_lag(samples.selectExpr("day", "hour", "log", "`group`", "lag AS most", "lag AS last", "at AS last_at"))


def merge_lag(rows: DataFrame) -> DataFrame:
    """Rows of ``lag`` taken together."""
    from pyspark.sql import functions as f

    grouped = rows.groupBy("day", "hour", "log", "group").agg(
        f.max("most").alias("most"), f.max_by("last", "last_at").alias("last"), f.max("last_at").alias("last_at")
    )
    return grouped.select("hour", "log", "group", "most", "last", "last_at", "day")


def circuits(transitions: DataFrame) -> DataFrame:
    """One row per time that a circuit was open: from when to when, and why."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("store", "circuit").orderBy("at")
    # Half open is a trial, not an end: an open period ends when the circuit closes.
    edges = transitions.where("state IN ('open', 'closed')")
    edges = edges.withColumn("before", f.lag("state").over(order)).where("before IS NULL OR before <> state")
    periods = edges.withColumn("until", f.lead("at").over(order)).where("state = 'open'")
    seconds = "cast(until AS DOUBLE) - cast(at AS DOUBLE) AS seconds"
    return periods.selectExpr("store", "circuit", "at AS since", "until", "why", seconds)


def _with_quantiles(rows: DataFrame, by: str) -> DataFrame:
    quantiles = [
        f"CASE WHEN kll_sketch_get_n_double({kind}) > 0 "
        f"THEN kll_sketch_get_quantile_double({kind}, {percent / 100}D) END AS {kind}_p{percent}"
        for kind in TIMES
        for percent in QUANTILES
    ]
    place = [] if by == "day" else [by]
    return rows.selectExpr(*place, "queue", "attempts", *STATES, *quantiles, *TIMES, "day")


def _seconds(start: str, end: str) -> str:
    return f"greatest(0D, cast({end} AS DOUBLE) - cast({start} AS DOUBLE))"
