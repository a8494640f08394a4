"""SparkRunner: a keyed count, against Spark's built-in aggregation and against plain buckets, all over the same log.

python -m benchmarks.spark_runner [--quick] [1000 200000 ...]

2 million records of 200 bytes in 4 partitions, `local[2]`, the log with durability=fast; the argument is the number of
keys. The first three keep their counts in the state log, the others in Spark's state store (RocksDB); all tell each
key's count at the end, once:

count     running_count of SparkRunner, drained
windows   windowed_count of SparkRunner with one long window, drained
ours      a free computation with a value state and a timer, drained
built-in  format("penstock") → groupBy(key).count(), AvailableNow
buckets   format("penstock") → transformWithStateInPandas by a bucket of the key, one pickled map of counts per bucket

Each takes all there is as one batch. Everything is run once on a tenth to warm up, then they take turns; ratios are
medians of ratios within a round.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import penstock
from benchmarks.measure import Bar, Run, conditions, folder, report, timed
from penstock.codec import codec_for
from penstock.spark import SparkRunner, session
from penstock.stream import Computation, Topology, Tumbling, Value, running_count, windowed_count
from penstock.stream.windows import Windowed

QUICK = "--quick" in sys.argv
CHOSEN = [int(one) for one in sys.argv[1:] if one.isdecimal()]
COUNT = 200_000 if QUICK else 2_000_000
ROUNDS = 2 if QUICK else 3
PARTITIONS = 4
BATCH = 5_000
BUCKETS = 256
END = 10**16


class Count(Computation):
    name, inputs, outputs = "count", "in", "out"
    states = (Value("n", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        held = ctx.value("n")
        count = held.get() + 1
        held.set(count)
        if count == 1:
            ctx.set_timer(END)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("out", ctx.value("n").get())


class Buckets(StatefulProcessor):
    """What one would write by hand: no timers, no failures, no order, no watermark."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("counts", "blob BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        codec = codec_for(dict[str, int])
        held = self.state.get()
        counts = {} if held is None else codec.decode(bytes(held[0]))
        for frame in rows:
            for one in frame["key"].tolist():
                name = one.decode()
                counts[name] = counts.get(name, 0) + 1
        self.state.update((codec.encode(counts),))
        yield pd.DataFrame({"key": list(counts), "count": list(counts.values())})

    def close(self) -> None:
        """Nothing to close."""


class Bench:
    def __init__(self, path: Path, spark: SparkSession, keys: int, count: int) -> None:
        self.path, self.spark, self.keys, self.count = path, spark, keys, count
        self.url = f"file://{path.absolute() / 'logs'}?durability=fast"
        self.turn = 0
        self.store = penstock.open_logs(self.url)
        self.store.create("in", PARTITIONS)
        noise = os.urandom(1 << 20)
        with self.store.appender("in", bytes) as out:
            for begin in range(0, count, BATCH):
                part = range(begin, begin + BATCH)
                values = [noise[(at * 37) % 1_000_000 :][:200] for at in part]
                out.append_many(values, keys=[f"key-{(at * 7919) % keys}" for at in part])

    def fresh(self) -> str:
        self.turn += 1
        return str(self.path / f"check-{self.turn}")

    def ours(self) -> None:
        self.drained(Topology("bench", partitions=PARTITIONS).stream("in", bytes).stream("out", int).add(Count), int)

    def totals(self) -> None:
        count = running_count("count", "in", "out")
        self.drained(Topology("bench", partitions=PARTITIONS).stream("in", bytes).stream("out", int).add(count), int)

    def windows(self) -> None:
        count = windowed_count("count", "in", "out", Tumbling("7300d"))
        self.drained(
            Topology("bench", partitions=PARTITIONS).stream("in", bytes).stream("out", Windowed).add(count), Windowed
        )

    def drained(self, topology: Topology, made: Any) -> None:
        runner = SparkRunner(topology, self.store, self.spark, checkpoint_records=self.count)
        assert runner.start().drain("600s", final=True), runner.status()
        log = self.store.log("out", made)
        told = [one.value for place in log.partitions for one in log.records(place.index)]
        told = [one.value if isinstance(one, Windowed) else one for one in told]
        assert (sum(told), len(told)) == (self.count, min(self.keys, self.count))
        runner.reset("count")
        self.store.delete("out")

    def stream(self) -> Any:
        reader = self.spark.readStream.format("penstock").option("url", self.url).option("log", "in")
        return reader.option("columns", "key").load()

    def run(self, frame: Any, mode: str) -> None:
        found: list[tuple[int, int]] = []

        def take(rows: Any, _: int) -> None:
            found.append(rows.agg(f.sum("count"), f.count("*")).first())

        check = self.fresh()
        writer = frame.writeStream.outputMode(mode).foreachBatch(take).option("checkpointLocation", check)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert query.exception() is None, query.exception()
        assert (sum(one[0] or 0 for one in found), sum(one[1] for one in found)) == (
            self.count, min(self.keys, self.count),
        )  # fmt: skip
        shutil.rmtree(check, ignore_errors=True)

    def builtin(self) -> None:
        self.run(self.stream().groupBy("key").count(), "update")

    def buckets(self) -> None:
        rows = self.stream().withColumn("bucket", f.expr(f"pmod(hash(key), {BUCKETS})"))
        made = rows.groupBy("bucket").transformWithStateInPandas(Buckets(), "key STRING, count LONG", "Append", "None")
        self.run(made, "append")

    def rounds(self, rounds: int) -> dict[str, list[Run]]:
        works = {
            "count": self.totals,
            "windows": self.windows,
            "ours": self.ours,
            "built-in": self.builtin,
            "buckets": self.buckets,
        }
        found: dict[str, list[Run]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                found[name].append(timed(self.count, work))
        return found


def ratio(found: dict[str, list[Run]], ours: str, theirs: str) -> float:
    return statistics.median(a.rate / b.rate for a, b in zip(found[ours], found[theirs], strict=True))


def main() -> None:
    bars: list[Bar] = []
    with folder() as path:
        settings = {"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "2g"}
        spark = session("bench", master="local[2]", settings={**settings, "spark.ui.showConsoleProgress": False})
        spark.sparkContext.setLogLevel("ERROR")
        for keys in CHOSEN or [1_000, 200_000]:
            Bench(path / f"warm-{keys}", spark, keys, COUNT // 10).rounds(1)
            bench = Bench(path / str(keys), spark, keys, COUNT)
            found = bench.rounds(ROUNDS)
            rates = {name: statistics.median(run.rate for run in runs) / 1000 for name, runs in found.items()}
            told = ", ".join(f"{name} {rate:,.0f} k/s" for name, rate in rates.items())
            for ours, theirs in (("count", "built-in"), ("windows", "built-in"), ("ours", "buckets")):
                got = ratio(found, ours, theirs)
                what = f"{keys:,} keys: {ours} against {theirs}"
                bars.append(Bar(what, ">= 0.5x", f"{got:.2f}x ({told})", got >= 0.5))
            bench.store.close()
        spark.stop()
    report("Keyed count on Spark", bars, [conditions()])


if __name__ == "__main__":
    main()
