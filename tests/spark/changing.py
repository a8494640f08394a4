"""A computation changes its runner in the middle of its work: state, windows, timers and totals go with it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.stream.shorthand import Row, Run, fill, rows, told

import penstock
from penstock import LogStore
from penstock.stream import (
    List,
    LocalRunner,
    Map,
    Sliding,
    Topology,
    Tumbling,
    Value,
    computation,
    join,
    running_count,
    running_max,
    windowed_count,
    windowed_sum,
)
from penstock.stream.windows import Session

SECOND = 1_000_000
STREAMS = ("kept", "counted", "slid", "visits", "joined")
LEGS = 4
LAPPED = "6s"  # what a leg begins before the one before it has ended


@computation("keep", inputs="in", outputs="kept", states=[Value("n", int, 0), Map("m", int), List("l", int)])
def keep(record: Any, ctx: Any) -> None:
    count = ctx.value("n")
    count.set(count.get() + record.value)
    ctx.map("m").set(str(record.value % 3), count.get())
    ctx.list("l").append(record.value)
    ctx.set_timer(record.time_us + 5 * SECOND, str(record.value % 2))


@keep.timer
def tell(timer: Any, ctx: Any) -> None:
    ctx.produce("kept", [timer.name, ctx.value("n").get(), dict(ctx.map("m").items()), sorted(ctx.list("l").items())])


def topology() -> Topology:
    made = Topology("changing", partitions=2).stream("in", int, out_of_order="3s")
    # Which late records a join still pairs depends on which input is read first, so its inputs have none.
    made.stream("left", int, out_of_order=LAPPED).stream("right", int, out_of_order=LAPPED)
    for name in (*STREAMS, "totals", "largest"):
        made.stream(name)
    made.add(keep)
    made.add(windowed_count("count", "in", "counted", Tumbling("10s")))
    made.add(windowed_sum("slide", "in", "slid", Sliding("9s", "3s")))
    made.add(windowed_count("visit", "in", "visits", Session("2s")))
    made.add(join("pair", "left", "right", "joined", within="2s"))
    made.add(running_count("total", "in", "totals"))
    return made.add(running_max("largest-of", "in", "largest"))


def leg(number: int) -> tuple[list[Row], list[Row]]:
    """The records of one leg, more and fewer: later than those of the leg before, but for a few."""
    chance = random.Random(number)

    def some(count: int) -> list[Row]:
        times = [number * 20 * SECOND + chance.randrange(25 * SECOND) for _ in range(count)]
        return [(chance.choice(["a", "b", "c", "ä", ""]), chance.randrange(100), at + SECOND) for at in sorted(times)]

    return some(60), some(30)


def run(logs: LogStore, runners: Iterator[Run]) -> dict[str, Any]:
    for number in range(LEGS):
        more, fewer = leg(number)
        for stream, listed in (("in", more), ("left", more), ("right", fewer)):
            fill(logs, stream, listed, partitions=2)
        running = next(runners)(topology()).start()
        assert running.drain("150s", final=number == LEGS - 1), told(running)
    results: dict[str, Any] = {stream: rows(logs, stream) for stream in STREAMS}
    # Totals are told once per batch, whatever a batch is: of each key the last one counts.
    for stream in ("totals", "largest"):
        log = logs.log(stream)
        results[stream] = {record.key: record.value for place in log.partitions for record in log.records(place.index)}
    return results


def local(logs: LogStore) -> Run:
    """A leg is one checkpoint, as it is one batch on Spark: what a timer finds depends on what was read before it."""
    return lambda topology, **options: LocalRunner(topology, logs, **{"checkpoint_every": "1m", **options})


class TestChangingRunners:
    @pytest.mark.parametrize("order", ["sl", "ls", "slsl"], ids=["to local", "to spark", "to and fro"])
    def test_nothing_is_lost_on_the_way(self, logs: LogStore, runner: Run, order: str) -> None:
        turns = (runner if order[number * len(order) // LEGS] == "s" else local(logs) for number in range(LEGS))
        with penstock.open_logs("memory://") as store:
            wanted = run(store, (local(store) for _ in range(LEGS)))
        assert all(wanted.values())
        assert run(logs, turns) == wanted
