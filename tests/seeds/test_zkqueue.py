"""ZkQueue's promises in our words: units of work over small queues in ZooKeeper, and what lies in its nodes.

A unit of work is ``store.unit()``, the listener container is the Worker, ConsumeTimes(K) is ``attempts=K``.
"""

import threading
import time
from collections.abc import Callable, Iterator
from posixpath import normpath
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient
from tests.sessions import expire

from penstock import QueueStore, Retry, Worker, open_queues
from penstock.errors import Conflict, LeaseLost, StoreUnavailable, UnitNotCommitted, UnitTooLarge
from penstock.ids import new_nonce
from penstock.queue.worker.maintenance import Reaper
from penstock.testing import FakeClock

PATIENCE = 20.0


@pytest.fixture
def url(servers: Callable[[str], Any]) -> str:
    return f"{servers('zookeeper').url}/{new_nonce()}"


@pytest.fixture
def open_store(url: str, clock: FakeClock) -> Iterator[Callable[..., Any]]:
    opened: list[QueueStore] = []

    def open_another(**options: Any) -> QueueStore:
        opened.append(open_queues(url, **{"node": "here", "clock": clock, **options}))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., Any]) -> Any:
    return open_store()


class Nodes:
    """Looks at the nodes of the test's space."""

    def __init__(self, url: str) -> None:
        hosts, _, path = url.removeprefix("zookeeper://").partition("/")
        self.client = KazooClient(hosts=hosts)
        self.client.start()
        self.root = f"/{path}/penstock/queues"

    def __call__(self, path: str) -> list[str]:
        return sorted(self.client.get_children(normpath(f"{self.root}/{path}")))

    def bucketed(self, path: str) -> list[str]:
        return sorted(name for bucket in self(path) for name in self(f"{path}/{bucket}"))

    def stat(self, path: str) -> Any:
        return self.client.exists(normpath(f"{self.root}/{path}"))

    def data(self, path: str) -> bytes:
        found: bytes = self.client.get(f"{self.root}/{path}")[0]
        return found


@pytest.fixture
def nodes(url: str, store: Any) -> Iterator[Nodes]:
    found = Nodes(url)
    yield found
    found.client.stop()
    found.client.close()


