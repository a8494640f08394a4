"""State and timers that outlive the runner: kinds, restore, TTL, versions, compaction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.contract.stream.shorthand import Run, drained, fill, numbers, told, values, wait_until

from penstock.clock import FakeClock, from_micros
from penstock.errors import BadInput, Conflict, SchemaMismatch
from penstock.log.store import LogStore
from penstock.stream.computation import Computation, computation
from penstock.stream.internal_logs import make_state_log
from penstock.stream.state import List, Map, Value
from penstock.stream.topology import Topology


class Total(msgspec.Struct):
    """A typed state."""

    sum: int = 0
    last: str = ""


class Keeps(Computation):
    """Uses all kinds of state, and tells what it has."""

    name = "keeps"
    inputs = "in"
    outputs = "out"
    states = (Value("total", Total), List("items", int), Map("names", int))

    def process(self, record: Any, ctx: Any) -> None:
        number = record.value
        total = ctx.value("total").get() or Total()
        ctx.value("total").set(Total(total.sum + number, str(number)))
        items = ctx.list("items")
        items.append(number)
        if number % 7 == 0:
            items.replace(items.items()[-2:])
        names = ctx.map("names")
        names.set(str(number % 3), number)
        if number % 5 == 0:
            names.delete("0")
        if number % 11 == 0:
            names.clear()
            ctx.value("total").clear()


class Tells(Keeps):
    """Tells at the end."""

    def process(self, record: Any, ctx: Any) -> None:
        super().process(record, ctx)
        total = ctx.value("total").get()
        told = [ctx.key, msgspec.to_builtins(total), ctx.list("items").items(), dict(ctx.map("names").items())]
        ctx.produce("out", told)


def model(count: int, keys: int) -> dict[str, list[Any]]:
    """What Tells says last of every key, in plain Python."""
    found: dict[str, list[Any]] = {}
    for number in range(count):
        key = f"k{number % keys}"
        _, total, items, names = found.get(key, [key, None, [], {}])
        total = {"sum": (total or {"sum": 0})["sum"] + number, "last": str(number)}
        items = [*items, number]
        if number % 7 == 0:
            items = items[-2:]
        names = {**names, str(number % 3): number}
        if number % 5 == 0:
            names.pop("0", None)
        if number % 11 == 0:
            names, total = {}, None
        found[key] = [key, total, items, names]
    return found


def keeping(kind: type[Computation] = Tells, partitions: int = 2) -> Topology:
    return Topology("keeping", partitions=partitions).stream("in", int).stream("out", list).add(kind)


class TestKeeping:
    """What is kept is there again."""

    def test_all_kinds_of_state_over_restarts(self, logs: LogStore, runner: Run) -> None:
        every = numbers(400, keys=7)
        for part in range(4):
            fill(logs, "in", every[part * 100 : part * 100 + 100], partitions=2)
            drained(runner, keeping(), final=False, checkpoint_records=30)
        last = {value[0]: value for value in values(logs, "out")}
        assert last == model(400, 7)

    def test_state_is_of_one_log(self, logs: LogStore, runner: Run) -> None:
        """Of another one of its name it would miss the head, or count on top of what is gone."""
        fill(logs, "in", numbers(50, keys=3), partitions=2)
        drained(runner, keeping(), final=False)
        logs.delete("in")
        fill(logs, "in", numbers(80, keys=3), partitions=2)
        with pytest.raises(Conflict, match=r"another log 'in'.*reset"):
            drained(runner, keeping(), final=False)

    def test_state_of_one_key_is_not_anothers(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 1, 1), ("b", 2, 2), ("a", 3, 3), (None, 4, 4)])
        drained(runner, keeping(partitions=1))
        assert [value[2] for value in values(logs, "out")] == [[1], [2], [1, 3], [4]]

    def test_length_and_truth_are_those_of_the_current_key(self, logs: LogStore, runner: Run) -> None:
        @computation("asks", inputs="in", outputs="out", states=[List("l", int), Map("m", int), Value("v", int, 7)])
        def asks(record: Any, ctx: Any) -> None:
            items, named, value = ctx.list("l"), ctx.map("m"), ctx.value("v")
            before = [len(items), bool(items), len(named), bool(named), bool(value)]
            if record.value < 0:
                items.clear()
                named.clear()
                value.clear()
            else:
                items.append(record.value)
                named.set(str(record.value), record.value)
                value.set(0)
            ctx.produce("out", [ctx.key, before, [len(items), bool(items), len(named), bool(named), bool(value)]])

        def seen(count: int) -> list[Any]:
            return [count, count > 0, count, count > 0, count > 0]

        topology = Topology("asks").stream("in", int).stream("out", list).add(asks)
        expected = []
        counts: dict[str, int] = {}
        numbered = enumerate([("a", 1), ("b", 1), ("a", 2), ("b", -1), ("c", 1), ("a", 3), ("b", 2), ("a", -1)])
        for at, (key, number) in numbered:
            fill(logs, "in", [(key, number, at)])
            before = counts.get(key, 0)
            counts[key] = before + 1 if number > 0 else 0
            expected.append([key, seen(before), seen(counts[key])])
            if at % 3 == 1:
                drained(runner, topology, final=False)  # some of it was kept, the rest is of this checkpoint
        drained(runner, topology)
        assert values(logs, "out") == expected

    def test_a_map_is_read_in_the_order_of_its_keys(self, logs: LogStore, runner: Run) -> None:
        @computation("ordered", inputs="in", outputs="out", states=[Map("m", int)])
        def ordered(record: Any, ctx: Any) -> None:
            named = ctx.map("m")
            named.set(f"{record.value:02d}", record.value)
            if record.value % 4 == 0:
                named.delete("05")
            ctx.produce("out", [list(named.items().values()), [value for _, value in named.between("05", "12")]])

        topology = Topology("ordered").stream("in", int).stream("out", list).add(ordered)
        expected: list[Any] = []
        there: set[int] = set()
        for part in ([9, 5, 30], [12, 11, 5], [8, 1]):
            fill(logs, "in", [("a", number, number) for number in part])
            drained(runner, topology, final=False)
            for number in part:
                there.add(number)
                if number % 4 == 0:
                    there.discard(5)
                expected.append([sorted(there), sorted(one for one in there if 5 <= one < 12)])
        assert values(logs, "out") == expected

    def test_bad_use_of_state_is_told(self, logs: LogStore, runner: Run) -> None:
        seen: list[str] = []

        @computation("bad", inputs="in", states=[Value("v", int), Map("m", int)])
        def bad(record: Any, ctx: Any) -> None:
            for call in (
                lambda: ctx.value("w"),
                lambda: ctx.list("v"),
                lambda: ctx.map("m").set([1], 2),
                lambda: ctx.produce("nowhere", 1),
                lambda: ctx.set_timer(5),
            ):
                with pytest.raises(BadInput) as told:
                    call()  # type: ignore[no-untyped-call]
                seen.append(str(told.value))

        fill(logs, "in", numbers(1))
        drained(runner, Topology("bad").stream("in", int).add(bad))
        assert len(seen) == 5
        assert all("bad" in one or "'m'" in one or "map state m" in one for one in seen)

    def test_a_wrong_type_is_refused_and_nothing_of_it_kept(self, logs: LogStore, runner: Run) -> None:
        @computation("typed", inputs="in", outputs="out", states=[Value("v", int, 0)])
        def typed(record: Any, ctx: Any) -> None:
            ctx.produce("out", ctx.value("v").get())
            ctx.value("v").set(record.value if record.value != 3 else "three")

        fill(logs, "in", [("a", number, number) for number in range(6)])
        topology = Topology("typed").stream("in", int).stream("out", int).add(typed)
        running = runner(topology).start()
        assert not running.drain("20s")
        assert "cannot be put where int" in told(running)
        assert values(logs, "out") == [0, 0, 1], "up to the record that failed"
        assert logs.lag("in", "typed").lag == 3

    def test_timers_outlive_the_runner(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        @computation("rings", inputs="in", outputs="out")
        def rings(record: Any, ctx: Any) -> None:
            ctx.set_timer(record.value, "event")
            ctx.set_timer_after("1h", "processing")

        @rings.timer
        def ring(timer: Any, ctx: Any) -> None:
            ctx.produce("out", [timer.key, timer.name, timer.kind])

        topology = Topology("rings").stream("in", int).stream("out", list).add(rings)
        fill(logs, "in", [("a", 5_000, 1_000), ("b", 900_000, 2_000)])
        drained(runner, topology, final=False)
        assert values(logs, "out") == []
        fill(logs, "in", [("c", 1_000_000, 10_000)])
        drained(runner, topology, final=False)
        assert values(logs, "out") == [["a", "event", "event"]]
        clock.advance("1h")
        running = runner(topology).start()
        wait_until(lambda: len(values(logs, "out")) == 4, "the timers of processing time")
        running.stop()
        assert values(logs, "out")[1:] == [[key, "processing", "processing"] for key in "abc"]

    def test_ttl_drops_what_was_not_written(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        @computation(
            "short", inputs="in", outputs="out",
            states=[Value("v", int, ttl="1h"), Map("m", int, ttl="1h"), List("l", int, ttl="1h")],
        )  # fmt: skip
        def short(record: Any, ctx: Any) -> None:
            held = [ctx.value("v").get(), dict(ctx.map("m").items()), ctx.list("l").items()]
            ctx.produce("out", held)
            if record.value >= 0:
                ctx.value("v").set(record.value)
                ctx.map("m").set(str(record.value), record.value)
                ctx.list("l").append(record.value)

        topology = Topology("short").stream("in", int).stream("out", list).add(short)
        for number, wait in ((1, "40m"), (2, "40m"), (-1, "40m"), (-1, "1m")):
            fill(logs, "in", [("a", number, 1)])
            drained(runner, topology, final=False)
            clock.advance(wait)
        assert values(logs, "out") == [
            [None, {}, []], [1, {"1": 1}, [1]], [2, {"2": 2}, [1, 2]], [None, {}, []],
        ]  # fmt: skip

    def test_the_changelog_is_bounded(self, logs: LogStore, runner: Run) -> None:
        @computation("busy", inputs="in", states=[Value("v", int, 0)])
        def busy(record: Any, ctx: Any) -> None:
            ctx.value("v").set(ctx.value("v").get() + 1)

        topology = Topology("busy").stream("in", int).add(busy)
        if logs.capabilities.retention:
            from penstock.log.settings import Retention

            kept = Retention(age=None, keep_for=("busy.state",), consumed=True)
            logs.create("busy.state", 1, retention=kept, segment_bytes=20_000)
        fill(logs, "in", numbers(6000, keys=50))
        drained(runner, topology, checkpoint_records=50, read=50)
        [bounds] = logs.bounds("busy.state")
        assert bounds.start > 0, "the beginning was let go"
        offsets_each = 1 if logs.capabilities.dense else 2  # each transaction ends with a mark
        assert bounds.count < 120 * offsets_each, "of 120 checkpoints"

        @computation("busy", inputs="in", outputs="out", states=[Value("v", int, 0)])
        def tells(record: Any, ctx: Any) -> None:
            ctx.produce("out", ctx.value("v").get())

        fill(logs, "in", numbers(50, keys=50))
        drained(runner, Topology("busy").stream("in", int).stream("out", int).add(tells))
        assert values(logs, "out") == [120] * 50

    def test_the_watermark_is_kept(self, logs: LogStore, runner: Run) -> None:
        @computation("marks", inputs="in", outputs="out", states=[Value("v", int)])
        def marks(record: Any, ctx: Any) -> None:
            ctx.value("v").set(1)
            ctx.produce("out", ctx.late)

        topology = Topology("marks").stream("in", int).stream("out", bool).add(marks)
        for at in (1_000_000, 500_000):
            fill(logs, "in", [("a", 1, at)])
            running = drained(runner, topology, final=False)
        assert values(logs, "out") == [False, True]
        assert running.status()[0].watermark == from_micros(1_000_000)


class TestVersions:
    """State of another shape is refused before anything runs, with the way out."""

    def topology(self, **options: Any) -> Topology:
        """A computation that counts."""

        @computation("count", inputs="in", outputs="out", **options)
        def count(record: Any, ctx: Any) -> None:
            ctx.value("n").set((ctx.value("n").get() or 0) + 1)
            ctx.produce("out", ctx.value("n").get())

        return Topology("versions").stream("in", int).stream("out").add(count)

    @pytest.fixture(autouse=True)
    def ran_before(self, logs: LogStore, runner: Run) -> None:
        """State of version 1 is there."""
        fill(logs, "in", numbers(10, keys=2))
        drained(runner, self.topology(states=[Value("n", int)]))

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"states": [Value("n", str)]}, "value of int"),
            ({"states": [Map("n", int)]}, "map of int"),
            ({"states": [Value("m", int)]}, "not declared any more"),
            ({"states": [Value("n", int)], "version": 2}, "upgrade"),
        ],
    )
    def test_another_shape_is_refused(self, logs: LogStore, runner: Run, options: Any, says: str) -> None:
        with pytest.raises(SchemaMismatch, match=says) as told:
            runner(self.topology(**options))
        assert "stream reset MODULE:TOPOLOGY URL count" in str(told.value)

    def test_an_older_version_is_refused(self, logs: LogStore, runner: Run) -> None:
        class Two(Computation):
            name, inputs, outputs, version = "count", "in", "out", 2
            states = (Value("n", int),)

            def process(self, record: Any, ctx: Any) -> None:
                ctx.value("n").set(1)

            def upgrade(self, version: int, state: str, key: str, value: Any) -> Any:
                return value

        fill(logs, "in", numbers(1))
        drained(runner, Topology("versions").stream("in", int).stream("out").add(Two))
        with pytest.raises(SchemaMismatch, match="version 2"):
            runner(self.topology(states=[Value("n", int)]))

    def test_upgrade_converts_what_is_kept(self, logs: LogStore, runner: Run) -> None:
        class Two(Computation):
            name, inputs, outputs, version = "count", "in", "out", 2
            states = (Value("n", str),)

            def process(self, record: Any, ctx: Any) -> None:
                ctx.produce("out", f"{ctx.value('n').get()}")

            def upgrade(self, version: int, state: str, key: str, value: Any) -> Any:
                return f"{key} had {value} in version {version}"

        for _ in range(2):
            fill(logs, "in", [("k1", 0, 1)])
            drained(runner, Topology("versions").stream("in", int).stream("out").add(Two))
        assert values(logs, "out")[-2:] == ["k1 had 5 in version 1"] * 2

    def test_another_number_of_partitions_is_refused(self, logs: LogStore, runner: Run) -> None:
        self.topology(states=[Value("n", int)])
        with pytest.raises(Conflict, match="kept for 1 partitions"):
            make_state_log(logs, "count", 3)

    def test_another_input_is_refused(self, logs: LogStore, runner: Run) -> None:
        logs.create("in2", 1)
        topology = self.topology(states=[Value("n", int)])
        moved = Topology("moved").stream("in2", int).stream("out")
        moved.add(topology.nodes["count"].computation, streams={"in": "in2"})
        with pytest.raises(Conflict, match="was made from in; it reads in2 now"):
            runner(moved).start()
