"""Payload types that grow: whatever version was stored, today's code reads today's."""

import dataclasses
import json
import pickle
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import open_logs, versioned
from penstock.codec import JsonCodec, codec_for
from penstock.errors import BadInput, PayloadTooNew, Undecodable, WrongType
from penstock.versions import VersionedCodec


def split_name(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old.pop("name").partition(" ")
    return {**old, "first": first, "last": last}


def to_cents(old: dict[str, Any]) -> dict[str, Any]:
    cents = round(old.pop("amount") * 100)
    return {**old, "cents": cents}


class Bill1(msgspec.Struct):
    name: str
    amount: float


@versioned(split_name)
class Bill2(msgspec.Struct):
    first: str
    last: str
    amount: float


@versioned(split_name, to_cents)
class Bill(msgspec.Struct, forbid_unknown_fields=True):
    first: str
    last: str
    cents: int


@versioned(split_name, to_cents)
@dataclasses.dataclass
class DataclassBill:
    first: str
    last: str
    cents: int


@versioned(split_name, to_cents)
class PydanticBill(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    first: str
    last: str
    cents: int


TYPES: Any = pytest.mark.parametrize("type_", [Bill, DataclassBill, PydanticBill])


@TYPES
def test_every_version_is_read_as_todays(type_: Any) -> None:
    today = codec_for(type_)
    expected = type_(first="Ada", last="Lovelace", cents=150)
    assert today.decode(JsonCodec(Bill1).encode(Bill1("Ada Lovelace", 1.5))) == expected, "stored before versions"
    assert today.decode(codec_for(Bill2).encode(Bill2("Ada", "Lovelace", 1.5))) == expected
    assert today.decode(today.encode(expected)) == expected
    assert json.loads(today.encode(expected))["$version"] == 3


@TYPES
def test_however_the_json_is_written(type_: Any) -> None:
    today = codec_for(type_)
    for text in (
        '{"$version": 2, "first": "A", "last": "B", "amount": 1}',
        ' {\n"amount":1.0,"last":"B","$version":2,"first":"A"}',
        '{"$version":3,"first":"A","last":"B","cents":100}',
        '{"cents":100,"first":"A","$version":3,"last":"B"}',
        '{"name": "A B", "amount": 1}',
        '{"$version":1,"name": "A B", "amount": 1}',
    ):
        assert today.decode(text.encode()) == type_(first="A", last="B", cents=100), text


@versioned(*[lambda old: {"steps": [*old["steps"], len(old["steps"]) + 1]}] * 11)
class Counted(msgspec.Struct):
    steps: list[int]


@given(st.integers(1, 12))
def test_each_step_is_taken_once_and_in_order(version: int) -> None:
    payload = json.dumps({"$version": version, "steps": list(range(1, version))}).encode()
    assert codec_for(Counted).decode(payload).steps == list(range(1, 12))


def test_a_version_that_begins_with_todays_is_not_taken_for_it() -> None:
    with pytest.raises(PayloadTooNew, match="has version 30; this program knows versions up to 3"):
        codec_for(Bill).decode(b'{"$version":30,"first":"A","last":"B","cents":1}')


def test_many_at_once() -> None:
    codec = VersionedCodec(Bill)
    payloads = [b'{"name": "A B", "amount": 1}', codec.encode(Bill("A", "B", 7))]
    assert [bill.cents for bill in codec.decode_many(payloads)] == [100, 7]
    bills = [Bill("A", "B", 1), Bill("C", "D", 2)]
    assert codec.encode_many(bills) == [codec.encode(bill) for bill in bills]


def test_an_empty_object() -> None:
    @versioned()
    class Ping(msgspec.Struct):
        pass

    codec = codec_for(Ping)
    assert codec.encode(Ping()) == b'{"$version":1}'
    assert codec.decode(b'{"$version":1}') == codec.decode(b"{}") == Ping()


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"[1]", "cannot be read as Bill"),
        (b'{"$version": "two"}', "cannot be read as Bill"),
        (b'{"$version": 0}', "version 0 of a Bill was never written"),
        (b'{"$version": -1}', "version -1 of a Bill was never written"),
        (b"\xff", "cannot be read as Bill"),
        (b"", "cannot be read as Bill"),
        (b'{"$version":3,"first":"A"}', "cannot be read as Bill"),
        (b'{"$version":3,}', "cannot be read as Bill"),
        (b'{"amount": 1}', "version 1 cannot be brought to version 2: KeyError"),
        (b'{"$version":2,"first":"A","last":"B","amount":"x"}', "version 2 cannot be brought to version 3: TypeError"),
    ],
)
def test_what_cannot_be_read_says_why(payload: bytes, said: str) -> None:
    with pytest.raises(Undecodable, match=said):
        codec_for(Bill).decode(payload)


def test_an_upcaster_that_returns_nonsense() -> None:
    @versioned(lambda old: ["no", "object"])  # type: ignore[arg-type,return-value]
    class Odd(msgspec.Struct):
        x: int

    with pytest.raises(Undecodable, match="Odd"):
        codec_for(Odd).decode(b'{"x": 1}')


def test_bad_input() -> None:
    with pytest.raises(BadInput, match="takes functions"):
        versioned("from_1")  # type: ignore[arg-type]

    @versioned()
    class Listed(msgspec.Struct, array_like=True):
        x: int

    with pytest.raises(BadInput, match="no JSON object"):
        codec_for(Listed).encode(Listed(1))
    with pytest.raises(WrongType):
        codec_for(Bill).encode("no bill")


def test_a_subclass_has_versions_of_its_own() -> None:
    @versioned()
    class Parent(msgspec.Struct):
        x: int

    class Child(Parent):
        y: int = 0

    assert json.loads(codec_for(Child).encode(Child(1))) == {"x": 1, "y": 0}


def test_a_type_that_travels_keeps_its_versions() -> None:
    """As one in a script does on its way to Spark's workers."""

    @versioned(split_name, to_cents)
    @dataclasses.dataclass
    class Local:
        first: str
        last: str
        cents: int

    cloudpickle = pytest.importorskip("pyspark.cloudpickle", reason="pyspark is not installed here")
    there = pickle.loads(cloudpickle.dumps(Local))
    assert codec_for(there).decode(b'{"name": "A B", "amount": 1}') == there("A", "B", 100)


def test_records_of_a_log() -> None:
    with open_logs("memory://") as logs:
        logs.create("bills", partitions=1)
        logs.log("bills", Bill1).append(Bill1("Ada Lovelace", 1.5), key="a")
        logs.log("bills", Bill).append(Bill("A", "B", 7), key="a")
        with logs.log("bills", Bill).tailer("readers") as tailer:
            assert [record.value.cents for record in tailer.read(timeout="5s")] == [150, 7]
        with logs.log("bills", Bill2).tailer("old-readers") as tailer:
            first, second = tailer.read(timeout="5s")
            assert first.value == Bill2("Ada", "Lovelace", 1.5)
            with pytest.raises(PayloadTooNew, match=r"offset 1.*version 3.*deploy what reads"):
                _ = second.value
