"""Slots of a sync handler: one does the work while the handler is brief, and nobody waits for a slot that is stuck."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import QueueStore, Worker, open_queues
from penstock.queue.worker.pools import threads
from penstock.queue.worker.pools.threads import ThreadPool

SECONDS = 30.0  # that a test waits before it fails


@pytest.fixture
def store() -> Iterator[QueueStore]:
    with open_queues("memory://") as opened:
        yield opened


@pytest.fixture
def worker(store: QueueStore) -> Iterator[Worker]:
    made = Worker(store, poll="1h")
    yield made
    made.stop()


@pytest.mark.parametrize("entries", [10, 25])
def test_a_handler_that_waits_runs_as_often_as_its_concurrency_says(
    store: QueueStore, worker: Worker, entries: int
) -> None:
    """Also the first time, when nobody knows how long it takes."""
    queue = store.queue("q", int)
    all_here, handled = threading.Barrier(5), []

    def meet(number: int) -> None:
        all_here.wait(SECONDS)  # broken if fewer than five run at once
        handled.append(number)

    queue.add_handler(meet, concurrency=5)
    queue.put_many(range(entries))
    worker.start()
    wait_for(lambda: len(handled) == entries)


def test_a_stuck_handler_keeps_no_brief_one_from_running(store: QueueStore, worker: Worker) -> None:
    queue = store.queue("q", str)
    others_done, handled = threading.Event(), []

    def handle(value: str) -> None:
        if value == "stuck":
            assert others_done.wait(SECONDS)
            return
        handled.append(value)
        if len(handled) == 700:
            others_done.set()

    queue.add_handler(handle, concurrency=2)
    # So that the handler is known to be brief when the stuck one comes.
    queue.put_many([f"before {number}" for number in range(500)])
    queue.put("stuck")
    queue.put_many([f"after {number}" for number in range(200)])
    worker.start()
    wait_for(lambda: not queue.counts().live)
    assert len(handled) == 700
    assert [row.state for row in queue.history(limit=1000)] == ["done"] * 701


def test_entries_that_come_one_by_one_find_a_slot(store: QueueStore, worker: Worker) -> None:
    """A slot that is just going to sleep, or was just called, must not let an entry lie."""
    queue = store.queue("q", int)
    handled: list[int] = []
    queue.add_handler(handled.append, concurrency=3)
    worker.start()
    for number in range(300):
        queue.put(number)
        if number % 7 == 0:
            wait_for(lambda count=number + 1: len(handled) == count)  # type: ignore[misc]
    wait_for(lambda: len(handled) == 300)


def test_a_brief_handler_that_becomes_slow_gets_more_slots(store: QueueStore, worker: Worker) -> None:
    queue = store.queue("q", str)
    all_here = threading.Barrier(4)

    def handle(value: str) -> None:
        if value == "slow":
            all_here.wait(SECONDS)

    queue.add_handler(handle, concurrency=4)
    queue.put_many(["brief"] * 500 + ["slow"] * 4 + ["brief"] * 100)
    worker.start()
    wait_for(lambda: not queue.counts().live)
    assert [row.state for row in queue.history(limit=1000)] == ["done"] * 604


def test_a_brief_handler_that_waits_for_a_core_now_and_then_keeps_one_slot(
    store: QueueStore, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More slots would only compete for the same core."""
    monkeypatch.setattr(threads, "PATIENCE", SECONDS)
    queue = store.queue("q", int)
    slots: list[int] = []

    def handle(number: int) -> None:
        if number % 100 == 99:
            time.sleep(0.008)
        slots.append(threading.get_ident())

    queue.add_handler(handle, concurrency=5)
    queue.put_many(range(1000))
    worker.start()
    wait_for(lambda: len(slots) == 1000)
    assert len(set(slots[100:])) == 1


def test_a_slot_that_finds_its_entry_taken_goes_on(
    store: QueueStore, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot at work takes without the lock, also what a slot that has just woken is about to take."""
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr(threads, "deque", Contended)
    queue = store.queue("q", int)
    handled: list[int] = []
    queue.add_handler(handled.append, concurrency=3)
    worker.start()
    for number in range(20):
        queue.put(number)
        wait_for(lambda count=number + 1: len(handled) == count)  # type: ignore[misc]
    assert Contended.refused > 0
    assert died == []


class Contended(deque[Any]):
    """Every second time somebody else is quicker between the look and the pop."""

    pops = refused = 0

    def popleft(self) -> Any:
        if not self:
            raise IndexError("pop from an empty deque")
        Contended.pops += 1
        if Contended.pops % 2:
            Contended.refused += 1
            raise IndexError("pop from an empty deque")
        return super().popleft()


def test_slots_without_work_sleep(store: QueueStore, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookout goes to sleep too: an idle worker looks at nothing."""
    looks = 0
    is_brisk = ThreadPool._is_brisk

    def counted(pool: ThreadPool) -> bool:
        nonlocal looks
        looks += 1
        return is_brisk(pool)

    monkeypatch.setattr(ThreadPool, "_is_brisk", counted)
    queue = store.queue("q", int)
    handled: list[int] = []
    queue.add_handler(handled.append)
    queue.put_many(range(200))
    worker.start()
    wait_for(lambda: len(handled) == 200 and not queue.counts().live)
    rest = threading.Event()

    def seen_in(seconds: float) -> int:
        before = looks
        rest.wait(seconds)
        return looks - before

    wait_for(lambda: seen_in(0.05) == 0)
    assert seen_in(0.3) == 0


def wait_for(condition: object) -> None:
    pause = threading.Event()
    for _ in range(int(SECONDS * 200)):
        if condition():  # type: ignore[operator]
            return
        pause.wait(0.005)
    raise AssertionError("it never became so")
