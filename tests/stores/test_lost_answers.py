"""One reply is lost on a real wire, and the store tries again by itself: its answer is that of the first try."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES, Servers
from tests.stores.own_servers import claim, eventually
from tests.stores.test_lost_replies import BEFORE_SENDING, Wire, wire

from penstock import failpoints, open_queues
from penstock.errors import LeaseLost
from penstock.queue.protocol import Changes, Ending, Find, Schedule, Step, Subscription
from penstock.queue.queues import QueueStore
from penstock.testing import FakeClock

__all__ = ["wire"]


def lose_one_reply(wire: Wire, meanwhile: Callable[[], Any] = lambda: None) -> None:
    """Let the next change happen and its reply be lost; before it is tried again, something else happens."""
    wire.proxy.on_cut = meanwhile
    # A Redis server that does not know a script yet would only ask for it in the reply that is lost.
    wire.direct.driver.replay([])
    wire.direct.driver.unlock("another", "nobody")

    def strike(point: str) -> None:
        if point == BEFORE_SENDING[wire.kind]:
            failpoints.arm(None)
            wire.proxy.cut_replies = 1

    failpoints.arm(strike)


def put_and_end(store: QueueStore, outcome: Any) -> str:
    id_ = store.queue("q").put("x").id
    [entry] = claim(store, "q").entries
    store.driver.commit(Step((Ending(entry.lease, outcome),)))
    return id_


def test_cancel_says_how_many_it_cancelled(wire: Wire) -> None:
    ids = [one.id for one in wire.store.queue("q").put_many([1, 2])]
    told: list[tuple[str, ...]] = []
    wire.store.signals.subscribe(lambda signal: told.append(signal.ids), "cancelled")
    lose_one_reply(wire)
    assert wire.store.driver.cancel(ids) == 2
    assert sorted(id_ for some in told for id_ in some) == sorted(ids)
    assert [row.state for row in wire.direct.driver.history(Find())] == ["cancelled"] * 2


def test_replay_says_how_many_it_replayed(wire: Wire) -> None:
    id_ = put_and_end(wire.store, "dead")
    lose_one_reply(wire)
    assert wire.store.driver.replay([id_]) == 1
    assert [entry.generation for entry in wire.direct.driver.find(Find())] == [2]


def test_what_was_replayed_and_ended_again_is_not_replayed_twice(wire: Wire) -> None:
    id_ = put_and_end(wire.store, "done")

    def end_again() -> None:
        [entry] = claim(wire.direct, "q").entries
        wire.direct.driver.commit(Step((Ending(entry.lease, "done"),)))

    lose_one_reply(wire, end_again)
    assert wire.store.driver.replay([id_]) == 1
    assert wire.direct.driver.find(Find()) == []


def test_purge_says_how_many_it_purged(wire: Wire) -> None:
    put_and_end(wire.store, "dead")
    lose_one_reply(wire)
    assert wire.store.driver.purge_dead(Find(queue="q")) == 1
    assert wire.direct.driver.dead(Find()) == []


def test_unlock_says_that_it_was_locked(wire: Wire) -> None:
    wire.store.driver.lock("q", "me", "why")
    lose_one_reply(wire)
    assert wire.store.driver.unlock("q", "me") is True
    assert wire.direct.locks() == []


def test_a_lock_that_was_set_since_is_not_taken_away(wire: Wire) -> None:
    wire.store.driver.lock("q", "me", "why")
    lose_one_reply(wire, lambda: wire.direct.driver.lock("q", "me", "again"))
    assert wire.store.driver.unlock("q", "me") is True
    assert [one.reason for one in wire.direct.locks()] == ["again"]


def test_unsubscribe_says_that_it_was_there(wire: Wire) -> None:
    wire.store.driver.subscribe(Subscription("s", "bus.s", ("A",)))
    lose_one_reply(wire)
    assert wire.store.driver.unsubscribe("s") is True
    assert wire.direct.driver.subscriptions() == []


def test_a_schedule_that_was_fired_or_removed(wire: Wire) -> None:
    store = wire.store
    schedule = Schedule("s", "q", "every 1h", "UTC", 1, 1_000_000, b'"x"', "json", "Any")
    store.driver.set_schedule(schedule)
    entry = store.queue("q").new("x")
    lose_one_reply(wire)
    assert store.driver.fire(schedule, 2_000_000, entry) is True
    assert [one.id for one in wire.direct.driver.find(Find())] == [entry.id]
    lose_one_reply(wire)
    assert store.remove_schedule("s") is True
    assert wire.direct.schedules() == []


def test_an_update_takes_nothing_away_from_who_claimed_since(wire: Wire) -> None:
    store, taken = wire.store, []
    id_ = store.queue("q").put("x").id
    [mine] = claim(store, "q").entries
    lose_one_reply(wire, lambda: taken.extend(claim(wire.direct, "q").entries))
    store.driver.update(id_, Changes(payload=b'"y"'), force=True)
    with pytest.raises(LeaseLost):
        store.driver.commit(Step((Ending(mine.lease, "done"),)))
    wire.direct.driver.commit(Step((Ending(taken[0].lease, "done"),)))
    assert [(row.state, row.error) for row in wire.direct.driver.history(Find())] == [
        ("retried", "taken away by an update"), ("done", None)
    ]  # fmt: skip


def test_an_update_of_what_has_ended_since_has_happened(wire: Wire) -> None:
    store = wire.store
    id_ = store.queue("q").put("x").id

    def end_it() -> None:
        [entry] = claim(wire.direct, "q").entries
        wire.direct.driver.commit(Step((Ending(entry.lease, "done"),)))

    lose_one_reply(wire, end_it)
    store.driver.update(id_, Changes(payload=b'"y"'))
    assert [row.payload for row in wire.direct.driver.history(Find())] == [b'"y"']


def test_the_reaper_tells_of_what_it_ended(wire: Wire) -> None:
    wire.store.queue("q").put("x", expires="1ms")
    eventually(lambda: wire.store.now() > wire.direct.driver.find(Find())[0].expires_us, "it has expired")
    lose_one_reply(wire)
    assert len(wire.store.driver.reap(node="one").expired) == 1


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_answers_are_forgotten_when_nobody_can_ask_any_more(kind: str, tmp_path: Path, servers: Servers) -> None:
    place = STORES[kind](tmp_path, servers)
    assert place.connect is not None
    connection, clock = place.connect(), FakeClock()
    with open_queues(place.url, clock=clock) as store:
        store.driver.cancel([store.queue("q").put("x").id])
        counts = []
        for length in ("14m", "2m"):
            clock.advance(length)
            store.driver.reap(node="one")
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM penstock_meta WHERE name LIKE 'answer%'")
            counts += cursor.fetchone()
            connection.rollback()
        assert counts == [1, 0]
    connection.close()
