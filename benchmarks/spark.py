"""Spark on our logs, against Spark on Parquet: batch read and write, streaming read, log to log.

python -m benchmarks.spark [--quick | --large] [read filter stream write pipe ... | scale]

2 million records of 200 bytes in 4 partitions (--large: 10 million), `local[2]`, the log with durability=fast
(Spark's Parquet writer does not sync either). The Parquet files hold the same rows and all columns, uncompressed.
Everything is run once to warm up, then ours and theirs take turns; ratios are medians of ratios within a round. Parquet
is read inside the JVM; whatever a data source in Python reads comes through a socket. So reads have a second peer, as
fast as any source in Python can be: its Arrow batches are ready in memory, or hold one row each. Part ``scale``, only
if it is named, reads and copies ten times as many records: the price of one and the memory of Spark's processes should
stay the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

import penstock
from benchmarks.measure import Bar, Run, conditions, folder, report, timed
from penstock import spark as penstock_spark
from penstock.log.record import Partition

QUICK = "--quick" in sys.argv
CHOSEN = [one for one in sys.argv[1:] if not one.startswith("-")]
COUNT = 200_000 if QUICK else 10_000_000 if "--large" in sys.argv else 2_000_000
ROUNDS = 3
PARTITIONS = 4
KEYS = 10_000
BATCH = 5_000
READY_ROWS = 10_000  # of a batch, as many as our source sends
NOTES: list[str] = []


class Tuples(DataSource):
    """What a plain Python source does: one tuple per record."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> str:
        return "partition INT, offset BIGINT, time TIMESTAMP, key BINARY, value BINARY, headers MAP<STRING, BINARY>"

    def reader(self, schema: Any) -> DataSourceReader:
        return TupleReader(self.options["url"])


class TupleReader(DataSourceReader):
    def __init__(self, url: str) -> None:
        self.url = url

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        with penstock.open_logs(self.url) as store:
            for batch in store.batches(Partition("in", partition.value)):
                for record in batch.records():
                    yield partition.value, record.offset, record.time, (record.key or "").encode(), record.payload, None


class Ready(DataSource):
    """A source in Python that reads nothing: each task sends one Arrow batch that it has made, again and again."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return (
            "partition INT NOT NULL, offset BIGINT NOT NULL, time TIMESTAMP NOT NULL, key BINARY, "
            "value BINARY NOT NULL, headers MAP<STRING, BINARY>"
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self.rows // PARTITIONS
        batch = ready_batch(min(left, READY_ROWS), partition.value)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def ready_batch(rows: int, partition: int) -> pa.RecordBatch:
    """Records as our source gives them."""
    noise = os.urandom(1 << 20)
    numbers = pa.array(range(rows), pa.int64())
    fields = [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
    ]
    columns = [
        pa.array([partition] * rows, pa.int32()),
        numbers,
        numbers.cast(fields[2].type),
        pa.array([b"key-%d" % (at % KEYS) for at in range(rows)], pa.binary()),
        pa.array([noise[(at * 37) % 1_000_000 :][:200] for at in range(rows)], pa.binary()),
        pa.nulls(rows, fields[5].type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


class Nothing(DataSource):
    """A stream source in Python that has one row: what any of them costs to start."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "n INT"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NothingReader()


class NothingReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"at": 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (1,)


