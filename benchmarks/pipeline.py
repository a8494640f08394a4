"""The history pipeline against the same job written by hand on Parquet, and what the fiftieth run costs.

python -m benchmarks.pipeline [--quick]
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import penstock
from benchmarks.measure import Bar, conditions, folder, report
from penstock.spark import session
from penstock.spark.lake import tables
from penstock.spark.lake.pipeline import Pipeline, Sources

QUICK = "--quick" in sys.argv
ROWS = 100_000 if QUICK else 5_000_000
RUNS = 5 if QUICK else 50
DAY = 86_400_000_000
START = 1_760_000_000_000_000 // DAY * DAY
QUEUES = [f"queue-{number}" for number in range(5)]


def fill(path: Path, count: int, first: int, begin: int, days: int) -> None:
    """Ended attempts over some days, one in twenty failed; straight into the tables, as millions are wanted."""
    random.seed(first)
    db = sqlite3.connect(path)
    numbers = [_queue_number(db, name) for name in QUEUES]
    for chunk in range(0, count, 100_000):
        bodies, history = [], []
        for number in range(chunk, min(count, chunk + 100_000)):
            seq, queue = first + number, numbers[number % 5]
            created = begin + number * days * DAY // count
            started = created + random.randrange(2_000_000)
            bad = number % 20 == 0
            bodies.append((seq, f"id-{seq}", seq, queue, 0, created, created, "json", "Any"))
            state, error = ("retried", f"RuntimeError: number {number % 7}") if bad else ("done", None)
            history.append((seq, queue, 1, 1, state, created, started, started + random.randrange(500_000), 1, error))
        db.executemany(
            "INSERT INTO penstock (body, id, seq, number, priority, created, first_due, codec, type) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            bodies,
        )
        db.executemany(
            "INSERT INTO penstock_history (body, number, generation, attempt, state, due, started, ended, fence, "
            "error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            history,
        )
        db.commit()
    db.close()


def _queue_number(db: sqlite3.Connection, name: str) -> int:
    db.execute("INSERT INTO penstock_queues (queue) VALUES (?) ON CONFLICT (queue, node) DO NOTHING", (name,))
    [number] = db.execute("SELECT number FROM penstock_queues WHERE queue = ? AND node = ''", (name,)).fetchone()
    return int(number)


def by_hand(spark: Any, source: str, target: Path) -> float:
    """What somebody would write who has the rows as Parquet: partition them, then the same two tables."""
    begin = time.perf_counter()
    frame = spark.read.parquet(source).selectExpr("*", "to_date(ended) AS day", "date_trunc('hour', ended) AS hour")
    frame.write.partitionBy("day", "queue").parquet(f"{target}/history")
    lake = spark.read.parquet(f"{target}/history")
    tables.hours(lake).write.partitionBy("day").parquet(f"{target}/hours")
    tables.errors(lake).write.partitionBy("day").parquet(f"{target}/errors")
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
        seconds = []
        new = ROWS // 100
        for number in range(1, RUNS):  # all on one day, the worst case for tables that are kept by days
            fill(path / "shop.db", new, 10_000 + ROWS + number * new, START + 10 * DAY + number * DAY // 100, 1)
            begin = time.perf_counter()
            more = pipeline.run()
            seconds.append(time.perf_counter() - begin)
            assert sum(more.rows.values()) == new, more
        last = statistics.median(seconds[-5:])
        largest = max(Counter(one.day for one in pipeline.lake.now().files["history"]).values())
    spark.stop()
    good = report(
        "History pipeline",
        [
            Bar(f"{ROWS:,} rows into lake and tables vs by hand", ">= 0.5x", f"{hand / full:.2f}x", hand / full >= 0.5),
            Bar(f"run {RUNS} over 1 % new rows vs the first", "<= 0.2x", f"{last / full:.3f}x", last / full <= 0.2),
        ],
        [
            f"full {full:.1f} s, by hand from Parquet {hand:.1f} s; one per cent more: second run {seconds[0]:.1f} s, "
            f"median of the last five {last:.1f} s; at most {largest} files of history a day"
        ],
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
