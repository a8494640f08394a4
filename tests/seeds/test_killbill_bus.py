"""killbill-queue's promises in our words, the bus: events, subscriptions, the outbox, and paging over many entries.

The seed keeps one row per event and calls every subscriber from it. Here each subscription gets an entry of its own,
so a failure in one re-runs no other.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.seeds.watching import Ear, Runs, at_once, claim, claimed, eventually, finish, states, working

from penstock import Bus, QueueStore, Retry, Worker
from penstock.errors import BadInput
from penstock.testing import FakeClock


class Event(msgspec.Struct):
    number: int = 0


class Payment(Event):
    pass


class Refund(Payment):
    pass


class Login(Event):
    pass


@pytest.fixture
def bus(store: QueueStore) -> Bus:
    return Bus(store)


@pytest.mark.seed("A3.19")
def test_five_published_events_reach_the_subscriber(bus: Bus, store: QueueStore) -> None:
    seen = Runs()
    payments = bus.subscribe("ledger", Payment)
    payments.add_handler(seen)
    assert (payments.counts().ready, payments.counts().leased) == (0, 0)
    with working(store):
        for number in range(5):
            [made] = bus.publish(Payment(number))
            assert made.queue == "bus.ledger"
        eventually(lambda: states(payments).count("done") == 5, "five events handled")
    assert sorted(event.number for event in seen.values) == [0, 1, 2, 3, 4]
    assert (payments.counts().live, payments.counts().dead) == (0, 0)


@pytest.mark.seed("A3.20")
def test_events_of_another_type_are_not_delivered(bus: Bus, store: QueueStore) -> None:
    seen = Runs()
    bus.subscribe("ledger", Payment).add_handler(seen)
    assert bus.publish(Login(1)) == []
    bus.publish(Payment(2))
    assert Worker(store).drain() == 1
    assert seen.values == [Payment(2)]


@pytest.mark.seed("A3.21")
def test_a_subscriber_that_fails_gets_the_event_again(bus: Bus, store: QueueStore) -> None:
    seen = Runs(failures=1)
    payments = bus.subscribe("ledger", Payment)
    payments.add_handler(seen, retry=Retry(attempts=4, immediate=3))
    [made] = bus.publish(Payment(1))
    Worker(store).drain()
    assert (seen.tries, seen.values) == (2, [Payment(1)])
    assert states(payments, made.id) == ["retried", "done"]


@pytest.mark.seed("A3.22")
def test_out_of_attempts_leaves_no_live_entry(bus: Bus, store: QueueStore) -> None:
    """The seed forgets such an event in its history; here it is a dead letter, whole and with its error."""
    seen = Runs(failures=99)
    given_up: list[tuple[Any, str]] = []
    payments = bus.subscribe("ledger", Payment)
    payments.add_handler(
        seen, retry=Retry(attempts=4, immediate=3), on_dead=lambda *told: given_up.append(told)
    )  # 1 + 3 retries
    [made] = bus.publish(Payment(1))
    Worker(store).drain()
    assert (seen.tries, seen.values) == (4, [])
    assert payments.counts().live == 0
    assert states(payments, made.id) == ["retried", "retried", "retried", "dead"]
    [letter] = payments.dead()
    assert (letter.id, letter.value, letter.error) == (made.id, Payment(1), "RuntimeError: failure 4")
    assert given_up == [(Payment(1), "RuntimeError: failure 4")], "told once"


@pytest.mark.seed("A3.23")
def test_outbox_the_event_lives_and_dies_with_the_business_row(
    open_store: Callable[..., QueueStore], connection: Any
) -> None:
    """A plain connection and its own commit are enough, and they wake the worker: no poll comes for an hour."""
    store = open_store()
    bus, seen = Bus(store), Runs()
    payments = bus.subscribe("ledger", Payment)
    payments.add_handler(seen)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price INTEGER)")
    connection.commit()
    with working(store, poll="1h"):
        connection.execute("INSERT INTO orders (id, price) VALUES (1, 10)")
        [made] = bus.publish(Payment(1), connection=connection)
        assert payments.find() == [], "nobody sees it before the commit"
        assert [one.id for one in payments.find(connection=connection)] == [made.id], "the transaction itself does"
        connection.commit()
        eventually(lambda: states(payments) == ["done"], "the committed event handled")

        connection.execute("INSERT INTO orders (id, price) VALUES (2, 20)")
        bus.publish(Payment(2), connection=connection)
        connection.rollback()
        connection.execute("INSERT INTO orders (id, price) VALUES (3, 30)")
        bus.publish(Payment(3), connection=connection)
        connection.commit()
        eventually(lambda: states(payments) == ["done", "done"], "the third event handled")
    assert [event.number for event in seen.values] == [1, 3]
    assert list(connection.execute("SELECT id FROM orders ORDER BY id").fetchall()) == [(1,), (3,)]
    assert payments.counts().live == 0


@pytest.mark.seed("A3.24")
def test_a_subscribers_retries_follow_its_list_of_delays(bus: Bus, store: QueueStore, clock: FakeClock) -> None:
    """The seed needs a second queue for this; here the subscription's entry waits in place, apart from others."""
    failing, fine = Runs(failures=4), Runs()
    schedule = Retry(attempts=5, delays=["1ms", "1ms", "1ms", "1d"], relative_to="due")
    ledger = bus.subscribe("ledger", Payment)
    ledger.add_handler(failing, retry=schedule)
    bus.subscribe("mailer", Payment).add_handler(fine)
    published = clock.now()
    bus.publish(Payment(1))

    Worker(store).drain()
    clock.advance("1s")
    Worker(store).drain()
    assert states(ledger) == ["retried"] * 4
    [waiting] = ledger.find()
    assert waiting.due == published + timedelta(days=1)

    clock.advance("1d")
    Worker(store).drain()
    assert states(ledger) == ["retried"] * 4 + ["done"]
    assert failing.values == [Payment(1)]
    assert fine.tries == 1, "the other subscriber ran once"


