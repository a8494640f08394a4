"""Event time that goes from one computation to the next: what meets in a partition is as old as its slowest writer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, told, values, wait_until

from penstock.clock import FakeClock, from_micros
from penstock.errors import Conflict
from penstock.log.store import LogStore
from penstock.stream.computation import Computation, computation
from penstock.stream.engine.watermark import END
from penstock.stream.engine.watermark_log import WatermarkReport
from penstock.stream.internal_logs import last_reports
from penstock.stream.progress import progress_of
from penstock.stream.topology import Topology

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


def two_hops(out_of_order: str = "0s", **streams: Any) -> Topology:
    """Two partitions that come together in one."""

    @computation("first", inputs="in", outputs="mid", idle="1h")
    def first(record: Any, ctx: Any) -> None:
        ctx.produce("mid", record.value, key="all")

    topology = (
        Topology("hops").stream("in", int, partitions=2, out_of_order=out_of_order).stream("mid", int, partitions=1)
    )
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


def seconds(*times: int) -> list[int]:
    """Event times."""
    return [at * SECOND for at in times]


def reports(logs: LogStore, name: str) -> dict[int, WatermarkReport]:
    """What the tasks of a computation have reported last."""
    return last_reports(logs, name)


def pass_on(record: Any, ctx: Any) -> None:
    """The same under one key."""
    ctx.produce("mid", record.value, key="all")


def version(*names: str) -> Topology:
    """A topology in which computations named after their streams write one stream."""
    topology = Topology("versions").stream("a", int).stream("b", int).stream("mid", int).stream("out", list)
    for name in names:
        topology.add(computation(f"from-{name}", inputs=name, outputs="mid", idle=None)(pass_on))
    return topology.add(Seen)


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

    def test_disorder_is_waited_for_once(self, logs: LogStore, runner: Run) -> None:
        topology = two_hops(out_of_order="10s")
        put(logs, 0, 30)
        put(logs, 1, 30)
        running = runner(topology).start()
        wait_until(
            lambda: running.watermark("seen") == from_micros(20 * SECOND), "less the disorder of the first input"
        )
        put(logs, 0, 21, 22)
        wait_until(lambda: len(values(logs, "out")) >= 4, "they have come")
        assert seen(logs, "late") == []
        assert running.drain("30s", final=True), told(running)
        assert seen(logs, "rings") == [21, 22, 30], "two timers of one time and key are one"

    def test_a_burst_after_silence_is_in_time(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        logs.create("in", 2)
        running = runner(two_hops()).start()
        assert running.wait_for_assignments("30s"), told(running)
        clock.advance("2h")
        wait_until(lambda: all(report.idle_low for report in reports(logs, "first").values()), "both are silent")
        with logs.transaction() as burst:
            burst.append_many("in", [at * SECOND for at in (100, 110)], partition=0, timestamps=seconds(100, 110))
            burst.append_many("in", [at * SECOND for at in (50, 60)], partition=1, timestamps=seconds(50, 60))
            burst.commit()
        assert running.drain("30s", final=True), told(running)
        assert seen(logs, "late") == [], "what waits in a log is not made late by the silence before"
        assert sorted(seen(logs, "in time")) == [50, 60, 100, 110]

    def test_what_silence_has_decided_outlives_a_restart(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        put(logs, 0, 10, 20, 100)
        running = runner(two_hops()).start()
        wait_until(lambda: len(seen(logs, "in time")) == 3, "all is read")
        clock.advance("2h")
        wait_until(lambda: seen(logs, "rings") == [10, 20, 100], "the silent partition holds nobody")
        running.shutdown()
        running = runner(two_hops()).start()
        put(logs, 1, 6)
        wait_until(lambda: len(seen(logs, "in time") + seen(logs, "late")) == 4, "the last one has come")
        assert seen(logs, "late") == [6], "it comes behind what was decided"
        assert running.drain("30s"), told(running)

    def test_without_state_too(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        """Two inputs, no state, nobody behind it: it has to remember by itself how far it was."""

        @computation("both", inputs=("left", "right"), outputs="out", idle="1h")
        def both(record: Any, ctx: Any) -> None:
            ctx.produce("out", ["late" if ctx.late else "in time", record.value])

        topology = Topology("t").stream("left", int).stream("right", int).stream("out", list).add(both)
        for stream, at in (("left", 100), ("right", 10)):
            logs.create(stream)
            logs.log(stream, int).append(at * SECOND, timestamp=at * SECOND)
        running = runner(topology).start()
        wait_until(lambda: len(seen(logs, "in time")) == 2, "all is read")
        clock.advance("2h")
        logs.log("left", int).append(101 * SECOND, timestamp=101 * SECOND)
        wait_until(lambda: running.watermark("both") == from_micros(101 * SECOND), "the right one is silent")
        wait_until(lambda: any(report.reached == 101 * SECOND for report in reports(logs, "both").values()), "kept")
        running.shutdown()
        running = runner(topology).start()
        logs.log("right", int).append(50 * SECOND, timestamp=50 * SECOND)
        wait_until(lambda: seen(logs, "late") == [50], "it comes behind what was decided")
        assert running.drain("30s"), told(running)

    def test_a_writer_that_has_said_nothing_holds_its_readers(self, logs: LogStore, runner: Run) -> None:
        put(logs, 0, 10, 100)
        put(logs, 1, 5)
        writer = runner(two_hops().only("first")).start()
        wait_until(lambda: len(values(logs, "mid")) == 3, "it has written")
        wait_until(lambda: len(reports(logs, "first")) == 2, "and said how far it is")
        assert writer.stop()
        logs.delete("first.low")
        logs.create("first.low", 1)
        reader = runner(two_hops().only("seen")).start()
        wait_until(lambda: len(seen(logs, "in time")) == 3, "all is read")
        assert reader.watermark("seen") is None
        put(logs, 1, 50)
        put(logs, 0, 200)
        writer = runner(two_hops().only("first")).start()
        wait_until(lambda: seen(logs, "rings") == [5, 10, 50], "its next word is enough")
        assert seen(logs, "late") == []
        assert writer.stop()
        assert reader.stop()

    def test_a_computation_that_is_removed_holds_until_its_last_record(self, logs: LogStore, runner: Run) -> None:
        for stream, times in (("a", (100, 200)), ("b", (10, 50))):
            logs.create(stream)
            logs.log(stream, int).append_many([at * SECOND for at in times], timestamps=seconds(*times))
        before = version("a", "b")
        for name in ("from-a", "from-b"):
            drained(runner, before.only(name), final=False)
        running = runner(version("a"), checkpoint_records=1, read=1).start()
        wait_until(lambda: sorted(seen(logs, "rings")) == [10, 50, 100, 200], "what is left decides")
        assert seen(logs, "late") == [], "what the removed one had written was waited for"
        assert running.drain("30s"), told(running)

    def test_another_topology_must_not_write_what_is_computed_here(self, logs: LogStore, runner: Run) -> None:
        def writing(name: str, source: str) -> Topology:
            topology = Topology(name).stream(source, int).stream("mid", int).stream("out", list)
            return topology.add(computation(f"from-{source}", inputs=source, outputs="mid")(pass_on)).add(Seen)

        for source in ("a", "b"):
            logs.create(source)
            logs.log(source, int).append(SECOND, timestamp=SECOND)
        drained(runner, writing("one", "a").only("from-a"), final=False)
        logs.create("my.low")
        logs.log("my.low", str).append("somebody's own")
        with pytest.raises(Conflict, match="mid of topology two is also written by from-a of topology one"):
            runner(writing("two", "b"))

    def test_nor_may_one_that_only_writes_it(self, logs: LogStore, runner: Run) -> None:
        def made(name: str, source: str, *readers: Any) -> Topology:
            topology = Topology(name).stream(source, int).stream("mid", int).stream("out", list)
            topology.add(computation(f"from-{source}", inputs=source, outputs="mid")(pass_on))
            for reader in readers:
                topology.add(reader)
            return topology

        for source in ("a", "b"):
            logs.create(source)
        drained(runner, made("writes", "a"), final=False)
        with pytest.raises(Conflict, match="is also written by from-a of topology writes"):
            runner(made("reads", "b", Seen))
        logs.delete("from-a.low")
        drained(runner, made("reads", "b", Seen), final=False)
        with pytest.raises(Conflict, match="is also written by from-b of topology reads"):
            runner(made("writes", "a"))

    def test_after_the_end_the_next_run_waits_for_all_writers(self, logs: LogStore, runner: Run) -> None:
        """Both have ended; one of them comes back late, and must not be taken for ended meanwhile."""
        begin = threading.Event()
        begin.set()

        class Late(Computation):
            name, inputs, outputs, idle = "late", "b", "mid", None

            def init(self, ctx: Any) -> None:
                begin.wait(20)

            def process(self, record: Any, ctx: Any) -> None:
                pass_on(record, ctx)

        def topology() -> Topology:
            made = Topology("twice").stream("a", int).stream("b", int).stream("mid", int).stream("out", list)
            return made.add(computation("early", inputs="a", outputs="mid", idle=None)(pass_on)).add(Late).add(Seen)

        for times in ((10, 20), (30, 40, 50)):
            for stream in ("a", "b"):
                logs.create(stream)
                logs.log(stream, int).append_many(seconds(*times), timestamps=seconds(*times))
            running = runner(topology(), checkpoint_records=1).start()
            wait_until(lambda: 50 in seen(logs, "in time") or begin.is_set(), "the early one is through")
            begin.set()
            assert running.drain("30s", final=True), told(running)
            begin.clear()
        assert seen(logs, "late") == []

    def test_the_end_of_a_removed_one_is_not_forgotten(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        if not logs.capabilities.retention:
            pytest.skip(f"{logs.name} declares retention=False")

        for stream in ("a", "b"):
            logs.create(stream)
            logs.log(stream, int).append(10 * SECOND, timestamp=10 * SECOND)
        drained(runner, version("a", "b"), final=False)
        running = runner(version("a")).start()
        wait_until(lambda: {one.low for one in reports(logs, "from-b").values()} == {END}, "the removed one has ended")
        clock.advance("1h")
        logs.enforce_retention("from-b.low")
        running.stop()
        running = runner(version("a")).start()
        logs.log("a", int).append(20 * SECOND, timestamp=20 * SECOND)
        wait_until(lambda: seen(logs, "rings") == [10, 20], "nobody is waited for")
        assert running.drain("30s"), told(running)

    def test_a_removed_one_that_still_runs_is_waited_for(self, logs: LogStore, runner: Run) -> None:
        for stream in ("a", "b"):
            logs.create(stream)
            logs.log(stream, int).append(10 * SECOND, timestamp=10 * SECOND)
        old = runner(version("a", "b").only("from-b")).start()
        wait_until(lambda: len(values(logs, "mid")) == 1, "the old one has begun")
        new = runner(version("a")).start()
        logs.log("a", int).append(100 * SECOND, timestamp=100 * SECOND)
        wait_until(lambda: 100 in seen(logs, "in time"), "the other one is ahead")
        logs.log("b", int).append(20 * SECOND, timestamp=20 * SECOND)
        wait_until(lambda: 20 in seen(logs, "in time") + seen(logs, "late"), "it is through")
        assert seen(logs, "late") == [], "it was waited for"
        assert old.stop()
        wait_until(lambda: seen(logs, "rings") == [10, 20, 100], "now it has ended")
        assert new.drain("30s"), told(new)

    def test_a_writer_that_begins_anew_makes_nothing_early(self, logs: LogStore, runner: Run) -> None:
        put(logs, 0, 10, 20)
        put(logs, 1, 10, 20)
        drained(runner, two_hops())
        assert {report.low for report in reports(logs, "first").values()} == {END}
        again: Any = runner(two_hops())
        again.reset("first")
        assert reports(logs, "first") == {}
        put(logs, 0, 30)
        running = runner(two_hops()).start()
        wait_until(lambda: len(values(logs, "mid")) == 9, "all of it is written again")
        put(logs, 1, 25)
        wait_until(lambda: running.watermark("seen") == from_micros(25 * SECOND), "the slower of the two")
        assert seen(logs, "late") == [10, 10], "older than what was final"
        assert running.drain("30s"), told(running)

    def test_a_timer_that_is_still_to_fire_lets_nobody_run_ahead(self, logs: LogStore, runner: Run) -> None:
        """At the end of the input a far timer produces at old times: whoever reads that has not gone further."""

        class AtTheEnd(Computation):
            name, inputs, outputs = "at-the-end", "in", "mid"

            def process(self, record: Any, ctx: Any) -> None:
                ctx.set_timer(10**15, "end")

            def on_timer(self, timer: Any, ctx: Any) -> None:
                for _ in range(2):
                    ctx.produce("mid", SECOND, key="all", timestamp=SECOND)

        put(logs, 0, 1)
        topology = Topology("end").stream("in", int, partitions=2).stream("mid", int, partitions=1)
        topology.stream("out", list, partitions=1).add(AtTheEnd).add(Seen)
        drained(runner, topology, checkpoint_records=1, read=1)
        assert values(logs, "out") == [["in time", SECOND], ["in time", SECOND], ["rings", SECOND]]


class Plain(Computation):
    """Two inputs, no state, nobody behind it."""

    name, inputs, outputs, idle = "plain", ("left", "right"), "notes", None

    def process(self, record: Any, ctx: Any) -> None:
        ctx.produce("notes", record.value)


class TestNames:
    """Computations that have another name in the next run, and streams that several topologies write."""

    @staticmethod
    def named(name: str) -> Topology:
        """Two hops, the first of them under a name."""

        def first(record: Any, ctx: Any) -> None:
            ctx.produce("mid", record.value, key="all")

        topology = Topology("hops").stream("in", int, partitions=2).stream("mid", int, partitions=1)
        step = computation(name, inputs="in", outputs="mid", idle="1h")(first)
        return topology.stream("out", list, partitions=1).add(step).add(Seen)

    @pytest.mark.parametrize("ended", ["killed", "stopped", "drained", "final"])
    def test_a_computation_that_is_renamed_holds_nobody(self, logs: LogStore, runner: Run, ended: str) -> None:
        put(logs, 0, 10, 30)
        put(logs, 1, 20)
        before = runner(self.named("old")).start()
        wait_until(lambda: len(seen(logs, "in time")) == 3, "all is read")
        wait_until(lambda: len(reports(logs, "old")) == 2, "both have reported")
        if ended == "killed":
            before.shutdown()
        elif ended == "stopped":
            assert before.stop()
        else:
            assert before.drain("30s", final=ended == "final"), told(before)
        group = {place: logs.committed("in", "old")[place.index] or 0 for place in logs.partitions("in")}
        logs.reset("new", group)  # it goes on where the old name was
        after = runner(self.named("new")).start()
        wait_until(lambda: {report.low for report in reports(logs, "old").values()} == {END}, "the old name has ended")
        put(logs, 0, 60)
        put(logs, 1, 50)
        wait_until(lambda: seen(logs, "rings") == [10, 20, 30, 50], "the new name decides")
        assert after.watermark("seen") == from_micros(50 * SECOND)
        [held_by] = [row.held_by for row in progress_of(logs, self.named("new")) if row.computation == "seen"]
        assert held_by is not None
        assert held_by.startswith("partition 1 of new, which is at 1970-01-01T00:00:50")
        assert seen(logs, "late") == []
        assert after.drain("30s", final=True), told(after)
        assert sorted(seen(logs, "in time")) == [10, 20, 30, 50, 60]

    def test_a_renamed_one_that_begins_anew_makes_nothing_early(self, logs: LogStore, runner: Run) -> None:
        """Without offsets the new name reads everything again: what it writes twice is late, nothing else is."""
        put(logs, 0, 10, 30)
        put(logs, 1, 20, 30)
        drained(runner, self.named("old"))
        assert seen(logs, "rings") == [10, 20, 30]
        put(logs, 0, 40)
        put(logs, 1, 40)
        drained(runner, self.named("new"))
        assert sorted(seen(logs, "late")) == [10, 20], "at 30 the input had ended"
        assert sorted(seen(logs, "in time")) == [10, 20, 30, 30, 30, 30, 40, 40]

    def test_two_topologies_may_write_a_stream_that_neither_reads(self, logs: LogStore, runner: Run) -> None:
        """Also one whose reports only store its own watermark."""

        def written(name: str, step: Any) -> Topology:
            topology = Topology(name).stream("left", int).stream("right", int).stream("in", int)
            return topology.stream("mid", int).stream("notes", int).add(step)

        for stream in ("left", "right", "in"):
            logs.create(stream)
            logs.log(stream, int).append(SECOND, timestamp=SECOND)
        drained(runner, written("one", Plain), final=False)
        step = computation("noting", inputs="in", outputs="notes")(lambda record, ctx: ctx.produce("notes", record))
        drained(runner, written("two", step), final=False)
        drained(runner, written("one", Plain), final=False)
        assert values(logs, "notes") == [SECOND] * 3


class TestBehindRetention:
    """Retention has taken what a reader would have needed; it goes on with what comes next."""

    @pytest.fixture(autouse=True)
    def _retention(self, logs: LogStore) -> None:
        if not logs.capabilities.retention:
            pytest.skip(f"{logs.name} declares retention=False")

    @staticmethod
    def held_by(logs: LogStore) -> str | None:
        return {row.computation: row.held_by for row in progress_of(logs, two_hops())}["seen"]

    def test_of_the_reports_of_its_writer(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        put(logs, 0, 10, 100)
        put(logs, 1, 5)
        writer = runner(two_hops().only("first")).start()
        wait_until(lambda: len(values(logs, "mid")) == 3, "it has written")
        wait_until(
            lambda: {report.low for report in reports(logs, "first").values()} == set(seconds(5, 100)), "and said"
        )
        assert writer.stop()
        clock.advance("1h")
        logs.enforce_retention("first.low")
        assert reports(logs, "first") == {}, "nothing is left"
        reader = runner(two_hops().only("seen")).start()
        wait_until(lambda: len(seen(logs, "in time")) == 3, "all is read")
        assert reader.watermark("seen") is None
        assert self.held_by(logs) == "partition 0 of first, which has reported nothing yet"
        writer = runner(two_hops().only("first")).start()
        if logs.capabilities.dense:
            wait_until(lambda: seen(logs, "rings") == [5], "it knows by its last records how far it was")
        put(logs, 0, 200)
        put(logs, 1, 50)
        wait_until(lambda: seen(logs, "rings") == [5, 10, 50], "its next word is enough")
        wait_until(lambda: (self.held_by(logs) or "").startswith("partition 1 of first, which is at"), "the slower one")
        assert seen(logs, "late") == []
        assert writer.stop()
        assert reader.stop()

    def test_of_the_reports_before_those_that_are_left(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        """The reader is at the beginning, and the first report that is left holds further on."""
        put(logs, 0, *range(10, 60, 10))
        put(logs, 1, *range(10, 60, 10))
        writer = runner(two_hops().only("first")).start()
        wait_until(lambda: {report.low for report in reports(logs, "first").values()} == {50 * SECOND}, "both said")
        clock.advance("1h")
        logs.enforce_retention("first.low")
        put(logs, 0, 60)
        put(logs, 1, 70)
        lows = set(seconds(60, 70))
        wait_until(lambda: {report.low for report in reports(logs, "first").values()} == lows, "both said again")
        reader = runner(two_hops().only("seen"), read=1, checkpoint_records=1).start()
        wait_until(lambda: seen(logs, "rings") == [10, 20, 30, 40, 50, 60], "it came to the first that is left")
        assert seen(logs, "late") == []
        assert writer.stop()
        assert reader.stop()

    @pytest.mark.parametrize("stream", ["in", "mid"])
    def test_of_its_input(self, logs: LogStore, runner: Run, clock: FakeClock, stream: str) -> None:
        """Records are never left out silently: it stops, says where, and goes on once its group is moved."""
        put(logs, 0, 10)
        put(logs, 1, 20)
        drained(runner, two_hops(), final=False)
        put(logs, 0, 30, 40)
        put(logs, 1, 30, 40)
        if stream == "mid":
            drained(runner, two_hops().only("first"), final=False)
        assert len(values(logs, stream)) == 6
        clock.advance("30d")
        for log in (stream, "first.low"):
            logs.enforce_retention(log)
        assert values(logs, stream) == [], "it was cut in front of its reader"
        name = "first" if stream == "in" else "seen"
        running = runner(two_hops()).start()
        wait_until(
            lambda: {status.computation: status.state for status in running.status()}[name] == "failed", "it stops"
        )
        problem = {row.computation: row.problem for row in progress_of(logs, two_hops())}[name]
        assert problem is not None
        assert f"{name} has stopped at {stream}-" in problem
        assert "OffsetOutOfRange" in problem
        running.shutdown()
        logs.reset(name, {place: logs.bounds_of(place).start for place in logs.partitions(stream)})
        running = runner(two_hops()).start()
        put(logs, 0, 70)
        put(logs, 1, 60)
        # Retention may take old results too.
        wait_until(lambda: seen(logs, "rings")[-2:] == [20, 60], "it goes on with what comes")
        assert running.watermark("seen") == from_micros(60 * SECOND)
        assert seen(logs, "late") == []
        assert running.drain("30s", final=True), told(running)
        assert sorted(seen(logs, "in time"))[-2:] == [60, 70]
        assert seen(logs, "late") == []
