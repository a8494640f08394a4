"""Computations over Arrow columns, in topologies that other processes import by name."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.stream import CONTINUE, Columns, Computation, Topology, map_in_arrow


class Order(msgspec.Struct):
    item: str
    amount: int
    discount: float | None = None
    tags: list[str] = []


class Bill(msgspec.Struct):
    item: str
    total: int
    is_large: bool = False


def bills(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """Large orders as bills, small ones aside, as they are."""
    for batch in batches:
        value = batch.column("value")
        amount = pc.struct_field(value, "amount")
        is_large = pc.greater(amount, 5)
        made = pa.StructArray.from_arrays(
            [pc.struct_field(value, "item"), pc.multiply(amount, 100), is_large], ["item", "total", "is_large"]
        )
        billed = batch.set_column(batch.schema.get_field_index("value"), "value", made)
        yield {"bills": billed.filter(is_large), "small": batch.filter(pc.invert(is_large))}


class Doubled(Computation):
    """The same door as a class."""

    name, inputs, outputs = "doubled", "numbers", "doubles"
    batch = Columns(size=50)

    def process_batch(self, columns: Any, ctx: Any) -> Any:
        return columns.set_column(3, "value", pc.multiply(columns.column("value"), 2))


def orders() -> Topology:
    topology = Topology("orders", partitions=2).stream("orders", Order).stream("bills", Bill).stream("small", Order)
    topology.add(map_in_arrow("bill", bills, "orders", "bills", side_outputs="small"), policy=CONTINUE)
    return topology.stream("numbers", int).stream("doubles", int).add(Doubled, policy=CONTINUE)
