"""How a worker makes its round trips: what goes wrong in one loses nothing, and slow ones stay few and large."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import QueueStore, Retry, Worker, open_queues
from penstock.errors import OutcomeUnknown
from penstock.queue.protocol import Find
from penstock.queue.worker.free_core import FreeCore, idle_seconds_of_all_cores
from penstock.queue.worker.loop import Loop


@pytest.fixture
def store() -> Iterator[QueueStore]:
    with open_queues("memory://") as opened:
        yield opened


def drained(store: QueueStore, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while store.counts("q")[0].live:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("slots", [1, 4])
def test_an_error_that_nobody_foresaw_kills_no_slot_and_loses_no_entry(
    store: QueueStore, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("q", int)
    handled: list[int] = []
    queue.add_handler(handled.append, concurrency=slots)
    queue.put_many(range(300))
    settle, failures = store.driver.settle, iter([2, 5, 6, 9])
    trips, fails_at = 0, next(failures)

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal trips, fails_at
        trips += 1
        if trips == fails_at:
            fails_at = next(failures, 0)
            raise ZeroDivisionError("nobody thought of this")
        return settle(*arguments, **options)

    monkeypatch.setattr(store.driver, "settle", failing)
    worker = Worker(store)
    worker.start()
    try:
        assert drained(store)
    finally:
        worker.stop()
    assert set(handled) == set(range(300))
    done = [row.id for row in store.driver.history(Find(limit=1000)) if row.state == "done"]
    assert len(done) == len(set(done)) == 300


def test_slow_round_trips_are_few_and_keep_no_slot_from_its_work(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("q", int)
    at_once, most, lock = 0, 0, threading.Lock()

    def handle(_: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.01)
        with lock:
            at_once -= 1

    queue.add_handler(handle, concurrency=4)
    queue.put_many(range(200))
    settle, trips, under_way = store.driver.settle, 0, threading.Lock()

    def slow(*arguments: Any, **options: Any) -> Any:
        nonlocal trips
        trips += 1
        with under_way:  # as on a store that does one thing at a time
            time.sleep(0.01)
            return settle(*arguments, **options)

    monkeypatch.setattr(store.driver, "settle", slow)
    worker = Worker(store)
    worker.start()
    try:
        assert drained(store)
    finally:
        worker.stop()
    assert most == 4
    assert trips < 60, "several outcomes and entries in each"


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_what_the_last_claim_brings_is_given_back(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """A stop that comes while a claim is under way: whoever gets its reply is about to go."""
    queue = store.queue("q", int)
    queue.put_many(range(5))
    settle, entered, go = store.driver.settle, threading.Event(), threading.Event()

    def slow(steps: Any, claim: Any = None, **options: Any) -> Any:
        reply = settle(steps, claim, **options)
        if claim is not None and reply.claimed.entries:
            entered.set()
            go.wait(10)
        return reply

    monkeypatch.setattr(store.driver, "settle", slow)
    seen: list[int] = []
    queue.add_handler(seen.append)
    worker = Worker(store)
    worker.start()
    assert entered.wait(10)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    time.sleep(pause)
    go.set()
    stopper.join(20)
    assert not stopper.is_alive()
    [counts] = store.counts("q")
    assert (counts.leased, counts.ready) == (0, 5 - len(seen))
    assert all(entry.attempt == 0 for entry in queue.find())


def test_a_ring_is_not_lost_while_a_claim_is_under_way_and_outcomes_are_settled(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot's claim has looked before an entry came; the pump, woken for that, has no room and settles outcomes."""
    queue = store.queue("q", str)
    settle, wait = store.driver.settle, store.driver.wait
    idle, looked, go, second_runs, second_may_end, settled_only, pump_waits = (threading.Event() for _ in range(7))

    def handle(value: str) -> None:
        if value == "first":
            assert idle.wait(20), "the pump has made its round trip, so the next one is this slot's"
            assert second_runs.wait(20)
        if value == "second":
            second_runs.set()
            assert second_may_end.wait(20)

    def slow(steps: Any, claim: Any = None, **options: Any) -> Any:
        reply = settle(steps, claim, **options)
        name = threading.current_thread().name
        if name == "penstock-q" and claim is not None and not reply.claimed.entries and not looked.is_set():
            looked.set()
            assert go.wait(20)
        if name == "penstock-pump" and looked.is_set() and steps and claim is None:
            settled_only.set()
        return reply

    def waiting(seen: int, seconds: float) -> bool:
        idle.set()
        if settled_only.is_set():
            pump_waits.set()
        return wait(seen, seconds)

    monkeypatch.setattr(store.driver, "settle", slow)
    monkeypatch.setattr(store.driver, "wait", waiting)
    queue.add_handler(handle, concurrency=2, prefetch=1)
    queue.put_many(["first", "second"])
    worker = Worker(store, poll="1h")
    worker.start()
    try:
        assert looked.wait(20), "a slot has claimed, and got nothing"
        second_may_end.set()
        while not worker._loop._outcomes:
            time.sleep(0.001)
        queue.put("third")
        assert settled_only.wait(20)
        assert pump_waits.wait(20)
        go.set()
        assert drained(store), "the third entry waits for a poll that comes in an hour"
    finally:
        go.set()
        worker.stop()