@pytest.mark.seed("A3.25")
def test_paging_sees_every_id_once_and_in_order(store: QueueStore) -> None:
    jobs = store.queue("jobs", int)
    ids = [put.id for put in jobs.put_many(range(1543))]
    pages: list[list[str]] = []
    after = 0
    while page := jobs.find(state="waiting", after=after, limit=100):
        pages.append([entry.id for entry in page])
        after = page[-1].seq
    assert [len(page) for page in pages] == [100] * 15 + [43]
    assert [id_ for page in pages for id_ in page] == ids


@pytest.mark.seed("A3.26")
def test_a_node_that_starts_finds_its_thousands_of_waiting_entries(open_store: Callable[..., QueueStore]) -> None:
    """The seed loads its own ids into memory at start; here there is nothing to load, a claim finds them."""
    before = open_store(node="a")
    ids = {put.id for put in before.queue("jobs", int).put_many(range(2345), sticky=True)}

    restarted, other = open_store(node="a"), open_store(node="b")
    jobs = restarted.queue("jobs", int)
    assert jobs.counts().ready == 2345
    assert claim(other.queue("jobs", int), 100) == [], "they are for their own node"
    found: list[str] = []
    while batch := claimed(jobs, 1000).entries:
        assert len(batch) <= 1000
        found += [entry.id for entry in batch]
        finish(restarted, *batch)
    assert len(found) == 2345
    assert set(found) == ids
    assert jobs.counts().live == 0


# --- the event bus as such -------------------------------------------------------------------------------------------


@pytest.mark.seed("A3.37")
def test_supertypes_receive_and_unwanted_events_are_told_once(bus: Bus, store: QueueStore) -> None:
    """The seed's dead event is our signal `unwanted`."""
    ear = Ear(store, "unwanted")
    everything, payments, refunds = Runs(), Runs(), Runs()
    bus.subscribe("all", Event).add_handler(everything)
    bus.subscribe("payments", Payment).add_handler(payments)
    bus.subscribe("refunds", Refund).add_handler(refunds)
    bus.publish(Refund(1))
    bus.publish(Payment(2))
    bus.publish(Login(3))
    Worker(store).drain()
    assert sorted(event.number for event in everything.values) == [1, 2, 3]
    assert sorted(event.number for event in payments.values) == [1, 2]
    assert [event.number for event in refunds.values] == [1]
    assert ear.heard == []

    class Unheard(msgspec.Struct):
        pass

    assert bus.publish(Unheard()) == []
    assert len(ear.heard) == 1


