"""Keys, map keys and timer names of any JSON scalar."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, numbers, records, rows, values

from penstock.log.store import LogStore
from penstock.scalars import canonical_text, scalar_of
from penstock.stream.chaining import chain
from penstock.stream.computation import computation
from penstock.stream.operators import map_values, rekey, running_count
from penstock.stream.state import Map
from penstock.stream.topology import Topology
from penstock.stream.windows import Tumbling, Windowed, windowed_count

SCALARS: list[Any] = [1, 1.0, "1", True, False, 0, -2.5, "true", "json:1", "", 10**20]


def text(scalar: Any) -> str:
    """Kind and value: in Python 1, 1.0 and True are equal."""
    return f"{type(scalar).__name__} {scalar}"


def seven(_: Any) -> int:
    return 7


class TestScalarKeys:
    """1, 1.0, "1" and true are four keys."""

    @pytest.mark.parametrize("steps", ["apart", "chained"])
    def test_records_of_different_scalars_do_not_meet(self, logs: LogStore, runner: Run, steps: str) -> None:
        @computation("tell", inputs="keyed", outputs="out", states=[Map("seen", int)])
        def tell(record: Any, ctx: Any) -> None:
            seen = ctx.map("seen")
            seen.set("n", seen.get("n", 0) + 1)
            ctx.produce("out", [text(ctx.key), seen.get("n")], key=ctx.key)

        def chosen(value: int) -> Any:
            return SCALARS[value % len(SCALARS)]

        given = numbers(55)
        fill(logs, "in", given, partitions=3)
        topology = Topology("scalars", partitions=3).stream("in", int).stream("keyed", int).stream("out")
        if steps == "apart":
            topology.add(rekey("rekey", chosen, "in", "keyed"))
        else:
            first = rekey("rekey", chosen, "in", "between")
            topology.add(chain("rekey", first, map_values("same", lambda value: value, "between", "keyed")))
        topology.add(tell)
        drained(runner, topology, checkpoint_records=20)
        counted: Counter[str] = Counter()
        for name, _ in values(logs, "out"):
            counted[name] += 1
        assert counted == Counter(text(scalar) for scalar in SCALARS * 5)
        assert {record.key for record in records(logs, "out")} == {canonical_text(scalar) for scalar in SCALARS}
        assert max(count for _, count in values(logs, "out")) == 5

    def test_windows_and_totals_give_back_the_scalars(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("scalars").stream("in", int).stream("counts", Windowed[int]).stream("again").stream("sums")
        logs.create("in")
        with logs.appender("in", int) as out:
            for scalar in SCALARS * 2:
                out.append(1, key=canonical_text(scalar), timestamp=5)
        topology.add(windowed_count("count", "in", "counts", Tumbling("10s")))
        topology.add(
            windowed_count("again", "counts", "again", Tumbling("10s"), key=seven, result=lambda one: text(one.key))
        )
        topology.add(running_count("sum", "in", "sums"))
        drained(runner, topology)
        found = records(logs, "counts", Windowed[int])
        assert sorted(text(record.value.key) for record in found) == sorted(map(text, SCALARS))
        assert all(canonical_text(record.value.key) == (record.key or "") for record in found)
        assert sorted(values(logs, "again")) == sorted(map(text, SCALARS))
        assert {key for key, _, _ in rows(logs, "again")} == {"json:7"}
        assert {record.key: record.value for record in records(logs, "sums")} == {
            canonical_text(scalar): 2 for scalar in SCALARS
        }

    def test_maps_and_timers_are_named_by_scalars(self, logs: LogStore, runner: Run) -> None:
        names = [*SCALARS, None]

        @computation("names", inputs="in", outputs="out", states=[Map("m", int)])
        def by_name(record: Any, ctx: Any) -> None:
            held = ctx.map("m")
            for rank, name in enumerate(names):
                assert name not in held or held.get(name) == rank - 100
                held.set(name, rank)
                ctx.set_timer(100 + rank, name)
            assert [held.get(name) for name in names] == list(range(len(names)))
            held.delete(1.0)
            ctx.clear_timer(True)
            assert ctx.timer(True) is None
            assert ctx.timer(1) is not None
            ctx.produce("out", ["items", [text(name) for name, _ in held.pairs()]])
            ctx.produce("out", ["between", [text(name) for name, _ in held.between(0, 1.5)]])

        @by_name.timer
        def ring(timer: Any, ctx: Any) -> None:
            ctx.map("m").set(timer.name, ctx.map("m").get(timer.name, 0) - 100)
            ctx.produce("out", ["timer", text(timer.name), text(timer.key), text(ctx.key)])

        topology = Topology("scalars").stream("in", int).stream("out").add(by_name)
        logs.create("in")
        with logs.appender("in", int) as out:
            out.append(1, key=5, timestamp=1)
        drained(runner, topology, final=False)
        with logs.appender("in", int) as out:
            out.append(2, key="5", timestamp=10_000)  # the state of another key
        drained(runner, topology)
        left = [text(name) for name in sorted(names, key=canonical_text) if text(name) != "float 1.0"]
        told = values(logs, "out")
        assert [value for kind, *value in told if kind == "items"] == [[left], [left]]
        assert [value for kind, *value in told if kind == "between"] == [[["int 0", "int 1"]]] * 2
        rung = [tuple(value) for kind, *value in told if kind == "timer"]
        wanted = {(text(name), text(key), text(key)) for name in names if name is not True for key in (5, "5")}
        assert set(rung) == wanted
        assert len(rung) == len(wanted)

    def test_texts_of_others_are_taken_as_they_are(self, logs: LogStore, runner: Run) -> None:
        @computation("tell", inputs="in", outputs="out")
        def tell(record: Any, ctx: Any) -> None:
            ctx.produce("out", text(ctx.key))

        fill(logs, "in", [("json:oops", 1, 1), ("json:3", 2, 2)])
        drained(runner, Topology("scalars").stream("in", int).stream("out", str).add(tell))
        assert values(logs, "out") == ["str json:oops", "int 3"]
        assert [record.key for record in records(logs, "out")] == ["json:oops", "json:3"]
        assert scalar_of("json:3") == 3
