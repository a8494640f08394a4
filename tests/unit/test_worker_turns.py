"""How a worker takes its turns: what goes wrong in one loses nothing, and slow ones stay few and large."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import QueueStore, Worker, open_queues
from penstock.queue.store import Find


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
    settle, failures = store.settle, iter([2, 5, 6, 9])
    turns, fails_at = 0, next(failures)

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal turns, fails_at
        turns += 1
        if turns == fails_at:
            fails_at = next(failures, 0)
            raise ZeroDivisionError("nobody thought of this")
        return settle(*arguments, **options)

    monkeypatch.setattr(store, "settle", failing)
    worker = Worker(store)
    worker.start()
    try:
        assert drained(store)
    finally:
        worker.stop()
    assert set(handled) == set(range(300))
    done = [row.id for row in store.history(Find(limit=1000)) if row.state == "done"]
    assert len(done) == len(set(done)) == 300


def test_slow_turns_are_few_and_keep_no_slot_from_its_work(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    settle, turns, turning = store.settle, 0, threading.Lock()

    def slow(*arguments: Any, **options: Any) -> Any:
        nonlocal turns
        turns += 1
        with turning:  # as on a store that does one thing at a time
            time.sleep(0.01)
            return settle(*arguments, **options)

    monkeypatch.setattr(store, "settle", slow)
    worker = Worker(store)
    begin = time.monotonic()
    worker.start()
    try:
        assert drained(store)
        seconds = time.monotonic() - begin
    finally:
        worker.stop()
    assert most == 4
    assert turns < 60, "several outcomes and entries in each"
    assert seconds < 2.0, "0.5 s of work for each of four slots, which did not wait for turns"


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_what_the_last_claim_brings_is_given_back(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """A stop that comes while a claim is under way: whoever gets its reply is about to go."""
    queue = store.queue("q", int)
    queue.put_many(range(5))
    settle, entered, go = store.settle, threading.Event(), threading.Event()

    def slow(steps: Any, claim: Any = None, **options: Any) -> Any:
        reply = settle(steps, claim, **options)
        if claim is not None and reply.claimed.entries:
            entered.set()
            go.wait(10)
        return reply

    monkeypatch.setattr(store, "settle", slow)
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
