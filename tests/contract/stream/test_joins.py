"""The joins against plain Python, over random records of several partitions, with restarts in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.contract.stream.shorthand import Row, Run, drained, fill, rows, values
from tests.contract.stream.test_ready import SECOND, clicks

from penstock.errors import BadInput, PenstockError
from penstock.log.store import LogStore
from penstock.stream.engine.task import Task
from penstock.stream.internal_logs import restore_task
from penstock.stream.joins import join, regular_join, table_join, window_join
from penstock.stream.topology import Topology
from penstock.stream.validate import ResolvedTopology
from penstock.stream.windows import Session, Sliding, Tumbling

HOWS = ["inner", "left", "right", "outer"]


def joined(logs: LogStore, runner: Run, join: Any, left: list[Row], right: list[Row], legs: int = 3) -> None:
    """Run a join over two inputs, stopped and started again in between; both come in the order of their times."""
    topology = Topology("joins", partitions=3)
    for name in ("left", "right", "out", *join.outputs[1:]):
        topology.stream(name)
    topology.add(join, concurrency=2)
    chance = random.Random(len(left))
    marks = sorted(chance.sample([at for _, _, at in (*left, *right)], legs - 1))
    spans = list(zip([0, *marks], [*marks, 10**15], strict=True))
    for number, (first, last) in enumerate(spans):
        for name, given in (("left", left), ("right", right)):
            fill(logs, name, [row for row in given if first <= row[2] < last], partitions=3)
        drained(runner, topology, final=number == len(spans) - 1, checkpoint_records=chance.choice([5, 20, 1000]))


def unmatched(how: str, lefts: list[Any], rights: list[Any]) -> list[list[Any]]:
    """What comes alone, of records that have no partner."""
    alone = [[left, None] for left in lefts] if how in ("left", "outer") else []
    return alone + ([[None, right] for right in rights] if how in ("right", "outer") else [])


class TestJoin:
    """Pairs within a span of time."""

    @pytest.mark.parametrize("how", HOWS)
    @pytest.mark.parametrize(
        ("given", "first", "last"),
        [
            ({"within": "3s"}, -3, 3),
            ({"before": "1s", "after": "4s"}, -1, 4),
            ({"before": "-1s", "after": "4s"}, 1, 4),
            ({"before": timedelta(seconds=4), "after": timedelta(seconds=-2)}, -4, -2),
            ({"after": "2s"}, 0, 2),
        ],
    )
    def test_pairs_within_the_span(
        self, logs: LogStore, runner: Run, how: Any, given: dict[str, Any], first: int, last: int
    ) -> None:
        left, right = clicks(60, seed=2), clicks(60, seed=3)
        joined(logs, runner, join("pairs", "left", "right", "out", how=how, **given), left, right)

        def partners(one: Row, other: Row) -> bool:
            return one[0] == other[0] and first * SECOND <= other[2] - one[2] <= last * SECOND

        expected = [
            (one[0], [one[1], other[1]], max(one[2], other[2]))
            for one in left
            for other in right
            if partners(one, other)
        ]
        assert expected
        if how in ("left", "outer"):
            alone = [one for one in left if not any(partners(one, other) for other in right)]
            expected += [(key, [value, None], at) for key, value, at in alone]
        if how in ("right", "outer"):
            alone = [other for other in right if not any(partners(one, other) for one in left)]
            expected += [(key, [None, value], at) for key, value, at in alone]
        assert rows(logs, "out") == sorted(expected, key=repr)

    def test_both_ends_of_the_span_count(self, logs: LogStore, runner: Run) -> None:
        right = [("a", at, at) for at in (6_999_999, 7_000_000, 12_000_000, 12_000_001)]
        piece = join("pairs", "left", "right", "out", before="3s", after="2s")
        joined(logs, runner, piece, [("a", 0, 10 * SECOND)], right, legs=1)
        assert sorted(values(logs, "out")) == [[0, 7_000_000], [0, 12_000_000]]

    def test_key_and_joiner_see_both_sides(self, logs: LogStore, runner: Run) -> None:
        piece = join(
            "pairs", "left", "right", "out", within="1s", how="left",
            key=lambda left, right: f"{left}-{right}", joiner=lambda left, right: {"sum": left + (right or 0)},
        )  # fmt: skip
        left = [("a", 1, 10 * SECOND), ("b", 2, 11 * SECOND)]
        joined(logs, runner, piece, left, [("a", 5, 10 * SECOND)], legs=1)
        assert rows(logs, "out") == [("1-5", {"sum": 6}, 10 * SECOND), ("2-None", {"sum": 2}, 11 * SECOND)]


class TestWindowJoin:
    """Pairs in the same window."""

    @pytest.mark.parametrize("how", HOWS)
    @pytest.mark.parametrize("window", [Tumbling("5s"), Sliding("6s", "2s"), Sliding("2s", "5s")])
    def test_pairs_in_the_same_window(self, logs: LogStore, runner: Run, how: Any, window: Any) -> None:
        left, right = clicks(60, seed=4), clicks(60, seed=5)
        joined(logs, runner, window_join("pairs", "left", "right", "out", window, how=how), left, right)
        size = int(window.size.removesuffix("s")) * SECOND
        every = int(window.every.removesuffix("s")) * SECOND if isinstance(window, Sliding) else size
        expected: list[Any] = []
        last = max(at for _, _, at in (*left, *right))
        for key in {row[0] for row in (*left, *right)}:
            for start in range(0, last + 1, every):
                lefts = [value for owner, value, at in left if owner == key and start <= at < start + size]
                rights = [value for owner, value, at in right if owner == key and start <= at < start + size]
                pairs = [[one, other] for one in lefts for other in rights]
                pairs = pairs or unmatched(how, lefts, rights)
                expected += [
                    (key, {"key": key, "start": start, "end": start + size, "value": pair}, start + size - 1)
                    for pair in pairs
                ]
        assert expected
        assert rows(logs, "out") == sorted(expected, key=repr)

    @pytest.mark.parametrize("how", HOWS)
    def test_pairs_in_the_same_session(self, logs: LogStore, runner: Run, how: Any) -> None:
        left, right = clicks(60, seed=6), clicks(60, seed=7)
        gap = 3 * SECOND
        piece = window_join(
            "pairs", "left", "right", "out", Session("3s"), how=how,
            joiner=lambda left, right, window: [left, right, window.start, window.end],
        )  # fmt: skip
        joined(logs, runner, piece, left, right)
        expected: list[Any] = []
        for key in {row[0] for row in (*left, *right)}:
            mine = sorted((row[2], side, row[1]) for side, given in enumerate((left, right)) for row in given
                          if row[0] == key)  # fmt: skip
            sessions: list[list[Any]] = []
            for one in mine:
                if sessions and one[0] - sessions[-1][-1][0] <= gap:
                    sessions[-1].append(one)
                else:
                    sessions.append([one])
            for session in sessions:
                lefts, rights = ([value for _, side, value in session if side == wanted] for wanted in (0, 1))
                pairs = [[one, other] for one in lefts for other in rights] or unmatched(how, lefts, rights)
                start, end = session[0][0], session[-1][0] + gap
                expected += [(key, [*pair, start, end], end - 1) for pair in pairs]
        assert expected
        assert rows(logs, "out") == sorted(expected, key=repr)

    def test_a_record_of_a_window_that_has_ended_is_late(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("joins").stream("left").stream("right").stream("out").stream("late")
        topology.add(window_join("pairs", "left", "right", "out", Tumbling("10s"), late="late"))
        fill(logs, "left", [("a", 1, 5 * SECOND), ("a", 2, 25 * SECOND)])
        fill(logs, "right", [("a", 3, 6 * SECOND), ("a", 4, 25 * SECOND)])
        drained(runner, topology, final=False)
        fill(logs, "right", [("a", 5, 7 * SECOND)])
        drained(runner, topology)
        assert [one["value"] for one in values(logs, "out")] == [[1, 3], [2, 4]]
        assert rows(logs, "late") == [("a", 5, 7 * SECOND)]


class TestTableJoin:
    """The value that a key had at the time of a record."""

    @pytest.mark.parametrize("how", ["inner", "left"])
    def test_every_record_meets_the_value_of_its_time(self, logs: LogStore, runner: Run, how: Any) -> None:
        left, right = clicks(120, seed=8), clicks(40, seed=9)
        right = [(key, None if value % 7 == 0 else value, at) for key, value, at in right]
        joined(logs, runner, table_join("named", "left", "right", "out", how=how), left, right, legs=4)
        expected = []
        for key, value, at in left:
            known = [row for owner, row, since in right if owner == key and since <= at]
            row = known[-1] if known else None
            if row is not None or how == "left":
                expected.append((key, [value, row], at))
        assert any(row is not None for _, (_, row), _ in expected)
        assert rows(logs, "out") == sorted(expected, key=repr)

    @pytest.mark.parametrize("first", ["left", "right"])
    def test_it_does_not_matter_which_side_is_read_first(self, logs: LogStore, runner: Run, first: str) -> None:
        topology = Topology("joins").stream("left").stream("right").stream("out")
        topology.add(table_join("named", "left", "right", "out", how="left"))
        sides = {
            "left": [("a", 1, 10), ("a", 2, 20), ("a", 3, 30)],
            "right": [("a", "old", 10), ("a", "new", 20), ("a", "newest", 40)],
        }
        for name in sides:
            logs.create(name)
        for name in (first, *(name for name in sides if name != first)):
            fill(logs, name, sides[name])
            drained(runner, topology, final=False)
        drained(runner, topology)
        assert values(logs, "out") == [[1, "old"], [2, "new"], [3, "new"]]

    def test_old_values_are_there_for_late_records_as_long_as_allowed(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("joins").stream("left").stream("right").stream("out").stream("late")
        topology.add(table_join("named", "left", "right", "out", allowed_lateness="20s", late="late"))
        fill(logs, "left", [("a", 0, 50 * SECOND)])
        fill(logs, "right", [("a", second, second * SECOND) for second in (10, 30, 40, 50)])
        drained(runner, topology, final=False)  # the watermark is at 50 s
        fill(logs, "left", [("a", 1, 29 * SECOND), ("a", 2, 30 * SECOND), ("a", 3, 39 * SECOND)])
        drained(runner, topology)
        assert sorted(values(logs, "out")) == [[0, 50], [2, 30], [3, 30]]
        assert rows(logs, "late") == [("a", 1, 29 * SECOND)]

    def test_only_the_values_that_can_be_asked_for_are_stored(self, logs: LogStore, runner: Run) -> None:
        """Ten thousand versions of a key, and the state holds one of them."""
        topology = Topology("joins").stream("left").stream("right").stream("out")
        topology.add(table_join("named", "left", "right", "out"))
        fill(logs, "right", [("a", number, number * SECOND) for number in range(1, 10_001)])
        fill(logs, "left", [("a", 1, 10_001 * SECOND)])
        drained(runner, topology)
        fill(logs, "left", [("a", 2, 10_002 * SECOND)])
        drained(runner, topology)
        assert values(logs, "out") == [[1, 10_000], [2, 10_000]]
        resolved = ResolvedTopology(topology, logs)
        node = topology.nodes["named"]
        task = Task(resolved.computation(logs, node), 0, logs.now)
        restore_task(logs, task, node)
        assert {name: cell.entry_count() for name, cell in task.cells.items()} == {"left": 0, "versions": 1}


class TestRegularJoin:
    """All pairs of a key, without a bound of time."""

    def test_all_pairs_of_a_key(self, logs: LogStore, runner: Run) -> None:
        left, right = clicks(50, seed=10), clicks(50, seed=11)
        joined(logs, runner, regular_join("pairs", "left", "right", "out"), left, right)
        expected = [
            (one[0], [one[1], other[1]], max(one[2], other[2])) for one in left for other in right if one[0] == other[0]
        ]
        assert rows(logs, "out") == sorted(expected, key=repr)


class TestBadJoins:
    """What is refused before anything runs."""

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: join("m", "a", "b", "c"), "one span of time"),
            (lambda: join("m", "a", "b", "c", within="1s", after="1s"), "one span of time"),
            (lambda: join("m", "a", "b", "c", before="-5s", after="2s"), "can never meet"),
            (lambda: join("m", "a", "b", "c", before="1s", after="-2s"), "can never meet"),
            (lambda: join("m", "a", "b", "c", within="soon"), "not a duration"),
            (lambda: join("m", "a", "b", "c", before=""), "not a duration"),
            (lambda: join("m", "a", "b", "c", within=5), "bare int"),  # type: ignore[arg-type]
            (lambda: join("m", "a", "a", "c", within="1s"), "with itself"),
            (lambda: join("m", "a", "b", "a", within="1s"), "reads a and writes it"),
            (lambda: window_join("m", "a", "b", "c", "1h"), "as window"),  # type: ignore[arg-type]
            (lambda: window_join("m", "a", "b", "c", Tumbling("0s")), "is empty"),
            (lambda: table_join("m", "a", "b", "c", how="right"), "how='right'"),  # type: ignore[arg-type]
            (lambda: regular_join("m", "a", "b", "c", how="left"), "how='left'"),  # type: ignore[arg-type]
            (lambda: regular_join("m", "a", "b", "c", ttl="later"), "not a duration"),
            (lambda: table_join("m", "a", "b", "c", joiner="both"), "not a function"),  # type: ignore[arg-type]
        ],
    )
    def test_a_join_that_cannot_work_is_refused(self, make: Callable[[], Any], says: str) -> None:
        with pytest.raises(BadInput, match=says):
            make()

    def test_sides_of_other_partitions_are_refused_with_the_topology(self) -> None:
        topology = Topology("joins").stream("a", partitions=2).stream("b", partitions=3).stream("c")
        topology.add(regular_join("m", "a", "b", "c"))
        with pytest.raises(PenstockError, match="can never meet"):
            topology.check()
