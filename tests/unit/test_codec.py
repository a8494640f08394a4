"""Payloads: what can be stored, what is refused at the put, what cannot be read back."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import open_logs, open_queues
from penstock.codec import JsonCodec, codec_for, type_name
from penstock.errors import BadInput, Undecodable, WrongType
from penstock.stream import Windowed


class Mail(msgspec.Struct):
    to: str
    copies: int = 1


class Tagged(msgspec.Struct, tag="tagged"):
    n: int


@dataclass
class Point:
    x: int
    y: float
    tags: list[str] = field(default_factory=list)


class Model(pydantic.BaseModel):
    name: str
    when: datetime
    inner: list[Point] = []


class Pair(NamedTuple):
    a: int
    b: str


class Shape(TypedDict):
    side: int


class Measured(msgspec.Struct):
    value: float | None = None


class Plain:
    """Has no JSON form."""


class Colour(Enum):
    RED = "red"


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Mail, Mail("ann", 2)),
        (Tagged, Tagged(1)),
        (Point, Point(1, 2.5, ["a"])),
        (Model, Model(name="x", when=MOMENT, inner=[Point(1, 2.0)])),
        (Pair, Pair(1, "b")),
        (Shape, {"side": 2}),
        (Colour, Colour.RED),
        (dict, {"a": [1, None]}),
        (list[int], [1, 2]),
        (dict[str, Mail], {"a": Mail("b")}),
        (int, 5),
        (str, "ü"),
        (float, 1.5),
        (bool, True),
        (type(None), None),
        (int | None, None),
        (datetime, MOMENT),
        (uuid.UUID, uuid.UUID(int=5)),
        (Decimal, Decimal("1.10")),
        (tuple[int, str], (1, "x")),
        (object, {"any": 1}),
        (Any, "anything"),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
    ],
    ids=lambda one: type_name(one) if isinstance(one, type) else None,
)
def test_values_come_back_as_their_type(type_: Any, value: Any) -> None:
    codec = codec_for(type_)
    payload = codec.encode(value)
    assert isinstance(payload, bytes)
    assert codec.decode(payload) == value


@given(JSON)
def test_any_json_comes_back(value: Any) -> None:
    codec = codec_for(Any)
    assert codec.decode(codec.encode(value)) == value


@given(st.binary())
def test_any_bytes_come_back(value: bytes) -> None:
    codec = codec_for(bytes)
    assert codec.decode(codec.encode(value)) == value
    assert codec.encode(bytearray(value)) == codec.encode(memoryview(value)) == value


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Mail, Tagged(1)),
        (Mail, {"to": "ann"}),
        (Mail, Mail(5)),
        (Mail, Mail("ann", "two")),
        (Point, Point("x", 1.0)),
        (Point, Mail("x")),
        (Model, {"name": "x"}),
        (int, "5"),
        (int, 5.0),
        (int, True),
        (str, b"x"),
        (str, None),
        (list[int], ["x"]),
        (list[int], "x"),
        (dict[str, int], {"a": "b"}),
        (bytes, "text"),
        (bytes, 5),
        (Colour, "red"),
        (Any, object()),
        (Any, lambda: None),
        (Any, float("nan")),
        (Any, [1, {"a": float("inf")}]),
        (Any, b"raw"),
        (Any, {"a": {1, 2}}),
        (Any, (1, frozenset())),
        (dict, {"a": b"raw"}),
        (dict, {1: "a"}),
        (list, [float("-inf")]),
        (Any, Measured(float("nan"))),
        (Measured, Measured(float("nan"))),
        (object, {1: object()}),
        (Any, MOMENT),
        (Any, MOMENT.date()),
        (Any, timedelta(hours=1)),
        (Any, uuid.UUID(int=5)),
        (Any, Decimal("1.10")),
        (Any, (1, "x")),
        (Any, {"a": (1,)}),
        (Any, [{"price": Decimal("1.10")}]),
        (Any, Colour.RED),
        (dict, {"when": MOMENT}),
        (list, [(1, 2)]),
        (tuple, (1, (2,))),
        (tuple, (1, MOMENT)),
        (int | None, "x"),
        (float, float("nan")),
        (str, "\ud800"),
    ],
    ids=lambda one: None if callable(one) or type(one) is object or isinstance(one, dict | Plain) else repr(one),
)
def test_wrong_values_are_refused_at_the_put(type_: Any, value: Any) -> None:
    with pytest.raises(WrongType) as caught:
        codec_for(type_).encode(value)
    assert type_name(type_) in str(caught.value) or type_ is object
    assert caught.value.hint
    assert isinstance(caught.value, TypeError)


def test_what_json_keeps_or_has_a_known_form_for_is_taken_without_a_type() -> None:
    for value in ([1, "x"], {"a": [1]}, Mail("ann"), Point(1, 2.0), {"deep": [Mail("b")]}, 1.5, None):
        assert codec_for(Any).encode(value)
    assert codec_for(tuple).decode(codec_for(tuple).encode((1, "x"))) == (1, "x")


@pytest.mark.parametrize("what", ["queue", "schedule", "log"])
def test_what_would_come_back_as_something_else_is_refused_with_the_next_step(what: str) -> None:
    value = {"price": Decimal("1.10")}
    with open_queues("memory://") as store, open_logs("memory://") as logs:
        logs.create("visits")
        calls: dict[str, Callable[[], Any]] = {
            "queue": lambda: store.queue("orders").put(value),
            "schedule": lambda: store.queue("orders").schedule("daily", value, every="1d"),
            "log": lambda: logs.appender("visits").append(value),
        }
        with pytest.raises(WrongType, match=r"the Decimal at \$\.price would come back as text.*declares it"):
            calls[what]()


def test_a_value_that_does_not_fit_its_own_type_is_told_apart_from_one_of_another_type() -> None:
    with open_queues("memory://") as store:
        mails = store.queue("mails", Mail)
        with pytest.raises(WrongType, match=r"queue 'mails': this Mail does not fit its own type: .*`\$.to`") as caught:
            mails.put(Mail(5))  # type: ignore[arg-type]
        assert "payload's own type" not in str(caught.value)
        with pytest.raises(WrongType, match="queue 'mails': a Point cannot be put where Mail is expected"):
            mails.put_many([Mail("a"), Point(1, 2.0)])  # type: ignore[list-item]


def test_endless_values_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WrongType):
        codec_for(Any).encode(endless)


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (Mail, b"{}"),
        (Mail, b'{"to":5}'),
        (Mail, b"[]"),
        (Mail, b"not json"),
        (Mail, b""),
        (Mail, b"\xff\xfe"),
        (int, b'"x"'),
        (Any, b"{"),
        (Model, b'{"name":"x","when":"later"}'),
        (Point, b'{"x":1}'),
        (Any, b"[" * 100_000),
        (str, b'"\\ud800"'),
        (Mail, b"\x80\x04\x95"),
        (Colour, b'"blue"'),
    ],
)
def test_bytes_that_do_not_fit_are_undecodable(type_: Any, payload: bytes) -> None:
    with pytest.raises(Undecodable) as caught:
        codec_for(type_).decode(payload)
    assert f"{len(payload)} stored bytes" in str(caught.value)
    assert caught.value.__cause__ is not None


@given(st.binary(max_size=60))
def test_whatever_is_stored_reading_it_gives_a_value_or_a_typed_error(payload: bytes) -> None:
    for type_ in (Mail, Any, Model, list[int]):
        try:
            codec_for(type_).decode(payload)
        except Undecodable:
            continue


def test_new_fields_with_defaults_read_old_payloads() -> None:
    assert codec_for(Mail).decode(b'{"to":"ann"}') == Mail("ann")
    assert codec_for(Mail).decode(b'{"to":"ann","unknown":1}') == Mail("ann")


@pytest.mark.parametrize("type_", [Point(1, 2.0), lambda: None, 5, "Mail", Plain])
def test_types_that_cannot_be_stored_are_refused_when_the_queue_is_opened(type_: Any) -> None:
    with open_queues("memory://") as store, pytest.raises(BadInput) as caught:
        store.queue("q", type_)
    assert caught.value.hint


def test_type_names_are_text_only() -> None:
    assert [type_name(one) for one in (Mail, list[int], Any, int | None, dict)] == [
        "Mail",
        "list[int]",
        "Any",
        "int | None",
        "dict",
    ]


def test_a_queue_refuses_the_wrong_type_and_stores_nothing() -> None:
    with open_queues("memory://") as store:
        mails = store.queue("mails", Mail)
        with pytest.raises(WrongType, match="Point cannot be put where Mail is expected"):
            mails.put(Point(1, 2.0))  # type: ignore[arg-type]
        assert mails.find() == []


def test_an_entry_read_without_or_with_another_type_says_so() -> None:
    from penstock.queue.protocol import Find

    with open_queues("memory://") as store:
        store.queue("q", Mail).put(Mail("ann"))
        [bare] = store.driver.find(Find())
        with pytest.raises(Undecodable, match="without a type"):
            _ = bare.value
        [raw] = store.queue("q", bytes).find()
        with pytest.raises(Undecodable, match="codec 'json'"):
            _ = raw.value


@pytest.mark.parametrize("type_", [Any, list, dict[str, Any]])
def test_what_is_nested_too_deep_is_refused(type_: Any) -> None:
    def nested(depth: int) -> Any:
        value: Any = ["[{\\"]  # brackets in a text do not count
        for _ in range(depth - 1):
            value = {"a": value} if type_ == dict[str, Any] else [value]
        return value

    codec = codec_for(type_)
    assert codec.decode(codec.encode(nested(255))) == nested(255)
    with pytest.raises(WrongType, match="255 deep"):
        codec.encode(nested(256))
    wide = [[{}]] * 1000 if type_ != dict[str, Any] else {str(number): [{}] for number in range(1000)}
    assert codec.decode(codec.encode(wide)) == wide


MANY: list[Any] = [
    0, -1, 1 << 70, True, None, 0.5, -0.0, float("nan"), float("inf"), "text", "\ud800", b"bytes", (1, 2), [1],
    {"a": 1}, {1: 2}, {1, 2}, object(), "deep" * 100,
]  # fmt: skip


@pytest.mark.parametrize(
    "type_", [Any, int, float, str, bool, list, dict, tuple, list[int], int | None, Windowed, Windowed[int]], ids=str
)
def test_many_are_encoded_as_each_of_them_would_be(type_: Any) -> None:
    codec = JsonCodec(type_)
    good: list[tuple[Any, bytes]] = []
    for value in [*MANY, *(Windowed("k", 1, 2, value) for value in MANY)]:
        try:
            good.append((value, codec.encode(value)))
        except WrongType:
            for others in ([], [known for known, _ in good]):
                with pytest.raises(WrongType):
                    codec.encode_many([*others, value])
    assert codec.encode_many([value for value, _ in good]) == [payload for _, payload in good]
    for value, payload in good:
        assert codec.encode_many([value, value]) == [payload] * 2
