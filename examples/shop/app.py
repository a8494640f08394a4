"""A small shop: what its messages look like, which queues it has, and the handlers that workers run.

penstock worker app:store --processes 2
"""

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import msgspec

from penstock import Bus, Context, Reject, Retry, open_queues

DATA = Path(os.environ.get("SHOP_DATA", ".")).absolute()
DATABASE = DATA / "shop.db"
CARRIER_IS_DOWN = DATA / "carrier-is-down"

store = open_queues(f"sqlite:///{DATABASE}")
bus = Bus(store)


# --- messages --------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    """An order; also the event that tells of it."""

    number: int
    customer: str
    cents: int


class Parcel(msgspec.Struct):
    """Something to be shipped."""

    order: int
    address: str


# --- queues ----------------------------------------------------------------------------------------

# Each subscription of the bus gets an entry of its own for every order that is published.
mails = bus.subscribe("mails", Order)
stock = bus.subscribe("stock", Order)

orders = store.queue("orders", Order)  # has no handler: the billing run in demo.py takes from it
invoices = store.queue("invoices", Order)
reminders = store.queue("reminders", str)
parcels = store.queue("parcels", Parcel)
reports = store.queue("reports", str)


# --- handlers --------------------------------------------------------------------------------------


@mails.handler
def confirm(order: Order) -> None:
    """A plain handler. If the process dies right here, the mail goes out again: at least once, never lost."""
    time.sleep(0.02)
    note("mails.txt", f"To {order.customer}: thank you for order {order.number}")


@stock.handler(concurrency=50)
async def reserve(order: Order) -> None:
    """Handlers may be async; many of them share one thread."""
    await asyncio.sleep(0.02)
    note("stock.txt", f"reserved for order {order.number}")


@invoices.handler(concurrency=4)
def book(order: Order, ctx: Context) -> None:
    """Book an invoice in the shop's own table, and end the entry, in one transaction of the shop's own connection.

    The row and the end of the entry are committed together: whenever this process dies, there are both or none.
    """
    time.sleep(0.25)
    with closing(sqlite3.connect(DATABASE)) as db, db:
        db.execute("INSERT INTO ledger VALUES (?, ?, ?)", (order.number, order.customer, order.cents))
        ctx.finish(connection=db)


@reminders.handler
def remind(text: str) -> None:
    """Runs when the entry is due."""
    note("reminders.txt", text)


@parcels.handler(retry=Retry(attempts=3, backoff="200ms"))
def ship(parcel: Parcel) -> Reject | None:
    """Fails while the carrier is down: tried again with a growing pause, then given up as a dead letter."""
    if parcel.address == "nowhere":
        return Reject("there is no such address")
    if CARRIER_IS_DOWN.exists():
        raise ConnectionError("the carrier does not answer")
    note("parcels.txt", f"order {parcel.order} to {parcel.address}")
    return None


@reports.handler
def report(title: str) -> None:
    """Put by a schedule, once per interval, however many workers there are."""
    with closing(sqlite3.connect(DATABASE)) as db:
        booked, cents = db.execute("SELECT count(*), coalesce(sum(cents), 0) FROM ledger").fetchone()
    note("reports.txt", f"{title}: {booked} invoices, {cents / 100:.2f}")


# --- the shop's own data ---------------------------------------------------------------------------


def create_tables() -> None:
    """The ledger lives in the same file as the queues, so one transaction can hold both."""
    with closing(sqlite3.connect(DATABASE)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS ledger (number INTEGER, customer TEXT, cents INTEGER)")


def note(name: str, line: str) -> None:
    """Append a line to a file; short appends of several processes do not mix."""
    with open(DATA / name, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")
