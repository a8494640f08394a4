"""What must hold although something is wrong: bad values, large values, timers that fail at the end, odd times."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, payloads, values

from penstock.errors import BadInput
from penstock.log.store import LogStore
from penstock.stream.computation import CONTINUE, Computation, computation
from penstock.stream.context import Context
from penstock.stream.operators import deduplicate, rate_limit
from penstock.stream.state import Value
from penstock.stream.timers import Timer
from penstock.stream.topology import Topology
from penstock.stream.windows import Sliding, Tumbling, windowed_count, windowed_fold

SECOND = 1_000_000


class TestStubbornStates:
    """States that are given what they cannot keep."""

    def test_a_default_is_nobodys_to_change(self, logs: LogStore, runner: Run) -> None:
        class Lists(Computation):
            name, inputs, outputs = "lists", "in", "out"
            states = (Value("all", list, []),)

            def process(self, record: Any, ctx: Context) -> None:
                held = ctx.value("all").get()
                held.append(record.value)
                ctx.value("all").set(held)
                ctx.produce("out", held)

        fill(logs, "in", [("a", 1, 1), ("b", 2, 2), ("a", 3, 3)])
        topology = Topology("t", partitions=1).stream("in", int).stream("out", list).add(Lists)
        drained(runner, topology, final=False)
        assert sorted(values(logs, "out")) == [[1], [1, 3], [2]]

    def test_a_window_begins_anew_for_every_key(self, logs: LogStore, runner: Run) -> None:
        def fold(held: list[int], value: int) -> list[int]:
            held.append(value)
            return held

        fill(logs, "in", [("a", 1, 1), ("b", 2, 2)])
        piece = windowed_fold("fold", "in", "out", Tumbling("1s"), initial=[], fold=fold)
        topology = Topology("t", partitions=1).stream("in", int).stream("out").add(piece)
        drained(runner, topology)
        assert sorted(one["value"] for one in values(logs, "out")) == [[1], [2]]

    def test_one_that_is_too_large_is_a_dead_letter(self, logs: LogStore, runner: Run) -> None:
        @computation("grows", inputs="in", outputs="out", states=[Value("text", str, "")])
        def grows(record: Any, ctx: Context) -> None:
            if record.value < 0:
                ctx.value("text").set("x" * (logs.record_limit + 1))
            ctx.produce("out", record.value)

        fill(logs, "in", [(f"k{number}", number, number + 1) for number in (1, 2)])
        fill(logs, "in", [("k", -1, 9), ("k", 3, 10)])
        topology = Topology("t", partitions=1).stream("in", int).stream("out", int).add(grows, policy=CONTINUE)
        drained(runner, topology, final=False)
        assert values(logs, "out") == [1, 2, 3]
        assert len(payloads(logs, "grows.dead")) == 1

    def test_large_values_of_many_keys_are_kept(self, logs: LogStore, runner: Run) -> None:
        size = min(logs.record_limit, 1_000_000) * 8 // 10

        @computation("large", inputs="in", outputs="out", states=[Value("text", str, "")])
        def large(record: Any, ctx: Context) -> None:
            if record.value:
                ctx.value("text").set("x" * record.value)
            else:
                ctx.produce("out", len(ctx.value("text").get()))

        topology = Topology("t", partitions=1).stream("in", int).stream("out", int).add(large)
        fill(logs, "in", [("a", 200_000, 1), ("b", size, 2), ("c", 200_000, 3), ("d", size, 4)])
        drained(runner, topology, final=False)
        fill(logs, "in", [(key, 0, 5) for key in "abcd"])
        drained(runner, topology, final=False)
        assert values(logs, "out") == [200_000, size, 200_000, size]


class TestStubbornTimes:
    """Timers that fail, and times that are odd."""

    def test_a_timer_that_fails_at_the_end_follows_the_policy(self, logs: LogStore, runner: Run) -> None:
        class Ends(Computation):
            name, inputs, outputs = "ends", "in", "out"

            def process(self, record: Any, ctx: Context) -> None:
                ctx.set_timer(1000 * SECOND)

            def on_timer(self, timer: Timer, ctx: Context) -> None:
                if timer.key == "bad":
                    raise RuntimeError("never")
                ctx.produce("out", 1)

        fill(logs, "in", [(key, 1, 1) for key in ("a", "bad", "c")])
        topology = Topology("t", partitions=1).stream("in", int).stream("out", int).add(Ends, policy=CONTINUE)
        drained(runner, topology)
        assert values(logs, "out") == [1, 1]
        assert len(payloads(logs, "ends.dead")) == 1

    def test_times_without_a_place_in_the_calendar_are_refused(self, logs: LogStore) -> None:
        logs.create("odd", 1)
        with logs.appender("odd", int) as appender:
            for odd in (1_700_000_000_000_000_000, 2**63, -(2**62)):
                with pytest.raises(BadInput, match="not in the years"):
                    appender.append(1, timestamp=odd)

    def test_pieces_out_of_order(self, logs: LogStore, runner: Run) -> None:
        times = (100 * SECOND, 0, 100 * SECOND)
        fill(logs, "in", [("k", 7, at) for at in times])
        topology = Topology("t", partitions=1).stream("in", int).stream("out", int)
        topology.add(deduplicate("once", "in", "out", within="10s"))
        drained(runner, topology, final=False)
        assert len(values(logs, "out")) == 2, "the third repeats the first"

    def test_a_period_that_has_ended_is_full(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("t", partitions=1).stream("in", int).stream("out", int).stream("over", int)
        topology.add(rate_limit("limit", "in", "out", "1/m", over="over"))
        fill(logs, "in", [("k", 1, 0), ("k", 2, 120 * SECOND)])
        drained(runner, topology, final=False)
        fill(logs, "in", [("k", 3, 1), ("k", 4, 2)])
        drained(runner, topology, final=False)
        assert (values(logs, "out"), values(logs, "over")) == ([1, 2], [3, 4])

    def test_between_windows_nothing_is_late(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("t", partitions=1).stream("in", int).stream("out").stream("late", int)
        topology.add(windowed_count("gaps", "in", "out", Sliding("1s", "5s"), late="late"))
        fill(logs, "in", [("k", 1, 10 * SECOND), ("k", 2, 12 * SECOND)])
        drained(runner, topology)
        assert [one["value"] for one in values(logs, "out")] == [1]
        assert values(logs, "late") == []
