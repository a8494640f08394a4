"""Chains of steps without a log between them, and outputs beside the main one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.stream.asking import Run, drained, fill, numbers, records, rows, values
from tests.contract.stream.test_ready import SECOND, clicks

from penstock.errors import BadInput
from penstock.log.store import LogStore
from penstock.policy import Retry
from penstock.stream.chaining import chain
from penstock.stream.computation import Computation, Policy, computation
from penstock.stream.joins import join
from penstock.stream.operators import SideOutput, filter_values, flat_map, latest, map_values, rekey, running_count
from penstock.stream.topology import Topology
from penstock.stream.windows import Tumbling, windowed_count


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
            (lambda: chain("c", latest("l", "a", "b")), "keeps state"),
            (lambda: chain("c", running_count("l", "a", "b")), "keeps state"),
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