class Bench:
    """One session, one log, the same rows as Parquet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"file://{path.absolute() / 'logs'}?durability=fast"
        settings = {"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "3g"}
        self.spark: SparkSession = penstock_spark.session("bench", master="local[2]", settings=settings)
        self.spark.sparkContext.setLogLevel("ERROR")
        self.spark.dataSource.register(Ready)
        self.store = penstock.open_logs(self.url)
        self.turn = 0
        self.fill("in", COUNT)
        self.parquet = str(path / "parquet")
        self.log().write.option("compression", "none").parquet(self.parquet)

    def fill(self, log: str, count: int) -> None:
        self.store.create(log, PARTITIONS)
        noise = os.urandom(1 << 20)
        with self.store.appender(log, bytes) as out:
            for begin in range(0, count, BATCH):
                part = range(begin, begin + BATCH)
                values = [noise[(at * 37) % 1_000_000 :][:200] for at in part]
                out.append_many(values, keys=[f"key-{(at * 7919) % KEYS}" for at in part])

    def log(self, columns: str | None = None, name: str = "in") -> DataFrame:
        reader = self.spark.read.format("penstock").option("url", self.url).option("log", name)
        return (reader if columns is None else reader.option("columns", columns)).load()

    def ready(self, rows: int) -> DataFrame:
        return self.spark.read.format("ready").option("rows", rows).load()

    def fresh(self, name: str) -> str:
        self.turn += 1
        return str(self.path / f"{name}-{self.turn}")

    def new_log(self) -> str:
        self.turn += 1
        name = f"out-{self.turn}"
        self.store.create(name, PARTITIONS)
        return name


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def ended(query: Any) -> None:
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()


def rounds(**works: Callable[[], None]) -> dict[str, list[Run]]:
    """Every work once to warm up, then in turns."""
    for work in works.values():
        work()
    found: dict[str, list[Run]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            found[name].append(timed(COUNT, work))
    return found


def ratio(found: dict[str, list[Run]], ours: str, theirs: str) -> float:
    return statistics.median(a.rate / b.rate for a, b in zip(found[ours], found[theirs], strict=True))


def shown(found: dict[str, list[Run]]) -> str:
    rates = {name: statistics.median(run.rate for run in runs) / 1000 for name, runs in found.items()}
    return ", ".join(f"{name} {rate:,.0f} k/s" for name, rate in rates.items())


def bar(what: str, found: dict[str, list[Run]], ours: str, theirs: str, wanted: float) -> Bar:
    got = ratio(found, ours, theirs)
    return Bar(
        what, f">= {wanted}x", f"{got:.2f}x ({shown({ours: found[ours], theirs: found[theirs]})})", got >= wanted
    )


def read(bench: Bench) -> list[Bar]:
    bench.spark.dataSource.register(Tuples)
    found = rounds(
        ready=lambda: noop(bench.ready(COUNT)),
        log=lambda: noop(bench.log()),
        parquet=lambda: noop(bench.spark.read.parquet(bench.parquet)),
        tuples=lambda: noop(bench.spark.read.format("tuples").option("url", bench.url).load()),
        narrow=lambda: noop(bench.log("key,value")),
    )
    NOTES.append(f"batch read of key and value only: {shown({'narrow': found['narrow']})}")
    return [
        bar("batch read against Parquet", found, "log", "parquet", 0.7),
        bar("batch read against a source in Python that has its batches ready", found, "log", "ready", 0.85),
        bar("batch read against tuples", found, "log", "tuples", 4),
    ]


def narrowed(bench: Bench) -> list[Bar]:
    """A condition on one hundredth of the time range, pushed down, against the whole read."""
    first, last = bench.log("time").selectExpr("min(time)", "max(time)").collect()[0]
    begin = first + (last - first) / 2
    end = begin + (last - first) / 100

    def part() -> DataFrame:
        return bench.log().where((f.col("time") >= begin) & (f.col("time") < end))

    share = part().count() / COUNT
    found = rounds(
        part=lambda: noop(part()), whole=lambda: noop(bench.log()), one=lambda: noop(bench.ready(PARTITIONS))
    )
    price, start = 1 / ratio(found, "part", "whole"), 1 / ratio(found, "part", "one")
    seconds = {name: statistics.median(COUNT / run.rate for run in runs) for name, runs in found.items()}
    told = f"{price:.3f} ({seconds['part']:.2f} s of {seconds['whole']:.2f} s, {share:.2%} of the records)"
    least = f"{start:.2f}x ({seconds['one']:.2f} s)"
    return [
        Bar("a pushed-down filter on 1 % of the time range", "<= 0.05", told, price <= 0.05),
        Bar("the same against a source in Python that has a row a task", "<= 1.5x", least, start <= 1.5),
    ]


def stream(bench: Bench) -> list[Bar]:
    def follow() -> None:
        source = bench.spark.readStream.format("penstock").option("url", bench.url).option("log", "in").load()
        writer = source.writeStream.format("noop").option("checkpointLocation", bench.fresh("check"))
        ended(writer.trigger(availableNow=True).start())

    def start() -> None:
        writer = bench.spark.readStream.format("nothing").load().writeStream.format("noop")
        ended(writer.option("checkpointLocation", bench.fresh("check")).trigger(availableNow=True).start())

    bench.spark.dataSource.register(Nothing)
    found = rounds(stream=follow, batch=lambda: noop(bench.log()), start=start)
    seconds = {name: statistics.median(COUNT / run.rate for run in runs) for name, runs in found.items()}
    NOTES.append(
        f"streaming read: {seconds['stream']:.2f} s; a stream source in Python with one row: {seconds['start']:.2f} s"
    )
    return [bar("streaming read against batch read", found, "stream", "batch", 0.5)]


def write(bench: Bench) -> list[Bar]:
    source = bench.spark.read.parquet(bench.parquet).select("key", "value", "time")

    def to_log() -> None:
        name = bench.new_log()
        source.write.format("penstock").option("url", bench.url).option("log", name).mode("append").save()
        assert sum(one.count for one in bench.store.bounds(name)) == COUNT
        bench.store.delete(name)

    def to_parquet() -> None:
        path = bench.fresh("written")
        source.write.option("compression", "none").parquet(path)
        shutil.rmtree(path)

    found = rounds(log=to_log, parquet=to_parquet)
    return [bar("batch write against Parquet", found, "log", "parquet", 0.65)]


def pipe(bench: Bench) -> list[Bar]:
    spark = bench.spark

    def log_to_log() -> None:
        copy(bench, "in", COUNT)

    def parquet_to_parquet() -> None:
        path = bench.fresh("piped")
        rows = spark.readStream.schema(spark.read.parquet(bench.parquet).schema).parquet(bench.parquet)
        writer = rows.select("key", "value", "time").writeStream.format("parquet").option("compression", "none")
        writer = writer.option("path", path).option("checkpointLocation", bench.fresh("check"))
        ended(writer.trigger(availableNow=True).start())
        shutil.rmtree(path)

    found = rounds(log=log_to_log, parquet=parquet_to_parquet)
    return [bar("stream log to log against Parquet to Parquet", found, "log", "parquet", 0.6)]


def copy(bench: Bench, log: str, count: int, **options: int) -> None:
    """A stream from one log to another, in one batch or several."""
    name = bench.new_log()
    source = bench.spark.readStream.format("penstock").options(url=bench.url, log=log, **options)
    rows = source.option("columns", "key,value,time").load()
    writer = rows.writeStream.format("penstock").option("url", bench.url).option("log", name)
    ended(writer.option("checkpointLocation", bench.fresh("check")).trigger(availableNow=True).start())
    assert sum(one.count for one in bench.store.bounds(name)) == count
    bench.store.delete(name)


def scale(bench: Bench) -> list[Bar]:
    """The same with ten times as many records."""
    many = 10 * COUNT
    bench.fill("many", many)
    bars = []
    works: dict[str, Callable[[str, int], None]] = {
        "batch read": lambda log, _: noop(bench.log(name=log)),
        "stream log to log": lambda log, count: copy(bench, log, count, limit=COUNT // 2),
    }
    for what, work in works.items():
        work("in", COUNT)
        few, small = watched(COUNT, partial(work, "in", COUNT))
        more, large = watched(many, partial(work, "many", many))
        price, memory = few.rate / more.rate, large / small
        told = f"{price:.2f}x a record, {memory:.2f}x the memory ({small / 1e6:,.0f} to {large / 1e6:,.0f} MB)"
        bars.append(Bar(f"{what}: {many:,} against {COUNT:,}", "<= 1.3x", told, max(price, memory) <= 1.3))
    return bars


def watched(count: int, work: Callable[[], None]) -> tuple[Run, int]:
    """A run, and the most bytes that the JVM and its Python processes had in memory meanwhile."""
    most, over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.2):
            most = max(most, sum(memory(pid) for pid in below(os.getpid())))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        run = timed(count, work)
    finally:
        over.set()
        thread.join()
    return run, most


def below(pid: int) -> list[int]:
    """All processes that a process has started, and those they have."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                found += [child, *below(child)]
    return found


def memory(pid: int) -> int:
    """What is a process's own: files that it has mapped do not count."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("RssAnon:")[2].split()[0])
    return 0


PARTS: dict[str, Callable[[Bench], list[Bar]]] = {
    "read": read,
    "filter": narrowed,
    "stream": stream,
    "write": write,
    "pipe": pipe,
    "scale": scale,
}


def main() -> None:
    bars: list[Bar] = []
    with folder() as path:
        bench = Bench(path)
        try:
            for name, part in PARTS.items():
                if name in CHOSEN or (not CHOSEN and name != "scale"):
                    bars += part(bench)
        finally:
            bench.spark.stop()
            bench.store.close()
    report("Spark on logs", bars, [conditions(), *NOTES])


if __name__ == "__main__":
    main()
