"""Streams: against a plain loop over the same log, bytewax and quixstreams; what a checkpoint costs; memory.

python -m benchmarks.streams [--quick] [--old SOURCE-FOLDER] [pass count windows processes checkpoint memory wide ...]

Checkpoints are on everywhere: ours commit outputs, offsets, state and timers in one transaction of the log; bytewax
runs with its recovery store; quixstreams with exactly-once and its changelog topics. Runs of all are interleaved;
ratios are medians of ratios within a round. ``--old`` compares the part `wide` with the source of another checkout;
those runs are processes of their own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import penstock
from benchmarks.measure import Bar, Run, conditions, folder, report, timed
from penstock import LogStore
from penstock.ids import new_id
from penstock.stream.computation import Computation, computation
from penstock.stream.local.process_runner import ProcessRunner
from penstock.stream.local.runner import LocalRunner
from penstock.stream.state import Value
from penstock.stream.topology import Topology
from penstock.stream.windows import Sliding, Windowed, windowed_count

QUICK = "--quick" in sys.argv
OLD = sys.argv[sys.argv.index("--old") + 1] if "--old" in sys.argv else None
CHOSEN = [word for word in sys.argv[1:] if not word.startswith("-") and word != OLD]
COUNT = 50_000 if QUICK else 200_000
ROUNDS = 3 if QUICK else 5
KEYS = 1000
PARTITIONS = 4
BATCH = 1000
NOTES: list[str] = []  # what has no bar


def open_store(path: Path) -> LogStore:
    return penstock.open_logs(url_of(path))


def url_of(path: Path) -> str:
    return f"file://{path.absolute() / 'logs'}?durability=fast"


def fill(store: LogStore, count: int, *, stream: str = "in", partitions: int = PARTITIONS, keys: int = KEYS) -> None:
    store.create(stream, partitions)
    with store.appender(stream) as out:
        for begin in range(0, count, BATCH):
            part = range(begin, min(begin + BATCH, count))
            out.append_many(list(part), keys=[f"user-{number % keys}" for number in part])


@computation("through", inputs="in", outputs="out")
def through(record: Any, ctx: Any) -> None:
    ctx.produce("out", record)


class Count(Computation):
    name, inputs, outputs = "count", "in", "out"
    states = (Value("n", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        held = ctx.value("n")
        count = held.get() + 1
        held.set(count)
        ctx.produce("out", count)


def topology(step: Any, partitions: int = PARTITIONS, out: Any = int) -> Topology:
    return Topology("bench", partitions=partitions).stream("in", int).stream("out", out).add(step)


def ours(store: LogStore, step: Any, count: int, *, out: Any = int, **options: Any) -> Run:
    runner = LocalRunner(topology(step, store.settings("in").partitions, out), store, **options)

    def work() -> None:
        runner.start()
        assert runner.drain("600s")

    run = timed(count, work)
    assert runner.metrics["records"] == count
    return run


def loop(store: LogStore, count: int) -> Run:
    """The limit: what can be done by hand with the same log, one record after the other, committed the same way."""
    store.create("looped", PARTITIONS)

    def work() -> None:
        done = 0
        with store.tailer("in", "loop", int) as tail:
            while done < count:
                values: list[bytes] = []
                keys: list[Any] = []
                times: list[int] = []
                while len(values) < 10_000 and (records := tail.read(2000)):
                    for record in records:
                        values.append(record.payload)
                        keys.append(record.key)
                        times.append(record.time_us)
                with store.transaction() as tx:
                    tx.append_many("looped", values, bytes, keys=keys, timestamps=times)
                    tx.commit_offsets(tail)
                    tx.commit()
                done += len(values)

    return timed(count, work)


def bytewax_count(path: Path, count: int, *, stored: bool) -> Run:
    """One worker, counts per key, with recovery: from file to file as ours is, or from memory to nowhere."""
    import json

    import bytewax.operators as op
    from bytewax.connectors.files import FileSink, FileSource
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import TestingSource, run_main

    class Nowhere(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None: ...

    class Sink(DynamicSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Nowhere:
            return Nowhere()

    db = path / f"bytewax-{new_id()}"
    db.mkdir()
    init_db_dir(db, 1)
    flow = Dataflow("count")
    items = [(f"user-{number % KEYS}", number) for number in range(count)]
    if stored:
        (db / "in").write_text("".join(f"{json.dumps(one)}\n" for one in items))
        lines = op.input("in", flow, FileSource(db / "in", batch_size=BATCH))
        stream = op.map("read", lines, lambda line: tuple(json.loads(line)))
    else:
        stream = op.input("in", flow, TestingSource(items, batch_size=BATCH))
    counted = op.stateful_map("count", stream, lambda state, value: ((state or 0) + 1, (state or 0) + 1))
    if stored:
        (db / "out").touch()
        written = op.map("write", counted, lambda one: (one[0], json.dumps(one)))
        op.output("out", written, FileSink(db / "out"))
    else:
        op.output("out", counted, Sink())
    config = RecoveryConfig(db)
    return timed(count, lambda: run_main(flow, epoch_interval=timedelta(milliseconds=200), recovery_config=config))


def ratio(first: list[Run], second: list[Run]) -> float:
    return statistics.median(one.rate / other.rate for one, other in zip(first, second, strict=True))


def rate(runs: list[Run]) -> str:
    return f"{statistics.median(run.rate for run in runs):,.0f}/s"


def passing() -> list[Bar]:
    mine, plain = [], []
    for _ in range(ROUNDS):
        with folder() as path, open_store(path) as store:
            fill(store, COUNT)
            plain.append(loop(store, COUNT))
            mine.append(ours(store, through, COUNT))
    found = ratio(mine, plain)
    what = f"stateless pass-through {rate(mine)}, plain loop {rate(plain)}"
    return [Bar(what, ">= 0.3x", f"{found:.2f}x", found >= 0.3)]


def counting() -> list[Bar]:
    mine, theirs, bare = [], [], []
    for _ in range(ROUNDS):
        with folder() as path:
            with open_store(path) as store:
                fill(store, COUNT)
                mine.append(ours(store, Count, COUNT))
            with contextlib.suppress(ImportError):
                theirs.append(bytewax_count(path, COUNT, stored=True))
                bare.append(bytewax_count(path, COUNT, stored=False))
    if not theirs:
        return [Bar(f"keyed count {rate(mine)}; bytewax is not installed", ">= 1x", "-", False)]
    found, other = ratio(mine, theirs), ratio(mine, bare)
    return [
        Bar(
            f"keyed count of {KEYS} keys, stored to stored: {rate(mine)}, bytewax one worker {rate(theirs)}",
            ">= 3x", f"{found:.2f}x", found >= 3,
        ),
        Bar(f"the same against bytewax from memory to nowhere {rate(bare)}", "no bar", f"{other:.2f}x", True),
    ]  # fmt: skip


def windows() -> list[Bar]:
    """Counts per key over sliding windows, of which a record is in five."""
    count = COUNT // 4
    runs = []
    for _ in range(ROUNDS):
        with folder() as path, open_store(path) as store:
            fill(store, count)
            step = windowed_count("windows", "in", "out", Sliding("5m", "1m"))
            runs.append(ours(store, step, count, out=Windowed))
    found = statistics.median(run.cpu_us for run in runs)
    return [Bar(f"count over five sliding windows {rate(runs)}", "<= 20 us of CPU", f"{found:.1f} us", found <= 20)]


class Busy(Computation):
    """Keeps a core busy."""

    name, inputs, outputs = "busy", "in", "out"

    def process(self, record: Any, ctx: Any) -> None:
        total = 0
        for number in range(20_000):
            total += number * number % 7
        ctx.produce("out", total % 10)


def busy() -> Topology:
    return topology(Busy)


def processes() -> list[Bar]:
    count = 400 if QUICK else 1500
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for number, found in runs.items():
            with folder() as path, open_store(path) as store:
                store.create("in", PARTITIONS)
                runner = ProcessRunner("benchmarks.streams:busy", store, url_of(path), processes=number).start()
                assert runner.wait_for_assignments("60s")
                time.sleep(0.5)  # the partitions are shared out
                fill(store, count)
                found.append(timed(count, lambda runner=runner: runner.drain("600s")))
    found_ratio = ratio(runs[2], runs[1])
    what = f"CPU-bound work: two processes {rate(runs[2])}, one {rate(runs[1])}"
    return [Bar(what, ">= 1.6x", f"{found_ratio:.2f}x", found_ratio >= 1.6)]


def checkpoints() -> list[Bar]:
    """The same number of changes on few and on many held keys."""
    few, many = 1_000, 100_000 if QUICK else 200_000
    changed, turns = 500, 20
    seconds: dict[int, float] = {}
    for held in (few, many):
        with folder() as path, open_store(path) as store:
            fill(store, held, partitions=1, keys=held)
            ours(store, Count, held)
            fill(store, changed * turns, partitions=1, keys=changed)
            begin = time.perf_counter()
            runner = LocalRunner(topology(Count, 1), store, checkpoint_records=changed, read=changed).start()
            runner.wait_for_assignments("120s")
            restored = time.perf_counter() - begin
            assert runner.drain("600s")
            seconds[held] = (time.perf_counter() - begin - restored) / turns
            if held == many:
                restore = held / restored
    found = seconds[many] / seconds[few]
    told = f"{few:,} keys {seconds[few] * 1e3:.1f} ms, with {many:,} {seconds[many] * 1e3:.1f} ms"
    what = f"a checkpoint of {changed} changes with {told}"
    return [
        Bar(what, "<= 2x for 200x the keys", f"{found:.2f}x", found <= 2),
        Bar(f"restoring {many:,} keys, with starting up", ">= 100,000 keys/s", f"{restore:,.0f}/s", restore >= 100_000),
    ]


def memory() -> list[Bar]:
    """Downstream stands still while a producer and the first step go on."""

    @computation("stalls", inputs="out")
    def stalls(record: Any, ctx: Any) -> None:
        time.sleep(0.2)

    def held() -> float:
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    with folder() as path, open_store(path) as store:
        made = topology(through)
        made.add(stalls)
        fill(store, 20_000)
        runner = LocalRunner(made, store).start()
        time.sleep(1.0)
        before = held()
        for _ in range(5 if QUICK else 15):
            fill(store, 40_000)
        while store.lag("in", "through").lag:
            time.sleep(0.05)
        after = held()
        behind = store.lag("out", "stalls").lag
        runner.stop()
    grown = after - before
    what = f"memory while downstream is {behind:,} records behind"
    return [Bar(what, "<= 100 MB more", f"{grown:.0f} MB more", grown <= 100)]


# --- Kafka ----------------------------------------------------------------------------------------------


def quix_count(bootstrap: str, prefix: str, count: int) -> Run:
    import logging

    from quixstreams import Application

    logging.getLogger("quixstreams").setLevel(logging.ERROR)
    state_dir = Path(f"quix-{new_id()}")
    app = Application(
        broker_address=bootstrap, consumer_group=f"{prefix}-quix", auto_offset_reset="earliest",
        processing_guarantee="exactly-once", commit_interval=0.2, state_dir=str(state_dir), loglevel="ERROR",
    )  # fmt: skip
    source = app.topic(f"{prefix}in", value_deserializer="json", key_deserializer="str")
    target = app.topic(f"{prefix}quix", value_serializer="json", key_serializer="str")
    frame = app.dataframe(source)

    began: list[float] = []

    def counted(value: Any, state: Any) -> int:
        if not began:
            began.append(time.perf_counter())
        number = state.get("n", 0) + 1
        state.set("n", number)
        return int(number)

    frame = frame.apply(counted, stateful=True).to_topic(target)
    try:
        app.run(count=count, timeout=120)
        return Run(count, time.perf_counter() - began[0], 0.0)
    finally:
        import shutil

        shutil.rmtree(state_dir, ignore_errors=True)


class FirstSeen(Count):
    """Notes when it began."""

    at: ClassVar[list[float]] = []

    def process(self, record: Any, ctx: Any) -> None:
        if not self.at:
            FirstSeen.at.append(time.perf_counter())
        super().process(record, ctx)


def penstock_count(store: LogStore, count: int) -> Run:
    """From the first record to the last commit, as for the other one: joining a group takes both a while."""
    FirstSeen.at.clear()
    runner = LocalRunner(topology(FirstSeen), store).start()
    while runner.metrics["records"] < count:
        time.sleep(0.005)
    run = Run(count, time.perf_counter() - FirstSeen.at[0], 0.0)
    runner.stop()
    return run


def wide_rate(source: str, count: int) -> float:
    """Records a second of a process with this source."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.wide", str(count)],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path.cwd()}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(ended.stdout)


