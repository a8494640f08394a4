"""PostgreSQL behind PgBouncer in transaction mode: every transaction may be on another connection to the server."""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.stores.own_servers import claim, eventually, working
from tools.servers import Missing, Pgbouncer

from penstock import QueueStore, Worker, open_queues
from penstock.errors import BadInput
from penstock.queue.protocol import Ending, Step

WORK = 200


@pytest.fixture(scope="module")
def bouncer(servers: Callable[[str], Any]) -> Iterator[Pgbouncer]:
    try:
        pooler = Pgbouncer(servers("postgres"))
    except Missing as missing:
        pytest.skip(f"pgbouncer is not installed here: {missing}")
    pooler.start()
    yield pooler
    pooler.close()


@pytest.fixture
def url(bouncer: Pgbouncer) -> str:
    return f"{bouncer.url}?durability=fast&space=p{os.urandom(4).hex()}"


@pytest.fixture
def store(url: str) -> Iterator[QueueStore]:
    with open_queues(url) as opened:
        yield opened


def backends(bouncer: Pgbouncer) -> int:
    """How many connections to the server a hundred transactions at once have used."""
    seen: set[int] = set()

    def look() -> None:
        with psycopg.connect(bouncer.url, prepare_threshold=None) as connection:
            [[pid]] = connection.execute("SELECT pg_backend_pid() FROM pg_sleep(0.05)").fetchall()
            seen.add(pid)

    threads = [threading.Thread(target=look) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(seen)


def test_many_threads_put_and_workers_drain(store: QueueStore, url: str, bouncer: Pgbouncer) -> None:
    assert backends(bouncer) > 1, "or nothing is shown here"
    queue, done, counting = store.queue("q", int), [], threading.Lock()

    def handle(number: int) -> None:
        with counting:
            done.append(number)

    queue.add_handler(handle, concurrency=4)
    with open_queues(url) as other:
        other.queue("q", int).add_handler(handle, concurrency=4)
        with working(store, other, poll="50ms"):
            threads = [
                threading.Thread(target=lambda first=first: [queue.put(number) for number in range(first, WORK, 4)])
                for first in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            eventually(lambda: len(done) >= WORK, "all are done")
    assert sorted(done) == list(range(WORK))
    assert [row.state for row in queue.history(limit=1000)] == ["done"] * WORK


def test_what_needs_more_than_one_statement(store: QueueStore) -> None:
    fifo = store.queue("line", int, fifo=True)
    fifo.put_many([1, 2, 3])
    seen: list[int] = []
    fifo.add_handler(seen.append)
    keyed = store.queue("keyed", str)
    first = keyed.put("a", unique="k")
    assert keyed.put("b", unique="k").id == first.id
    keyed.cancel(first.id)
    with store.unit() as unit:
        unit.put(fifo, 4)
        unit.commit()
    while len(seen) < 4:
        Worker(store).drain()
    assert seen == [1, 2, 3, 4]
    assert [row.state for row in keyed.history()] == ["cancelled"]


def test_leases_are_extended_settled_and_refused(store: QueueStore) -> None:
    store.queue("q").put_many(["a", "b"])
    entries = claim(store, "q").entries
    assert all(store.driver.extend([entry.lease for entry in entries], 60_000_000))
    store.driver.cancel([entries[0].id], force=True)
    lost, done = store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries]).results
    assert isinstance(lost, Exception)
    assert not isinstance(done, Exception)


def test_settings_reach_every_transaction(store: QueueStore) -> None:
    for _ in range(20):
        shown = store.driver._write(lambda session: session._cursor.execute("SHOW enable_seqscan").fetchone())
        assert shown == ("off",)


def test_doctor_says_that_nobody_listens(store: QueueStore) -> None:
    [finding] = [finding for finding in store.check() if finding.what == "connection pooler"]
    assert finding.level == "warning"
    assert "listen=" in finding.detail
    assert not store.driver.hears()


def test_listening_goes_past_the_pooler(url: str, servers: Callable[[str], Any]) -> None:
    with open_queues(f"{url}&listen=127.0.0.1:{servers('postgres').port}") as store, open_queues(url) as other:
        done = threading.Event()
        store.queue("q").add_handler(lambda _: done.set())
        with working(store, poll="1h"):
            eventually(store.driver.hears, "it listens")
            other.queue("q").put("x")
            assert done.wait(20)
        [finding] = [finding for finding in store.check() if finding.what == "connection pooler"]
        assert finding.level == "good"


def test_a_bad_address_to_listen_at(url: str) -> None:
    with pytest.raises(BadInput, match=r"listen 'nowhere'.*db-1.example:5432"):
        open_queues(f"{url}&listen=nowhere")
