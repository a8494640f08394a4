"""Chains of steps without a log between them, and outputs beside the main one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, numbers, records, rows, values
from tests.contract.stream.test_ready import SECOND, clicks

from penstock.errors import BadInput, Conflict
from penstock.log.store import LogStore
from penstock.policy import Retry
from penstock.stream.chaining import chain
from penstock.stream.computation import Computation, Policy, computation
from penstock.stream.joins import join
from penstock.stream.operators import (
    SideOutput,
    filter_values,
    flat_map,
    latest,
    map_values,
    rekey,
    running_count,
    running_sum,
)
from penstock.stream.ranking import windowed_top
from penstock.stream.state import Value
from penstock.stream.topology import Topology
from penstock.stream.windows import Session, Sliding, Tumbling, windowed_count, windowed_fold, windowed_sum


def steps() -> list[Computation]:
    @computation("tag", inputs="kept", outputs=("tagged", "odd"))
    def tag(record: Any, ctx: Any) -> None:
        stream = "odd" if record.value % 2 else "tagged"
        ctx.produce(stream, record.value + 1, timestamp=record.time_us + 1, headers={"tagged": ctx.key})

    return [
        map_values("double", lambda value: value * 3, "in", "doubled"),
        filter_values("keep", lambda value: value % 4 != 0, "doubled", "kept", otherwise="dropped"),
        tag,
        flat_map("twice", lambda value: [value, -value], "tagged", "pairs"),
        rekey("by-digit", lambda value: f"d{abs(value) % 10}", "pairs", "out"),
    ]


DELAYED = map_values("m", abs, "a", "b", output_delay="1s")
OUTER = ("dropped", "odd", "out")


def apart() -> Topology:
    """The steps as computations of their own, with a log between them."""
    topology = Topology("apart", partitions=3).stream("in", int)
    for name in ("doubled", "kept", "tagged", "pairs", *OUTER):
        topology.stream(name, int)
    for step in steps():
        topology.add(step)
    return topology


class TestChains:
    """``chain``."""

    def test_a_chain_does_what_its_steps_do(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(60), partitions=3)
        drained(runner, apart(), checkpoint_records=20)
        expected = {name: [(key, value, at) for key, value, at in rows(logs, name)] for name in OUTER}
        assert all(expected.values())
        joined = Topology("joined", partitions=3).stream("in", int)
        for name in OUTER:
            joined.stream(f"c-{name}", int)
        piece = chain("all", *steps())
        joined.add(piece, concurrency=2, streams={name: f"c-{name}" for name in OUTER})
        drained(runner, joined, checkpoint_records=20)
        assert {name: rows(logs, f"c-{name}") for name in OUTER} == expected
        for name in OUTER:
            assert sorted(str(one.headers) for one in records(logs, name)) == sorted(
                str(one.headers) for one in records(logs, f"c-{name}")
            )

    def test_nothing_is_stored_between_the_steps(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(5))
        topology = Topology("joined").stream("in", int)
        for name in OUTER:
            topology.stream(name, int)
        drained(runner, topology.add(chain("all", *steps())))
        assert {"doubled", "kept", "tagged", "pairs"} & set(logs.names()) == set()

    def test_what_is_stored_between_the_steps_has_what_a_step_wrote(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(60), partitions=3)
        drained(runner, apart())
        for number, stored in enumerate((["kept", "pairs"], True)):
            shown = ["doubled", "kept", "tagged", "pairs"] if stored is True else ["kept", "pairs"]
            names = {name: f"c{number}-{name}" for name in (*OUTER, *shown)}
            joined = Topology(f"joined{number}", partitions=3).stream("in", int)
            for name in names.values():
                joined.stream(name, int)
            drained(runner, joined.add(chain(f"all{number}", *steps(), stored=stored), streams=names))
            for name, own in names.items():
                assert rows(logs, own) == rows(logs, name)
                assert sorted(str(record.headers) for record in records(logs, own)) == sorted(
                    str(record.headers) for record in records(logs, name)
                )

    def test_only_streams_between_steps_can_be_stored(self) -> None:
        with pytest.raises(BadInput, match=r"all cannot store 'keptt'.*kept"):
            chain("all", *steps(), stored="keptt")
        with pytest.raises(BadInput, match="cannot store 'out': it is not a stream between"):
            chain("all", *steps(), stored=["out"])

    def test_event_time_goes_through(self, logs: LogStore, runner: Run) -> None:
        given = clicks(100, spread=4)
        topology = Topology("timed", partitions=2).stream("in", int, out_of_order="5s").stream("same", int)
        topology.stream("out").stream("late", int)
        topology.add(
            chain("pass", map_values("one", abs, "in", "a"), rekey("two", lambda value: f"k{value % 3}", "a", "same"))
        )
        topology.add(windowed_count("count", "same", "out", Tumbling("10s"), late="late"))
        for first, last in ((0, 40), (40, 100)):
            fill(logs, "in", given[first:last], partitions=2)
            drained(runner, topology, final=last == 100, checkpoint_records=20)
        assert sum(one["value"] for one in values(logs, "out")) == 100
        assert values(logs, "late") == []

    @pytest.mark.parametrize("window", [Tumbling("10s"), Sliding("10s", "5s"), Session("2s")], ids=str)
    @pytest.mark.parametrize("unit", [1, 0.5], ids=["whole", "floats"])
    def test_windows_may_end_a_chain(self, logs: LogStore, runner: Run, window: Any, unit: float) -> None:
        def keep(value: float) -> bool:
            return int(value) % 3 != 0

        def counted(topology: Topology, name: str, *pieces: Computation) -> None:
            for stream in (f"{name}-out", f"{name}-late"):
                topology.stream(stream)
            for piece in pieces:
                topology.add(piece)

        fill(logs, "in", [], partitions=2)
        steps = lambda name: (  # noqa: E731
            map_values(f"{name}-scale", lambda value: value * unit, "in", f"{name}-scaled"),
            flat_map(f"{name}-twice", lambda value: [value, -value], f"{name}-scaled", f"{name}-pairs"),
            filter_values(f"{name}-keep", keep, f"{name}-pairs", f"{name}-kept"),
            windowed_sum(f"{name}-sum", f"{name}-kept", f"{name}-out", window, of=abs, late=f"{name}-late"),
        )
        topology = Topology("both", partitions=2).stream("in", int, out_of_order="5s")
        for stream in ("apart-scaled", "apart-pairs", "apart-kept"):
            topology.stream(stream)
        counted(topology, "apart", *steps("apart"))
        counted(topology, "one", chain("one", *steps("one")))
        given = clicks(300, spread=4)
        for first, last in ((0, 120), (120, 300)):
            fill(logs, "in", given[first:last], partitions=2)
            drained(runner, topology, final=last == 300, checkpoint_records=40)
        assert rows(logs, "one-out") == rows(logs, "apart-out")
        assert len(rows(logs, "one-out")) > 10
        assert rows(logs, "one-late") == rows(logs, "apart-late") == []
        assert logs.exists("one.state")
        assert not logs.exists("one-kept")

    def test_late_records_of_a_chain_are_what_its_steps_made(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 1, 100 * SECOND), ("a", 2, 130 * SECOND)])
        topology = Topology("late").stream("in", int).stream("out").stream("late")
        topology.add(
            chain(
                "sum",
                map_values("scale", lambda value: value * 10, "in", "scaled"),
                windowed_sum("windows", "scaled", "out", Tumbling("10s"), late="late"),
            )
        )
        drained(runner, topology, final=False)
        fill(logs, "in", [("a", 3, 101 * SECOND), ("a", 4, 131 * SECOND)])
        drained(runner, topology)
        assert rows(logs, "late") == [("a", 30, 101 * SECOND)]
        assert [(one["start"], one["value"]) for one in values(logs, "out")] == [(100 * SECOND, 10), (130 * SECOND, 60)]

    def test_totals_and_states_of_ones_own_may_end_a_chain(self, logs: LogStore, runner: Run) -> None:
        @computation("seen", inputs="doubled", outputs="seen", states=[Value("n", int, 0)])
        def seen(record: Any, ctx: Any) -> None:
            number = ctx.value("n").get() + 1
            ctx.value("n").set(number)
            ctx.produce("seen", [record.value, number])

        @computation("timed", inputs="doubled", outputs="fired", states=[Value("last", int)])
        def timed(record: Any, ctx: Any) -> None:
            ctx.value("last").set(record.value)
            ctx.set_timer(10 * SECOND)

        @timed.timer
        def fire(timer: Any, ctx: Any) -> None:
            ctx.produce("fired", ctx.value("last").get())

        topology = Topology("kept").stream("in", int)
        double = map_values("double", lambda value: value * 2, "in", "doubled")
        for last in (running_sum("total", "doubled", "totals"), seen, timed):
            topology.stream(last.outputs[0] if isinstance(last.outputs, tuple) else last.outputs)
            topology.add(chain(f"chain-{last.name}", double, last))
        for first in (0, 40):
            fill(logs, "in", numbers(80, keys=4)[first : first + 40])
            drained(runner, topology, final=first == 40, checkpoint_records=10)
        totals = {record.key: record.value for record in records(logs, "totals")}
        assert totals == {f"k{rest}": sum(range(2 * rest, 160, 8)) for rest in range(4)}
        assert sorted(values(logs, "seen")) == [[2 * number, number // 4 + 1] for number in range(80)]
        assert sorted(values(logs, "fired")) == [152, 154, 156, 158]

    def test_a_step_that_changes_the_key_before_a_state_is_refused(self, logs: LogStore, runner: Run) -> None:
        @computation("by-parity", inputs="in", outputs="keyed")
        def by_parity(record: Any, ctx: Any) -> None:
            ctx.produce("keyed", record.value, key=str(record.value % 2))

        fill(logs, "in", numbers(6))
        topology = Topology("failing").stream("in", int).stream("out")
        topology.add(chain("risky", by_parity, running_count("count", "keyed", "out")))
        one = runner(topology)
        one.start()
        assert not one.drain("20s")
        assert any("changes the key" in (status.error or "") for status in one.status())

    @pytest.mark.parametrize("count", [3, 200])
    def test_keys_that_are_not_text(self, logs: LogStore, runner: Run, count: int) -> None:
        """However few records come: they are folded, or processed one by one."""
        fill(logs, "in", [(f"k{number}", number, SECOND) for number in range(count)], partitions=2)
        topology = (
            Topology("scalars", partitions=2).stream("in", int).stream("by-digit", int).stream("out").stream("seen")
        )
        topology.add(rekey("digit", lambda value: value % 3, "in", "by-digit"))
        topology.add(
            chain("sum", map_values("one", lambda value: 1, "by-digit", "ones"), running_sum("s", "ones", "out"))
        )

        @computation("note", inputs="kept", outputs="seen", states=[Value("n", int, 0)])
        def note(record: Any, ctx: Any) -> None:
            assert ctx.key == record.value % 3, "the scalar that it was given as"
            ctx.value("n").set(ctx.value("n").get() + 1)
            ctx.produce("seen", [ctx.key, ctx.value("n").get()])

        topology.add(chain("notes", map_values("same", lambda value: value, "by-digit", "kept"), note))
        drained(runner, topology)
        sums = {record.key: record.value for record in records(logs, "out")}
        assert sorted(sums.values()) == sorted(len(range(digit, count, 3)) for digit in range(3))
        assert sorted(values(logs, "seen")) == sorted(
            [digit, number] for digit in range(3) for number in range(1, len(range(digit, count, 3)) + 1)
        )

    @pytest.mark.parametrize("count", [3, 200])
    def test_texts_that_look_like_other_scalars_are_keys_too(self, logs: LogStore, runner: Run, count: int) -> None:
        """A log has such keys from producers that know nothing of scalars; a chain leaves them as they are."""
        keys = ["json:", "json:null", "json:[1]", "json:1 ", "json:1"]
        fill(logs, "in", [(key, number, SECOND) for key in keys for number in range(count)], partitions=2)
        topology = Topology("texts", partitions=2).stream("in", int).stream("same", int).stream("out")
        step = map_values("same", abs, "in", "same")
        topology.add(chain("count", step, windowed_count("c", "same", "out", Tumbling("10s")), stored="same"))
        drained(runner, topology)
        assert sorted((record.key, record.value["value"]) for record in records(logs, "out")) == sorted(
            (key, count) for key in keys
        )
        assert {record.key for record in records(logs, "same")} == set(keys)

    def test_the_last_step_may_make_another_key_current_and_no_other(self, logs: LogStore, runner: Run) -> None:
        @computation("other", inputs="same", outputs="out", states=[Value("n", int, 0)])
        def other(record: Any, ctx: Any) -> None:
            ctx.key = "all"
            ctx.value("n").set(ctx.value("n").get() + record.value)
            ctx.produce("out", [ctx.key, ctx.value("n").get()])

        @computation("steals", inputs="in", outputs="same")
        def steals(record: Any, ctx: Any) -> None:
            ctx.value("n").set(100)

        fill(logs, "in", [("a", 1, 1), ("b", 2, 2)])
        topology = Topology("keys").stream("in", int).stream("out")
        topology.add(chain("c", map_values("m", lambda value: value, "in", "same"), other))
        drained(runner, topology)
        assert max(values(logs, "out")) == ["all", 3]
        topology = Topology("keys").stream("in", int).stream("out").add(chain("d", steals, other))
        one = runner(topology)
        one.start()
        assert not one.drain("20s")
        assert any("Only the last step" in (status.error or "") for status in one.status())

    def test_the_state_of_other_inputs_is_refused(self, logs: LogStore, runner: Run) -> None:
        """The total of a stream would be counted on with the records that it was made of."""
        fill(logs, "in", numbers(6))
        topology = Topology("t").stream("in", int).stream("x", int).stream("out")
        topology.add(filter_values("pos", lambda value: value >= 0, "in", "x")).add(running_sum("total", "x", "out"))
        drained(runner, topology, final=False)
        topology = Topology("t").stream("in", int).stream("out")
        topology.add(
            chain("total", filter_values("pos", lambda value: value >= 0, "in", "x"), running_sum("s", "x", "out"))
        )
        with pytest.raises(Conflict, match="was made from x; it reads in now"):
            runner(topology)

    def test_a_hidden_stream_that_is_declared_is_refused(self) -> None:
        topology = Topology("t").stream("in", int).stream("x", int).stream("out").stream("seen")
        piece = chain("c", map_values("m", abs, "in", "x"), running_sum("s", "x", "out"))
        topology.add(map_values("reads", str, "x", "seen")).add(piece)
        with pytest.raises(BadInput, match="only between its steps"):
            topology.check()

    def test_windows_share_nothing_of_what_a_step_made(self, logs: LogStore, runner: Run) -> None:
        def add(held: list[Any], value: list[int]) -> list[Any]:
            value.append(-1)
            return [*held, value]

        fill(logs, "in", [("a", 1, SECOND)])
        topology = Topology("shared").stream("in", int).stream("out")
        windows = windowed_fold("fold", "listed", "out", Sliding("10s", "5s"), initial=[], fold=add)
        topology.add(chain("all", map_values("list", lambda value: [value], "in", "listed"), windows))
        drained(runner, topology)
        assert [one["value"] for one in values(logs, "out")] == [[[1, -1]], [[1, -1]]]

    def test_a_record_that_fails_in_a_later_step_fails_as_a_whole(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(6, keys=1))
        topology = Topology("failing").stream("in", int).stream("out", int).stream("first", int)
        piece = chain(
            "risky",
            flat_map("both", lambda value: [value, value + 10], "in", "pairs"),
            map_values("divide", lambda value: 12 // (value - 13), "pairs", "out"),
        )
        topology.add(piece, policy=Policy(retry=Retry(attempts=2, backoff="1ms"), on_failure="continue"))
        drained(runner, topology)
        good = [number for number in range(6) if number not in (3, 13)]
        assert values(logs, "out") == [12 // (one - 13) for number in good for one in (number, number + 10)]
        [dead] = records(logs, "risky.dead", int)
        assert dead.value == 3, "the record that came in"

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: chain("c"), "without steps"),
            (lambda: chain("c", latest("l", "a", "b"), map_values("m", abs, "b", "c")), "not the last step"),
            (lambda: chain("c", running_count("l", "a", "b"), map_values("m", abs, "b", "c")), "not the last step"),
            (lambda: chain("c", rekey("r", str, "a", "b"), running_count("l", "b", "c")), "changes the key"),
            (lambda: chain("c", join("j", "a", "b", "c", within="1s", joiner=max)), "several inputs"),
            (
                lambda: chain("c", map_values("m", abs, "a", "b", output_delay="1s"), running_count("l", "b", "c")),
                "output_delay",
            ),
            (lambda: chain("c", map_values("m", abs, "a", "b", idle="1s")), "idle= of its own"),
            (lambda: chain("c", computation("m", inputs=["a", "r"], outputs="b", broadcast="r")(print)), "broadcast"),
            (
                lambda: chain(
                    "c",
                    chain("i", rekey("r", str, "a", "b"), map_values("m", abs, "b", "c")),
                    running_count("l", "c", "d"),
                ),
                "changes the key",
            ),
            (lambda: chain("c", windowed_top("t", "a", "b", Tumbling("1s"), 3, by=abs)), "values of single records"),
            (lambda: chain("c", "step"), "not a computation"),  # type: ignore[arg-type]
            (
                lambda: chain("c", map_values("two", abs, "b", "c"), map_values("one", abs, "a", "b")),
                "which no step before it writes",
            ),
            (lambda: chain("c", map_values("m", abs, "a", "b", policy=Policy(on_failure="continue"))), "policy"),
            (lambda: chain("c", map_values("m", abs, "a", "b"), map_values("n", abs, "b", "a")), "which no step"),
        ],
    )
    def test_what_cannot_be_chained_is_refused(
        self, logs: LogStore, runner: Run, make: Callable[[], Any], says: str
    ) -> None:
        with pytest.raises(BadInput, match=says):
            make()


class TestSideOutputs:
    """A function says for each of its results where it goes."""

    def test_of_functions_on_values(self, logs: LogStore, runner: Run) -> None:
        def parse(text: str) -> Any:
            return int(text) if text.isdigit() else SideOutput("bad", f"not a number: {text}")

        def split(value: int) -> Any:
            return [value, SideOutput("large", value * 100), SideOutput("bad", "split")][: value + 1]

        fill(logs, "in", [("a", text, number + 1) for number, text in enumerate(["1", "two", "3", "0"])])
        topology = Topology("sides").stream("in", str).stream("numbers", int).stream("out", int)
        topology.stream("bad", str).stream("large", int)
        topology.add(map_values("parse", parse, "in", "numbers", side_outputs="bad"))
        topology.add(flat_map("split", split, "numbers", "out", side_outputs=("large", "bad")))
        drained(runner, topology)
        assert rows(logs, "out") == [("a", 0, 4), ("a", 1, 1), ("a", 3, 3)]
        assert rows(logs, "large") == [("a", 100, 1), ("a", 300, 3)]
        assert sorted(values(logs, "bad")) == ["not a number: two", "split"]

    def test_of_windows_and_joins(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 1, SECOND), ("a", 2, 2 * SECOND), ("b", 3, 3 * SECOND)])
        fill(logs, "other", [("a", 4, SECOND)])
        topology = Topology("sides").stream("in", int).stream("other", int)
        for name in ("many", "few", "pairs", "alone"):
            topology.stream(name)
        topology.add(
            windowed_count(
                "count", "in", "many", Tumbling("10s"), side_outputs="few", key=lambda window: window.key.upper(),
                result=lambda window: window.value if window.value > 1 else SideOutput("few", window.value),
            )
        )  # fmt: skip
        topology.add(
            join(
                "pair", "in", "other", "pairs", within="0s", how="left", side_outputs="alone",
                joiner=lambda one, other: [one, other] if other is not None else SideOutput("alone", one),
            )
        )  # fmt: skip
        drained(runner, topology)
        assert rows(logs, "many") == [("A", 2, 10 * SECOND - 1)]
        assert rows(logs, "few") == [("B", 1, 10 * SECOND - 1)]
        assert values(logs, "pairs") == [[1, 4]]
        assert sorted(values(logs, "alone")) == [2, 3]

    def test_an_output_that_was_not_named_fails(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 1, 1)])
        topology = Topology("sides").stream("in", int).stream("out", int)
        piece = map_values("m", lambda value: SideOutput("elsewhere", value), "in", "out")
        topology.add(piece, policy=Policy(on_failure="continue"))
        drained(runner, topology)
        [dead] = records(logs, "m.dead", int)
        assert "no output 'elsewhere'" in str(dead.headers)

    def test_bad_names(self, logs: LogStore, runner: Run) -> None:
        with pytest.raises(BadInput):
            map_values("m", abs, "in", "out", side_outputs=("a b",))
        with pytest.raises(BadInput, match="reads in and writes it"):
            map_values("m", abs, "in", "out", side_outputs="in")
