"""Right and wrong uses of the public API, for the type checker only: nothing here is run.

Every wrong use carries the error it has to give; in strict mode mypy complains about an ignore that is not needed, so a
mistake that is no longer found fails the check.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import msgspec

from penstock import (
    Bus,
    Context,
    Counts,
    Entry,
    HistoryRow,
    Lease,
    Queue,
    QueueStore,
    Reject,
    Retry,
    Snooze,
    TryAgain,
    Unique,
    UnitOfWork,
    Worker,
    open_queues,
)
from penstock import client as client_module
from penstock.queue.protocol import PutResult
from penstock.testing import FakeClock, all_put, assert_put, drain, refute_put


class Mail(msgspec.Struct):
    """A payload."""

    to: str


@dataclass
class Invoice:
    """Another one."""

    amount: int


store = open_queues("memory://", clock=FakeClock(), node="here")
assert_type(store, QueueStore)
mails = store.queue("mails", Mail)
invoices = store.queue("invoices", Invoice, fifo=True)
anything = store.queue("anything")
family = store.family("mails.", Mail)


def opening() -> None:
    """Handles know their type."""
    assert_type(mails, Queue[Mail])
    assert_type(family, Queue[Mail])
    assert_type(family.member("mails.1"), Queue[Mail])
    assert_type(anything, Queue[Any])
    open_queues(5)  # type: ignore[arg-type]
    open_queues("memory://", clock="noon")  # type: ignore[arg-type]


def putting() -> None:
    """A queue takes values of its type."""
    assert_type(mails.put(Mail("ann")), PutResult)
    mails.put(Mail("ann"), delay="45m", unique="order-17", labels={"customer": "ann"}, priority=5)
    mails.put(Mail("ann"), due=datetime.now(UTC), unique=Unique("x", until="started"), expires=timedelta(days=1))
    assert_type(mails.put_many([Mail("a"), Mail("b")], chunk=10), list[PutResult])
    anything.put({"what": "ever"})
    mails.put(Invoice(5))  # type: ignore[arg-type]
    mails.put("ann")  # type: ignore[arg-type]
    mails.put_many([Invoice(5)])  # type: ignore[list-item]
    mails.put(Mail("ann"), delay=45)  # type: ignore[arg-type]
    mails.put(Mail("ann"), labels={"customer": 17})  # type: ignore[dict-item]
    mails.put(Mail("ann"), dely="45m")  # type: ignore[call-arg]
    mails.put_many([Mail("ann")], delay="45m", labels={"customer": "ann"}, expires="1d")
    mails.put_many([Mail("ann")], dely="45m")  # type: ignore[call-arg]
    mails.put_many([Mail("ann")], delay=45)  # type: ignore[arg-type]
    mails.put_many([Mail("ann")], id="one")  # type: ignore[call-arg]
    Unique("x", until="whenever")  # type: ignore[arg-type]
    Unique("x", on_conflict="fight")  # type: ignore[arg-type]


def looking() -> None:
    """What is found has the queue's type."""
    assert_type(mails.find(), list[Entry[Mail]])
    assert_type(mails.get("id").value, Mail)
    assert_type(mails.dead()[0].value.to, str)
    assert_type(mails.history(), list[HistoryRow])
    assert_type(mails.counts(), Counts)
    assert_type(mails.find()[0].due, datetime)
    _ = mails.find()[0].value.amount  # type: ignore[attr-defined]
    mails.find(labels=["customer"])  # type: ignore[arg-type]
    mails.find(state="waitin")  # type: ignore[arg-type]
    mails.history(state="donee")  # type: ignore[arg-type]
    assert_type(mails.counts().oldest_ready, datetime | None)


def changing() -> None:
    """Updates take values of the type too."""
    mails.update("id", Mail("bob"))
    mails.reschedule("id", delay="5m")
    assert_type(mails.cancel("id", force=True), int)
    mails.update("id", Invoice(5))  # type: ignore[arg-type]
    mails.reschedule("id", due="tomorrow")  # type: ignore[arg-type]


@mails.handler
def plain(mail: Mail) -> None:
    """A handler without options stays what it is."""


assert_type(plain(Mail("ann")), None)


@invoices.handler(retry=Retry(attempts=5, backoff="30s"), concurrency=2)
def with_context(invoice: Invoice, ctx: Context[Invoice]) -> Snooze | Reject | None:
    """With options and a context."""
    assert_type(ctx.lease, Lease)
    assert_type(ctx.entry, Entry[Invoice])
    assert_type(ctx.entry.value, Invoice)
    ctx.put(mails, Mail("ann"), delay="5m", unique="x", id="mine")
    ctx.put(mails, 5)  # type: ignore[misc]
    ctx.put(mails, Mail("ann"), dely="5m")  # type: ignore[call-arg]
    if invoice.amount > 100:
        raise TryAgain(Retry(attempts=9), "too much")
    return Snooze("5m") if invoice.amount else Reject("nothing to pay")


