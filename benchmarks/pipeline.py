"""The history pipeline against the same job written by hand on Parquet, and a run over one per cent more rows.

python -m benchmarks.pipeline [--quick]
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from benchmarks.measure import Bar, conditions, folder, report
from penstock.spark import session
from penstock.spark.lake.pipeline import Pipeline, Sources, _errors, _hours

QUICK = "--quick" in sys.argv
ROWS = 100_000 if QUICK else 2_000_000
DAY = 86_400_000_000
START = 1_760_000_000_000_000 // DAY * DAY
QUEUES = [f"queue-{number}" for number in range(5)]
COLUMNS = (
    "id, queue, node, state, started, ended, generation, priority, created, due, first_due, attempt, fence, codec, "
    "type, error"
)


def rows(count: int, first: int, begin: int, days: int) -> Iterator[tuple[Any, ...]]:
    """Ended attempts over some days, one in twenty failed."""
    random.seed(first)
    for number in range(count):
        created = begin + number * days * DAY // count
        started = created + random.randrange(2_000_000)
        bad = number % 20 == 0
        yield (
            f"id-{first + number}", QUEUES[number % 5], "", "retried" if bad else "done", started,
            started + random.randrange(500_000), 1, 0, created, created, created, 1, 1, "json", "Any",
            f"RuntimeError: number {number % 7}" if bad else None,
        )  # fmt: skip


def fill(path: Path, count: int, first: int, begin: int, days: int) -> None:
    db = sqlite3.connect(path)
    marks = ", ".join("?" * len(COLUMNS.split(",")))
    db.executemany(f"INSERT INTO penstock_history ({COLUMNS}) VALUES ({marks})", rows(count, first, begin, days))
    db.commit()
    db.close()


def by_hand(spark: Any, source: str, target: Path) -> float:
    """What somebody would write who has the rows as Parquet: partition them, then the same two tables."""
    begin = time.perf_counter()
    frame = spark.read.parquet(source).selectExpr("*", "to_date(ended) AS day", "date_trunc('hour', ended) AS hour")
    frame.write.partitionBy("day", "queue").parquet(f"{target}/history")
    lake = spark.read.parquet(f"{target}/history").dropDuplicates(["store", "seq"]).persist()
    _hours(lake).write.partitionBy("day").parquet(f"{target}/hours")
    _errors(lake).write.partitionBy("day").parquet(f"{target}/errors")
    lake.unpersist()
    return time.perf_counter() - begin


def main() -> int:
    print(f"Conditions: {conditions()}", flush=True)
    spark = session(
        "bench", master="local[2]", settings={"spark.sql.shuffle.partitions": 4, "spark.driver.memory": "4g"}
    )
    spark.sparkContext.setLogLevel("OFF")
    with folder() as place:
        path = place.absolute()
        url = f"sqlite:///{path / 'shop.db'}"
        with penstock.open_queues(url):
            pass
        fill(path / "shop.db", 1000, 0, START - DAY, 1)
        warm = Pipeline(spark, path / "warm", Sources(queues=(url,)))
        warm.run()
        fill(path / "shop.db", ROWS, 10_000, START, 10)
        source = f"file://{path}/parquet"
        frame = spark.read.format("penstock").options(url=url, kind="history").load().drop("payload")
        frame.selectExpr("*", "'s' AS store").write.parquet(source)
        by_hand(spark, source, path / "warm2")
        hand = by_hand(spark, source, path / "hand")
        pipeline = Pipeline(spark, path / "lake", Sources(queues=(url,)))
        begin = time.perf_counter()
        ran = pipeline.run()
        full = time.perf_counter() - begin
        assert sum(ran.rows.values()) == ROWS + 1000, ran
        fill(path / "shop.db", ROWS // 100, 10_000_000, START + 10 * DAY, 1)
        begin = time.perf_counter()
        more = pipeline.run()
        new = time.perf_counter() - begin
        assert sum(more.rows.values()) == ROWS // 100, more
    spark.stop()
    good = report(
        "History pipeline",
        [
            Bar(f"{ROWS:,} rows into lake and tables vs by hand", ">= 0.5x", f"{hand / full:.2f}x", hand / full >= 0.5),
            Bar("a run over 1 % more rows", "<= 15 % of the full run", f"{new / full:.0%}", new / full <= 0.15),
        ],
        [f"full {full:.1f} s, by hand from Parquet {hand:.1f} s, one per cent more {new:.1f} s"],
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
