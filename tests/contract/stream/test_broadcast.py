"""Broadcast inputs: every instance sees all records; states that a task has once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, numbers, rows, values

from penstock.errors import BadInput, Conflict, SchemaMismatch
from penstock.log.store import LogStore
from penstock.stream.computation import Computation, computation
from penstock.stream.state import List, Map, Value
from penstock.stream.topology import Topology


class Priced(Computation):
    """Gives every order the price of its product; prices go to every instance."""

    name = "priced"
    inputs = ("orders", "prices")
    broadcast = "prices"
    outputs = "out"
    states = (Map("prices", int, keyed=False), Value("sum", int, 0))

    def process(self, record: Any, ctx: Any) -> None:
        if ctx.stream == "prices":
            ctx.map("prices").set(ctx.key, record.value)
            return
        total = ctx.value("sum")
        total.set(total.get() + ctx.map("prices").get(record.value, 0))
        ctx.produce("out", total.get())


def topology(partitions: int = 3, **given: Any) -> Topology:
    made = Topology("broadcast", partitions=partitions).stream("orders", str).stream("prices", int, partitions=2)
    return made.stream("out", int).add(Priced, concurrency=2, **given)


class TestBroadcast:
    """Every instance sees all records of a broadcast input."""

    def test_every_instance_knows_all_prices(self, logs: LogStore, runner: Run) -> None:
        chance = random.Random(5)
        products = [f"p{number}" for number in range(7)]
        prices: dict[str, int] = {}
        sums: dict[str, int] = {}
        expected = []
        at = 0
        for _ in range(4):  # prices change from leg to leg; runners end in between
            changed = [(product, chance.randrange(100), (at := at + 1)) for product in chance.sample(products, 4)]
            prices |= {product: price for product, price, _ in changed}
            fill(logs, "prices", changed, partitions=2)
            logs.create("orders", 3)
            drained(runner, topology(), final=False, checkpoint_records=20)
            orders = [(f"k{chance.randrange(9)}", chance.choice(products), (at := at + 1)) for _ in range(30)]
            for key, product, time in orders:
                sums[key] = sums.get(key, 0) + prices.get(product, 0)
                expected.append((key, sums[key], time))
            fill(logs, "orders", orders, partitions=3)
            drained(runner, topology(), final=False, checkpoint_records=20)
        assert rows(logs, "out") == sorted(expected, key=repr)

    def test_every_task_reads_every_record_once(self, logs: LogStore, runner: Run) -> None:
        class Tells(Computation):
            name, inputs, broadcast, outputs = "tells", ("in", "all"), ("all",), "out"
            states = (List("seen", int, keyed=False),)

            def process(self, record: Any, ctx: Any) -> None:
                ctx.list("seen").append(record.value)
                ctx.set_timer(10**15, "end")

            def on_timer(self, timer: Any, ctx: Any) -> None:
                ctx.produce("out", [ctx.partition, sorted(ctx.list("seen").items())], key=f"of {ctx.partition}")

        made = Topology("broadcast", partitions=4).stream("in", int).stream("all", int, partitions=3).stream("out")
        made.add(Tells, concurrency=2)
        logs.create("in", 4)
        fill(logs, "all", numbers(40, keys=7), partitions=3)
        drained(runner, made)
        told = {tuple(map(str, value)) for value in values(logs, "out")}
        assert told == {(str(index), str(list(range(40)))) for index in range(4)}

    def test_the_streams_can_have_other_names(self, logs: LogStore, runner: Run) -> None:
        made = Topology("broadcast", partitions=2).stream("o", str).stream("p", int).stream("out", int)
        made.add(Priced, name="other", streams={"orders": "o", "prices": "p"})
        fill(logs, "p", [("hat", 5, 1)], partitions=2)
        logs.create("o", 2)
        drained(runner, made, final=False)
        fill(logs, "o", [("ann", "hat", 2), ("bob", "hat", 3)], partitions=2)
        drained(runner, made)
        assert rows(logs, "out") == [("ann", 5, 2), ("bob", 5, 3)]

    def test_a_part_of_a_topology_takes_its_copies_with_it(self, logs: LogStore, runner: Run) -> None:
        assert set(topology().only("priced").nodes) == {"priced", "priced.broadcast.prices"}

    def test_what_only_declares_its_streams_copies_nothing(self, logs: LogStore, runner: Run) -> None:
        made = Topology("broadcast").stream("orders", str).stream("prices", int).stream("out", int)
        made.add(Priced, concurrency=0)
        assert {node.concurrency for node in made.nodes.values()} == {0}

    def test_bad_input(self, logs: LogStore, runner: Run) -> None:
        @computation("x", inputs=("a",), outputs="out", broadcast="b")
        def strange(record: Any, ctx: Any) -> None: ...

        @computation("x", inputs=("a",), outputs="out", broadcast="a")
        def alone(record: Any, ctx: Any) -> None: ...

        @computation("x", inputs=("a", "b"), outputs="out", broadcast="b")
        def unknown(record: Any, ctx: Any) -> None: ...

        for step, says in ((strange, "to broadcast"), (alone, "nothing but broadcast"), (unknown, "no stream 'b'")):
            with pytest.raises(BadInput, match=says):
                Topology("bad").stream("a").stream("out").add(step)
        long = Topology("bad").stream("o", str).stream("p" * 100, int).stream("out", int)
        with pytest.raises(BadInput, match="1 to 128"):
            long.add(Priced, name="n" * 100, streams={"orders": "o", "prices": "p" * 100})

    def test_another_number_of_partitions_is_told(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "orders", [("ann", "hat", 1)], partitions=3)
        logs.create("priced.broadcast.prices", 2)
        with pytest.raises(Conflict, match="2 copies of a broadcast input for 3 partitions"):
            runner(topology()).start()

    def test_a_state_of_the_task_is_not_taken_for_one_of_the_key(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "prices", [("hat", 5, 1)], partitions=2)
        fill(logs, "orders", [("ann", "hat", 2)], partitions=3)
        drained(runner, topology())

        class PerKey(Priced):
            states = (Map("prices", int), Value("sum", int, 0))

        made = Topology("broadcast", partitions=3).stream("orders", str).stream("prices", int, partitions=2)
        made.stream("out", int).add(PerKey)
        with pytest.raises(SchemaMismatch, match="one per task"):
            runner(made).start()