@family.handler(executor=ThreadPoolExecutor(), on_dead=lambda mail, error: print(mail.to, error.upper()))
def in_an_executor(mail: Mail) -> None:
    """In the program's own executor."""


@mails.handler
def of_any_entry(mail: Mail, ctx: Context) -> None:
    """A context whose type is left open."""
    assert_type(ctx.entry.value, Any)


@mails.handler
def of_a_wider_type(value: object) -> TryAgain:
    """Takes more than it is given."""
    return TryAgain(reason="not now")


@mails.handler  # type: ignore[arg-type]
def of_another_type(number: int) -> None: ...


@mails.handler(concurrency=2)  # type: ignore[arg-type]
def of_another_type_too(number: int) -> None: ...


@mails.handler  # type: ignore[arg-type]
def of_nothing() -> None: ...


@mails.handler  # type: ignore[arg-type]
def of_another_context(mail: Mail, ctx: Context[Invoice]) -> None: ...


@mails.handler
async def asynchronous_with_context(mail: Mail, ctx: Context[Mail]) -> bool:
    """Stays what it is."""
    return ctx.entry.value is mail


def takes_a_number(number: int) -> None:
    """For no queue of this file."""


def registering() -> None:
    """The call checks what the decorator checks."""
    mails.add_handler(plain, retry=Retry(attempts=2))
    mails.add_handler(asynchronous_with_context, on_dead=lambda mail, error: print(mail.to, error.upper()))
    mails.add_handler(lambda mail: print(mail.to))
    mails.add_handler(takes_a_number)  # type: ignore[arg-type]
    mails.add_handler(plain, retries=3)  # type: ignore[call-arg]
    mails.schedule("daily", Mail("ann"), every="24h", catch_up="all")
    mails.schedule("daily", Mail("ann"), every="24h", catch_up="some")  # type: ignore[arg-type]
    mails.schedule("daily", 5, every="24h")  # type: ignore[arg-type]


@anything.handler
async def asynchronous(value: Any) -> None:
    """Async handlers look the same."""


def policies() -> None:
    """Policies are checked too."""
    Retry(attempts=None, delays=["1s", timedelta(minutes=1)])
    Retry(attempts="many")  # type: ignore[arg-type]
    Retry(relative_to="then")  # type: ignore[arg-type]
    Snooze()  # type: ignore[call-arg]
    mails.handler(retry=5)  # type: ignore[call-overload]


def units() -> None:
    """Units keep types apart."""
    with store.unit() as unit:
        assert_type(unit, UnitOfWork)
        taken = unit.take(invoices, limit=10)
        assert_type(taken, list[Entry[Invoice]])
        unit.put(mails, Mail("ann"))
        unit.put(mails, Invoice(5))  # type: ignore[misc]
        unit.put(mails, Mail("ann"), dely="5m")  # type: ignore[call-arg]
        unit.commit()


def publishing() -> None:
    """A subscription's queue has the event's type."""
    bus = Bus(store)
    assert_type(bus.subscribe("listener", Mail), Queue[Mail])
    bus.publish(Mail("ann"), delay="1m")
    bus.subscribe("listener", 5)  # type: ignore[arg-type]


def working() -> None:
    """Workers and what tests use."""
    assert_type(Worker(store, [mails], lease="60s").drain(limit=5), int)
    assert_type(drain(store, mails), int)
    assert_type(assert_put(mails, Mail("ann"), count=1), list[Entry[Mail]])
    assert_type(all_put(mails), list[Entry[Mail]])
    refute_put(mails, Mail("ann"), within="5m")
    Worker("sqlite:///shop.db")  # type: ignore[arg-type]


def client_of_the_service(client: client_module.Client) -> None:
    assert_type(client.put("mails", {"to": "ann"}, delay="45m"), client_module.Put)
    assert_type(client.queues(prefix="m").items, list[client_module.QueueCounts])
    [leased] = client.claim("mails", limit=1, wait=5)
    assert_type(leased.read(Mail), Mail)
    client.end([leased], "retry", delay=timedelta(seconds=5))
    client.end([leased], "later")  # type: ignore[arg-type]
    client.put("mails", 1, dealy="45m")  # type: ignore[call-arg]
    client.end(client.entries("mails").items)  # type: ignore[arg-type]


async def asynchronous_client(client: client_module.AsyncClient) -> None:
    assert_type(await client.put("mails", 1), client_module.Put)
    assert_type((await client.history("mails")).next, int | None)
