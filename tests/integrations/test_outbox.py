"""The outbox: committed in one database, relayed to queues of another store, each entry once."""

import runpy
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT
from tests.store_urls import STORES

from penstock import Unique, Worker, open_queues
from penstock.errors import BadInput, Unsupported
from penstock.integrations.sqlalchemy import Outbox
from penstock.testing import FakeClock


@pytest.mark.parametrize("far", ["redis", "zookeeper"])
def test_the_example_relays_what_was_committed(
    far: str, tmp_path: Path, servers: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "integrations" / "outbox.py"))
    example["main"](tmp_path, STORES[far](tmp_path, servers).url)
    assert capsys.readouterr().out.splitlines() == [
        "before the relay: []",
        "after the relay: ['thank you, ann']",
    ]


class Shop:
    """A file for orders, an outbox in it, and queues elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.near = open_queues(f"sqlite:///{folder}/shop.db", clock=self.clock)
        self.far = open_queues(f"sqlite:///{folder}/far.db", clock=self.clock)
        self.connection = sqlite3.connect(folder / "shop.db", timeout=20)
        self.outbox = Outbox(self.near, into=self.far)


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    made = Shop(tmp_path)
    yield made
    made.connection.close()
    made.near.close()
    made.far.close()


def test_what_goes_to_one_queue_arrives_in_order_with_its_options(shop: Shop) -> None:
    numbers = shop.far.queue("numbers", int)
    shop.connection.execute("CREATE TABLE orders (id int)")
    for number in range(20):
        shop.connection.execute("INSERT INTO orders VALUES (?)", (number,))
        shop.outbox.put(numbers, number, connection=shop.connection, labels={"kind": "order"}, priority=3)
    shop.connection.commit()
    Worker(shop.near).drain()
    entries = numbers.find(labels={"kind": "order"})
    assert [entry.value for entry in entries] == list(range(20))
    assert {entry.priority for entry in entries} == {3}


def test_a_delay_counts_from_the_put(shop: Shop) -> None:
    mails = shop.far.queue("mails", str)
    due = shop.clock.now()
    shop.outbox.put(mails, "later", connection=shop.connection, delay="1h")
    shop.connection.commit()
    shop.clock.advance("30m")
    Worker(shop.near).drain()
    [entry] = mails.find()
    assert (entry.due - due).total_seconds() == 3600


def test_a_relay_that_repeats_itself_puts_nothing_twice(shop: Shop) -> None:
    mails = shop.far.queue("mails", str)
    id_ = shop.outbox.put(mails, "once", connection=shop.connection)
    shop.connection.commit()
    waiting = [entry for lane in range(4) for entry in shop.near.queue(f"outbox.{lane}").find()]
    assert [entry.id for entry in waiting] == [id_]
    Worker(shop.near).drain()
    shop.near.queue(waiting[0].queue).replay(id_)  # as if its end had never been written down
    Worker(shop.near).drain()
    assert [entry.id for entry in mails.find()] == [id_]


def test_unique_ids_hold_in_the_other_store(shop: Shop) -> None:
    mails = shop.far.queue("mails", str)
    for text, unique in (("first", "order-1"), ("second", "order-1"), ("third", Unique("order-2", period="1h"))):
        shop.outbox.put(mails, text, connection=shop.connection, unique=unique)
    shop.outbox.put(mails, "refused", connection=shop.connection, unique=Unique("order-1", on_conflict="raise"))
    shop.connection.commit()
    Worker(shop.near).drain()
    assert [entry.value for entry in mails.find()] == ["first", "third"]
    [dead] = [entry for lane in range(4) for entry in shop.near.queue(f"outbox.{lane}").dead()]
    assert "refused it" in str(dead.error)


def test_while_the_other_store_is_away_entries_wait(shop: Shop) -> None:
    mails = shop.far.queue("mails", str)
    shop.outbox.put(mails, "dear ann", connection=shop.connection)
    shop.connection.commit()
    shop.far.close()
    Worker(shop.near).drain()
    assert sum(one.retrying for one in shop.near.counts()) == 1


def test_wrong_uses_say_what_to_do(shop: Shop) -> None:
    mails = shop.far.queue("mails", str)
    with pytest.raises(BadInput, match=r"no connection.*queue\.put"):
        shop.outbox.put(mails, "x", connection=None)
    with pytest.raises(BadInput, match="one store"):
        shop.outbox.put(shop.near.queue("mails", str), "x", connection=shop.connection)
    with pytest.raises(BadInput, match="dely"):
        shop.outbox.put(mails, "x", connection=shop.connection, dely="1h")  # type: ignore[call-arg]
    with open_queues("memory://") as memory, pytest.raises(Unsupported, match="joins no transactions"):
        Outbox(memory, into=shop.far)
