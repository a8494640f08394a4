"""The last member of a batch ends while somebody changes the entry that waits for it, on PostgreSQL and MariaDB."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES, Place, Servers
from tests.stores.own_servers import Calling, claim, eventually

from penstock import QueueStore
from penstock.clock import SECOND
from penstock.ids import new_id
from penstock.queue.entry import Entry, Unique
from penstock.queue.protocol import Changes, ClaimRequest, Ending, Find, Link, NewEntry, Source, Step

HOUR = 3600 * SECOND


@pytest.fixture(params=["postgres", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    return STORES[request.param](tmp_path, servers)


@pytest.fixture
def store(place: Place, opened: Callable[..., Any]) -> Any:
    return opened(place.url, node="one")


def waiting_for_one(store: QueueStore, **fields: Any) -> tuple[str, Entry[Any]]:
    """An entry that is held for one other, which is leased."""
    target = NewEntry(new_id(), "then", b"1", "json", "int", **fields)
    member = NewEntry(new_id(), "work", b"1", "json", "int")
    store.queue("next").put(1, delay="1h")  # what the round trip claims from
    store.driver.commit(Step(puts=(target, member), links=(Link(member.id, target.id),)))
    [entry] = claim(store, "work").entries
    return target.id, entry


def end(store: QueueStore, entry: Entry[Any], how: str) -> None:
    """End the last member: by itself, or in a round trip with a claim."""
    assert entry.lease is not None
    following = None
    if how == "round trip":
        following = ClaimRequest(new_id(), (Source("next", 10, 5),), 10, "worker", "one", 60 * SECOND)
    [result] = store.driver.settle((Step((Ending(entry.lease, "done"),)),), following).results
    assert not isinstance(result, Exception), result


HOWS = pytest.mark.parametrize("how", ["round trip", "alone"])


@HOWS
def test_one_that_is_held_again_meanwhile_is_released(store: QueueStore, place: Place, how: str) -> None:
    assert place.connect is not None
    target, member = waiting_for_one(store)
    store.driver.cancel([target])
    postgres = place.url.startswith("postgres")
    rows = "penstock_queues WHERE queue = 'next'" if postgres and how == "round trip" else "penstock_claims"
    with contextlib.closing(place.connect()) as connection:
        assert connection.execute(f"SELECT * FROM {rows} FOR UPDATE").fetchall()
        call = Calling(lambda: end(store, member, how))
        eventually(lambda: waits_for_a_lock(place), "the ending waits")
        store.driver.replay([target])
        assert call.under_way
        connection.rollback()
    call.wait()
    [entry] = store.driver.find(Find(ids=(target,)))
    assert entry.state == "waiting"
    assert [taken.id for taken in claim(store, "then").entries] == [target]


@HOWS
@pytest.mark.parametrize("before", ["new", "held again"])
@pytest.mark.parametrize("change", ["update", "replace"])
def test_one_that_is_put_off_meanwhile_is_due_when_that_says(
    store: QueueStore, place: Place, how: str, change: str, before: str
) -> None:
    assert place.connect is not None
    target, member = waiting_for_one(store, unique=Unique("u"))
    if before == "held again":  # then its history keeps the body that it had
        store.driver.cancel([target])
        store.driver.replay([target])
    with contextlib.closing(place.connect()) as connection:
        if change == "update":
            store.driver.update(target, Changes(delay_us=HOUR), connection=connection)
        else:
            store.queue("then").put(2, delay="1h", unique=Unique("u", on_conflict="replace"), connection=connection)
        call = Calling(lambda: end(store, member, how))
        eventually(lambda: waits_for_a_lock(place), "the ending waits")
        connection.commit()
    call.wait()
    [entry] = store.driver.find(Find(ids=(target,)))
    assert entry.state == "waiting"
    assert entry.due_us > store.now() + HOUR - 60 * SECOND


def waits_for_a_lock(place: Place) -> bool:
    assert place.connect is not None
    time.sleep(0.15)  # MariaDB does not look twice in a tenth of a second
    asked = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted"
        if place.url.startswith("postgres")
        else "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    )
    with contextlib.closing(place.connect()) as connection:
        return bool(connection.execute(asked).fetchone()[0])
