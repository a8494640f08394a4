"""Clients of PostgreSQL and MariaDB that freeze inside a transaction: the others continue, and nothing comes twice."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash import frozen_scenes as scenes
from tests.crash.driver import Child, Strike
from tests.store_urls import STORES, Servers
from tests.stores.own_servers import Calling, eventually
from tests.stores.wire_proxy import Proxy

from penstock import QueueStore, open_queues
from penstock.queue.protocol import Find

pytestmark = pytest.mark.crash

SOON = 12.0  # seconds: a good while after the limit of 1, and long before anybody gives up waiting for a lock

Start = Callable[..., Child]


@pytest.fixture(params=["postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    return STORES[request.param](tmp_path, servers).url + "&idle_timeout=1s"


@pytest.fixture
def store(url: str) -> Any:
    with open_queues(url, node="one") as opened:
        yield opened


def frozen(start: Start, scene: Callable[..., None], url: str, folder: Path, point: str = "commit.before") -> Child:
    """A process that has stopped itself inside its transaction."""
    child = start(scene, url, folder, strike=Strike(point, signal=signal.SIGSTOP))
    child.wait_stopped()
    return child


@pytest.mark.parametrize(
    ("limit", "point"),
    [
        ("rate", "claim.leased"),
        ("rate", "commit.before"),
        ("in_flight", "commit.before"),
        ("fifo", "commit.before"),
    ],
)
def test_a_worker_frozen_in_its_claim_does_not_hold_the_queue(
    url: str, store: QueueStore, start: Start, folder: Path, limit: str, point: str
) -> None:
    options: dict[str, Any] = {"rate": {"rate": "100/s"}, "in_flight": {"in_flight": {"c": 9}}, "fifo": {"fifo": True}}
    queue = store.queue("q", **options[limit])
    made = {one.id for one in queue.put_many(range(4), labels={"c": "x"})}
    child = frozen(start, scenes.claim_some, url, folder, point)
    if limit != "fifo":  # of many FIFO queues, those that another worker is at are passed over
        mine = Calling(lambda: scenes.claim(store, 2)).wait(SOON)
        assert len(mine) == 2
    else:
        mine = []
        eventually(lambda: mine.extend(scenes.claim(store, 2)) or mine, "the head is handed out", SOON)
    child.go_on()
    child.ended_well()
    given = json.loads((folder / "given").read_text())
    held = {entry.id: entry for entry in store.driver.find(Find(states=("leased",)))}
    assert {entry.id for entry in mine}.isdisjoint(id_ for id_, _, _ in given)
    assert set(held) == {entry.id for entry in mine} | {id_ for id_, _, _ in given}
    assert all(held[id_].attempt == attempt == 1 and held[id_].lease.token == token for id_, attempt, token in given)
    assert set(held) <= made


@pytest.mark.parametrize("what", ["lock", "unlock"])
def test_a_process_frozen_while_it_locks_or_unlocks_holds_nobody(
    url: str, store: QueueStore, start: Start, folder: Path, what: str
) -> None:
    store.queue("q").put_many(range(3))
    if what == "unlock":
        store.driver.lock("q", "frozen", "why")
        child = frozen(start, scenes.unlock_queue, url, folder)
        Calling(lambda: store.driver.lock("q", "another", "why")).wait(SOON)
    else:
        child = frozen(start, scenes.lock_queue, url, folder)
        assert len(Calling(lambda: scenes.claim(store, 2)).wait(SOON)) == 2
    child.go_on()
    child.ended_well()
    assert [one.holder for one in store.locks("q")] == (["frozen"] if what == "lock" else ["another"])
    assert scenes.claim(store, 2) == [], "it is locked"


def test_a_process_frozen_while_it_settles_has_one_effect(
    url: str, store: QueueStore, start: Start, folder: Path
) -> None:
    queue = store.queue("q", in_flight={"c": 1})
    queue.put_many([1, 2], labels={"c": "x"})
    [first] = scenes.claim(store, 2)
    child = frozen(start, scenes.finish_one, url, folder)
    assert Calling(lambda: store.driver.cancel([first.id], force=True)).wait(SOON) == 1, "its row is free again"
    child.go_on()
    assert child.wait() != 0, "its lease was taken away meanwhile"
    assert [row.state for row in store.driver.history(Find())] == ["cancelled"]
    assert store.driver.find(Find(queue="out")) == []


def test_a_process_frozen_while_it_settles_goes_on_when_nobody_minded(
    url: str, store: QueueStore, start: Start, folder: Path
) -> None:
    store.queue("q", rate="100/s").put_many([1, 2])
    scenes.claim(store, 1)
    child = frozen(start, scenes.finish_one, url, folder)
    assert len(Calling(lambda: scenes.claim(store, 1)).wait(SOON)) == 1
    child.go_on()
    child.ended_well()
    assert [row.state for row in store.driver.history(Find())] == ["done"]
    assert len(store.driver.find(Find(queue="out"))) == 1


def test_a_client_that_stops_to_read_does_not_hold_the_queue(url: str, servers: Servers) -> None:
    """The server has more to say than the wire holds, and waits for somebody to take it."""
    kind = "postgres" if url.startswith("postgres") else "mysql"
    port = servers(kind).port
    proxy = Proxy(port)
    with open_queues(url, node="one") as store, open_queues(url.replace(f":{port}", f":{proxy.port}")) as far:
        queue = store.queue("q", str, rate="1000/s")
        queue.put_many(["x" * 250_000] * 100, chunk=20)
        proxy.stall_after = 1_000_000
        stuck = Calling(lambda: scenes.claim(far, 90))
        eventually(lambda: proxy.stalled, "the wire is stuck")
        mine = Calling(lambda: scenes.claim(store, 5)).wait(2 * SOON)
        assert len(mine) == 5
        proxy.stall_after = None
        theirs = stuck.wait()
        assert {one.id for one in mine}.isdisjoint(one.id for one in theirs)
        assert all(one.attempt == 1 for one in theirs)
    proxy.close()


def test_a_connection_of_the_callers_own_is_left_as_it_is(url: str, tmp_path: Path, servers: Servers) -> None:
    kind = "postgres" if url.startswith("postgres") else "mysql"
    place = STORES[kind](tmp_path, servers)
    assert place.connect is not None
    asked = {
        "postgres": "SELECT name, setting FROM pg_settings WHERE name LIKE 'idle_in%' OR name = 'tcp_user_timeout'",
        "mysql": "SELECT @@idle_transaction_timeout, @@net_write_timeout",
    }[kind]
    connection = place.connect()
    before = connection.execute(asked).fetchall()
    with open_queues(place.url + "&idle_timeout=1s") as store:
        store.queue("q").put("x", connection=connection)
        assert connection.execute(asked).fetchall() == before
        connection.commit()
    connection.close()
