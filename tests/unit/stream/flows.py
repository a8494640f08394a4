"""Topologies that other processes import by name."""

from typing import Any

from penstock.stream.computation import Computation
from penstock.stream.state import Value
from penstock.stream.topology import Topology


class Sums(Computation):
    """Adds up per key; tells at the end of the input."""

    name, inputs, outputs = "sums", "in", "out"
    states = (Value("sum", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        print("what a computation prints is no answer")
        ctx.value("sum").set(ctx.value("sum").get() + record.value)
        ctx.set_timer(10**15)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("out", ctx.value("sum").get())


def sums() -> Topology:
    return Topology("sums", partitions=4).stream("in", int).stream("out", int).add(Sums)


ready = sums()
nothing = 3
