"""Calls that wait for a lock on PostgreSQL and MariaDB: what they stamp is the time after the wait."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES, Place, Servers
from tests.stores.own_servers import Calling, eventually

from penstock import QueueStore
from penstock.clock import SECOND
from penstock.ids import new_id
from penstock.queue.entry import Unique
from penstock.queue.protocol import Changes, ClaimRequest, Ending, Find, Source, Step

LEASE = SECOND // 2


@pytest.fixture(params=["postgres", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    return STORES[request.param](tmp_path, servers)


@pytest.fixture
def store(place: Place, opened: Callable[..., Any]) -> Any:
    return opened(place.url, node="one")


# Where a database keeps what calls wait for: queues, entries that wait, entries that are held; of one queue.
_NUMBER = "number = (SELECT number FROM penstock_queues WHERE queue = '{0}')"
ROWS = {
    "queues": "penstock_queues WHERE queue = '{0}'",
    "waiting": f"penstock_ready WHERE {_NUMBER}",
    "held": f"penstock_claims WHERE {_NUMBER}",
}


@contextlib.contextmanager
def locked(place: Place, what: str, queue: str = "q") -> Iterator[Any]:
    """Hold rows of a queue as somebody else's transaction does."""
    assert place.connect is not None
    rows = ROWS[what].format(queue)
    with contextlib.closing(place.connect()) as connection:
        assert connection.execute(f"SELECT * FROM {rows} FOR UPDATE").fetchall(), "nothing is locked"
        yield connection
        connection.rollback()


