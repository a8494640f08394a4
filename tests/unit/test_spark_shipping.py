"""Types that are defined in a script reach Spark's workers whole."""

from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from penstock import versioned
from penstock.codec import codec_for
from penstock.spark.runner.shipping import TaskSpec, packed, unpacked
from penstock.stream import Computation, Topology, map_values


def sent(type_: type[Any]) -> Any:
    """The type of a stream as a worker has it."""
    topology = Topology("t").stream("in", type_).stream("out", type_)
    topology.add(map_values("same", lambda value: value, "in", "out"))
    there = unpacked.__wrapped__(packed(TaskSpec("id", "memory://", topology, "same")))
    return there.topology.streams["in"].type


def test_a_struct_keeps_its_versions() -> None:
    def split(old: dict[str, Any]) -> dict[str, Any]:
        return {"names": old["name"].split()}

    @versioned(split)
    class Person(msgspec.Struct):
        names: list[str]

    there = sent(Person)
    assert there is not Person
    written = codec_for(there).encode(there(["ann"]))
    assert written == codec_for(Person).encode(Person(["ann"]))
    assert codec_for(there).decode(written) == there(["ann"])
    assert codec_for(there).decode(b'{"name": "ann lee"}') == there(["ann", "lee"])


def test_a_struct_keeps_its_methods() -> None:
    class Basket(msgspec.Struct, frozen=True, tag="b"):
        """What is bought."""

        items: tuple[str, ...] = ()
        limit: int = 3

        def __post_init__(self) -> None:
            if len(self.items) > self.limit:
                raise ValueError("too many")

        def __len__(self) -> int:
            return len(self.items)

        def __str__(self) -> str:
            return "+".join(self.items)

        @property
        def first(self) -> str:
            return self.items[0]

    there = sent(Basket)
    basket = there(("tea", "milk"))
    assert (len(basket), str(basket), basket.first, there.__doc__) == (2, "tea+milk", "tea", "What is bought.")
    assert msgspec.json.encode(basket) == b'{"type":"b","items":["tea","milk"],"limit":3}'
    with pytest.raises(ValueError, match="too many"):
        there(("a", "b", "c", "d"))


def test_a_struct_keeps_the_order_of_its_fields() -> None:
    class Named(msgspec.Struct, kw_only=True, array_like=True):
        auction: int
        note: str = ""

    class Bid(Named, array_like=True):
        price: int
        extra: int = 0

    class Late(msgspec.Struct):
        first: int
        second: int = 2

    class Required(Named, kw_only=True, array_like=True):
        last: int

    for kind in (Bid, Late, Required):
        there = sent(kind)
        assert there.__struct_fields__ == kind.__struct_fields__
        assert there.__match_args__ == kind.__match_args__
    written = msgspec.json.encode(Bid(auction=7, price=100))
    read = msgspec.json.decode(written, type=sent(Bid))
    assert (read.auction, read.price) == (7, 100)


def test_a_struct_keeps_its_constraints() -> None:
    class Order(msgspec.Struct):
        amount: Annotated[int, msgspec.Meta(ge=1, description="pieces")]

    with pytest.raises(msgspec.ValidationError, match=">= 1"):
        msgspec.json.decode(b'{"amount": 0}', type=sent(Order))


def test_a_struct_that_is_sent_again_is_the_same_type_to_those_who_have_it() -> None:
    class Alert(msgspec.Struct):
        user: str

    class Fraud(Computation):
        name, inputs, outputs = "fraud", "in", "out"

        def process(self, record: Any, ctx: Any) -> None:
            ctx.produce("out", Alert(record.value))

    topology = Topology("t").stream("in", str).stream("out", Alert).add(Fraud)
    first, second = (
        unpacked.__wrapped__(packed(TaskSpec(id_, "memory://", topology, "fraud"))) for id_ in ("first", "second")
    )
    for there in (first, second):
        produced: list[Any] = []
        ctx = SimpleNamespace(produce=lambda stream, value, produced=produced: produced.append(value))
        there.topology.nodes["fraud"].computation.process(SimpleNamespace(value="ann"), ctx)
        assert type(produced[0]) is there.topology.streams["out"].type
        assert codec_for(there.topology.streams["out"].type).encode(produced[0]) == b'{"user":"ann"}'
