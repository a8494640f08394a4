"""Typed payloads: columns from a type or a schema, and bad rows beside them."""

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec

from penstock import LogStore


class Colour(enum.Enum):
    RED = "red"


class Line(msgspec.Struct):
    article: str
    count: int = 1


class Order(msgspec.Struct, rename="camel"):
    order_id: int
    total: float
    at: datetime
    day: date | None = None
    price: Decimal | None = None
    lines: list[Line] = []
    tags: dict[str, int] = {}
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    free: Any = None
    uid: UUID | None = None
    raw: bytes = b""


@dataclass
class Point:
    x: int
    y: int | None = None


def appended(store: LogStore, *payloads: bytes) -> None:
    store.create("in")
    with store.appender("in", bytes) as out:
        out.append_many(list(payloads))


def test_columns_of_a_struct(store: LogStore, read: Any) -> None:
    order = Order(
        7, 1.5, datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 3), Decimal("2.50"), [Line("pen", 2)], {"a": 1},
        free={"deep": [1]}, uid=UUID(int=5), raw=b"\x00\xff",
    )  # fmt: skip
    appended(store, msgspec.json.encode(order), b"{not json", b'{"orderId": "x"}', b'{"orderId": 99999999999999999999}')
    rows = read("in", type=f"{__name__}:Order").orderBy("offset").collect()
    data = rows[0].data
    assert rows[0].bad is None
    assert (data.orderId, data.total, data.at.replace(tzinfo=UTC), data.day) == (7, 1.5, order.at, order.day)
    assert (data.price, data.lines[0].article, data.tags) == (Decimal("2.50"), "pen", {"a": 1})
    assert (data.colour, data.kind, data.free, data.uid) == ("red", "a", '{"deep":[1]}', str(UUID(int=5)))
    assert bytes(data.raw) == b"\x00\xff"
    assert [row.data for row in rows[1:]] == [None] * 3
    assert all(row.bad for row in rows[1:])
    assert bytes(rows[1].value) == b"{not json"


def test_columns_of_a_dataclass_and_of_plain_values(store: LogStore, read: Any) -> None:
    appended(store, b'{"x": 1, "y": 2}', b'{"x": 3}', b"17")
    rows = read("in", type=f"{__name__}:Point", columns="offset,data,bad").orderBy("offset").collect()
    assert [(row.data.x, row.data.y) for row in rows[:2]] == [(1, 2), (3, None)]
    assert rows[2].data is None
    assert "Expected `object`" in rows[2].bad


def test_columns_of_a_schema(store: LogStore, read: Any) -> None:
    ddl = "id INT NOT NULL, name STRING, at TIMESTAMP, tags ARRAY<STRING>, inner STRUCT<a: BIGINT>, `odd name` DOUBLE"
    appended(
        store,
        b'{"id": 1, "name": "n", "at": "2026-01-02T00:00:00Z", "tags": ["t"], "inner": {"a": 5}, "odd name": 2}',
        b'{"id": 2, "more": true}',
        b'{"name": "no id"}',
        b'{"id": 3000000000}',
        b'{"id": 4, "inner": {"a": 99999999999999999999}}',
        b"\xff\xfe",
    )
    rows = read("in", schema=ddl).orderBy("offset").collect()
    assert (rows[0].data.name, rows[0].data.tags, rows[0].data.inner.a, rows[0].data["odd name"]) == (
        "n",
        ["t"],
        5,
        2.0,
    )
    assert rows[0].data.at.replace(tzinfo=UTC) == datetime(2026, 1, 2, tzinfo=UTC)
    assert (rows[1].data.id, rows[1].data.name) == (2, None)
    assert [row.data is None for row in rows] == [False, False, True, True, True, True]
    assert [row.bad is None for row in rows] == [True, True, False, False, False, False]
    good = read("in", schema=ddl).where("bad IS NULL").selectExpr("sum(data.id) AS s").collect()
    assert good[0].s == 3
