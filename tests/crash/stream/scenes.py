"""A topology with state, timers and two hops, run in a process that dies anywhere; and what must be true in the end."""

import itertools
import signal
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.crash.driver import write_tally

import penstock
from penstock import LogStore, failpoints
from penstock.stream.computation import Computation, computation
from penstock.stream.local.runner import LocalRunner
from penstock.stream.runner import Runner
from penstock.stream.state import List, Value
from penstock.stream.topology import Topology
from penstock.stream.windows import Tumbling, windowed_count

PARTITIONS = 2
COUNT = 240
KEYS = 9
WINDOW = 20_000


class Sequence(Computation):
    """Numbers the records of each key and collects them until a timer of the key."""

    name = "sequence"
    inputs = "mid"
    outputs = "out"
    states = (Value("n", int, 0), List("held", int))

    def process(self, record: Any, ctx: Any) -> None:
        number = ctx.value("n")
        number.set(number.get() + 1)
        ctx.list("held").append(record.value)
        ctx.set_timer(10**12, "sum")
        ctx.produce("out", [number.get(), record.value])

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("out", [-1, sum(ctx.list("held").items())])


@computation("spread", inputs="in", outputs="mid")
def spread(record: Any, ctx: Any) -> None:
    ctx.produce("mid", record.value, key=f"m{record.value % KEYS}")


def topology() -> Topology:
    made = Topology("crash", partitions=PARTITIONS).stream("in", int, out_of_order="1s").stream("mid", int)
    made.stream("out", list).stream("counts")
    made.add(spread).add(Sequence, concurrency=2)
    return made.add(windowed_count("counts", "in", "counts", Tumbling("20ms")), streams={})


def opened(folder: Path, durability: str = "fast") -> LogStore:
    elsewhere = folder / "url"
    if elsewhere.exists():
        return penstock.open_logs(elsewhere.read_text())
    return penstock.open_logs(f"file://{folder / 'logs'}?durability={durability}")


def prepare(folder: Path) -> None:
    """Fill the input."""
    with opened(folder) as store:
        store.create("in", PARTITIONS)
        with store.appender("in") as out:
            numbers = range(COUNT)
            out.append_many(
                list(numbers), keys=[f"k{number % KEYS}" for number in numbers],
                timestamps=[number * 1000 + 20_000 for number in numbers],  # Kafka takes a time of 0 for none
            )  # fmt: skip


def run(store: LogStore, made: Topology | None = None, **options: Any) -> Runner:
    settings = {"checkpoint_records": 16, "read": 16, "restart_backoff": "10ms", "max_poll": "5s", **options}
    return LocalRunner(made or topology(), store, **settings).start()


def life(folder: Path, durability: str = "fast") -> None:
    """Run to the end of the input."""
    with opened(folder, durability) as store:
        runner = run(store)
        assert runner.drain("100s", final=True), runner.status()
        write_tally("whole")


def member(folder: Path, max_poll: str, hit: int) -> None:
    """Run one computation in one thread; stop the whole process before its n-th checkpoint.

    Not in it: a process that is stopped in a transaction holds the store's locks, and everybody has to wait for it.
    """
    hits = itertools.count(1)

    def strike(point: str) -> None:
        if point == "stream.checkpoint.before" and next(hits) == hit:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    failpoints.arm(strike)
    alone = Topology("alone", partitions=PARTITIONS).stream("in", int).stream("mid", int).add(spread)
    with opened(folder) as store:
        run(store, alone, max_poll=max_poll, checkpoint_every="10ms", read=1, checkpoint_records=1)
        while True:
            time.sleep(0.05)


def judge(folder: Path) -> None:
    """The visible result is that of an undisturbed run."""
    with opened(folder) as store:
        sequences = defaultdict(list)
        sums = {}
        for index in range(PARTITIONS):
            for record in store.log("out").records(index):
                if record.value[0] == -1:
                    assert record.key not in sums, "a timer fired twice"
                    sums[record.key] = record.value[1]
                else:
                    sequences[record.key].append(record.value)
        for key in range(KEYS):
            mine = sequences.pop(f"m{key}")
            numbers = [number for number in range(COUNT) if number % KEYS == key]
            assert [rank for rank, _ in mine] == list(range(1, len(numbers) + 1)), "state: nothing lost, nothing twice"
            assert [value for _, value in mine] == numbers, "records: each once, in order"
            assert sums.pop(f"m{key}") == sum(numbers), "timers: once, with the whole state"
        assert not sequences
        assert not sums
        counts: Counter[Any] = Counter()
        windows = [record.value for index in range(PARTITIONS) for record in store.log("counts").records(index)]
        for window in windows:
            counts[window["key"], window["start"]] += window["value"]
        expected = Counter(
            (f"k{number % KEYS}", (number * 1000 + 20_000) // WINDOW * WINDOW) for number in range(COUNT)
        )
        assert counts == expected, "windows: all, with what belongs to them"
        assert len(windows) == len(expected), "and each once"
        for name in ("spread", "sequence", "counts"):
            log = "mid" if name == "sequence" else "in"
            assert not store.capabilities.dense or store.lag(log, name).lag == 0