def test_a_claim_that_got_no_reply_is_made_again_whatever_the_poll(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("q", str)
    settle, failures = store.driver.settle, iter([True])

    def failing(steps: Any, claim: Any = None, **options: Any) -> Any:
        reply = settle(steps, claim, **options)
        if claim is not None and next(failures, False):
            raise OutcomeUnknown("the reply was lost.")
        return reply

    monkeypatch.setattr(store.driver, "settle", failing)
    queue.add_handler(lambda value: None)
    queue.put("x")
    worker = Worker(store, poll="1h")
    worker.start()
    try:
        assert drained(store)
    finally:
        worker.stop()


def test_an_outcome_does_not_wait_for_a_long_handler_in_the_same_slot(store: QueueStore) -> None:
    queue = store.queue("q", str)
    go = threading.Event()

    def handle(value: str) -> None:
        if value == "long":
            assert go.wait(20)

    queue.add_handler(handle, concurrency=2)
    queue.put_many(["brief"] * 50 + ["long", "long"])
    worker = Worker(store, poll="1h")
    worker.start()
    try:
        deadline = time.monotonic() + 20
        while queue.counts().live != 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert queue.counts().leased == 2, "the brief ones are settled while the long ones run"
    finally:
        go.set()
        worker.stop()


def test_what_a_lost_claim_holds_is_given_back_when_its_handler_is_gone(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is removed while the claim is under way, and another round trip has seen that before it is lost."""
    queue, other = store.queue("q", str), store.queue("other", str)
    settle, other_runs, claimed, seen = store.driver.settle, *(threading.Event() for _ in range(3))

    def handle_other(value: str) -> None:
        other_runs.set()
        assert claimed.wait(20)

    def failing(steps: Any, claim: Any = None, **options: Any) -> Any:
        reply = settle(steps, claim, **options)
        if claimed.is_set():
            seen.set()
        elif any(entry.queue == "q" for entry in reply.claimed.entries):
            queue.remove_handler()
            claimed.set()
            assert seen.wait(20)
            raise OutcomeUnknown("the reply was lost.")
        return reply

    monkeypatch.setattr(store.driver, "settle", failing)
    queue.add_handler(lambda value: None)
    other.add_handler(handle_other)
    worker = Worker(store, poll="1h")
    worker.start()
    try:
        other.put("y")
        assert other_runs.wait(20)
        queue.put("x")
        assert seen.wait(20)
        deadline = time.monotonic() + 20
        while queue.counts().leased:
            assert time.monotonic() < deadline, "it is held until its lease runs out"
            time.sleep(0.01)
        assert [(entry.state, entry.attempt) for entry in queue.find()] == [("waiting", 0)]
    finally:
        worker.stop()


def test_an_outcome_does_not_wait_for_a_long_handler_in_the_only_slot(store: QueueStore) -> None:
    queue = store.queue("q", str)
    go = threading.Event()

    def handle(value: str) -> None:
        if value == "long":
            assert go.wait(20)

    queue.add_handler(handle, concurrency=1)
    queue.put_many(["brief"] * 10 + ["long"])
    worker = Worker(store, poll="1h")
    worker.start()
    try:
        deadline = time.monotonic() + 15
        while queue.counts().live != 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert queue.counts().leased == 1, "the brief ones are settled while the long one runs"
    finally:
        go.set()
        worker.stop()


@pytest.fixture
def ahead(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> QueueStore:
    """A store that works on round trips at once, on a machine that has a core to spare."""
    monkeypatch.setattr(store.driver, "overlaps_round_trips", True)
    monkeypatch.setattr(FreeCore, "is_free", lambda self: True)
    return store


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("under_way", [0, 1])
def test_the_pump_is_called_where_that_wins_time(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, overlaps: bool, free: bool, under_way: int
) -> None:
    monkeypatch.setattr(store.driver, "overlaps_round_trips", overlaps)
    monkeypatch.setattr(FreeCore, "is_free", lambda self: free)
    loop = Worker(store)._loop
    loop.under_way = under_way
    before = store.driver.bell()
    loop.half_is_done()
    assert (store.driver.bell() != before) is (overlaps and free and not under_way)


@pytest.mark.parametrize(
    ("options", "handling", "fetches"),
    [
        ({}, {}, True),
        ({}, {"retry": Retry(attempts=1)}, False),
        ({"fifo": True}, {}, False),
        ({"rate": "100000/s"}, {}, False),
        ({"in_flight": {"customer": 500}}, {}, False),
        ({}, {"prefetch": 0}, False),
        ({}, {"prefetch": 5}, True),
        ({}, {"prefetch": 19}, True),
    ],
)
def test_what_must_not_wait_in_a_worker_is_not_fetched_ahead(
    ahead: QueueStore, monkeypatch: pytest.MonkeyPatch, options: Any, handling: Any, fetches: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Loop, "half_is_done", lambda self: asked.append(1))
    queue = ahead.queue("q", int, **options)
    queue.add_handler(lambda _: None, **handling)
    queue.put_many(range(300))
    worker = Worker(ahead)
    worker.start()
    try:
        assert drained(ahead)
    finally:
        worker.stop()
    assert bool(asked) is fetches


def test_a_core_is_free_when_one_was_idle_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, idle = 100.0, 5.0
    monkeypatch.setattr("penstock.queue.worker.free_core.time.monotonic", lambda: moment)
    core = FreeCore(lambda: idle)
    assert not core.is_free(), "nothing was seen yet"
    moment, idle = 100.04, 5.03
    assert not core.is_free(), "too little was seen"
    moment = 100.06
    assert core.is_free(), "a new worker looks soon"
    moment, idle = 100.2, 5.03
    assert core.is_free(), "not looked again yet"
    moment, idle = 100.3, 5.05
    assert not core.is_free()


def test_where_nobody_counts_a_second_core_is_taken_for_free(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 100.0
    monkeypatch.setattr("penstock.queue.worker.free_core.time.monotonic", lambda: moment)
    for cores in (1, 2):
        monkeypatch.setattr("penstock.queue.worker.free_core.os.cpu_count", lambda count=cores: count)
        core = FreeCore(lambda: None)
        moment += 1
        assert core.is_free() is (cores > 1)


def test_idle_time_goes_up() -> None:
    before = idle_seconds_of_all_cores()
    assert before is None or before <= (idle_seconds_of_all_cores() or 0)


def test_an_outcome_that_comes_while_others_are_taken_is_not_lost(store: QueueStore) -> None:
    loop = Worker(store)._loop

    put: list[str] = ["first", "second"]

    class Crowded(deque[Any]):
        """Another thread adds to it right after it was looked through."""

        def __iter__(self) -> Iterator[Any]:
            yield from list(super().__iter__())
            put.append("late")
            self.append("late")

    loop._outcomes = Crowded(put)
    taken = loop._take_outcomes()
    while loop._outcomes:
        taken.append(loop._outcomes.popleft())
    assert taken == put


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_a_claim_brings_while_the_worker_stops_belongs_to_the_stop(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The claim was answered, and no stop was seen; then its thread is not scheduled for a moment."""
    inside, ended = threading.Event(), []
    hold, arrive = Loop.hold, Loop._arrive

    def slow_hold(self: Loop, entries: Any) -> None:
        inside.set()
        time.sleep(0.2)
        hold(self, entries)

    def slow_arrive(self: Loop, trip: Any, seconds: float) -> None:
        time.sleep(0.1)
        arrive(self, trip, seconds)

    async def handle_async(number: int) -> None:
        await asyncio.sleep(0.3)
        ended.append(number)

    def handle(number: int) -> None:
        time.sleep(0.3)
        ended.append(number)

    monkeypatch.setattr(Loop, "hold", slow_hold)
    monkeypatch.setattr(Loop, "_arrive", slow_arrive)
    queue = store.queue("q", int)
    queue.add_handler(handle_async if kind == "async" else handle)
    queue.put_many([1, 2, 3])
    worker = Worker(store)
    worker.start()
    assert inside.wait(20)
    time.sleep(0.05)
    assert worker.stop("20s"), "all that had begun has ended"
    counts = queue.counts()
    assert counts.leased == 0
    assert counts.ready + len(ended) == 3


def test_an_entry_that_was_taken_away_and_claimed_again_is_one_entry(store: QueueStore) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    handled: list[int] = []

    def handle(number: int) -> None:
        begun.release()
        assert go_on.wait(20)
        handled.append(number)

    queue = store.queue("q", int)
    queue.add_handler(handle, concurrency=1, prefetch=20)
    ids = [queue.put(number).id for number in range(10)]
    worker = Worker(store, poll="50ms")
    worker.start()
    assert begun.acquire(timeout=20)
    pools = worker._pools.all()
    deadline = time.monotonic() + 20
    while not any(pool.prepared() >= 9 for pool in pools) and time.monotonic() < deadline:
        time.sleep(0.01)
    for id_ in ids[5:]:
        queue.reschedule(id_, delay="0s", force=True)
    while queue.counts().ready and time.monotonic() < deadline:
        time.sleep(0.01)
    go_on.set()
    assert worker.stop("20s")
    counts = queue.counts()
    assert counts.leased == 0
    assert len(handled) == len(set(handled))
    assert counts.ready + len(handled) == 10


def test_an_executor_that_is_quick_leaves_nothing_behind(store: QueueStore) -> None:
    with ThreadPoolExecutor(4) as executor:
        queue = store.queue("q", int)
        queue.add_handler(lambda _: None, executor=executor)
        queue.put_many(range(2000))
        worker = Worker(store)
        worker.start()
        assert drained(store)
        [pool] = worker._pools.all()
        assert worker.stop()
        assert pool._futures == {}  # type: ignore[attr-defined]
