"""Windows whose results have a key and a value of the user's choice, against plain Python."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, records, rows, values
from tests.contract.stream.test_ready import SECOND, clicks, simple

from penstock.errors import BadInput
from penstock.log.store import LogStore
from penstock.stream.computation import CONTINUE
from penstock.stream.topology import Topology
from penstock.stream.windows import (
    Session,
    Sliding,
    Tumbling,
    Windowed,
    windowed_count,
    windowed_fold,
    windowed_sum,
)


def added(held: list[int], value: int) -> list[int]:
    return [sum(held) + value]


class TestResults:
    """``key=`` and ``result=``."""

    @pytest.mark.parametrize("window", [Tumbling("10s"), Sliding("10s", "5s"), Session("3s")])
    def test_a_window_gives_the_key_and_the_value_it_is_asked_for(
        self, logs: LogStore, runner: Run, window: Any
    ) -> None:
        fill(logs, "in", clicks(100), partitions=2)
        topology = Topology("results", partitions=2).stream("in", int).stream("plain", Windowed[int]).stream("out")
        topology.add(windowed_sum("plain", "in", "plain", window))
        topology.add(
            windowed_sum(
                "shaped", "in", "out", window,
                key=lambda window: f"at {window.start // SECOND}",
                result=lambda window: [window.key, window.end - window.start, window.value],
            )
        )  # fmt: skip
        drained(runner, topology)
        expected = [
            (f"at {one['start'] // SECOND}", [key, one["end"] - one["start"], one["value"]], at)
            for key, one, at in rows(logs, "plain")
        ]
        assert expected
        assert rows(logs, "out") == sorted(expected, key=repr)

    def test_windows_meet_by_their_key_without_a_step_between(self, logs: LogStore, runner: Run) -> None:
        """Counts per key and window, then the busiest key of each window: two steps."""
        given = clicks(200)
        fill(logs, "in", given, partitions=2)
        topology = Topology("results", partitions=2).stream("in", int).stream("counts").stream("out")
        window = Tumbling("10s")
        topology.add(
            windowed_count(
                "count", "in", "counts", window, key=lambda _: "all", result=lambda window: [window.value, window.key]
            )
        )
        topology.add(
            windowed_sum("all", "counts", "out", window, of=lambda pair: pair[0], result=lambda window: window.value)
        )
        drained(runner, topology)
        expected: dict[int, int] = defaultdict(int)
        for _, _, at in given:
            expected[at // (10 * SECOND)] += 1
        assert sorted(values(logs, "out")) == sorted(expected.values())

    def test_a_result_without_a_key_goes_to_every_partition_in_turn(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", clicks(60), partitions=2)
        drained(runner, simple(windowed_count("count", "in", "out", Tumbling("5s"), key=lambda _: None)))
        assert {key for key, _, _ in rows(logs, "out")} == {None}

    @pytest.mark.parametrize("final", [False, True])
    def test_a_result_that_changes_its_value_beside_one_that_fails(
        self, logs: LogStore, runner: Run, final: bool
    ) -> None:
        """A window whose result takes something out of its value has it again for another attempt."""

        def emptied(window: Windowed[Any]) -> Any:
            if window.key == "k1":
                raise ValueError("not this one")
            return window.value.pop()

        fill(logs, "in", [*((f"k{number % 3}", number, SECOND) for number in range(150)), ("k0", 0, 60 * SECOND)])
        topology = Topology("results").stream("in", int).stream("out")
        step = windowed_fold("all", "in", "out", Tumbling("10s"), initial=[], fold=added, result=emptied)
        drained(runner, topology.add(step, policy=CONTINUE), final=final)
        wanted = [(f"k{key}", sum(range(key, 150, 3)), 10 * SECOND - 1) for key in (0, 2)]
        assert [row for row in rows(logs, "out") if row[2] < 60 * SECOND] == wanted
        assert [one.key for one in records(logs, "all.dead", bytes)] == ["k1"]

    @pytest.mark.parametrize("given", [{"key": "user"}, {"result": 3}])
    def test_what_is_not_a_function_is_refused(self, logs: LogStore, runner: Run, given: dict[str, Any]) -> None:
        with pytest.raises(BadInput, match="which is not a function"):
            windowed_count("count", "in", "out", Tumbling("5s"), **given)
