"""From start to drain: order, routing, headers, several inputs and outputs, stop and resume."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Any

import pytest
from tests.contract.stream.shorthand import (
    Run,
    drained,
    fill,
    numbers,
    records,
    rows,
    told,
    values,
    wait_until,
)

from penstock.clock import from_micros
from penstock.errors import BadInput, Closed, Conflict
from penstock.log.store import LogStore
from penstock.stream.computation import Computation, computation
from penstock.stream.state import Value
from penstock.stream.topology import Topology


@computation("double", inputs="in", outputs="out")
def double(record: Any, ctx: Any) -> None:
    ctx.produce("out", record.value * 2)


def through(partitions: int = 3, concurrency: int = 2) -> Topology:
    made = Topology("through", partitions=partitions).stream("in", int).stream("out", int)
    return made.add(double, concurrency=concurrency)


class Sequence(Computation):
    """Numbers the records of each key, and says what came in which order."""

    name = "sequence"
    inputs = "in"
    outputs = "out"
    states = (Value("n", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        count = ctx.value("n")
        count.set(count.get() + 1)
        ctx.produce("out", [count.get(), record.value])


class TestRunning:
    """What goes in comes out, once, in order, with all that belongs to it."""

    def test_all_records_go_through(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(1000), partitions=3)
        done = drained(runner, through())
        assert sorted(values(logs, "out")) == [number * 2 for number in range(1000)]
        assert (done.metrics["records"], done.metrics["produced"]) == (1000, 1000)
        assert logs.lag("in", "double").lag == 0
        assert done.is_terminated

    def test_what_was_not_started_has_nothing_drained(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(3), partitions=3)
        with pytest.raises(Closed, match=r"Start it first: runner.start\(\)"):
            runner(through()).drain("10s")

    def test_key_time_and_headers_are_kept(self, logs: LogStore, runner: Run) -> None:
        logs.create("in", 2)
        with logs.appender("in") as out:
            out.append(1, key="a", timestamp=77_000, headers={"trace": "t1"})
            out.append(2, timestamp=78_000)

        @computation("double", inputs="in", outputs="out")
        def mine(record: Any, ctx: Any) -> None:
            ctx.produce("out", record.value)
            ctx.produce("out", -record.value, key="b", timestamp=99_000, headers={"more": "m"})

        topology = Topology("kept", partitions=2).stream("in", int).stream("out", int).add(mine)
        drained(runner, topology)
        found = {one.value: (one.key, one.time_us, dict(one.headers)) for one in records(logs, "out")}
        assert found == {
            1: ("a", 77_000, {"trace": "t1"}),
            -1: ("b", 99_000, {"trace": "t1", "more": "m"}),
            2: (None, 78_000, {}),
            -2: ("b", 99_000, {"more": "m"}),
        }

    def test_records_of_one_key_come_in_order_to_one_place(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(600, keys=20), partitions=4)
        topology = Topology("order", partitions=4).stream("in", int).stream("out", list)
        drained(runner, topology.add(Sequence, concurrency=3))
        by_key = defaultdict(list)
        for one in records(logs, "out"):
            by_key[one.key].append(tuple(one.value))
        for key, found in by_key.items():
            number = int(str(key)[1:])
            assert found == [(turn + 1, number + turn * 20) for turn in range(30)]

    def test_a_diamond(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(200), partitions=2)

        def forward(name: str, source: str, *to: str) -> Any:
            @computation(name, inputs=source, outputs=to)
            def made(record: Any, ctx: Any) -> None:
                for one in to:
                    ctx.produce(one, record)

            return made

        @computation("d", inputs=("sb", "sc"), outputs="out")
        def join(record: Any, ctx: Any) -> None:
            ctx.produce("out", [ctx.stream, record.value])

        topology = Topology("diamond", partitions=2)
        for name in ("in", "sa", "sb", "sc"):
            topology.stream(name, int)
        topology.stream("out", list)
        topology.add(forward("a", "in", "sa")).add(forward("b", "sa", "sb"), concurrency=2)
        topology.add(forward("c", "sa", "sc")).add(join, concurrency=2)
        drained(runner, topology)
        assert Counter(map(tuple, values(logs, "out"))) == Counter(
            {(stream, number): 1 for stream in ("sb", "sc") for number in range(200)}
        )

    def test_streams_can_be_mapped_and_a_step_used_twice(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "raw", numbers(50))
        topology = Topology("twice").stream("raw", int).stream("mid", int).stream("end", int)
        topology.add(double, name="first", streams={"in": "raw", "out": "mid"})
        topology.add(double, name="second", streams={"in": "mid", "out": "end"})
        drained(runner, topology)
        assert values(logs, "end") == [number * 4 for number in range(50)]
        assert logs.groups("raw") == ["first"]

    def test_stop_and_resume_where_it_was(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(300), partitions=2)
        topology = Topology("order", partitions=2).stream("in", int).stream("out", list).add(Sequence)
        first = runner(topology, checkpoint_records=10, read=7).start()
        wait_until(lambda: first.metrics["records"] >= 20, "some records are done")
        assert first.stop("20s")
        assert first.is_terminated
        drained(runner, topology)
        assert sorted(value for _, value in values(logs, "out")) == list(range(300))
        by_key = defaultdict(list)
        for one in records(logs, "out"):
            by_key[one.key].append(one.value[0])
        assert all(found == list(range(1, 61)) for found in by_key.values())

    def test_shutdown_loses_nothing_and_doubles_nothing(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(400), partitions=2)
        topology = Topology("order", partitions=2).stream("in", int).stream("out", list)
        topology.add(Sequence, concurrency=2)
        for _ in range(3):
            one = runner(topology, checkpoint_records=20, read=9).start()
            before = logs.lag("in", "sequence").lag
            wait_until(lambda: logs.lag("in", "sequence").lag < before or before == 0, "a checkpoint")  # noqa: B023
            one.shutdown()
        drained(runner, topology)
        assert sorted(value for _, value in values(logs, "out")) == list(range(400))

    def test_what_comes_during_the_run_is_processed(self, logs: LogStore, runner: Run) -> None:
        topology = through()
        running = runner(topology).start()
        assert running.wait_for_assignments("20s"), told(running)
        for part in range(5):
            fill(logs, "in", [(None, part, 1000 + part)])
            wait_until(lambda: part * 2 in values(logs, "out"), f"record {part} comes through")  # noqa: B023
        assert running.drain("20s")
        assert sorted(values(logs, "out")) == [0, 2, 4, 6, 8]

    def test_an_empty_drain_is_quick_and_true(self, logs: LogStore, runner: Run) -> None:
        running = runner(through()).start()
        assert running.drain("20s", final=True), told(running)
        assert values(logs, "out") == []

    def test_a_checkpoint_can_be_asked_for(self, logs: LogStore, runner: Run) -> None:
        held = threading.Event()

        @computation("asks", inputs="in", outputs="out")
        def asks(record: Any, ctx: Any) -> None:
            ctx.produce("out", record.value)
            if record.value == 4:
                ctx.checkpoint()
            if record.value == 5:
                held.wait(20)

        fill(logs, "in", numbers(10))
        topology = Topology("asks").stream("in", int).stream("out", int).add(asks)
        running = runner(topology, checkpoint_every="1h").start()
        wait_until(lambda: values(logs, "out") == [0, 1, 2, 3, 4], "what was before the request")
        held.set()
        assert running.drain("20s")
        assert values(logs, "out") == list(range(10))

    def test_a_large_fan_out_is_split_into_checkpoints(self, logs: LogStore, runner: Run) -> None:
        @computation("fans", inputs="in", outputs="out")
        def fans(record: Any, ctx: Any) -> None:
            for number in range(20):
                ctx.produce("out", b"x" * 200_000, key=str(number))

        fill(logs, "in", numbers(12))
        topology = Topology("fans").stream("in", int).stream("out", bytes).add(fans)
        done = drained(runner, topology)
        assert logs.bounds("out")[0].count >= 240
        assert done.metrics["checkpoints"] >= 3, "not all of 48 MB in one"

    def test_status_says_what_it_does(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(10), partitions=3)
        running = runner(through(concurrency=4)).start()
        assert running.wait_for_assignments("20s")
        status = [one for one in running.status() if one.computation == "double"]
        assert sorted(index for one in status for index in one.partitions) == [0, 1, 2]
        wait_until(lambda: running.metrics["records"] == 10, "all is done")
        wait_until(lambda: running.watermark("double") is not None, "a watermark is known")
        assert running.is_done(from_micros(10_000))
        running.stop()
        with pytest.raises(BadInput):
            running.watermark("dubble")

    def test_a_second_start_is_refused(self, logs: LogStore, runner: Run) -> None:
        running = runner(through()).start()
        with pytest.raises(Conflict):
            running.start()
        running.stop()

    def test_two_runners_share_the_partitions(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("order", partitions=6).stream("in", int).stream("out", list).add(Sequence)
        first = runner(topology).start()
        assert first.wait_for_assignments("20s")
        fill(logs, "in", numbers(300, keys=30))
        second = runner(topology).start()
        wait_until(lambda: sum(len(one.partitions) for one in second.status()) == 3, "the second gets its share")
        wait_until(lambda: sum(len(one.partitions) for one in first.status()) == 3, "the first keeps its share")
        fill(logs, "in", numbers(300, keys=30))
        second.stop()
        wait_until(lambda: sum(len(one.partitions) for one in first.status()) == 6, "all come back")
        fill(logs, "in", numbers(300, keys=30))
        assert first.drain("30s"), told(first)
        by_key = defaultdict(list)
        for one in records(logs, "out"):
            by_key[one.key].append(one.value[0])
        assert all(found == list(range(1, 31)) for found in by_key.values()), "no state was lost on the way"
        assert rows(logs, "out")
