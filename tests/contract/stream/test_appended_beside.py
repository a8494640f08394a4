"""Records appended to a stream that a computation writes: none is lost, and they change nothing for others."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, records, told, wait_until

from penstock.clock import from_micros
from penstock.log.store import LogStore
from penstock.stream.computation import Computation, computation
from penstock.stream.topology import Topology
from penstock.stream.windows import Tumbling, windowed_count

SECOND = 1_000_000
SIZE = 5 * SECOND
PARTITIONS = 2
OURS, THEIRS = "ours", "theirs"


class Notes(Computation):
    """Notes every record, whether it was late, and what the watermark was."""

    name, inputs, outputs, idle = "notes", "mid", "noted", None

    def process(self, record: Any, ctx: Any) -> None:
        low = ctx.watermark
        ctx.produce("noted", [ctx.key, record.value, record.time_us, ctx.late, low is not None and low > record.time])


def pass_on(record: Any, ctx: Any) -> None:
    ctx.produce("mid", record.value, key=f"{OURS}-{record.value % 5}")


def merge(record: Any, ctx: Any) -> None:
    ctx.produce("mid", record.value)


def flows(**mid: Any) -> Topology:
    """A computation writes what windows and notes read."""
    topology = (
        Topology("beside", partitions=PARTITIONS).stream("in", int).stream("mid", int, **mid).stream("noted", list)
    )
    topology.stream("counts").stream("too-late", int)
    topology.add(computation("first", inputs="in", outputs="mid", idle=None)(pass_on)).add(Notes)
    return topology.add(windowed_count("count", "mid", "counts", Tumbling("5s"), late="too-late", idle=None))


def feed(logs: LogStore, seconds: range, rng: random.Random) -> None:
    """To every input partition, in order."""
    for partition in range(PARTITIONS):
        times = sorted(rng.randrange(seconds.start * SECOND, seconds.stop * SECOND) for _ in range(40))
        logs.log("in", int).append_many(
            [rng.randrange(100) for _ in times], partition=partition, timestamps=[*times[:-1], seconds.stop * SECOND]
        )


def intrude(logs: LogStore, stream: str, times: list[int]) -> None:
    """Somebody who is no part of the topology appends."""
    logs.log(stream, int).append_many(
        list(range(len(times))), keys=[f"{THEIRS}-{rank % 3}" for rank in range(len(times))], timestamps=times
    )


def noted(logs: LogStore, whose: str) -> list[tuple[int, bool]]:
    """The time of each record that was processed, and whether it was late."""
    notes = [record.value for record in records(logs, "noted")]
    assert all(late == behind for _, _, _, late, behind in notes), "late is what is older than the watermark"
    return [(at, late) for key, _, at, late, _ in notes if key.startswith(whose)]


def windows(logs: LogStore) -> Counter[tuple[str, int]]:
    """What was counted, by key and window; a window appears once."""
    counts: Counter[tuple[str, int]] = Counter()
    for record in records(logs, "counts"):
        counts[record.key, record.value["start"]] += record.value["value"]
    return counts


def check_ours(logs: LogStore) -> None:
    """The topology's own records are in time, and its windows are those of the definitions."""
    ours = noted(logs, OURS)
    assert sorted(at for at, _ in ours) == sorted(record.time_us for record in records(logs, "in"))
    assert not any(late for _, late in ours)
    expected = Counter(
        (f"{OURS}-{record.value % 5}", record.time_us // SIZE * SIZE) for record in records(logs, "in", int)
    )
    assert Counter({place: n for place, n in windows(logs).items() if place[0].startswith(OURS)}) == expected


@pytest.mark.parametrize("single_writer", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_appended_beside_a_computation(logs: LogStore, runner: Run, seed: int, single_writer: bool) -> None:
    """``single_writer`` counts computations: it refuses no appender."""
    rng = random.Random(seed)
    logs.create("in", PARTITIONS)
    running = runner(flows(single_writer=single_writer), checkpoint_records=rng.choice([1, 20, 10_000])).start()
    theirs: list[int] = []
    for begin in range(0, 60, 20):
        feed(logs, range(begin, begin + 20), rng)
        if rng.random() < 0.5:
            wait_until(lambda end=begin + 20: running.watermark("count") == from_micros(end * SECOND), "all is read")
        times = [rng.choice([rng.randrange(begin + 20), begin + 500]) * SECOND + 1 for _ in range(10)]
        intrude(logs, "mid", times)
        theirs += times
    wait_until(lambda: len(noted(logs, THEIRS)) == len(theirs), "none is lost")
    wait_until(lambda: running.watermark("count") == from_micros(60 * SECOND), "they do not move event time")
    assert running.drain("30s", final=True), told(running)
    assert sorted(at for at, _ in noted(logs, THEIRS)) == sorted(theirs)
    check_ours(logs)
    counted = sum(count for (key, _), count in windows(logs).items() if key.startswith(THEIRS))
    too_late = [record for record in records(logs, "too-late") if (record.key or "").startswith(THEIRS)]
    assert counted + len(too_late) == len(theirs), "each is in a window, or goes where late records go"


def test_older_than_the_watermark_is_late(logs: LogStore, runner: Run) -> None:
    logs.create("in", PARTITIONS)
    running = runner(flows()).start()
    feed(logs, range(20), random.Random(1))
    wait_until(lambda: running.watermark("notes") == from_micros(20 * SECOND), "all is read")
    intrude(logs, "mid", [19 * SECOND, 20 * SECOND, 90 * SECOND])
    assert running.drain("30s"), told(running)
    assert sorted(noted(logs, THEIRS)) == [(19 * SECOND, True), (20 * SECOND, False), (90 * SECOND, False)]


@pytest.mark.parametrize("seed", range(2))
def test_a_stream_of_its_own_with_its_own_disorder_is_waited_for(logs: LogStore, runner: Run, seed: int) -> None:
    """The way to do it right: a computation merges it, and none of its records is late."""
    rng = random.Random(seed)
    topology = flows().stream("beside", int, out_of_order="10s")
    topology.add(computation("merge", inputs="beside", outputs="mid", idle=None)(merge))
    for stream in ("in", "beside"):
        logs.create(stream, PARTITIONS)
    running = runner(topology, checkpoint_records=rng.choice([1, 20])).start()
    theirs: list[int] = []
    for begin in range(0, 60, 20):
        feed(logs, range(begin, begin + 20), rng)
        times = [at * SECOND - rng.randrange(10 * SECOND) for at in range(begin + 10, begin + 20)]
        intrude(logs, "beside", times)
        theirs += times
        wait_until(lambda count=10 + begin // 2: len(noted(logs, THEIRS)) == count, "they have come")
    assert running.drain("30s", final=True), told(running)
    assert sorted(noted(logs, THEIRS)) == sorted((at, False) for at in theirs)
    check_ours(logs)
    assert not records(logs, "too-late")