def eventually(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def values(entries: list[Any]) -> list[Any]:
    return [entry.value for entry in entries]


# --- scope -------------------------------------------------------------------------------------------------


@pytest.mark.seed("Z1", "Z6", "Z30")
def test_several_thousand_entries_at_a_moderate_rate(store: Any) -> None:
    queue = store.queue("q", int)
    threads: set[int] = set()
    seen: list[int] = []

    def handle(value: int) -> None:
        seen.append(value)
        threads.add(threading.get_ident())
        time.sleep(0.0005)

    queue.add_handler(handle, concurrency=4)
    for begin in range(0, 2000, 500):
        queue.put_many(range(begin, begin + 500))
    worker = Worker(store)
    begin_s = time.monotonic()
    worker.start()
    eventually(lambda: queue.counts().live == 0)
    worker.stop()
    assert sorted(seen) == list(range(2000))
    assert len(threads) > 1
    assert 2000 / (time.monotonic() - begin_s) > 100


@pytest.mark.seed("Z2")
def test_what_a_vanished_consumer_held_goes_to_another(store: Any, open_store: Callable[..., Any]) -> None:
    other = open_store(node="there")
    queue = store.queue("q", int)
    queue.put_many(range(4))
    gone = other.unit()
    assert len(gone.take(other.queue("q", int), limit=2)) == 2
    expire(other)
    seen: list[int] = []
    queue.add_handler(seen.append)
    store.driver.reap(node="here")
    Worker(store).drain()
    assert sorted(seen) == [0, 1, 2, 3]


@pytest.mark.seed("Z3", "Z20", "Z21")
def test_take_n_and_put_k_over_any_queues_in_one_commit(store: Any, nodes: Nodes) -> None:
    a, b, c = (store.queue(name, int) for name in "abc")
    a.put_many([1, 2])
    b.put(3)
    with store.unit() as unit:
        taken = [*unit.take(a, limit=2), *unit.take(b)]
        unit.put(c, sum(values(taken)))
        unit.put(a, 10)
        unit.commit()
    assert (values(a.find()), values(b.find()), values(c.find())) == ([10], [], [6])
    assert nodes("a/claims") == nodes("b/claims") == []
    # All of it has one transaction id: the new entry of c and the head of b, from which one was taken.
    [item] = nodes.bucketed("c/entries")
    [bucket] = nodes("c/entries")
    assert nodes.stat(f"c/entries/{bucket}/{item}").czxid == nodes.stat("b").mzxid == nodes.stat("a").mzxid


@pytest.mark.seed("Z4", "Z8")
def test_without_fifo_entries_are_worked_on_side_by_side_the_urgent_ones_first(store: Any) -> None:
    queue = store.queue("q", str)
    for number, priority in enumerate((0, 5, -5, 9)):
        queue.put(f"{number}", priority=priority)
    with store.unit() as first, store.unit() as second:
        assert values(first.take(queue, limit=2)) == ["3", "1"]
        assert values(second.take(queue, limit=2)) == ["0", "2"]
        first.rollback()
        second.rollback()


@pytest.mark.seed("Z5", "Z26")
@pytest.mark.parametrize("attempts", [1, 3])
def test_at_most_k_attempts_also_when_the_consumer_dies(store: Any, attempts: int) -> None:
    queue = store.queue("q", int)
    queue.put(1)
    starts = 0
    for _ in range(attempts + 2):
        starts += len(store.unit().take(queue, attempts=attempts))
        expire(store)
        store.driver.reap(node="here")
    assert starts == attempts
    assert values(queue.dead()) == [1]


@pytest.mark.seed("Z5")
def test_or_as_often_as_it_takes(store: Any) -> None:
    queue = store.queue("q", int)
    queue.put(1)
    for _ in range(12):
        with store.unit() as unit:
            assert values(unit.take(queue, attempts=None)) == [1]
            unit.rollback()
    assert queue.counts().ready == 1


@pytest.mark.seed("Z7", "Z15")
def test_each_queue_has_its_own_dead_letters_under_their_old_numbers(store: Any, nodes: Nodes) -> None:
    for name in "ab":
        queue = store.queue(name, str)
        queue.put(name)
        [number] = nodes.bucketed(f"{name}/entries")
        with store.unit() as unit:
            unit.reject(unit.take(queue)[0], "bad")
            unit.commit()
        assert values(queue.dead()) == [name]
        assert nodes.bucketed(f"{name}/dead") == nodes.bucketed(f"{name}/entries") == [number]


@pytest.mark.seed("Z9")
def test_backoff_between_attempts(store: Any, clock: FakeClock) -> None:
    queue = store.queue("q", int)
    runs: list[int] = []

    @queue.handler(retry=Retry(attempts=3, backoff="30s", jitter=False))
    def fail(value: int) -> None:
        runs.append(value)
        raise ValueError("no")

    queue.put(1)
    Worker(store).drain()
    assert (len(runs), queue.counts().retrying) == (1, 1)
    clock.advance("29s")
    assert Worker(store).drain() == 0
    clock.advance("1s")
    Worker(store).drain()
    assert len(runs) == 2


@pytest.mark.seed("Z10")
def test_strict_fifo_when_asked_for(store: Any, open_store: Callable[..., Any]) -> None:
    queue = store.queue("q", int, fifo=True)
    other = open_store(node="there")
    for number in range(6):
        (store if number % 2 else other).queue("q", int).put(number)
    got = []
    for _ in range(6):
        with other.unit() as unit:
            got += values(unit.take(other.queue("q", int), limit=3))
            assert store.unit().take(queue) == []
            unit.commit()
    assert got == list(range(6))


# --- layout ------------------------------------------------------------------------------------------------


@pytest.mark.seed("Z11", "Z16")
def test_the_first_put_creates_the_directories_and_entries_hold_the_payload(store: Any, nodes: Nodes) -> None:
    assert nodes("") == []
    queue = store.queue("q", str)
    queue.put_many(["first payload", "second payload"])
    assert {"entries", "ready", "claims", "history", "dead"} <= set(nodes("q"))
    first, second = nodes.bucketed("q/entries")
    assert first < second
    assert len(first) == 10
    [bucket] = nodes("q/entries")
    assert b"first payload" in nodes.data(f"q/entries/{bucket}/{first}")
    assert nodes.stat(f"q/entries/{bucket}/{first}").ephemeralOwner == 0


@pytest.mark.seed("Z12", "Z13", "Z14", "Z18")
def test_take_writes_a_claim_that_is_bound_to_an_ephemeral_node_and_counts_the_attempt(
    store: Any, nodes: Nodes
) -> None:
    queue = store.queue("q", int)
    queue.put(1)
    [number] = nodes.bucketed("q/entries")
    unit = store.unit()
    [entry] = unit.take(queue)
    assert nodes.bucketed("q/entries") == [number], "taken, not removed"
    [name] = nodes("q/claims")
    assert name.partition("~")[0] == entry.lease.token.partition("-")[2]
    *_, session, [held] = msgspec.msgpack.decode(nodes.data(f"q/claims/{name}"))
    assert nodes.stat(f"../handles/{session}").ephemeralOwner == store.driver.connection.client.client_id[0]
    assert (held[0] >> 16, held[6]) == (int(number), 1), "the entry's number and its attempt"
    unit.rollback()
    assert nodes("q/claims") == []
    assert queue.find()[0].attempt == 1


# --- units of work -----------------------------------------------------------------------------------------


@pytest.mark.seed("Z17")
def test_a_unit_dies_with_its_session_and_units_share_one(store: Any) -> None:
    queue = store.queue("q", int)
    queue.put_many([1, 2])
    first, second = store.unit(), store.unit()
    assert (values(first.take(queue)), values(second.take(queue))) == ([1], [2])
    expire(store)
    for unit in (first, second):
        with pytest.raises(LeaseLost):
            unit.commit()
        unit.rollback()
    assert queue.counts().live == 2
    with store.unit() as fresh:
        assert len(fresh.take(queue)) == 1
        fresh.commit()


@pytest.mark.seed("Z19")
def test_put_is_only_written_on_commit(store: Any, nodes: Nodes) -> None:
    queue = store.queue("q", int)
    multi, sent = store.driver.connection.multi, []
    store.driver.connection.multi = lambda ops: sent.append(ops) or multi(ops)
    with store.unit() as unit:
        unit.put(queue, 1)
        assert sent == []
        assert nodes("") == []
        unit.commit()
    assert len(sent) == 1
    assert values(queue.find()) == [1]


@pytest.mark.seed("Z22")
def test_rollback_succeeds_also_when_the_session_is_gone(store: Any, nodes: Nodes) -> None:
    queue = store.queue("q", int)
    queue.put_many([1, 2])
    unit = store.unit()
    unit.take(queue, limit=2)
    unit.put(queue, 3)
    expire(store)
    unit.rollback()
    unit.rollback()
    assert nodes("q/claims") == []
    store.driver.reap(node="here")
    assert sorted(values(queue.find())) == [1, 2]
    assert queue.counts().leased == 0


@pytest.mark.seed("Z23")
def test_leaving_the_block_without_commit_rolls_back(store: Any, nodes: Nodes) -> None:
    queue = store.queue("q", int)
    queue.put(1)

    def forget_to_commit() -> None:
        with store.unit() as unit:
            unit.take(queue)
            unit.put(queue, 2)

    with pytest.warns(UnitNotCommitted):
        forget_to_commit()
    assert values(queue.find()) == [1]
    assert nodes("q/claims") == []


@pytest.mark.seed("Z24")
def test_session_expiry_voids_all_claims_at_once(store: Any, open_store: Callable[..., Any], nodes: Nodes) -> None:
    for name in "ab":
        store.queue(name, int).put_many(range(3))
        store.unit().take(store.queue(name, int), limit=3)
    [session] = nodes("../handles")
    expire(store)
    assert session not in nodes("../handles"), "both claims were bound to this one node"
    assert len(open_store().driver.reap(node="there").reaped) == 6


@pytest.mark.seed("Z25")
def test_rollback_works_after_an_interruption(store: Any) -> None:
    queue = store.queue("q", int)
    queue.put(1)
    unit = store.unit()
    unit.take(queue)
    unit.put(queue, 2)
    multi = store.driver.connection.multi

    def interrupted(ops: Any) -> Any:
        store.driver.connection.multi = multi
        raise KeyboardInterrupt

    store.driver.connection.multi = interrupted
    with pytest.raises(KeyboardInterrupt):
        unit.commit()
    unit.rollback()
    assert values(queue.find()) == [1]
    assert queue.counts().leased == 0


@pytest.mark.seed("Z27")
def test_a_unit_is_bounded_by_the_packet(store: Any) -> None:
    queue = store.queue("q", bytes)
    with store.unit() as unit:
        for _ in range(5):
            unit.put(queue, b"x" * 200_000)
        with pytest.raises(UnitTooLarge):
            unit.commit()
    assert queue.find() == []


@pytest.mark.seed("Z28")
def test_unit_and_queue_may_be_used_from_any_thread(store: Any) -> None:
    queue = store.queue("q", int)
    unit = store.unit()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            queue.put(number)
            unit.take(queue)
            unit.put(queue, number + 100)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    unit.commit()
    assert sorted(values(queue.find())) == list(range(100, 108))


@pytest.mark.seed("Z29")
def test_close_ends_units_and_leaves_other_handles_alone(store: Any, open_store: Callable[..., Any]) -> None:
    other = open_store(node="there")
    queue = store.queue("q", int)
    queue.put_many([1, 2])
    mine, theirs = store.unit(), other.unit()
    mine.take(queue)
    theirs.take(other.queue("q", int))
    other.close()
    with pytest.raises((StoreUnavailable, LeaseLost, Conflict)):
        theirs.commit()
    mine.commit()
    store.driver.reap(node="here")
    assert queue.counts().ready == 1


# --- the listener container ----------------------------------------------------------------------------------


@pytest.mark.seed("Z31")
def test_a_handler_can_put_with_its_outcome(store: Any) -> None:
    queue, results = store.queue("q", int), store.queue("results", int)

    @queue.handler
    def double(value: int, ctx: Any) -> None:
        ctx.put(results, value * 2)

    queue.put(21)
    Worker(store).drain()
    assert values(results.find()) == [42]


@pytest.mark.seed("Z32")
def test_any_exception_and_any_expiry_rolls_back(store: Any) -> None:
    queue, results = store.queue("q", int), store.queue("results", int)
    runs: list[int] = []

    @queue.handler(retry=Retry(attempts=5, backoff="0s"))
    def handle(value: int, ctx: Any) -> None:
        runs.append(value)
        ctx.put(results, len(runs))
        if len(runs) == 1:
            raise RuntimeError("no")
        if len(runs) == 2:
            expire(store)

    queue.put(7)
    worker = Worker(store, reaper=Reaper(store, every="100ms"))
    worker.start()
    eventually(lambda: queue.counts().live == 0)
    worker.stop()
    assert len(runs) == 3
    assert values(results.find()) == [3]


@pytest.mark.seed("Z33")
def test_stopping_the_worker_leaves_the_queue_open(store: Any, nodes: Nodes) -> None:
    queue = store.queue("q", int)
    queue.add_handler(lambda value: None)
    worker = Worker(store)
    worker.start()
    queue.put(1)
    eventually(lambda: queue.counts().live == 0)
    worker.stop()
    queue.put(2)
    assert values(queue.find()) == [2]
    assert nodes("q/claims") == []
