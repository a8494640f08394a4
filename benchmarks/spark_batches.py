"""SparkRunner in steady state: seconds per batch, against Spark's own streaming over the same log, and an older commit.

python -m benchmarks.spark_batches [--quick] [--records N] [--old FOLDER] [windows count map free small first]

Typed JSON records of 200 bytes in 4 partitions, `local[2]`, the log with durability=fast, 1,000 and 200,000 keys. Each
system is a process of its own that stays, with a query that runs; a batch is appended, and the time is taken until all
of it is committed. The first batch warms up, then three count, the systems taking turns: figures are medians, ratios
medians of ratios within a round. The others wait meanwhile, with queries that look for records now and then.

windows  windowed_sum(Tumbling("1m")) | from_json, window, groupBy, sum
count    running_count                | from_json, groupBy, count
map      chain of map and filter      | from_json, select, filter, to_json, into a log
free     a computation with a value state, record by record
small    a batch of four records      first  a new computation in a warm session, until its first commit

`--old` is the `src` folder of another commit (`git worktree add FOLDER COMMIT`); it runs in this environment.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec

import penstock
from penstock import LogStore
from penstock.stream import Computation, Topology, Tumbling, Value, running_count, windowed_sum

PARTITIONS = 4
PATIENCE = 600.0
REST = 0.5
SCHEMA = "user STRING, amount BIGINT, pad STRING"
WORKS = ("windows", "count", "map", "free", "small", "first")
# Of each work: the least ratio to Spark's own and to the older commit, by the number of keys; or the most seconds.
RATIOS = {
    ("windows", 1_000): (2.0, 3.0), ("windows", 200_000): (3.0, 4.0), ("count", 1_000): (2.0, 2.0),
    ("count", 200_000): (3.0, 3.0), ("map", 1_000): (0.8, None), ("free", 1_000): (None, 1.0),
}  # fmt: skip
SECONDS = {"small": 0.25, "first": 1.0}


class Click(msgspec.Struct):
    user: str
    amount: int
    pad: str


class Free(Computation):
    name, inputs, outputs = "step", "in", "out"
    states = (Value("n", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        held = ctx.value("n")
        held.set(held.get() + record.value.amount)
        if held.get() % 100 == 0:
            ctx.produce("out", held.get())


# --- the process of one system -----------------------------------------------------------------------------


class Feed:
    """Appends batches of records to the log "in"."""

    def __init__(self, store: LogStore, keys: int) -> None:
        self.store = store
        self._keys = keys
        self._at = 0
        store.create("in", PARTITIONS)

    def append(self, count: int) -> None:
        with self.store.appender("in", bytes) as out:
            for begin in range(self._at, self._at + count, 5_000):
                part = range(begin, min(begin + 5_000, self._at + count))
                users = [f"user-{(number * 7919) % self._keys}" for number in part]
                values = [
                    b'{"user":"%s","amount":%d,"pad":"%s"}' % (user.encode(), number % 100, b"x" * 150)
                    for user, number in zip(users, part, strict=True)
                ]
                out.append_many(values, keys=users, timestamps=[10**15 + number * 1000 for number in part])
        self._at += count


def step_of(work: str, name: str) -> Any:
    if work == "windows":
        return windowed_sum(name, "in", "out", Tumbling("1m"), of=amount_of)
    if work == "map":
        from penstock.stream import chain, filter_values, map_values

        return chain(name, map_values("double", doubled, "in", "mid"), filter_values("some", is_wanted, "mid", "out"))
    return Free() if work == "free" else running_count(name, "in", "out")


def amount_of(click: Any) -> int:
    return int(click.amount)


def doubled(click: Any) -> dict[str, Any]:
    return {"user": click.user, "amount": 2 * click.amount}


def is_wanted(value: Any) -> bool:
    return bool(value["amount"] > 50)


class Runner:
    """SparkRunner, of this version or an older one."""

    def __init__(self, store: LogStore, spark: Any, work: str, folder: Path) -> None:
        self._store, self._spark, self._work, self._folder = store, spark, work, folder
        self._started = 0
        self._running: Any = None
        if work != "first":
            self._start("step")

    def _start(self, name: str) -> None:
        import inspect

        from penstock.spark import SparkRunner

        known = inspect.signature(SparkRunner.__init__).parameters
        options = {"checkpoints": str(self._folder / name)} if "checkpoints" in known else {}
        topology = Topology(f"bench-{name}", partitions=PARTITIONS).stream("in", Click).stream("out")
        self._name = name
        self._running = SparkRunner(topology.add(step_of(self._work, name)), self._store, self._spark, **options)
        self._running.start()

    def batch(self) -> None:
        if self._work == "first":
            if self._running is not None:
                self._running.stop()
            self._started += 1
            self._start(f"step-{self._started}")
        deadline = time.monotonic() + PATIENCE
        while self._store.lag("in", self._name).lag:
            assert time.monotonic() < deadline, self._running.status()
            threading.Event().wait(0.002)


class Own:
    """Spark's own streaming over the same log."""

    def __init__(self, store: LogStore, spark: Any, work: str, folder: Path, url: str) -> None:
        from pyspark.sql import functions as f

        rows = spark.readStream.format("penstock").option("url", url).option("log", "in").load()
        clicks = rows.select("key", "time", f.from_json(rows.value.cast("string"), SCHEMA).alias("click"))
        clicks = clicks.where("click is not null")
        if work == "windows":
            made = clicks.withWatermark("time", "0 seconds").groupBy(f.window("time", "1 minute"), "key")
            frame, mode = made.agg(f.sum("click.amount").alias("total")), "update"
        elif work == "map":
            value = f.to_json(f.struct("click.user", (2 * f.col("click.amount")).alias("amount")))
            frame, mode = clicks.where("2 * click.amount > 50").select("key", "time", value.alias("value")), "append"
        else:
            frame, mode = clicks.groupBy("key").count(), "update"
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(folder / "check"))
        if work == "map":
            store.create("out", PARTITIONS)
            writer = writer.format("penstock").option("url", url).option("log", "out")
        else:
            writer = writer.foreachBatch(lambda batch, _: batch.write.format("noop").mode("overwrite").save())
        self._query = writer.start()

    def batch(self) -> None:
        self._query.processAllAvailable()


