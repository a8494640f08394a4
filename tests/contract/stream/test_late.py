"""Disorder declared on streams, windows that are kept for late records, and the first of a window by rank."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from tests.contract.stream.shorthand import Row, Run, drained, fill, records, rows, values
from tests.contract.stream.test_ready import SECOND, clicks, simple

from penstock.errors import BadInput
from penstock.log.store import LogStore
from penstock.stream.computation import CONTINUE
from penstock.stream.operators import map_values
from penstock.stream.ranking import windowed_top
from penstock.stream.topology import Topology
from penstock.stream.windows import Session, Sliding, Tumbling, Windowed, windowed_count, windowed_fold

WINDOWS = [Tumbling("10s"), Sliding("10s", "4s"), Session("3s")]


class Bid(msgspec.Struct, frozen=True):
    """A value of a type of its own."""

    price: int
    by: str


def windows_of(window: Any, given: list[Row]) -> dict[Any, list[Row]]:
    """The rows of each key and window, by the definitions; a window goes by key, start and end."""
    found: dict[Any, list[Row]] = defaultdict(list)
    if isinstance(window, Session):
        gap = int(window.gap.removesuffix("s")) * SECOND
        for key in {row[0] for row in given}:
            mine = sorted((row for row in given if row[0] == key), key=lambda row: row[2])
            first = 0
            for rank in range(1, len(mine) + 1):
                if rank == len(mine) or mine[rank][2] - mine[rank - 1][2] > gap:
                    found[key, mine[first][2], mine[rank - 1][2] + gap] = mine[first:rank]
                    first = rank
        return found
    size = int(window.size.removesuffix("s")) * SECOND
    every = int(window.every.removesuffix("s")) * SECOND if isinstance(window, Sliding) else size
    for row in given:
        for start in range(0, row[2] + 1, every):
            if start <= row[2] < start + size:
                found[row[0], start, start + size].append(row)
    return found


class TestDisorder:
    """``out_of_order`` of a stream."""

    def test_readers_of_one_stream_wait_for_the_same_disorder(self, logs: LogStore, runner: Run) -> None:
        given = clicks(150, spread=6)
        topology = Topology("disorder", partitions=2).stream("in", int, out_of_order="8s")
        topology.stream("mapped", int).stream("direct").stream("behind").stream("late", int)
        topology.add(map_values("same", lambda value: value, "in", "mapped"))
        topology.add(windowed_count("direct", "in", "direct", Tumbling("10s"), late="late"))
        topology.add(windowed_count("behind", "mapped", "behind", Tumbling("10s"), late="late"))
        for leg in (given[:50], given[50:100], given[100:]):
            fill(logs, "in", leg, partitions=2)
            drained(runner, topology, final=leg[-1] == given[-1], checkpoint_records=20, read=20)
        expected = {place: len(found) for place, found in windows_of(Tumbling("10s"), given).items()}
        for stream in ("direct", "behind"):
            counted = {(one["key"], one["start"], one["end"]): one["value"] for one in values(logs, stream)}
            assert counted == expected
            assert len(values(logs, stream)) == len(expected), "each window once"
        assert values(logs, "late") == []

    def test_each_input_has_its_own_disorder(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("disorder").stream("in", out_of_order="5s").stream("other", out_of_order="1s").stream("out")
        topology.add(windowed_count("count", "in", "out", Tumbling("10s")))
        topology.add(windowed_count("count-other", "other", "out", Tumbling("10s")))
        for name in ("in", "other"):
            fill(logs, name, [(name, 1, 5 * SECOND), (name, 2, 12 * SECOND)])
        drained(runner, topology, final=False)
        assert [one["key"] for one in values(logs, "out")] == ["other"]

    def test_the_old_option_says_where_disorder_is_declared(self, logs: LogStore, runner: Run) -> None:
        with pytest.raises(BadInput, match="out_of_order"):
            windowed_count("count", "in", "out", Tumbling("10s"), lateness="5s")
        with pytest.raises(BadInput, match="out_of_order of in"):
            Topology("disorder").stream("in", out_of_order="much")


class TestAllowedLateness:
    """A window that has ended takes late records for a while, and its result comes again."""

    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize("seed", range(3))
    def test_the_last_result_of_a_window_has_all_records(
        self, logs: LogStore, runner: Run, window: Any, seed: int
    ) -> None:
        given = clicks(120, spread=9, seed=seed)
        piece = windowed_fold(
            "gather", "in", "out", window, initial=[], fold=lambda held, value: [*held, value],
            merge=lambda one, other: [*one, *other], allowed_lateness="40s", late="late",
        )  # fmt: skip
        topology = simple(piece, ("out", "late"))
        chance = random.Random(seed)
        marks = [0, *sorted(chance.sample(range(120), 3)), 120]
        for first, last in itertools.pairwise(marks):
            fill(logs, "in", given[first:last], partitions=2)
            drained(runner, topology, final=last == 120, checkpoint_records=20, read=chance.choice([5, 20]))
        found = {(one["key"], one["start"], one["end"]): sorted(one["value"]) for one in values(logs, "out")}
        expected = {place: sorted(value for _, value, _ in mine) for place, mine in windows_of(window, given).items()}
        assert {place: found.get(place) for place in expected} == expected
        if not isinstance(window, Session):  # sessions that grew together have told about their parts before
            assert found == expected
        assert values(logs, "late") == []

    def test_a_late_record_changes_the_result_until_it_is_too_late(self, logs: LogStore, runner: Run) -> None:
        piece = windowed_count("count", "in", "out", Tumbling("10s"), allowed_lateness="5s", late="late")
        topology = simple(piece, ("out", "late"))
        for leg in (
            [("a", 1, 5 * SECOND), ("a", 2, 12 * SECOND)],  # the watermark comes to 12 s: the window to 10 s has ended
            [("a", 3, 6 * SECOND)],  # late, and counted
            [("a", 4, 15 * SECOND - 1)],
            [("a", 5, 7 * SECOND)],  # the watermark is a moment before the end of the patience
            [("a", 6, 15 * SECOND)],
            [("a", 7, 8 * SECOND)],  # too late
        ):
            fill(logs, "in", leg, partitions=2)
            drained(runner, topology, final=False)
        told = [(one["start"], one["value"]) for one in values(logs, "out")]
        assert told == [(0, 1), (0, 2), (0, 3)]
        assert rows(logs, "late") == [("a", 7, 8 * SECOND)]

    def test_a_record_that_some_of_its_windows_still_count_is_not_late(self, logs: LogStore, runner: Run) -> None:
        piece = windowed_count("count", "in", "out", Sliding("10s", "5s"), late="late")
        topology = simple(piece, ("out", "late"))
        fill(logs, "in", [("a", 1, 22 * SECOND)], partitions=2)  # the windows to 15 s and 20 s have ended
        drained(runner, topology, final=False)
        fill(logs, "in", [("a", 2, 18 * SECOND), ("a", 3, 13 * SECOND)], partitions=2)
        drained(runner, topology, final=True)
        assert {one["start"]: one["value"] for one in values(logs, "out")} == {15 * SECOND: 2, 20 * SECOND: 1}
        assert rows(logs, "late") == [("a", 3, 13 * SECOND)]

    def test_results_that_come_again_are_not_late_to_those_who_read_them(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("late").stream("in", int).stream("counts").stream("out").stream("late")
        topology.add(windowed_count("count", "in", "counts", Tumbling("10s"), allowed_lateness="20s"))
        topology.add(windowed_count("again", "counts", "out", Tumbling("10s"), late="late"))
        for leg in ([("a", 1, 5 * SECOND), ("a", 2, 25 * SECOND)], [("a", 3, 6 * SECOND)], [("a", 4, 60 * SECOND)]):
            fill(logs, "in", leg)
            drained(runner, topology, final=leg[0][1] == 4)
        assert values(logs, "late") == []
        assert {one["start"]: one["value"] for one in values(logs, "out")}[0] == 2, "the first result and the second"

    def test_bad_patience(self, logs: LogStore, runner: Run) -> None:
        with pytest.raises(BadInput, match="allowed_lateness"):
            windowed_count("count", "in", "out", Tumbling("10s"), allowed_lateness="some")


class TestTop:
    """``windowed_top``."""

    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize("ties", ["cut", "keep"])
    def test_the_first_of_every_window(self, logs: LogStore, runner: Run, window: Any, ties: Any) -> None:
        given = [(key, {"id": value, "score": value % 5}, at) for key, value, at in clicks(150)]
        fill(logs, "in", given, partitions=2)
        piece = windowed_top("top", "in", "out", window, 3, by=lambda value: value["score"], ties=ties)
        drained(runner, simple(piece), checkpoint_records=20, read=20)
        expected = []
        for (key, start, end), mine in windows_of(window, given).items():
            ranked = sorted(mine, key=lambda row: (-row[1]["score"], row[2], msgspec.json.encode(row[1])))
            least = ranked[min(3, len(ranked)) - 1][1]["score"]
            first = [
                value
                for rank, (_, value, _) in enumerate(ranked)
                if rank < 3 or (ties == "keep" and value["score"] == least)
            ]
            expected.append((key, {"key": key, "start": start, "end": end, "value": first}, end - 1))
        assert rows(logs, "out") == sorted(expected, key=repr)
        assert any(len(value["value"]) > 3 for _, value, _ in expected) == (ties == "keep")

    def test_the_busiest_of_all_keys_in_two_steps(self, logs: LogStore, runner: Run) -> None:
        given = clicks(200, keys=8)
        fill(logs, "in", given, partitions=3)
        topology = Topology("top", partitions=3).stream("in", int).stream("counts", list).stream("out")
        hour = Tumbling("20s")
        topology.add(
            windowed_count("count", "in", "counts", hour, key=lambda _: "all", result=lambda one: [one.value, one.key])
        )
        topology.add(windowed_top("top", "counts", "out", hour, 2, by=lambda pair: (pair[0], pair[1])))
        drained(runner, topology)
        counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for key, _, at in given:
            counts[at - at % (20 * SECOND)][str(key)] += 1
        expected = {
            start: sorted(([count, key] for key, count in keys.items()), reverse=True)[:2]
            for start, keys in counts.items()
        }
        assert {one["start"]: one["value"] for one in values(logs, "out")} == expected

    def test_values_keep_their_type(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("top").stream("in", Bid).stream("out", Windowed[list[Bid]])
        topology.add(windowed_top("top", "in", "out", Tumbling("10s"), 2, by=lambda bid: bid.price))
        fill(logs, "in", [("a", Bid(number, f"b{number}"), number + 1) for number in (3, 9, 5)])
        drained(runner, topology)
        [record] = records(logs, "out", Windowed[list[Bid]])
        assert record.value.value == [Bid(9, "b9"), Bid(5, "b5")]

    @pytest.mark.parametrize(
        "given", [{"n": 0}, {"n": True}, {"n": "3"}, {"n": 3, "ties": "all"}, {"n": 3, "by": "price"}]
    )
    def test_bad_input(self, logs: LogStore, runner: Run, given: dict[str, Any]) -> None:
        with pytest.raises(BadInput):
            windowed_top("top", "in", "out", Tumbling("10s"), **given)

    @pytest.mark.parametrize("score", [None, float("nan"), {"a": 1}])
    def test_what_has_no_rank_fails_by_the_policy(self, logs: LogStore, runner: Run, score: Any) -> None:
        fill(logs, "in", [("a", 1, SECOND), ("a", 2, 2 * SECOND)], partitions=2)
        piece = windowed_top("top", "in", "out", Tumbling("10s"), 2, by=lambda value: score if value == 1 else value)
        piece.policy = CONTINUE
        drained(runner, simple(piece))
        assert [one["value"] for one in values(logs, "out")] == [[2]]
        assert len(records(logs, "top.dead", bytes)) == 1
