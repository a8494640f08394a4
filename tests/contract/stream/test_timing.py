"""Watermarks, late records, event-time timers, the end of the input: the rules that hold on every runner."""

from __future__ import annotations

from typing import Any

from tests.contract.stream.shorthand import Run, drained, fill, numbers, told, values, wait_until

from penstock.clock import FakeClock, from_micros
from penstock.log.store import LogStore
from penstock.stream.computation import Computation, computation
from penstock.stream.state import Value
from penstock.stream.topology import Topology


class Watches(Computation):
    """Says what it sees of time; sets a timer at the record's value."""

    name = "watches"
    inputs = "in"
    outputs = "out"

    def process(self, record: Any, ctx: Any) -> None:
        ctx.produce("out", ["record", record.value, ctx.late])
        ctx.set_timer(record.value, str(record.value))

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("out", ["timer", timer.time_us, timer.key])


def watching(kind: type[Computation] = Watches, out_of_order: str = "0s") -> Topology:
    return Topology("watching").stream("in", int, out_of_order=out_of_order).stream("out", list).add(kind)


class TestTime:
    """Moved only at checkpoints; records before timers; timers by (time, key)."""

    def test_records_before_timers_and_timers_by_time_and_key(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("b", 50, 100), ("a", 50, 101), ("c", 40, 102), ("a", 60, 103), ("a", 5000, 104)])
        drained(runner, watching(), final=False)
        assert values(logs, "out")[:5] == [["record", at, False] for at in (50, 50, 40, 60, 5000)]
        assert values(logs, "out")[5:] == [["timer", 40, "c"], ["timer", 50, "a"], ["timer", 50, "b"],
                                           ["timer", 60, "a"]]  # fmt: skip

    def test_the_watermark_moves_only_at_checkpoints(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 9_000_000, at) for at in (1000, 5000, 2000)])
        running = drained(runner, watching(), final=False)
        assert [late for _, _, late in values(logs, "out")] == [False, False, False], "2000 is not late yet"
        assert running.status()[0].watermark == from_micros(5000)
        fill(logs, "in", [("a", 9_000_000, at) for at in (4999, 5000, 5001)])
        drained(runner, watching(), final=False)
        assert [late for _, _, late in values(logs, "out")[3:]] == [True, False, False]

    def test_disorder_of_the_stream_keeps_the_watermark_back(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 15_000, 20_000)])
        assert drained(runner, watching(out_of_order="10ms"), final=False).status()[0].watermark == from_micros(10_000)
        assert values(logs, "out") == [["record", 15_000, False]]
        fill(logs, "in", [("a", 90_000, 10_000), ("a", 91_000, 9_999), ("a", 92_000, 30_000)])
        drained(runner, watching(out_of_order="10ms"), final=False)
        assert values(logs, "out")[1:] == [
            ["record", 90_000, False], ["record", 91_000, True], ["record", 92_000, False], ["timer", 15_000, "a"],
        ]  # fmt: skip

    def test_a_timer_set_for_the_past_fires_with_the_checkpoint(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 1, 1000)])
        drained(runner, watching(), final=False)
        assert values(logs, "out") == [["record", 1, False], ["timer", 1, "a"]]

    def test_the_end_of_the_input_fires_all_event_timers(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 10**15, 1000), ("b", 10**14, 1001)])
        running = drained(runner, watching())
        assert values(logs, "out")[2:] == [["timer", 10**14, "b"], ["timer", 10**15, "a"]]
        assert running.status()[0].watermark is None or running.status()[0].watermark == from_micros(1001)
        fill(logs, "in", [("a", 10**15, 1000), ("a", 10**15, 1002)])
        drained(runner, watching())
        assert [late for what, _, late in values(logs, "out")[4:] if what == "record"] == [True, False]

    def test_event_time_goes_down_the_stream(self, logs: LogStore, runner: Run) -> None:
        @computation("first", inputs="in", outputs="mid")
        def first(record: Any, ctx: Any) -> None:
            ctx.produce("mid", record.value)

        topology = Topology("two").stream("in", int).stream("mid", int).stream("out", list)
        topology.add(first).add(Watches, streams={"in": "mid"})
        fill(logs, "in", [("a", 500, 1000), ("a", 9000, 2000)])
        running = drained(runner, topology, final=False)
        assert values(logs, "out") == [["record", 500, False], ["record", 9000, False], ["timer", 500, "a"]]
        assert {one.computation: one.watermark for one in running.status()} == {
            "first": from_micros(2000), "watches": from_micros(2000),
        }  # fmt: skip

    def test_the_watermark_outlives_a_checkpoint_that_kept_nothing_else(self, logs: LogStore, runner: Run) -> None:
        @computation("some", inputs="in", outputs="out", states=[Value("n", int, 0)])
        def some(record: Any, ctx: Any) -> None:
            if record.value:
                ctx.value("n").set(record.value)
            ctx.produce("out", ctx.late)

        topology = Topology("some").stream("in", int).stream("out", bool).add(some)
        for value, at in ((1, 1000), (0, 9000), (0, 5000)):
            fill(logs, "in", [("a", value, at)])
            drained(runner, topology, final=False)
        assert values(logs, "out") == [False, False, True]

    def test_on_drain_is_the_last_word(self, logs: LogStore, runner: Run) -> None:
        class Last(Watches):
            def on_drain(self, ctx: Any) -> None:
                ctx.produce("out", ["drained", ctx.partition, ctx.final])

        fill(logs, "in", [("a", 70_000, 1000)])
        drained(runner, watching(Last), final=False)
        assert values(logs, "out")[1:] == [["drained", 0, False]]
        drained(runner, watching(Last))
        assert values(logs, "out")[2:] == [["timer", 70_000, "a"], ["drained", 0, True]]

    def test_a_timer_can_be_moved_and_removed(self, logs: LogStore, runner: Run) -> None:
        @computation("moves", inputs="in", outputs="out")
        def moves(record: Any, ctx: Any) -> None:
            ctx.set_timer(record.value)
            if record.value == 0:
                ctx.clear_timer()
            assert (ctx.timer() is None) == (record.value == 0)

        @moves.timer
        def rings(timer: Any, ctx: Any) -> None:
            ctx.produce("out", [timer.key, timer.time_us])

        fill(logs, "in", [("a", 500, 1), ("a", 300, 2), ("b", 200, 3), ("b", 0, 4), ("c", 100, 5), ("c", 400, 6)])
        drained(runner, Topology("moves").stream("in", int).stream("out", list).add(moves))
        assert values(logs, "out") == [["a", 300], ["c", 400]]

    def test_the_slowest_input_holds_the_watermark(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        @computation("both", inputs=("fast", "slow"), outputs="out", states=[Value("v", int)], idle="1h")
        def both(record: Any, ctx: Any) -> None:
            ctx.value("v").set(1)
            ctx.set_timer(record.value, "t")

        @both.timer
        def rings(timer: Any, ctx: Any) -> None:
            ctx.produce("out", timer.time_us)

        topology = Topology("both").stream("fast", int).stream("slow", int).stream("out", int).add(both)
        fill(logs, "fast", [("a", 2_000_000, 1_000_000), ("a", 2_500_000, 5_000_000)])
        running = runner(topology).start()
        wait_until(lambda: running.metrics["records"] == 2, "both are read")
        assert running.watermark() is None, "nothing is known of slow"
        fill(logs, "slow", [("b", 10**9, 2_600_000)])
        wait_until(lambda: values(logs, "out") == [2_500_000], "slow has passed the timer")
        fill(logs, "fast", [("c", 4_000_000, 6_000_000)])
        wait_until(lambda: running.metrics["records"] == 4, "it is read")
        assert values(logs, "out") == [2_500_000]
        clock.advance("2h")
        fill(logs, "fast", [("d", 10**9, 6_000_001)])
        wait_until(lambda: values(logs, "out") == [2_500_000, 4_000_000], "slow is idle and holds nobody")
        assert running.drain("20s"), told(running)

    def test_is_done_says_when_all_has_gone_through(self, logs: LogStore, runner: Run) -> None:
        topology = watching()
        running = runner(topology).start()
        assert running.wait_for_assignments("20s")
        fill(logs, "in", [(key, 0, at) for key, _, at in numbers(200)])
        wait_until(lambda: running.is_done(from_micros(200_000)), "all is done")
        assert sum(one[0] == "record" for one in values(logs, "out")) == 200
        fill(logs, "in", [("a", 900_000, 300_000)])
        wait_until(lambda: running.metrics["records"] == 201, "it is read")
        assert not running.is_done(from_micros(900_000)), "its timer waits"
        running.stop()