def serve(system: str, work: str, keys: int, records: int, folder: Path, answers: IO[str]) -> None:
    """For every line that comes: one batch; says how many seconds it took."""
    from penstock.spark import session

    settings = {"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "1g", "spark.ui.showConsoleProgress": False}
    spark = session(f"bench-{system}", master="local[2]", settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    url = f"file://{folder / 'logs'}?durability=fast"
    store = penstock.open_logs(url)
    feed = Feed(store, keys)
    made: Any = Own(store, spark, work, folder, url) if system == "own" else Runner(store, spark, work, folder)
    for _ in sys.stdin:
        if work == "small":
            time.sleep(REST)  # the runner rests: the pause between two batches is not measured
        feed.append(4 if work in SECONDS else records)
        began = time.perf_counter()
        made.batch()
        print(time.perf_counter() - began, file=answers, flush=True)
    os._exit(0)  # the queries run on without end


# --- the one that asks -------------------------------------------------------------------------------------


class System:
    """A process that computes batches."""

    def __init__(self, system: str, work: str, keys: int, records: int, source: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"bench-{system}-", ignore_cleanup_errors=True)
        environment = dict(os.environ)
        if source is not None:
            environment["PYTHONPATH"] = os.pathsep.join([source, os.getcwd()])
        arguments = ["--serve", system, work, str(keys), str(records), self._folder.name]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark_batches", *arguments], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def batch(self) -> float:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print("batch", file=self._child.stdin, flush=True)
        return float(self._child.stdout.readline())

    def end(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(60)
        self._folder.cleanup()


def measured(work: str, keys: int, records: int, old: str | None, rounds: int) -> dict[str, list[float]]:
    wanted: dict[str, str | None] = {"ours": None}
    if work not in SECONDS and work != "free":
        wanted["own"] = None
    if old is not None and work != "map":
        wanted["old"] = old
    systems: dict[str, System] = {}
    try:
        for name, source in wanted.items():  # one after the other: workers that start together run into time limits
            systems[name] = System(name, work, keys, records, source)
            systems[name].batch()  # warms up
        return turns(systems, rounds)
    finally:
        for system in systems.values():
            system.end()


def turns(systems: dict[str, System], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            found[name].append(system.batch())
    return found


def bars_of(work: str, keys: int, found: dict[str, list[float]], make_bar: Callable[..., Any]) -> list[Any]:
    ours = statistics.median(found["ours"])
    if work in SECONDS:
        return [make_bar(f"{work}: until committed", f"<= {SECONDS[work]:g} s", f"{ours:.3f} s", ours <= SECONDS[work])]
    bars = []
    for other, least in zip(("own", "old"), RATIOS[work, keys], strict=True):
        if least is None:
            continue
        what = f"{work}, {keys:,} keys, against {'Spark’s own' if other == 'own' else 'the older commit'}"
        if other not in found:
            bars.append(make_bar(what, f">= {least:g}x", "not measured", False))
            continue
        ratio = statistics.median(theirs / mine for mine, theirs in zip(found["ours"], found[other], strict=True))
        shown = f"{ratio:.2f}x ({ours:.2f} s against {statistics.median(found[other]):.2f} s)"
        bars.append(make_bar(what, f">= {least:g}x", shown, ratio >= least))
    return bars


def main() -> None:
    from benchmarks.measure import Bar, conditions, report

    arguments = sys.argv[1:]
    records = int(arguments[arguments.index("--records") + 1]) if "--records" in arguments else 400_000
    records = 50_000 if "--quick" in arguments else records
    old = str(Path(arguments[arguments.index("--old") + 1]).absolute()) if "--old" in arguments else None
    chosen = [work for work in arguments if work in WORKS] or list(WORKS)
    bars: list[Any] = []
    for work in chosen:
        for keys in [keys for name, keys in RATIOS if name == work] or [1_000]:
            made = bars_of(work, keys, measured(work, keys, records, old, 3), Bar)
            bars += made
            for bar in made:
                print(*bar, sep="  ", file=sys.stderr)
    report("SparkRunner, batch by batch", bars, [f"{records:,} records a batch", conditions()])


if __name__ == "__main__":
    if "--serve" in sys.argv:
        _, _, system, work, keys, records, folder = sys.argv
        own_out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what Spark prints is not an answer
        serve(system, work, int(keys), int(records), Path(folder), own_out)
    else:
        main()
