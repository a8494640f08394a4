"""Topologies that other processes import by name."""

from typing import Any

from penstock.stream.computation import Computation
from penstock.stream.operators import map_values
from penstock.stream.state import Value
from penstock.stream.topology import Topology


class Sums(Computation):
    """Adds up per key; tells at the end of the input."""

    name, inputs, outputs = "sums", "in", "out"
    states = (Value("sum", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        print("what a computation prints is not an answer")
        ctx.value("sum").set(ctx.value("sum").get() + record.value)
        ctx.set_timer(10**15)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("out", ctx.value("sum").get())


def sums() -> Topology:
    return Topology("sums", partitions=4).stream("in", int).stream("out", int).add(Sums)


class Tally(Computation):
    """Tells with every record how many its key has had."""

    name, inputs, outputs = "tally", "in", "out"
    states = (Value("count", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        count = ctx.value("count").get() + 1
        ctx.value("count").set(count)
        ctx.produce("out", [record.value, count])


def tallies() -> Topology:
    return Topology("tallies", partitions=2).stream("in", int).stream("out", list).add(Tally)


def twice() -> Topology:
    """Two steps, so that the second goes by what the first reports of event time."""
    topology = Topology("twice").stream("raw", int).stream("in", int).stream("out", list)
    return topology.add(map_values("double", lambda value: 2 * value, "raw", "in")).add(Tally)


ready = sums()
nothing = 3
