"""The ready-made pieces against plain Python, over random records."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from tests.contract.stream.shorthand import Row, Run, drained, fill, numbers, records, rows, values

from penstock import versioned
from penstock.errors import BadInput
from penstock.log.store import LogStore
from penstock.stream import operators
from penstock.stream.joins import join
from penstock.stream.operators import running_count, running_fold, running_max, running_min, running_sum
from penstock.stream.topology import Topology
from penstock.stream.windows import (
    Session,
    Sliding,
    Tumbling,
    Windowed,
    windowed_count,
    windowed_fold,
    windowed_max,
    windowed_min,
    windowed_sum,
)

SECOND = 1_000_000


class Page(msgspec.Struct, frozen=True):
    """A value with a type of its own."""

    number: int = 0


def in_cents(old: dict[str, Any]) -> dict[str, Any]:
    return {"cents": old.get("euros", 0) * 100}


@versioned(in_cents)
class Spent(msgspec.Struct, frozen=True):
    """A value whose shape has changed."""

    cents: int = 0


class Visit(msgspec.Struct, frozen=True):
    """A value with such a value in it."""

    count: int = 0
    last: Page = Page()


def clicks(count: int = 300, keys: int = 4, spread: int = 0, seed: int = 1) -> list[Row]:
    """Random rows in rising time, with ``spread`` seconds of disorder."""
    rng = random.Random(seed)
    at = 100 * SECOND
    found: list[Row] = []
    for number in range(count):
        at += rng.randint(0, 2 * SECOND)
        found.append((f"k{rng.randrange(keys)}", number, at - rng.randint(0, spread) * SECOND if spread else at))
    return found


def simple(piece: Any, to: tuple[str, ...] = ("out",), out_of_order: str = "0s") -> Topology:
    topology = Topology("ready", partitions=2).stream("in", out_of_order=out_of_order)
    for name in to:
        topology.stream(name)
    return topology.add(piece, concurrency=2)


class TestPieces:
    """Map, filter, flat_map, rekey, deduplicate, rate_limit, latest."""

    def test_map_filter_flat_map(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(30), partitions=2)
        topology = Topology("ready", partitions=2)
        for name in ("in", "doubled", "large", "small", "out"):
            topology.stream(name, int)
        topology.add(operators.map_values("double", lambda value: value * 2, "in", "doubled"))
        topology.add(operators.filter_values("large", lambda value: value > 20, "doubled", "large", otherwise="small"))
        topology.add(operators.flat_map("twice", lambda value: [value, -value], "large", "out"))
        drained(runner, topology)
        large = [number * 2 for number in range(30) if number * 2 > 20]
        assert sorted(values(logs, "out")) == sorted([*large, *(-one for one in large)])
        assert sorted(values(logs, "small")) == [number * 2 for number in range(30) if number * 2 <= 20]

    def test_rekey(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(20), partitions=2)
        drained(runner, simple(operators.rekey("rekey", lambda value: f"n{value % 3}", "in", "out")))
        assert {key for key, _, _ in rows(logs, "out")} == {"n0", "n1", "n2"}
        assert all(key == f"n{value % 3}" for key, value, _ in rows(logs, "out"))

    def test_deduplicate(self, logs: LogStore, runner: Run) -> None:
        given = [("a", "x", 1), ("a", "x", 2), ("b", "x", 3), ("a", "y", 4), ("a", "x", 1 + SECOND), ("a", "x", 5)]
        given.append(("a", "x", 2 + 2 * SECOND))
        fill(logs, "in", given, partitions=2)
        drained(runner, simple(operators.deduplicate("once", "in", "out", within="1s")), final=False)
        assert rows(logs, "out") == sorted(
            [("a", "x", 1), ("b", "x", 3), ("a", "y", 4), ("a", "x", 2 + 2 * SECOND)], key=repr
        )

    def test_rate_limit(self, logs: LogStore, runner: Run) -> None:
        given = clicks(200)
        fill(logs, "in", given, partitions=2)
        drained(runner, simple(operators.rate_limit("slow", "in", "out", "3/10s", over="over"), ("out", "over")))
        used: dict[Any, int] = defaultdict(int)
        kept: list[Row] = []
        over: list[Row] = []
        for key, value, at in given:
            used[key, at // (10 * SECOND)] += 1
            (kept if used[key, at // (10 * SECOND)] <= 3 else over).append((key, value, at))
        assert rows(logs, "out") == sorted(kept, key=repr)
        assert rows(logs, "over") == sorted(over, key=repr)
        assert over

    def test_latest(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("a", 1, 10), ("a", 2, 30), ("a", 3, 20), ("a", 4, 30)], partitions=2)
        drained(runner, simple(operators.latest("newest", "in", "out")))
        assert values(logs, "out") == [1, 2, 4]

    def test_bad_input(self, logs: LogStore, runner: Run) -> None:
        for make in (
            lambda: operators.map_values("m", str, "in", "out", inputs="x"),
            lambda: operators.rate_limit("m", "in", "out", "none"),
            lambda: operators.rate_limit("m", "in", "out", "often"),
            lambda: operators.deduplicate("m", "in", "out", within="soon"),
            lambda: windowed_count("m", "in", "out", Tumbling("0s")),
            lambda: windowed_count("m", "in", "out", "1h"),  # type: ignore[arg-type]
            lambda: windowed_fold("m", "in", "out", Session("1s"), initial=0, fold=max),
            lambda: join("m", "in", "in", "out", within="1s", joiner=max),
            lambda: join("m", "in", "in2", "out", within="1s", how="full"),  # type: ignore[arg-type]
            lambda: join("m", "in", "in2", "out", within="1s", joiner=max, windows=1),
        ):
            with pytest.raises(BadInput):
                make()

    def test_arguments_in_the_wrong_order_are_told(self, logs: LogStore, runner: Run) -> None:
        def big(value: Any) -> bool:
            return bool(value > 1)

        hour: Any = Tumbling("1h")
        made: Any = operators
        for make, piece, argument in (
            (lambda: made.map_values("m", "in", "out", big), "map_values(name, function, source, to", "function"),
            (lambda: made.filter_values("m", "in", big, "out"), "filter_values(name, function, source, to", "function"),
            (lambda: made.filter_values(big, "m", "in", "out"), "filter_values(name, function, source, to", "name"),
            (
                lambda: made.filter_values("m", big, "in", "out", otherwise=big),
                "filter_values(name, function, source, to",
                "otherwise",
            ),
            (lambda: made.flat_map("m", "in", "out", big), "flat_map(name, function, source, to", "function"),
            (lambda: made.rekey("m", "in", "out", big), "rekey(name, function, source, to", "function"),
            (lambda: made.deduplicate("m", big, "in", within="1h"), "deduplicate(name, source, to", "source"),
            (lambda: made.deduplicate("m", "in", "out", within="1h", by="id"), "deduplicate(name, source, to", "by"),
            (lambda: made.rate_limit("m", "10/m", "in", "out"), "rate_limit(name, source, to, rate", "source"),
            (lambda: made.latest("m", "in", big), "latest(name, source, to", "to"),
            (
                lambda: windowed_count("m", hour, "in", "out"),  # type: ignore[arg-type]
                "windowed_count(name, source, to, window",
                "source",
            ),
            (
                lambda: windowed_sum("m", "in", "out", hour, of="amount"),  # type: ignore[arg-type]
                "windowed_sum(name, source, to, window",
                "of",
            ),
            (
                lambda: windowed_min("m", "in", hour, "out"),  # type: ignore[arg-type]
                "windowed_min(name, source, to, window",
                "to",
            ),
            (
                lambda: windowed_max("m", big, "in", "out"),  # type: ignore[arg-type]
                "windowed_max(name, source, to, window",
                "source",
            ),
            (
                lambda: windowed_fold("m", "in", "out", hour, initial=0, fold=0),  # type: ignore[arg-type]
                "windowed_fold(name, source, to, window",
                "fold",
            ),
            (lambda: running_count("m", big, "in"), "running_count(name, source, to", "source"),  # type: ignore[arg-type]
            (lambda: running_sum("m", "in", big), "running_sum(name, source, to", "to"),  # type: ignore[arg-type]
            (
                lambda: join("m", "in", big, "out", within="1s", joiner=max),  # type: ignore[arg-type]
                "join(name, left, right, to",
                "right",
            ),
            (
                lambda: join("m", "in", "in2", "out", within="1s", joiner="both"),  # type: ignore[arg-type]
                "join(name, left, right, to",
                "joiner",
            ),
        ):
            with pytest.raises(BadInput) as told:
                make()
            assert told.value.message.startswith(piece.partition("(")[0] + " "), told.value
            assert f" as {argument}, which is not" in told.value.message
            assert piece in str(told.value.hint)


class TestTotals:
    """Counts, sums, least and greatest, per key and per window."""

    def test_running(self, logs: LogStore, runner: Run) -> None:
        given = clicks(120)
        fill(logs, "in", given[:70], partitions=2)
        drained(runner, self.running(), final=False)
        fill(logs, "in", given[70:], partitions=2)
        drained(runner, self.running())
        kinds: dict[str, Any] = {"counts": len, "sums": sum, "least": min, "most": max, "texts": "".join}
        for name, make in kinds.items():
            wanted = {
                key: make([str(one) if name == "texts" else one for owner, one, _ in given if owner == key])
                for key in {key for key, _, _ in given}
            }
            times = {key: at for key, _, at in given}
            told = records(logs, name)
            assert {one.key: one.value for one in told} == wanted, "the last one of each counts"
            assert {one.key: one.time_us for one in told} == times
            assert len(told) < len(given), "not one for every record"

    @staticmethod
    def running() -> Topology:
        topology = Topology("ready", partitions=2)
        for name in ("in", "counts", "sums", "least", "most", "texts"):
            topology.stream(name)
        topology.add(running_count("count", "in", "counts"))
        topology.add(running_sum("sum", "in", "sums"))
        topology.add(running_min("min", "in", "least"))
        topology.add(running_max("max", "in", "most"))
        return topology.add(
            running_fold("text", "in", "texts", initial="", fold=lambda text, value: text + str(value))
        )  # fmt: skip

    def test_totals_of_a_type_with_versions_say_theirs(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(150, keys=3))
        topology = Topology("ready").stream("in", int).stream("out", Spent)
        fold = running_fold(
            "spend", "in", "out", initial=Spent(), accumulator=Spent, fold=lambda held, more: Spent(held.cents + more)
        )  # fmt: skip
        drained(runner, topology.add(fold))
        told = {one.key: one.value for one in records(logs, "out", Spent)}
        assert told == {f"k{key}": Spent(sum(range(key, 150, 3))) for key in range(3)}

    @pytest.mark.parametrize("window", [Tumbling("10s"), Sliding("10s", "5s"), Session("3s")])
    def test_windowed(self, logs: LogStore, runner: Run, window: Any) -> None:
        given = [(key, {"price": value % 17}, at) for key, value, at in clicks(60)]
        fill(logs, "in", given, partitions=2)
        topology = Topology("ready", partitions=2)
        for name in ("in", "all", "sums", "least", "most"):
            topology.stream(name)
        topology.add(windowed_fold("all", "in", "all", window, initial=[], fold=gather, merge=lambda a, b: a + b))
        topology.add(windowed_sum("sum", "in", "sums", window, of=price))
        topology.add(windowed_min("min", "in", "least", window, of=price))
        topology.add(windowed_max("max", "in", "most", window, of=price))
        drained(runner, topology)
        lists = rows(logs, "all")
        assert len(lists) > 10
        for name, make in (("sums", sum), ("least", min), ("most", max)):
            wanted = [(key, {**one, "value": make(one["value"])}, at) for key, one, at in lists]
            assert rows(logs, name) == sorted(wanted, key=repr)


def price(value: Any) -> int:
    return int(value["price"])


def gather(held: list[int], value: Any) -> list[int]:
    return [*held, price(value)]


class TestWindows:
    """Counts and folds; records out of order as far as declared change nothing."""

    @pytest.mark.parametrize("spread", [0, 5])
    def test_tumbling_counts(self, logs: LogStore, runner: Run, spread: int) -> None:
        given = clicks(spread=spread)
        fill(logs, "in", given, partitions=2)
        window = Tumbling("10s")
        drained(
            runner,
            simple(windowed_count("counts", "in", "out", window), out_of_order="8s"),
            checkpoint_records=40,
            read=40,
        )
        expected: dict[Any, int] = defaultdict(int)
        for key, _, at in given:
            expected[key, at - at % (10 * SECOND)] += 1
        found = {(one["key"], one["start"]): one["value"] for one in values(logs, "out")}
        assert found == expected
        assert len(values(logs, "out")) == len(expected), "each window once"

    def test_sliding_folds(self, logs: LogStore, runner: Run) -> None:
        given = clicks(150)
        fill(logs, "in", given, partitions=2)
        piece = windowed_fold("sums", "in", "out", Sliding("10s", every="5s"), initial=0, fold=lambda a, b: a + b)
        drained(runner, simple(piece))
        expected: dict[Any, int] = defaultdict(int)
        for key, value, at in given:
            for start in range((at // (5 * SECOND) - 1) * 5 * SECOND, at + 1, 5 * SECOND):
                assert start <= at < start + 10 * SECOND
                expected[key, start] += value
        assert {(one["key"], one["start"]): one["value"] for one in values(logs, "out")} == expected

    @pytest.mark.parametrize("spread", [0, 6])
    def test_sessions(self, logs: LogStore, runner: Run, spread: int) -> None:
        given = clicks(200, spread=spread)
        fill(logs, "in", given, partitions=2)
        piece = windowed_fold(
            "visits", "in", "out", Session("5s"), initial=[], fold=lambda held, value: [*held, value],
            merge=lambda one, other: [*one, *other],
        )  # fmt: skip
        drained(runner, simple(piece, out_of_order="10s"), checkpoint_records=30, read=30)
        expected = set()
        for chosen in {key for key, _, _ in given}:
            times = sorted((at, value) for key, value, at in given if key == chosen)
            begin = [0] + [rank for rank in range(1, len(times)) if times[rank][0] - times[rank - 1][0] > 5 * SECOND]
            for first, last in zip(begin, [*begin[1:], len(times)], strict=True):
                part = times[first:last]
                ids = tuple(sorted(value for _, value in part))
                expected.add((chosen, part[0][0], part[-1][0] + 5 * SECOND, ids))
        found = [(one["key"], one["start"], one["end"], tuple(sorted(one["value"]))) for one in values(logs, "out")]
        assert set(found) == expected
        assert len(found) == len(expected)

    def test_late_records_go_where_they_are_told(self, logs: LogStore, runner: Run) -> None:
        topology = simple(windowed_count("counts", "in", "out", Tumbling("10s"), late="late"), ("out", "late"))
        fill(logs, "in", [("a", 1, 5 * SECOND), ("a", 2, 25 * SECOND)], partitions=2)
        drained(runner, topology, final=False)
        fill(logs, "in", [("a", 3, 6 * SECOND), ("a", 4, 26 * SECOND), ("a", 5, 21 * SECOND)])
        drained(runner, topology)
        assert rows(logs, "late") == [("a", 3, 6 * SECOND)]
        assert [(one["start"], one["value"]) for one in values(logs, "out")] == [(0, 1), (20 * SECOND, 3)]

    @pytest.mark.parametrize("window", [Tumbling("10s"), Sliding("10s", "5s"), Session("10s")])
    def test_an_accumulator_keeps_its_type(self, logs: LogStore, runner: Run, window: Any) -> None:
        def visit(count: int, last: int) -> Visit:
            return Visit(count, Page(last))

        def fold(visited: Visit, page: int) -> Visit:
            return visit(visited.count + 1, max(visited.last.number, page))

        def merge(one: Visit, other: Visit) -> Visit:
            return visit(one.count + other.count, max(one.last.number, other.last.number))

        topology = Topology("typed", partitions=1).stream("in", int).stream("out", Windowed[Visit])
        topology.add(
            windowed_fold("visits", "in", "out", window, initial=visit(0, 0), fold=fold, merge=merge, accumulator=Visit)
        )
        for number in (1, 2, 3):  # each in a checkpoint of its own
            fill(logs, "in", [("a", number, number * SECOND)])
            drained(runner, topology, final=number == 3)
        found = {result.value for result in values(logs, "out", Windowed[Visit])}
        assert found == {visit(3, 3)}

    def test_a_total_keeps_its_type(self, logs: LogStore, runner: Run) -> None:
        def fold(visited: Visit, page: int) -> Visit:
            return Visit(visited.count + 1, Page(max(visited.last.number, page)))

        topology = Topology("typed", partitions=1).stream("in", int).stream("out", Visit)
        topology.add(running_fold("visits", "in", "out", initial=Visit(), fold=fold, accumulator=Visit))
        for number in (1, 2, 3):
            fill(logs, "in", [("a", number, number * SECOND)])
            drained(runner, topology, final=number == 3)
        assert values(logs, "out", Visit)[-1] == Visit(3, Page(3))


class TestJoins:
    """Two streams by key."""

    @pytest.mark.parametrize("first", ["orders", "payments"])
    @pytest.mark.parametrize("kept", [False, True])
    def test_both_sides_have_their_types(self, logs: LogStore, runner: Run, kept: bool, first: str) -> None:
        def pair(order: Any, payment: Any) -> list[str]:
            return [type(order).__name__, type(payment).__name__]

        topology = Topology("joins").stream("orders", Page).stream("payments", Visit).stream("out", list)
        topology.add(join("paid", "orders", "payments", "out", within="1h", joiner=pair, how="left"))
        sides = {"orders": [("a", {"number": 1}, 1), ("b", {"number": 2}, 2)], "payments": [("a", {"count": 1}, 3)]}
        for name in sides:
            logs.create(name)
        fill(logs, first, sides.pop(first))
        if kept:
            drained(runner, topology, final=False)
        [(second, rows_)] = sides.items()
        fill(logs, second, rows_)
        drained(runner, topology)
        assert sorted(values(logs, "out")) == [["Page", "NoneType"], ["Page", "Visit"]]

    def test_partners_come_by_time_and_then_as_appended(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("joins").stream("left", int).stream("right", int).stream("out", list)
        topology.add(join("pairs", "left", "right", "out", within="5s"))
        logs.create("right")
        at = [20, 12, 15, 15, 9, 10, 15, 21]  # seconds, around 15; two are too far away
        fill(logs, "left", [("a", number, second * SECOND) for number, second in enumerate(at)])
        drained(runner, topology, final=False)
        fill(logs, "right", [("a", 100, 15 * SECOND), ("a", 101, 15 * SECOND)])
        drained(runner, topology)
        partners = sorted((second, number) for number, second in enumerate(at) if 10 <= second <= 20)
        expected = [[number, right] for right in (100, 101) for _, number in partners]
        assert values(logs, "out") == expected

    def test_a_late_record_joins_what_still_waits(self, logs: LogStore, runner: Run) -> None:
        topology = Topology("joins").stream("left", int).stream("right", int).stream("out", list)
        topology.add(join("pairs", "left", "right", "out", within="5s", how="left"))
        fill(logs, "left", [("a", 1, 10 * SECOND), ("a", 2, 100 * SECOND)])
        fill(logs, "right", [("b", 3, 100 * SECOND)])
        drained(runner, topology, final=False)
        assert values(logs, "out") == [[1, None]]
        # Both are late; the partner of the first has gone, that of the second waits.
        fill(logs, "right", [("a", 4, 11 * SECOND), ("a", 5, 96 * SECOND)])
        drained(runner, topology)
        assert values(logs, "out") == [[1, None], [2, 5]]

    @pytest.mark.parametrize("how", ["inner", "left"])
    def test_pairs_within_the_window(self, logs: LogStore, runner: Run, how: Any) -> None:
        left, right = clicks(80, seed=2), clicks(80, seed=3)
        fill(logs, "left", left, partitions=2)
        fill(logs, "right", right, partitions=2)
        topology = Topology("joins", partitions=2).stream("left", int).stream("right", int).stream("out", list)
        topology.add(
            join("pairs", "left", "right", "out", within="3s", how=how),
            concurrency=2,
        )
        drained(runner, topology)
        expected = []
        for key, one, at in left:
            partners = [other for key2, other, at2 in right if key2 == key and abs(at2 - at) <= 3 * SECOND]
            expected += [[one, other] for other in partners]
            if not partners and how == "left":
                expected.append([one, None])
        assert sorted(values(logs, "out"), key=repr) == sorted(expected, key=repr)
