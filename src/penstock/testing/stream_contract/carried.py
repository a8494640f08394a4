"""Event time that goes from one computation to the next: what meets in a partition is as old as its slowest writer."""

from __future__ import annotations

from typing import Any

from penstock.clock import FakeClock, from_micros
from penstock.log.store import LogStore
from penstock.stream.computation import Computation, computation
from penstock.stream.topology import Topology
from penstock.testing.stream_contract.asking import Run, drained, told, values, wait_until

SECOND = 1_000_000


class Seen(Computation):
    """Says of each record whether it was late, and rings at the time the record is about."""

    name = "seen"
    inputs = "mid"
    outputs = "out"

    def process(self, record: Any, ctx: Any) -> None:
        ctx.produce("out", ["late" if ctx.late else "in time", record.value])
        ctx.set_timer(record.value, str(record.value))

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("out", ["rings", timer.time_us])


def two_hops(lateness: str = "0s", **streams: Any) -> Topology:
    """Two partitions that come together in one."""

    @computation("first", inputs="in", outputs="mid", idle="1h", lateness=lateness)
    def first(record: Any, ctx: Any) -> None:
        ctx.produce("mid", record.value, key="all")

    topology = Topology("hops").stream("in", int, partitions=2).stream("mid", int, partitions=1)
    return topology.stream("out", list, partitions=1).add(first).add(Seen)


def put(logs: LogStore, partition: int, *times: int) -> None:
    """Records into one partition; their values are their times."""
    logs.create("in", 2)
    with logs.appender("in") as out:
        for at in times:
            out.append(at * SECOND, partition=partition, timestamp=at * SECOND)


def seen(logs: LogStore, what: str) -> list[int]:
    """What was seen of that kind, in seconds."""
    return [value // SECOND for kind, value in values(logs, "out") if kind == what]


class TestCarried:
    """The watermark behind a change of keys."""

    def test_records_of_a_slow_partition_are_not_late(self, logs: LogStore, runner: Run) -> None:
        put(logs, 0, 10, 20, 100)
        running = runner(two_hops()).start()
        wait_until(lambda: seen(logs, "in time") == [10, 20, 100], "the fast partition has come through")
        put(logs, 1, 5)
        wait_until(lambda: 5 in seen(logs, "in time") + seen(logs, "late"), "the slow one has")
        assert seen(logs, "late") == [], "the first of the slow partition decides"
        assert seen(logs, "rings") in ([], [5])
        put(logs, 1, 15, 60)
        wait_until(lambda: seen(logs, "rings") == [5, 10, 15, 20, 60], "both are past these")
        assert sorted(seen(logs, "in time")) == [5, 10, 15, 20, 60, 100]
        wait_until(lambda: running.watermark("seen") == from_micros(60 * SECOND), "the slower of the two")
        assert running.drain("30s", final=True), told(running)
        assert seen(logs, "rings") == [5, 10, 15, 20, 60, 100]
        assert seen(logs, "late") == []

    def test_it_holds_over_a_restart(self, logs: LogStore, runner: Run) -> None:
        put(logs, 0, 10, 100)
        put(logs, 1, 5)
        drained(runner, two_hops(), final=False)
        put(logs, 0, 200)
        drained(runner, two_hops(), final=False)
        assert seen(logs, "rings") == [5]
        put(logs, 1, 7, 50)
        running = drained(runner, two_hops(), final=False)
        assert seen(logs, "late") == []
        assert seen(logs, "rings") == [5, 7, 10, 50]
        assert {one.computation: one.watermark for one in running.status()}["seen"] == from_micros(50 * SECOND)

    def test_a_silent_partition_holds_nobody_for_ever(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        put(logs, 0, 10, 20, 100)
        running = runner(two_hops()).start()
        wait_until(lambda: len(seen(logs, "in time")) == 3, "all is read")
        assert seen(logs, "rings") == []
        clock.advance("2h")
        put(logs, 0, 101)
        wait_until(lambda: seen(logs, "rings") == [10, 20, 100, 101], "the silent partition is idle")
        put(logs, 1, 6)
        wait_until(lambda: seen(logs, "late") == [6], "what was idle comes late")
        assert running.drain("30s"), told(running)

    def test_lateness_is_allowed_once(self, logs: LogStore, runner: Run) -> None:
        topology = two_hops(lateness="10s")
        put(logs, 0, 30)
        put(logs, 1, 30)
        running = runner(topology).start()
        wait_until(lambda: running.watermark("seen") == from_micros(20 * SECOND), "less what the first allows")
        put(logs, 0, 21, 22)
        wait_until(lambda: len(values(logs, "out")) >= 4, "they have come")
        assert seen(logs, "late") == []
        assert running.drain("30s", final=True), told(running)
        assert seen(logs, "rings") == [21, 22, 30], "two timers of one time and key are one"
