"""Computations over Arrow columns: the same results on every runner, and what is refused, with words."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.stream.shorthand import told
from tests.unit.stream import column_flows

import penstock
from penstock.errors import BadInput
from penstock.log.store import LogStore
from penstock.stream import Columns, LocalRunner, ProcessRunner, Topology, Value, computation, map_in_arrow
from penstock.stream.runner import Runner

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed here")

Row = tuple[str | None, int, dict[str, Any], Any]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'logs'}?durability=fast"


@pytest.fixture
def logs(url: str) -> Iterator[LogStore]:
    with penstock.open_logs(url) as store:
        yield store


@pytest.fixture(params=["local", "processes", "spark"])
def run(request: pytest.FixtureRequest, logs: LogStore, url: str) -> Callable[[], Runner]:
    def drained() -> Runner:
        runner: Runner
        if request.param == "processes":
            runner = ProcessRunner("tests.unit.stream.column_flows:orders", logs, url, processes=2)
        elif request.param == "local":
            runner = LocalRunner(column_flows.orders(), logs)
        else:
            pytest.importorskip("pyspark", reason="pyspark is not installed here")
            from tests.spark.in_process import InProcess

            from penstock.spark import SparkRunner

            runner = SparkRunner(column_flows.orders(), logs, InProcess())  # type: ignore[arg-type]
        runner.start()
        assert runner.drain("60s"), told(runner)
        return runner

    return drained


def append(logs: LogStore, log: str, rows: list[Row], partitions: int = 2) -> None:
    """Rows as they are, also what no type would let through."""
    logs.create(log, partitions)
    with logs.appender(log, bytes) as out:
        for key, time, headers, value in rows:
            payload = value if isinstance(value, bytes) else msgspec.json.encode(value)
            out.append(payload, key=key, timestamp=time, headers=headers)


def found(logs: LogStore, log: str) -> list[Row]:
    if not logs.exists(log):
        return []
    return sorted(
        (
            (record.key, record.time_us, dict(record.headers), msgspec.json.decode(record.payload))
            for place in logs.partitions(log)
            for record in logs.log(log, bytes).records(place.index)
        ),
        key=repr,
    )


def bill_of(value: dict[str, Any]) -> dict[str, Any]:
    return {"item": value["item"], "total": value["amount"] * 100, "is_large": True}


def order_of(value: dict[str, Any]) -> dict[str, Any]:
    return {"discount": None, "tags": [], **value}


def test_columns_give_what_records_one_by_one_would(logs: LogStore, run: Callable[[], Runner]) -> None:
    rows: list[Row] = [
        (None if number % 7 == 0 else f"k{number % 5}", 1000 + number, {"trace": str(number)} if number % 3 else {},
         {"item": f"i{number}", "amount": number % 11, "tags": ["x"] * (number % 2)})
        for number in range(120)
    ]  # fmt: skip
    append(logs, "orders", rows)
    append(logs, "numbers", [("k", number, {}, number) for number in range(120)])
    run()
    large = [(key, time, headers, bill_of(value)) for key, time, headers, value in rows if value["amount"] > 5]
    small = [(key, time, headers, order_of(value)) for key, time, headers, value in rows if value["amount"] <= 5]
    assert found(logs, "bills") == sorted(large, key=repr)
    assert found(logs, "small") == sorted(small, key=repr)
    assert [value for *_, value in sorted(found(logs, "doubles"), key=lambda row: row[1])] == list(range(0, 240, 2))


def test_records_that_do_not_fit_take_nothing_with_them(logs: LogStore, run: Callable[[], Runner]) -> None:
    good: list[Row] = [("k", number, {}, {"item": "i", "amount": number}) for number in range(20)]
    bad: list[Row] = [
        ("k", 100, {}, b"{"), ("k", 101, {}, {"item": "i"}), ("k", 102, {}, {"item": 1, "amount": 1}),
        ("k", 103, {}, {"item": "i", "amount": 1 << 63}),
    ]  # fmt: skip
    mixed = [*good[:7], *bad[:3], *good[7:13], *bad[3:], *good[13:]]
    append(logs, "orders", mixed)
    run()
    assert sorted(value["total"] for *_, value in found(logs, "bills")) == [100 * number for number in range(6, 20)]
    assert len(found(logs, "small")) == 6
    dead = [record.payload for record in logs.log("bill.dead", bytes).records(0)]
    assert sorted(dead) == sorted(
        value if isinstance(value, bytes) else msgspec.json.encode(value) for *_, value in bad
    )


def one(function: Any, type_: Any = int, out: Any = int, **options: Any) -> Topology:
    made = computation("made", inputs="in", outputs="out", **{"batch": Columns(), **options})(function)
    return Topology("made").stream("in", type_).stream("out", out).add(made)


def ran(logs: LogStore, topology: Topology) -> tuple[bool, str]:
    runner = LocalRunner(topology, logs).start()
    return runner.drain("60s"), str(runner.status()[0].error)


class TestWhatComes:
    @pytest.mark.parametrize(
        ("type_", "value", "expected"),
        [
            (int, 3, "int64"), (float, 1.5, "double"), (str, "a", "string"), (bool, True, "bool"),
            (list[int], [1], "list<item: int64>"), (dict[str, int], {"a": 1}, "map<string, int64>"),
            (int | None, None, "int64"), (Any, {"a": [1]}, "binary"), (bytes, b"x", "binary"),
            (column_flows.Bill, {"item": "i", "total": 1}, "struct<item: string, total: int64, is_large: bool>"),
        ],
    )  # fmt: skip
    def test_the_column_value_has_the_type_of_the_stream(
        self, logs: LogStore, type_: Any, value: Any, expected: str
    ) -> None:
        seen: list[Any] = []
        append(logs, "in", [("k", 5, {"h": "1"}, value), (None, 6, {}, value)], partitions=1)
        assert ran(logs, one(lambda columns, ctx: seen.append(columns), type_)) == (True, "None")
        [columns] = seen
        assert [str(field.type) for field in columns.schema] == [
            "string", "timestamp[us, tz=UTC]", "map<string, binary>", expected
        ]  # fmt: skip
        assert columns.schema.names == ["key", "time", "headers", "value"]
        assert columns.column("key").to_pylist() == ["k", None]
        assert columns.column("time").cast("int64").to_pylist() == [5, 6]
        assert columns.column("headers").to_pylist() == [[("h", b"1")], None]

    def test_payloads_go_through_as_they_are(self, logs: LogStore) -> None:
        append(logs, "in", [("k", 5, {}, b'{"a":  1.0}')], partitions=1)
        assert ran(logs, one(lambda columns, ctx: columns, Any, Any)) == (True, "None")
        assert [record.payload for record in logs.log("out", bytes).records(0)] == [b'{"a":  1.0}']

    def test_single_records_can_be_produced_too(self, logs: LogStore) -> None:
        append(logs, "in", [("k", 5, {}, 1), ("k", 6, {}, 2)], partitions=1)

        def total(columns: Any, ctx: Any) -> None:
            ctx.produce("out", sum(columns.column("value").to_pylist()), key="sum", timestamp=7)

        assert ran(logs, one(total)) == (True, "None")
        assert found(logs, "out") == [("sum", 7, {}, 3)]


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda columns, ctx: columns.drop_columns(["key"]), "without the column 'key' for out"),
            (lambda columns, ctx: columns.drop_columns(["value"]), "without the column 'value'"),
            (lambda columns, ctx: columns.append_column("x", columns.column("key")), "with a column 'x'"),
            (lambda columns, ctx: columns.set_column(0, "key", columns.column("headers")), "not string"),
            (
                lambda columns, ctx: columns.set_column(1, "time", pa.nulls(len(columns), pa.timestamp("us"))),
                "time that is null",
            ),
            (lambda columns, ctx: columns.set_column(3, "value", pa.array(["a"] * len(columns))), "WrongType"),
            (lambda columns, ctx: columns.set_column(3, "value", pa.array([1.5] * len(columns))), "WrongType"),
            (lambda columns, ctx: {"nobody": columns}, "no output 'nobody'"),
            (lambda columns, ctx: {"out": [1]}, "a list for out"),
            (lambda columns, ctx: 5, "made gave a int"),
        ],
    )
    def test_wrong_columns_are_told_and_nothing_is_written(self, logs: LogStore, function: Any, words: str) -> None:
        append(logs, "in", [("k", 5, {}, 1), ("k", 6, {}, 2)], partitions=1)
        done, error = ran(logs, one(function))
        assert not done
        assert words in error
        assert found(logs, "out") == []
        assert logs.lag("in", "made").lag == 2

    def test_states_and_timers_when_the_topology_is_checked(self) -> None:
        with pytest.raises(BadInput, match="made takes columns and has states"):
            one(lambda columns, ctx: None, states=[Value("n", int)]).check()
        topology = one(lambda columns, ctx: None)
        topology.nodes["made"].computation.timer(lambda timer, ctx: None)  # type: ignore[attr-defined]
        with pytest.raises(BadInput, match="made takes columns and has timers"):
            topology.check()

    def test_a_type_without_a_column_when_the_topology_is_checked(self) -> None:
        with pytest.raises(BadInput, match="stream in holds values of the type union"):
            one(lambda columns, ctx: None, int | str).check()

    def test_arguments_in_the_wrong_order(self) -> None:
        with pytest.raises(BadInput, match="map_in_arrow was given"):
            map_in_arrow("a", "in", "out", lambda batches: batches)  # type: ignore[arg-type]
