"""Mistakes that a type checker has to find, one per line; nothing here is run.

``MARKED`` lines carry the error that mypy gives. Without their marks mypy and pyright have to name exactly these lines.
"""

import asyncio
from typing import Any, assert_type

import msgspec

from penstock import Context, Queues, Record, Retry, Worker, aio, open_logs, open_queues
from penstock import stream as streams
from penstock.stream import (
    Computation,
    LocalRunner,
    Policy,
    Topology,
    Tumbling,
    Value,
    computation,
    join,
    map_values,
    rekey,
    running_count,
    windowed_count,
    windowed_sum,
)
from penstock.stream.computation import FunctionComputation
from penstock.testing import FakeClock


class Mail(msgspec.Struct):
    """A payload."""

    to: str


class Invoice(msgspec.Struct):
    """Another one."""

    amount: int


store = open_queues("memory://", clock=FakeClock())
logs = open_logs("memory://")
queues = Queues()
mails = store.queue("mails", Mail, fifo=True, rate="5/s", in_flight={"customer": 2})
visits = logs.log("visits", Mail)


def takes_a_number(number: int) -> None:
    """For no queue of this file."""


def eighteen_of_queues_and_logs(ctx: Context[Mail]) -> None:
    """What a new user tried."""
    mails.put(Invoice(5))  # type: ignore[arg-type]
    mails.put({"to": "ann"})  # type: ignore[arg-type]
    mails.put(Mail("ann"), delay=45)  # type: ignore[arg-type]
    mails.put(Mail("ann"), dely="45m")  # type: ignore[call-arg]
    mails.put_many([Invoice(5)])  # type: ignore[list-item]
    ctx.put(mails, Invoice(5))  # type: ignore[misc]
    store.unit().put(mails, Invoice(5))  # type: ignore[misc]
    mails.schedule("daily", Invoice(5), every="24h")  # type: ignore[arg-type]
    visits.append(Invoice(5))  # type: ignore[arg-type]
    mails.add_handler(takes_a_number)  # type: ignore[arg-type]
    mails.add_handler(print, max_retries=3)  # type: ignore[call-arg]
    mails.handler(retry=5)  # type: ignore[call-overload]
    store.queue("mails", Mail, rate=5)  # type: ignore[call-overload]
    store.queue("mails", Mail, max_retries=3)  # type: ignore[call-overload]
    store.family("mails.", Mail, fifo="yes")  # type: ignore[call-overload]
    queues.queue("mails", Mail, in_flight=2)  # type: ignore[call-overload]
    store.batch(then=(mails, Invoice(5)))  # type: ignore[misc]
    store.unit(leese="5s")  # type: ignore[call-arg]
    Worker("sqlite:///shop.db")  # type: ignore[arg-type]
    Retry(attempts="many")  # type: ignore[arg-type]


async def of_async_programs(queue: aio.Queue[Mail], held: aio.QueueStore) -> None:
    """The same with await."""
    await queue.put(Invoice(5))  # type: ignore[arg-type]
    await held.queue("mails", Mail, rate=5)  # type: ignore[call-overload]
    held.unit().put(queue, Invoice(5))  # type: ignore[misc]
    print(queue.put(Mail("ann")).created)  # type: ignore[attr-defined]
    await asyncio.sleep(0)


TOTAL = Value("total", int, 0)


class Counting(Computation[Mail, int]):
    """From mails to numbers."""

    name, inputs, outputs, states = "counting", "mails", "numbers", (TOTAL,)

    def process(self, record: Record[Mail], ctx: streams.Context[Mail, int]) -> None:
        """Count the letters of addresses."""
        total = ctx.value(TOTAL)
        assert_type(total.get(), int)
        total.set(total.get() + len(record.value.to))
        ctx.produce("numbers", total.get())
        ctx.produce("numbers", record)
        ctx.produce("numbers", "many")  # type: ignore[arg-type]
        total.set("many")  # type: ignore[arg-type]
        print(record.value.amount)  # type: ignore[attr-defined]
        ctx.produce("numbers", 5, kye="ann")  # type: ignore[call-arg]
        ctx.map(TOTAL)  # type: ignore[call-overload]


class OfAnotherRecord(Computation[Mail, int]):
    """Reads what it is not given."""

    def process(self, record: Record[Invoice], ctx: streams.Context[Mail, int]) -> None:  # type: ignore[override]
        """Never called with that."""


@computation("long", inputs="numbers", outputs="long")
def only_long(record: Record[int], ctx: streams.Context[int, int]) -> None:
    """A function knows its types too."""
    assert_type(record.value, int)


def ten_of_streams(topology: Topology) -> None:
    """Wrong steps and wrong places."""
    assert_type(only_long, FunctionComputation[int, int])
    computation("long", retries=3)  # type: ignore[call-arg]
    computation("long", policy="stop")  # type: ignore[arg-type]
    computation("long")(takes_a_number)  # type: ignore[arg-type]
    only_long.timer(takes_a_number)  # type: ignore[arg-type]
    Policy(on_failure="skip")  # type: ignore[arg-type]
    topology.stream("visits", Mail, partitions="3")  # type: ignore[arg-type]
    topology.add(only_long, concurency=2)  # type: ignore[call-arg]
    topology.add(takes_a_number)  # type: ignore[arg-type]
    LocalRunner(topology, store)  # type: ignore[arg-type]
    map_values("name", "source", "to", takes_a_number)  # type: ignore[arg-type]
    map_values("name", takes_a_number, "source", "to", polcy=Policy())  # type: ignore[call-arg]
    running_count("name", "source", "to", idle=5)  # type: ignore[arg-type]
    windowed_count("name", "source", "to", Tumbling("10s"), lateness="8s")  # type: ignore[call-arg]
    windowed_sum("name", "source", "to", Tumbling("10s"), allowed_lateness=8)  # type: ignore[arg-type]
    join("name", "left", "right", "to", within="1h", jonier=max)  # type: ignore[call-arg]
    visits.append(Mail("ann"), kye="ann")  # type: ignore[call-arg]
    visits.append_many([Mail("ann")], keys=5)  # type: ignore[arg-type]
    rekey("name", "source", takes_a_number, "to")  # type: ignore[arg-type]


@store.task("sends", retry=Retry(attempts=3), rate="5/s")
def send(to: str, copies: int = 1) -> int:
    """A task."""
    return copies


@queues.task("greetings", keep_result="1h")
async def greet(ctx: Context[Any], name: str) -> str:
    """One that takes a context, which no caller gives."""
    return name


def tasks() -> None:
    """Their parameters are those of the functions."""
    assert_type(send("ann"), int)
    send.put("ann", copies=2)
    send.options(delay="5m", unique="a").put(to="ann")
    greet.put("ann")
    send.put(3)  # type: ignore[arg-type]
    send.put("ann", kopies=2)  # type: ignore[call-arg]
    send.put()  # type: ignore[call-arg]
    send.options(dely="5m")  # type: ignore[call-arg]
    store.task("x", rate=5)  # type: ignore[arg-type]