def wide() -> list[Bar]:
    """Two computations with eight partitions each, and event time from all of the first to all of the second."""
    mine, before, ratios = [], [], []
    for number in range(2 * ROUNDS):  # short runs
        for is_old in (False, True) if number % 2 else (True, False):  # who is first may find a warmer machine
            if not is_old:
                mine.append(wide_rate(str(Path.cwd() / "src"), COUNT))
            elif OLD is not None:
                before.append(wide_rate(OLD, COUNT))
        if before:
            ratios.append(mine[-1] / before[-1])
    what = f"pass-through with event time, two steps of 8 partitions: {statistics.median(mine):,.0f}/s"
    if not ratios:
        NOTES.append(what)
        return []
    found = statistics.median(ratios)
    what += f", the other source {statistics.median(before):,.0f}/s (ratios {min(ratios):.2f} to {max(ratios):.2f})"
    return [Bar(what, ">= 0.95x", f"{found:.2f}x", found >= 0.95)]


def kafka() -> list[Bar]:
    from tools.kafka import Kafka

    count = 20_000 if QUICK else 100_000
    server = Kafka().start()
    mine, theirs = [], []
    try:
        for _ in range(ROUNDS):
            prefix = new_id()
            with penstock.open_logs(f"{server.url}/{prefix}") as store:
                fill(store, count)
                mine.append(penstock_count(store, count))
                with contextlib.suppress(ImportError):
                    theirs.append(quix_count(server.bootstrap, store.driver.cluster.prefix, count))  # type: ignore[attr-defined]
    finally:
        server.close()
    if not theirs:
        return [Bar(f"keyed count on Kafka {rate(mine)}; quixstreams is not installed", ">= 2x", "-", False)]
    found = ratio(mine, theirs)
    what = f"keyed count on Kafka, from the first record to the last commit: {rate(mine)}, quixstreams {rate(theirs)}"
    return [Bar(what, ">= 2x", f"{found:.2f}x", found >= 2)]


PARTS: dict[str, Callable[[], list[Bar]]] = {
    "pass": passing, "count": counting, "windows": windows, "processes": processes, "checkpoint": checkpoints,
    "memory": memory, "wide": wide, "kafka": kafka,
}  # fmt: skip


def main() -> int:
    print(conditions())
    bars: list[Bar] = []
    for name, part in PARTS.items():
        if not CHOSEN or name in CHOSEN:
            bars += part()
    return 0 if report("Streams", bars, [f"{COUNT:,} records, {PARTITIONS} partitions", *NOTES]) else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
