"""Filters of a query reach the reader: it reads less, and the rows are those of a read without them."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from tests.contract.queue.shorthand import end, put, take_one
from tests.spark.test_queues import load, worked

from penstock import LogStore, open_queues
from penstock.queue.protocol import Find
from penstock.spark.datasource.log_reader import FilteringLogReader, LogRange
from penstock.spark.datasource.options import read_options
from penstock.spark.datasource.pushdown import SETTING
from penstock.spark.datasource.queue_reader import FilteringQueueReader
from penstock.spark.datasource.source import schema_of
from penstock.spark.stores import queues_at
from penstock.testing import FakeClock

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def at(second: int) -> datetime:
    return BEGIN + timedelta(seconds=second)


def filled(store: LogStore, partitions: int = 3, batches: int = 40) -> None:
    """Batches of ten records, a second apart and a little out of order."""
    rng = random.Random(3)
    store.create("in", partitions)
    with store.appender("in", bytes) as out:
        for batch in range(batches):
            seconds = [batch * 10 + number for number in range(10)]
            rng.shuffle(seconds)
            out.append_many(
                [b"%d" % second for second in seconds],
                timestamps=[at(second) for second in seconds],
                partition=batch % partitions,
            )


CONDITIONS = (
    "time >= TIMESTAMP '2026-03-01 00:02:00Z' AND time < TIMESTAMP '2026-03-01 00:02:05Z'",
    "time > TIMESTAMP '2026-03-01 00:05:55Z'",
    "time <= TIMESTAMP '2026-03-01 00:00:03Z' OR offset = 17",
    "time = TIMESTAMP '2026-03-01 00:03:07Z'",
    "time BETWEEN TIMESTAMP '2030-01-01 00:00:00Z' AND TIMESTAMP '2031-01-01 00:00:00Z'",
    "partition = 1 AND offset BETWEEN 5 AND 9",
    "partition IN (0, 2) AND offset < 4 AND time >= TIMESTAMP '2026-03-01 00:00:02Z'",
    "NOT partition = 1 AND offset > 100",
    "partition = 7",
    "partition IS NOT NULL AND CAST(CAST(value AS STRING) AS INT) % 50 = 0",
    "key IS NULL AND partition <=> 2 AND offset IN (1, 3, 500)",
)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_rows_of_a_log_are_those_that_match(store: LogStore, read: Any, spark: Any, condition: str) -> None:
    filled(store)
    pushed = read("in").where(condition)
    found = sorted(int(row.value) for row in pushed.collect())
    spark.conf.set(SETTING, False)
    try:
        plain = sorted(int(row.value) for row in read("in").where(condition).collect())
    finally:
        spark.conf.set(SETTING, True)
    assert found == plain


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ([GreaterThanOrEqual(("time",), at(120)), LessThan(("time",), at(125))], 10),
        ([EqualTo(("partition",), 1)], 140),
        ([EqualTo(("partition",), 1), LessThanOrEqual(("offset",), 4)], 5),
        ([In(("offset",), (7, 8))], 6),
        ([EqualTo(("time",), at(10_000))], 0),
        ([Not(EqualTo(("partition",), 1))], 400),
        ([EqualTo(("time",), datetime(2026, 3, 1, 0, 2))], 400),  # noqa: DTZ001 - a time without zone says nothing
        ([EqualTo(("data", "offset"), 7)], 400),
    ],
)
def test_no_more_is_read_than_may_match(store: LogStore, url: str, filters: list[Filter], most: int) -> None:
    filled(store)
    options = read_options({"url": url, "log": "in"})
    reader = FilteringLogReader(options, schema_of(options))
    assert list(reader.pushFilters(filters)) == filters, "Spark looks once more"
    ranges = [one for one in reader.partitions() if isinstance(one, LogRange)]
    assert sum(one.stop - one.start for one in ranges) <= most


@pytest.mark.parametrize(
    "condition",
    [
        "queue = 'mails' AND seq > 5",
        "queue IN ('mails', 'other') AND state = 'done' AND seq BETWEEN 3 AND 31",
        "state = 'dead'",
        "ended >= TIMESTAMP '2020-01-01 00:00:00Z' AND queue = 'other'",
        "ended < TIMESTAMP '2020-01-01 00:00:00Z'",
        "queue = 'mails' AND queue = 'other'",
    ],
)
def test_rows_of_queues_are_those_that_match(spark: Any, tmp_path: Path, condition: str) -> None:
    place = f"sqlite:///{tmp_path}/shop.db?durability=fast"
    with open_queues(place) as store:
        worked(store, "mails", 30)
        worked(store, "other", 5)
    everything = load(spark, place, kind="history")
    wanted = {row.id for row in everything.collect()} & {
        row.id for row in spark.createDataFrame(everything.collect(), everything.schema).where(condition).collect()
    }
    assert {row.id for row in everything.where(condition).collect()} == wanted


@pytest.mark.parametrize(
    ("kind", "filters", "rows"),
    [
        ("history", [EqualTo(("state",), "dead")], 4),
        ("history", [In(("state",), ("dead", "retried"))], 7),
        ("history", [GreaterThanOrEqual(("ended",), at(3600))], 7),
        ("history", [EqualTo(("queue",), "mails"), LessThan(("ended",), at(3600))], 5),
        ("history", [EqualTo(("queue",), "mails"), EqualTo(("queue",), "other")], 0),
        ("history", [EqualTo(("state",), "no such state")], 0),
        ("dead", [LessThan(("ended",), at(3600))], 0),
        ("dead", [GreaterThan(("ended",), at(3600)), EqualTo(("state",), "dead")], 4),
        ("live", [EqualTo(("state",), "leased")], 1),
        ("live", [EqualTo(("state",), "done")], 0),
        ("live", [GreaterThan(("ended",), at(0))], 0),
    ],
)
def test_the_store_hands_out_no_row_that_the_filters_rule_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, filters: list[Filter], rows: int
) -> None:
    place, clock = f"sqlite:///{tmp_path}/shop.db?durability=fast", FakeClock(at(0))
    with open_queues(place, clock=clock) as store:
        worked(store, "mails", 5)
        clock.advance("2h")
        for outcome in ("dead",) * 4 + ("retry",) * 3:
            put(store, "other", outcome)
            end(store, take_one(store, "other"), outcome, delay_us=10**12, error="no")  # type: ignore[arg-type]
        put(store, "other", "leased")
        take_one(store, "other")
    options = read_options({"url": place, "kind": kind})
    reader = FilteringQueueReader(options, schema_of(options))
    reader.pushFilters(filters)
    ranges, driver, handed_out = reader.partitions(), queues_at(place).driver, []
    read = driver.rows

    def observed(part: Any, where: Find, *, until: int) -> list[Any]:
        handed_out.extend(read(part, where, until=until))
        return read(part, where, until=until)

    monkeypatch.setattr(driver, "rows", observed)
    batches = [batch for part in ranges for batch in reader.read(part)]
    assert (sum(batch.num_rows for batch in batches), len(handed_out)) == (rows, rows)


def test_a_filter_never_brings_rows_of_a_queue_that_was_not_asked_for(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/shop.db?durability=fast"
    with open_queues(place) as store:
        worked(store, "mails", 3)
        worked(store, "other", 5)
    options = read_options({"url": place, "queue": "mails", "kind": "history"})
    reader = FilteringQueueReader(options, schema_of(options))
    reader.pushFilters([EqualTo(("queue",), "other")])
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 0


def test_sql_over_a_view(store: LogStore, spark: Any, url: str) -> None:
    filled(store)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW clicks USING penstock OPTIONS (url '{url}', log 'in')")
    [row] = spark.sql("SELECT count(*) AS n FROM clicks WHERE time < TIMESTAMP '2026-03-01 00:01:00Z'").collect()
    assert row.n == 60
