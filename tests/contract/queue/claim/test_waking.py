"""Wake-up: who waits for work is told, instead of asking again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.contract.queue.shorthand import (
    PATIENCE,
    Contract,
    OpenStore,
    end,
    put,
    take,
    take_one,
)

from penstock.clock import FakeClock
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


def rings(store: QueueStore, change: Callable[[], object]) -> bool:
    """Whether a wait that began before the change ends because of it."""
    seen = store.driver.bell()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(store.driver.wait(seen, PATIENCE)), daemon=True)
    thread.start()
    change()
    thread.join(PATIENCE + 5)
    assert not thread.is_alive()
    return answers == [True]


class TestBell(Contract):
    """``bell()`` before, ``wait()`` after."""

    def test_without_a_ring_the_time_runs_out(self, store: QueueStore) -> None:
        store.driver.wait(store.driver.bell(), 0.05)
        assert store.driver.wait(store.driver.bell(), 0.05) is False

    def test_a_ring_before_the_wait_is_not_lost(self, store: QueueStore) -> None:
        seen = store.driver.bell()
        put(store, "q")
        assert store.driver.wait(seen, PATIENCE) is True

    def test_wake(self, store: QueueStore) -> None:
        assert rings(store, store.driver.wake)

    def test_the_clock_moved(self, store: QueueStore, clock: FakeClock) -> None:
        assert rings(store, lambda: clock.advance("1s"))

    def test_close_ends_the_wait(self, open_store: OpenStore) -> None:
        store = open_store()
        assert rings(store, store.close) or store.closed

    @pytest.mark.parametrize(
        "what", ["put", "retry", "release", "unlock", "replay", "reap", "reschedule", "fifo", "other handle"]
    )
    def test_what_makes_work_claimable_rings(
        self, store: QueueStore, open_store: OpenStore, clock: FakeClock, what: str
    ) -> None:
        queue = store.queue("q", fifo=what == "fifo")
        change: Callable[[], object]
        if what == "put":
            change = lambda: queue.put("x")  # noqa: E731
        elif what == "other handle":
            other = open_store(node="two")
            change = lambda: put(other, "q")  # noqa: E731
        else:
            id_ = queue.put("x", delay="1h" if what == "reschedule" else None).id
            queue.put("y")
            taken = None if what == "reschedule" else take_one(store, "q")
            if what in ("retry", "release"):
                assert taken is not None
                change = lambda: end(store, taken, what)  # type: ignore[arg-type] # noqa: E731
            elif what == "unlock":
                queue.lock()
                change = queue.unlock
            elif what == "replay":
                assert taken is not None
                end(store, taken, "dead")
                change = lambda: store.driver.replay([id_])  # noqa: E731
            elif what == "reap":
                clock.advance("2m")
                change = lambda: store.driver.reap(node="one")  # noqa: E731
            elif what == "reschedule":
                change = lambda: queue.reschedule(id_, delay="0s")  # noqa: E731
            else:
                assert taken is not None
                change = lambda: end(store, taken)  # noqa: E731
        assert rings(store, change)
        assert len(take(store, "q")) >= 1

    def test_room_in_a_label_limit_rings(self, store: QueueStore) -> None:
        if not store.capabilities.label_limits:
            pytest.skip(f"{store.name} declares label_limits=False")
        queue = store.queue("q", in_flight={"a": 1})
        queue.put_many([1, 2], labels={"a": "x"})
        taken = take_one(store, "q")
        assert take(store, "q") == []
        assert rings(store, lambda: end(store, taken))
        assert len(take(store, "q")) == 1

    def test_many_waiters_are_all_told(self, store: QueueStore) -> None:
        seen = store.driver.bell()
        answers: list[bool] = []
        threads = [
            threading.Thread(target=lambda: answers.append(store.driver.wait(seen, PATIENCE)), daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        put(store, "q")
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == [True] * 4


class TestIdleWorker(Contract):
    """A worker that would poll once an hour still starts at once."""

    @pytest.mark.parametrize("how", ["put", "other handle", "clock", "unlock", "handler"])
    def test_it_is_woken(self, store: QueueStore, open_store: OpenStore, clock: FakeClock, how: str) -> None:
        queue, handled = store.queue("q"), threading.Event()
        idle = threading.Event()
        if how != "handler":
            queue.add_handler(lambda value: handled.set())
        if how == "clock":
            queue.put("x", delay="1h")
        if how in ("unlock", "handler"):
            queue.put("x")
        if how == "unlock":
            queue.lock()
        waited, real_wait = threading.Event(), store.driver.wait

        def wait(seen: int, seconds: float) -> bool:
            waited.set()
            return real_wait(seen, seconds)

        store.driver.wait = wait  # type: ignore[method-assign]
        worker = Worker(store, poll="1h")
        worker.start()
        try:
            assert waited.wait(PATIENCE)
            assert not handled.is_set()
            if how == "put":
                queue.put("x")
            elif how == "other handle":
                put(open_store(node="two"), "q")
            elif how == "clock":
                clock.advance("1h")
            elif how == "unlock":
                queue.unlock()
            else:
                queue.add_handler(lambda value: handled.set())
            assert handled.wait(PATIENCE)
        finally:
            idle.set()
            worker.stop()