@pytest.mark.seed("A3.37")
def test_a_fifo_subscription_gets_events_in_the_order_of_publishing(bus: Bus, store: QueueStore) -> None:
    """In the seed order holds for one thread only; here a subscription asks for it, and all workers keep it."""
    seen: list[int] = []
    ordered = bus.subscribe("ordered", Payment, fifo=True)
    ordered.add_handler(lambda event: seen.append(event.number))
    for number in range(30):
        bus.publish(Payment(number))
    with working(store, store):
        eventually(lambda: len(seen) == 30, "all events handled")
    assert seen == list(range(30))


@pytest.mark.seed("A3.37")
def test_unsubscribe_ends_delivery(bus: Bus, store: QueueStore) -> None:
    """The seed raises for an unknown subscriber; here the answer is False, so that a repeat is harmless."""
    seen = Runs()
    bus.subscribe("ledger", Payment).add_handler(seen)
    bus.publish(Payment(1))
    assert bus.unsubscribe("ledger") is True
    assert bus.unsubscribe("ledger") is False
    assert bus.unsubscribe("never-there") is False
    assert bus.publish(Payment(2)) == []
    Worker(store).drain()
    assert seen.values == [Payment(1)], "what it had before stays its own"


@pytest.mark.seed("A3.37")
def test_subscribing_is_thread_safe_and_the_list_is_a_snapshot(bus: Bus, store: QueueStore) -> None:
    errors = at_once(*(lambda number=number: bus.subscribe(f"s{number}", Payment) for number in range(16)))
    assert [error for error in errors if isinstance(error, Exception)] == []
    listed = bus.subscriptions()
    assert sorted(one.name for one in listed) == sorted(f"s{number}" for number in range(16))
    bus.unsubscribe("s3")
    listed.clear()
    assert len(bus.subscriptions()) == 15
    assert len(bus.publish(Payment(1))) == 15
    with pytest.raises(AttributeError):
        bus.subscriptions()[0].name = "other"  # type: ignore[misc]


@pytest.mark.seed("A3.37")
@pytest.mark.parametrize("primitive", [int, float, bool, type(None)])
def test_a_primitive_is_no_event_type(bus: Bus, primitive: type) -> None:
    with pytest.raises(BadInput):
        bus.subscribe("numbers", primitive)
    assert bus.subscriptions() == []


@pytest.mark.seed("A3.38")
def test_one_subscribers_error_spares_the_others_under_many_threads(bus: Bus, store: QueueStore) -> None:
    """The seed rethrows the first error and runs all again; here each entry keeps its own error and its own retries."""
    broken, first, last = Runs(failures=25), Runs(), Runs()
    middle = bus.subscribe("middle", Payment)
    bus.subscribe("first", Payment).add_handler(first)
    middle.add_handler(broken, retry=Retry(attempts=2, immediate=1))
    bus.subscribe("zlast", Payment).add_handler(last)
    made = at_once(*(lambda number=number: bus.publish(Payment(number)) for number in range(25)))
    assert [len(puts) for puts in made] == [3] * 25
    with working(store):
        eventually(lambda: middle.counts().live == 0 and len(last.values) == len(first.values) == 25, "all handled")
    for runs in (first, last):
        assert sorted(event.number for event in runs.values) == list(range(25)), "once each, whatever the others did"
        assert runs.tries == 25
    failed = [row for row in middle.history() if row.state in ("retried", "dead")]
    assert len(failed) == 25
    assert all(row.error and row.error.startswith("RuntimeError: failure ") for row in failed)
    assert len(broken.values) + len(middle.dead()) == 25


@pytest.mark.seed("A3.37")
def test_publishing_while_subscribing_misses_nobody_who_was_there(bus: Bus) -> None:
    known, stop = threading.Event(), threading.Event()
    missed: list[int] = []

    def publish() -> None:
        number = 0
        while not stop.is_set():
            there = known.is_set()
            if there and not bus.publish(Payment(number)):
                missed.append(number)
            number += 1

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    bus.subscribe("late", Payment)
    known.set()
    for number in range(20):
        bus.subscribe(f"more{number}", Payment)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert missed == []
