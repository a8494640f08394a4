"""redisques' promises in our words: named FIFO queues that are looked at, changed, locked and drained one by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Queue, QueueStore, Retry, Worker, open_queues
from penstock.clock import SystemClock
from penstock.errors import BadInput, EntryNotFound, StoreFull, StoreUnavailable
from penstock.queue.worker.maintenance import Reaper
from penstock.testing import FakeClock

Opener = Callable[..., QueueStore]
PATIENCE = 20.0


def fifo(store: QueueStore, name: str = "q") -> Queue[Any]:
    return store.queue(name, fifo=True)


def until(wanted: Callable[[], bool], seconds: float = PATIENCE) -> float:
    began = time.monotonic()
    while not wanted():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.002)
    return time.monotonic() - began


# --- operations --------------------------------------------------------------------------------------


@pytest.mark.seed("G129", "G135", "G138")
def test_put_and_count(store: QueueStore) -> None:
    queue = fifo(store)
    assert queue.counts().live == 0
    queue.put("a")
    queue.put_many([str(number) for number in range(99)])
    assert queue.counts().ready == 100


@pytest.mark.seed("G130", "G131", "G143", "G145")
def test_put_into_a_locked_queue(store: QueueStore) -> None:
    queue = fifo(store)
    with pytest.raises(BadInput, match="holder"):
        queue.lock(holder="")
    assert queue.locks() == []
    queue.lock(holder="ann", reason="repair")
    queue.put("a")
    [lock] = queue.locks()
    assert (lock.holder, lock.reason) == ("ann", "repair")
    assert store.locks("other") == []


@pytest.mark.seed("G132")
def test_items_up_to_a_limit(store: QueueStore) -> None:
    queue = fifo(store)
    assert queue.find() == []
    queue.put_many(range(250))
    assert [one.value for one in queue.find(limit=178)] == list(range(178))
    rest = queue.find(after=queue.find(limit=178)[-1].seq)
    assert [one.value for one in rest] == list(range(178, 250))


@pytest.mark.seed("G133", "G134")
def test_queues_by_name(store: QueueStore) -> None:
    for number in range(100):
        store.queue(f"queue_{number}").put("x")
    assert len(store.counts()) == 100
    assert [one.queue for one in store.counts(family="queue_1")][:3] == ["queue_1", "queue_10", "queue_11"]
    assert store.counts(family="other") == []


@pytest.mark.seed("G136", "G137")
def test_removing_all_items(store: QueueStore) -> None:
    queue = fifo(store)
    queue.lock()
    assert queue.cancel(*(one.id for one in queue.find())) == 0
    queue.put_many(["a", "b"])
    assert queue.cancel(*(one.id for one in queue.find())) == 2
    assert queue.counts().live == 0
    assert len(queue.locks()) == 1
    assert queue.unlock()


@pytest.mark.seed("G139", "G140", "G141")
def test_one_item(store: QueueStore) -> None:
    queue = fifo(store)
    with pytest.raises(EntryNotFound):
        queue.get("unknown")
    first, second = queue.put("a").id, queue.put("b").id
    assert queue.get(first).value == "a"
    queue.update(first, "changed")
    assert [one.value for one in queue.find()] == ["changed", "b"]
    with pytest.raises(EntryNotFound):
        queue.update("unknown", "x")
    assert queue.cancel(first) == 1
    with pytest.raises(EntryNotFound):
        queue.cancel("unknown")
    assert [one.id for one in queue.find()] == [second]


@pytest.mark.seed("G142", "G144", "G147", "G148", "G149")
def test_many_locks(store: QueueStore) -> None:
    names = [f"q.{number}" for number in range(3)]
    for name in names:
        store.driver.lock(name, "ann")
    assert [one.queue for one in store.locks()] == names
    assert store.driver.unlock("unknown", "ann") is False
    assert [store.driver.unlock(one.queue, one.holder) for one in store.locks()] == [True] * 3
    assert store.locks() == []


# --- processing --------------------------------------------------------------------------------------


@pytest.mark.seed("G150", "G160")
def test_failures_walk_a_list_of_delays(store: QueueStore, clock: FakeClock) -> None:
    queue, starts, fails = fifo(store), [], [True]

    @queue.handler(retry=Retry(attempts=None, delays=["2s", "7s", "12s"]))
    def handle(value: str) -> None:
        starts.append((value, clock.micros() // 1_000_000))
        if fails[0]:
            raise ConnectionError

    queue.put_many(["a", "b"])
    began = clock.micros() // 1_000_000
    for _ in range(40):
        Worker(store).drain()
        clock.advance("1s")
    assert [at - began for _, at in starts] == [0, 2, 9, 21, 33]
    assert {value for value, _ in starts} == {"a"}  # the head blocks
    fails[0] = False
    clock.advance("12s")
    Worker(store).drain()
    assert [value for value, _ in starts[-2:]] == ["a", "b"]
    assert queue.counts().live == 0


@pytest.mark.seed("G158")
def test_ten_queues_each_in_order(open_store: Opener) -> None:
    stores = [open_store(clock=SystemClock(), node=node) for node in ("one", "two")]
    came: dict[str, list[int]] = {}
    for store in stores:
        family = store.family("q.", fifo=True)

        def handle(value: int, ctx: Any) -> None:
            came.setdefault(ctx.entry.queue, []).append(value)

        family.add_handler(handle)
    for number in range(10):
        stores[0].family("q.", fifo=True).member(f"q.{number}").put_many(range(5))
    workers = [Worker(store) for store in stores]
    for worker in workers:
        worker.start()
    until(lambda: stores[0].family("q.").counts().live == 0)
    for worker in workers:
        worker.stop()
    assert came == {f"q.{number}": list(range(5)) for number in range(10)}


@pytest.mark.seed("G156", "G159")
def test_while_it_is_processed_it_is_there(open_store: Opener) -> None:
    store = open_store(clock=SystemClock())
    queue, inside, leave = fifo(store), threading.Event(), threading.Event()

    @queue.handler
    def handle(value: str) -> None:
        inside.set()
        leave.wait(PATIENCE)

    queue.put("a")
    worker = Worker(store)
    worker.start()
    assert inside.wait(PATIENCE)
    [entry] = queue.find()
    assert entry.state == "leased"
    assert entry.lease is not None
    assert entry.lease.owner == worker.owner
    threading.Timer(0.05, leave.set).start()
    assert worker.stop() is True
    assert queue.counts().live == 0


@pytest.mark.seed("G155", "G161", "G166")
def test_no_answer_and_a_dead_owner(store: QueueStore, open_store: Opener, clock: FakeClock) -> None:
    queue = fifo(store)
    queue.put("a")
    from penstock.queue.protocol import ClaimRequest

    lost = ClaimRequest("0" * 16, (queue.source(1, None),), 1, "dead/1", "dead", 1_000_000)
    assert len(store.driver.claim(lost).entries) == 1
    came: list[str] = []
    other = open_store(node="two")
    fifo(other).add_handler(came.append, retry=Retry(attempts=None))
    assert Worker(other).drain() == 0
    clock.advance("2s")
    Worker(other, reaper=Reaper(other)).drain()
    assert came == ["a"]


@pytest.mark.seed("G162", "G163", "G164")
def test_locks_and_deliveries(open_store: Opener) -> None:
    store = open_store(clock=SystemClock())
    came: list[str] = []
    free, locked = fifo(store, "free"), fifo(store, "locked")
    for queue in (free, locked):
        queue.add_handler(came.append)
    locked.lock()
    locked.put("held")
    worker = Worker(store)
    worker.start()
    time.sleep(0.1)
    free.put("now")
    assert until(lambda: came == ["now"]) < 2
    time.sleep(0.3)
    assert came == ["now"]
    locked.unlock()
    assert until(lambda: came == ["now", "held"]) < 2
    worker.stop()


@pytest.mark.seed("G153", "G154")
def test_a_store_that_is_full_or_away(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = fifo(store)
    for error in (StoreFull("it is full."), StoreUnavailable("it is away.")):

        def fail(*arguments: Any, error: Exception = error) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(store.driver, "_settle", fail)
            patch.setattr(store.driver, "_put_plain", fail)
            with pytest.raises(type(error)):
                queue.put("a")
    assert queue.counts().live == 0
    with open_queues("memory://") as closed:
        closed.close()
        with pytest.raises(StoreUnavailable):
            closed.queue("q").put("a")