def wait_past_a_lease(store: QueueStore, call: Calling) -> int:
    """Wait until more than a lease has passed, and the call still waits; the store's time then."""
    begin = store.now()
    eventually(lambda: store.now() > begin + LEASE + LEASE // 2, "a lease is over")
    assert call.under_way, "the call did not wait for the lock"
    return store.now()


def claim(store: QueueStore, queue: str = "q") -> ClaimRequest:
    return ClaimRequest(new_id(), (Source(queue, 10, 5),), 10, "worker", "one", LEASE)


@pytest.mark.parametrize("kind", ["plain", "rated", "limited", "fifo", "family"])
def test_a_claim_that_waited_gives_leases_that_lie_ahead(store: QueueStore, place: Place, kind: str) -> None:
    options: dict[str, Any] = {
        "rated": {"rate": "100/s"}, "limited": {"in_flight": {"customer": 5}}, "fifo": {"fifo": True},
    }.get(kind, {})  # fmt: skip
    store.queue("q", **options).put_many([1, 2], labels={"customer": "ann"})
    request = claim(store)
    if kind == "family":
        request = ClaimRequest(new_id(), (Source("q", 10, 5, family=True),), 10, "worker", "one", LEASE)
    # A FIFO queue that another worker is at is passed over; its head can be held by one that changes the entry.
    with locked(place, "waiting" if kind == "fifo" else "queues"):
        call = Calling(lambda: store.driver.claim(request))
        released = wait_past_a_lease(store, call)
    entries = call.wait().entries
    assert entries
    stored = {entry.id: entry.lease for entry in store.driver.find(Find(states=("leased",)))}
    for entry in entries:
        assert entry.lease.claimed_us >= released
        assert entry.lease.until_us == entry.lease.claimed_us + LEASE
        assert (stored[entry.id].claimed_us, stored[entry.id].until_us) == (
            entry.lease.claimed_us, entry.lease.until_us,
        )  # fmt: skip


def test_a_rate_counts_from_the_time_after_the_wait(store: QueueStore, place: Place) -> None:
    """Otherwise a claim that waited would spend starts of the past, and those of the present come on top."""
    store.queue("q", rate="2/s").put_many(range(10))
    with locked(place, "queues"):
        call = Calling(lambda: store.driver.claim(claim(store)))
        wait_past_a_lease(store, call)
    assert len(call.wait().entries) == 2
    assert store.driver.claim(claim(store)).entries == []


@pytest.mark.parametrize("outcome", ["done", "retry", "dead", "snooze"])
@pytest.mark.parametrize("several", [False, True])
def test_an_ending_that_waited_is_stamped_with_the_time_after_it(
    store: QueueStore, place: Place, outcome: Any, several: bool
) -> None:
    store.queue("q").put_many([1, 2])
    entries = store.driver.claim(claim(store)).entries
    steps = [Step((Ending(entry.lease, outcome, delay_us=SECOND),)) for entry in entries[: 2 if several else 1]]
    with locked(place, "held"):
        call = Calling(lambda: store.driver.settle(steps, claim(store, "other")))
        released = wait_past_a_lease(store, call)
    call.wait()
    rows = store.driver.history(Find())
    assert [row.ended_us for row in rows if row.ended_us < released] == []
    assert len(rows) == (0 if outcome == "snooze" else len(steps))
    if outcome in ("retry", "snooze"):
        assert all(entry.due_us >= released + SECOND for entry in store.driver.find(Find(states=("waiting",))))
    assert all((entry.ended_us or 0) >= released for entry in store.driver.dead(Find()))


def test_a_lock_that_waited_counts_from_the_time_after_it(store: QueueStore, place: Place) -> None:
    store.queue("q").put("x")
    with locked(place, "queues"):
        call = Calling(lambda: store.driver.lock("q", "me", "why"))
        released = wait_past_a_lease(store, call)
    call.wait()
    assert store.locks("q")[0].since_us >= released


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("kind", ["rated", "fifo"])
def test_a_lease_taken_before_the_claim_waited_elsewhere_lies_ahead(
    store: QueueStore, place: Place, kind: str, repeat: bool
) -> None:
    """Also in a repeat: if the first try did not happen, it is a claim like any other."""
    store.queue("a").put("x")
    store.queue("b", **({"rate": "100/s"} if kind == "rated" else {"fifo": True})).put("y")
    request = ClaimRequest(
        new_id(), (Source("a", 10, 5), Source("b", 10, 5)), 10, "worker", "one", LEASE, repeat=repeat
    )  # fmt: skip
    with locked(place, "waiting" if kind == "fifo" else "queues", "b"):
        call = Calling(lambda: store.driver.claim(request))
        released = wait_past_a_lease(store, call)
    entries = call.wait().entries
    assert len(entries) == 2
    stored = {entry.id: entry.lease for entry in store.driver.find(Find(states=("leased",)))}
    for entry in entries:
        assert entry.lease.claimed_us >= released
        assert stored[entry.id].until_us == entry.lease.until_us == entry.lease.claimed_us + LEASE


@pytest.mark.parametrize("how", ["update", "cancel"])
def test_a_change_that_waited_counts_from_the_time_after_it(store: QueueStore, place: Place, how: str) -> None:
    id_ = store.queue("q").put("x").id
    with locked(place, "waiting"):
        if how == "update":
            call = Calling(lambda: store.driver.update(id_, Changes(delay_us=SECOND)))
        else:
            call = Calling(lambda: store.driver.cancel([id_]))
        released = wait_past_a_lease(store, call)
    call.wait()
    if how == "update":
        assert store.driver.find(Find())[0].due_us >= released + SECOND
    else:
        assert store.driver.history(Find())[0].ended_us >= released


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_a_put_that_waited_for_its_unique_id_counts_from_the_time_after_it(
    store: QueueStore, place: Place, on_conflict: Any
) -> None:
    assert place.connect is not None
    unique = Unique("u", on_conflict=on_conflict)
    store.driver.cancel([store.queue("q").put("which makes the queue known").id])
    with contextlib.closing(place.connect()) as connection:
        store.queue("q").put("x", unique="u", connection=connection)
        call = Calling(lambda: store.queue("q").put("y", unique=unique, delay="1s"))
        released = wait_past_a_lease(store, call)
        connection.rollback()
    assert call.wait().created
    [entry] = store.driver.find(Find())
    assert entry.created_us >= released
    assert entry.due_us >= released + SECOND
