"""The shop at work: `make demo`. Ends by itself within a minute, with an error if a promise was not kept."""

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from visits import Visit

import penstock
from penstock import Queue

ORDERS = 40
VISITS = 2_000
HERE = Path(__file__).resolve().parent
console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def main() -> int:
    """Play the story, then check the sums."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, default=Path("demo-data") / f"shop-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005
    data: Path = options.parse_args().data
    data.mkdir(parents=True)
    os.environ["SHOP_DATA"] = str(data.absolute())
    import app as shop  # it opens its store in that folder

    began = time.monotonic()
    shop.create_tables()
    with workers(data):
        orders_come_in(shop)
        things_for_later(shop)
        billing(shop)
        a_worker_dies(shop)
        the_carrier_fails(shop)
        later_has_come(shop)
    read_in_full = visits_are_read(data)
    good = check(shop, read_in_full)
    summary(shop)
    shop.store.close()
    console.print(
        f"\nThat took {time.monotonic() - began:.0f} seconds. The store and what the handlers wrote are in {data}"
    )
    what_next(data)
    return 0 if good else 1


# --- the story -------------------------------------------------------------------------------------


@contextmanager
def workers(data: Path) -> Iterator[None]:
    """Two worker processes, started as anybody would; leases are short so that nobody waits long in a demo."""
    title("Two worker processes start")
    command = ["worker", "app:store", "--processes", "2", "--lease", "2s", "--reap-every", "500ms", "--verbose"]
    say(f"$ penstock {' '.join(command)}    [dim]# writes {data / 'worker.log'}[/]")
    with open(data / "worker.log", "wb") as log:
        # A session of its own: a Ctrl-C ends the story, and the story ends its workers.
        parent = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "penstock", *command], cwd=HERE, stderr=log, start_new_session=True
        )
        try:
            yield
            title("The workers stop")
            parent.send_signal(signal.SIGTERM)
            say(f"SIGTERM: running handlers end, nothing new is claimed; exit code {parent.wait(timeout=30)}")
        finally:
            if parent.poll() is None:
                parent.terminate()
                parent.wait(timeout=30)


def orders_come_in(shop: ModuleType) -> None:
    """An order and the event about it are one unit: both happen, or none."""
    title(f"{ORDERS} orders come in")
    rng = random.Random(17)
    for number in range(1, ORDERS + 1):
        order = shop.Order(number, rng.choice(("ann", "ben", "cem", "dana")), rng.randrange(500, 20_000))
        with shop.store.unit() as unit:
            unit.put(shop.orders, order, labels={"customer": order.customer})
            unit.publish(shop.bus, order)
            unit.commit()
    say("each was put into [b]orders[/] and published: the subscriptions [b]mails[/] and [b]stock[/] got an entry each")
    watch(lambda: idle(shop.mails, shop.stock), shop.mails, shop.stock)
    say(f"{ended(shop.mails)['done']} mails sent, {ended(shop.stock)['done']} reservations made")


def things_for_later(shop: ModuleType) -> None:
    """Due times and schedules live in the store, not in a process."""
    title("Some things are for later")
    for seconds in (2, 3, 4):
        shop.reminders.put(f"asked for in {seconds} seconds", delay=f"{seconds}s")
    shop.reminders.put("tomorrow: ask ann whether all is well", delay="24h", unique="ask-ann")
    again = shop.reminders.put("the same again", delay="24h", unique="ask-ann")
    say(f"reminders in 2, 3 and 4 seconds, and one tomorrow; put a second time it is not created: {again.created=}")
    shop.reports.schedule("sales", "sales so far", every="2s")
    say("a schedule puts a report every 2 seconds (a cron line would do as well)")


def billing(shop: ModuleType) -> None:
    """Take orders and put invoices: committed together or not at all."""
    title("Billing: a unit of work")
    with shop.store.unit() as unit:
        for entry in unit.take(shop.orders, limit=10):
            unit.put(shop.invoices, entry.value)
        say("took 10 orders, prepared 10 invoices ... and leaves without commit()")
    say(f"rolled back: {shop.orders.counts().ready} orders are ready, {shop.invoices.counts().live} invoices exist")
    say("a rollback spends an attempt: the table at the end shows these 10 as retried")
    units = 0
    while True:
        with shop.store.unit() as unit:
            taken = unit.take(shop.orders, limit=10)
            for entry in taken:
                unit.put(shop.invoices, entry.value, labels=entry.labels)
            unit.commit()
        if not taken:
            break
        units += 1
    say(f"and now for good: {units} units, {shop.orders.counts().live} orders left, every one of them has its invoice")


def a_worker_dies(shop: ModuleType) -> None:
    """The entries a dead worker held come back when their leases run out."""
    title("A worker process is killed in the middle")
    watch(lambda: shop.invoices.counts().leased >= 4, shop.invoices)
    # A lease names its owner: node/pid-...
    owners = [entry.lease.owner for entry in shop.invoices.find(state="leased")]
    [(victim, held)] = Counter(int(owner.split("/")[1].split("-")[0]) for owner in owners).most_common(1)
    os.kill(victim, signal.SIGKILL)
    say(f"[red]kill -9 {victim}[/] while it holds {held} invoices; its parent starts another process")
    watch(lambda: idle(shop.invoices), shop.invoices)
    states = ended(shop.invoices)
    say(f"the reaper brought {states['reaped']} of them back; all {states['done']} invoices are booked")


def the_carrier_fails(shop: ModuleType) -> None:
    """Failures are retried with a growing pause, end in the dead letters, and can be replayed."""
    title("The carrier does not answer")
    shop.CARRIER_IS_DOWN.touch()
    parcel = shop.parcels.put(shop.Parcel(1, "Mill Lane 3"))
    shop.parcels.put(shop.Parcel(2, "nowhere"))
    watch(lambda: idle(shop.parcels), shop.parcels)
    for letter in shop.parcels.dead():
        say(f"order {letter.value.order} is a dead letter at attempt {letter.attempt}: {escape(letter.error or '')}")
    shop.CARRIER_IS_DOWN.unlink()
    shop.parcels.replay(parcel.id)
    say("the carrier is back, so the first one is replayed: same id, next generation")
    watch(lambda: idle(shop.parcels), shop.parcels)
    last = shop.parcels.history(parcel.id)[-1]
    say(f"generation {last.generation}, attempt {last.attempt}: {last.state}")


def later_has_come(shop: ModuleType) -> None:
    """By now the reminders were due and the schedule has fired a few times."""
    title("Later has come")
    watch(lambda: shop.reminders.counts().live == 1 and ended(shop.reports)["done"] >= 2, shop.reminders, shop.reports)
    for row in shop.reminders.history(state="done"):
        say(f"a reminder started {(row.started_us - row.due_us) / 1000:.1f} ms after it was due")
    shop.store.remove_schedule("sales")
    say(f"the schedule fired {ended(shop.reports)['done']} times; it is removed now, and so it stays")


def visits_are_read(data: Path) -> bool:
    """A log is read many times: two groups at their own speed, and a member that dies is replaced by the others."""
    title("Visits go into a log, which many read")
    url = f"file://{data.absolute() / 'logs'}"
    with penstock.open_logs(url) as logs:
        logs.create("visits", partitions=4)
        log = logs.log("visits", Visit)
        log.append_many(
            [Visit(f"customer-{number % 50}", number) for number in range(VISITS)],
            keys=[f"customer-{number % 50}" for number in range(VISITS)],
        )
        say(
            f"{VISITS:,} visits in 4 partitions, by customer; the group [b]offers[/] has two members, and they are slow"
        )
        files = [data / f"offers-{number}.txt" for number in (1, 2)]
        readers = [
            subprocess.Popen([sys.executable, HERE / "visits.py", url, file], start_new_session=True)  # noqa: S603
            for file in files
        ]
        try:
            with log.tailer("statistics") as tail:
                customers = Counter(record.value.customer for record in iter_all(tail))
            say(f"the group [b]statistics[/] has read all of it meanwhile: {len(customers)} customers")
            follow(lambda: all(file.exists() and file.read_text() for file in files), logs)
            readers[0].kill()
            say(f"[red]kill -9 {readers[0].pid}[/], a member of offers; the other one takes its partitions over")
            follow(lambda: logs.lag("visits", "offers").lag == 0, logs)
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
        # What the dead one had not committed was read again by the other; what it had just committed it may not have
        # written down.
        seen = Counter(number for file in files for number in file.read_text().split())
        say(f"offers has read everything: lag {logs.lag('visits', 'offers').lag}, {len(seen):,} visits seen")
    return sum(customers.values()) == VISITS and len(seen) >= VISITS - 10


def iter_all(tail: Any) -> Iterator[Any]:
    """What is there, to the end."""
    while records := tail.read(1000):
        yield from records
    tail.commit()


def follow(over: Callable[[], bool], logs: Any) -> None:
    """Show how far the slow group is behind until it is over."""
    deadline = time.monotonic() + 30
    with console.status("") as status:
        while not over():
            if time.monotonic() > deadline:
                raise TimeoutError("the visits were not read in 30 seconds")
            status.update(f"offers: {logs.lag('visits', 'offers').lag:,} behind")
            time.sleep(0.02)


# --- the sums --------------------------------------------------------------------------------------


def check(shop: ModuleType, read_in_full: bool) -> bool:
    """Everything that was promised, looked up in the data."""
    with closing(sqlite3.connect(shop.DATABASE)) as db:
        ledger = db.execute("SELECT number, cents FROM ledger").fetchall()
    ordered = sum(shop.orders.codec.decode(row.payload).cents for row in shop.orders.history(state="done"))
    booked = sum(cents for _, cents in ledger)
    billed, invoiced, parcels = ended(shop.orders), ended(shop.invoices), ended(shop.parcels)
    reminders = shop.reminders.history(state="done")
    checks = {
        f"every order has exactly one invoice ({len(ledger)})": sorted(number for number, _ in ledger)
        == list(range(1, ORDERS + 1)),
        f"the money adds up: {ordered / 100:.2f} ordered, {booked / 100:.2f} booked": ordered == booked,
        "every order was told to both subscriptions": ended(shop.mails)["done"] == ended(shop.stock)["done"] == ORDERS,
        "the killed worker's entries came back": invoiced["reaped"] > 0 and idle(shop.invoices),
        "the rolled-back unit left nothing behind": billed["retried"] == 10 and billed["done"] == ORDERS,
        "the replayed parcel was shipped, the impossible one is a dead letter": parcels["done"] == 1
        and shop.parcels.counts().dead == 1,
        "no reminder came early, tomorrow's waits": len(reminders) == 3
        and all(row.started_us >= row.due_us for row in reminders)
        and shop.reminders.counts().delayed == 1,
        "the schedule fired": ended(shop.reports)["done"] >= 2,
        "both groups have read every visit": read_in_full,
    }
    title("Do the sums add up?")
    for text, good in checks.items():
        say(f"[green]yes[/]  {text}" if good else f"[red b]NO   {text}[/]")
    return all(checks.values())


def summary(shop: ModuleType) -> None:
    """What became of the entries of each queue."""
    table = Table(title="What the queues did", title_justify="left", title_style="bold")
    columns = ("put", "done", "retried", "reaped", "dead", "replayed", "waiting")
    table.add_column("queue")
    for column in columns:
        table.add_column(column, justify="right")
    for queue in (shop.orders, shop.mails, shop.stock, shop.invoices, shop.reminders, shop.parcels, shop.reports):
        states, live = ended(queue), queue.find()
        known = {row.id for row in queue.history(limit=10_000)} | {entry.id for entry in live}
        numbers = states | {"put": len(known), "waiting": len(live)}
        table.add_row(queue.name, *(str(numbers.get(column) or "·") for column in columns))
    console.print()
    console.print(table)


def what_next(data: Path) -> None:
    """Where to go from here."""
    url = f"sqlite:///{data / 'shop.db'}"
    console.print("\n[b]Look around[/]")
    logs = f"file://{data / 'logs'}"
    for command in (
        f"queue list --url {url}", f"queue show parcels --url {url}", f"doctor {url}", f"log lag visits --url {logs}",
    ):  # fmt: skip
        console.print(f"  .venv/bin/penstock {command}", soft_wrap=True)
    console.print(
        "\nThe handlers are in examples/shop/app.py, this story in demo.py beside it; README.md has the quick start."
    )


# --- showing and looking ---------------------------------------------------------------------------


def title(text: str) -> None:
    """A new chapter."""
    console.print(f"\n[bold cyan]{text}[/]")


def say(text: str) -> None:
    """One line of the story."""
    console.print(f"  {text}", soft_wrap=True)


def watch(over: Callable[[], bool], *queues: Queue[Any], timeout: float = 30) -> None:
    """Show what queues hold until it is over: in place on a terminal, else a line per second."""
    deadline, next_line = time.monotonic() + timeout, time.monotonic() + 1
    with console.status("") as status:
        while not over():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{', '.join(queue.name for queue in queues)}: not over after {timeout:.0f} seconds")
            line = "    ".join(f"{queue.name}: {holds(queue)}" for queue in queues)
            status.update(line)
            if not console.is_terminal and time.monotonic() >= next_line:
                say(f"... {line}")
                next_line += 1
            time.sleep(0.05)


def holds(queue: Queue[Any]) -> str:
    """What a queue holds, in words."""
    counts = queue.counts()
    parts = ("ready", "leased", "retrying", "delayed", "dead")
    return ", ".join(f"{number} {part}" for part in parts if (number := getattr(counts, part))) or "empty"


def idle(*queues: Queue[Any]) -> bool:
    """Whether nothing is left to do in these queues."""
    return not any(queue.counts().live for queue in queues)


def ended(queue: Queue[Any]) -> Counter[str]:
    """How the attempts of a queue ended; replays are counted besides."""
    rows = queue.history(limit=10_000)
    replayed = {(row.id, row.generation) for row in rows if row.generation > 1}
    return Counter(row.state for row in rows) + Counter(replayed=len(replayed))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; the workers have ended")
        sys.exit(130)
