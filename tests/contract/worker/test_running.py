"""Workers in the background: threads, loops, executors, handlers that come and go, stopping in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    PATIENCE,
    Contract,
    OpenStore,
    living,
    put,
    take_one,
    tally,
    trail,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict
from penstock.policy import Retry
from penstock.queue.handling.context import Context
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker
from penstock.queue.worker.free_core import FreeCore
from penstock.queue.worker.maintenance import Reaper


@contextmanager
def running(store: QueueStore, **options: Any) -> Iterator[Worker]:
    """A worker in the background."""
    worker = Worker(store, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("it never came to be")


class Latch:
    """Handlers wait at it until a test opens it."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.opened = threading.Event()
        self.count = 0

    def wait(self) -> None:
        """For handlers: say that one is here, and wait."""
        self.count += 1
        self.arrived.release()
        assert self.opened.wait(PATIENCE)

    def expect(self, number: int) -> None:
        """For tests: wait until so many more are here."""
        for _ in range(number):
            assert self.arrived.acquire(timeout=PATIENCE)


class TestRunning(Contract):
    """All that is put is handled."""

    def test_a_worker_without_handlers_says_so(self, store: QueueStore, caplog: pytest.LogCaptureFixture) -> None:
        with running(store):
            assert "has no handlers yet" in caplog.text
        caplog.clear()
        store.queue("mails").add_handler(lambda _: None)
        with running(store):
            assert "no handlers" not in caplog.text

    @pytest.mark.parametrize("kind", ["sync", "async", "executor"])
    def test_everything_is_handled_once(self, store: QueueStore, kind: str) -> None:
        queue = store.queue("q", int)
        seen: list[int] = []

        async def handle_async(value: int) -> None:
            await asyncio.sleep(0)
            seen.append(value)

        executor = ThreadPoolExecutor(3) if kind == "executor" else None
        queue.add_handler(handle_async if kind == "async" else seen.append, concurrency=4, executor=executor)
        queue.put_many(range(150))
        with running(store):
            for number in range(150, 200):
                queue.put(number)
            eventually(lambda: queue.counts().live == 0)
        if executor is not None:
            executor.shutdown()
        assert sorted(seen) == list(range(200))
        if store.capabilities.full_history:
            assert len(store.driver.history(Find())) == 200

    def test_two_workers_share(self, store: QueueStore, open_store: OpenStore) -> None:
        other = open_store(node="two")
        seen: list[int] = []
        for handle in (store, other):
            handle.queue("q", int).add_handler(seen.append)
        store.queue("q").put_many(range(100))
        with running(store), running(other):
            eventually(lambda: store.queue("q").counts().live == 0)
        assert sorted(seen) == list(range(100))

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_concurrency_is_kept(self, store: QueueStore, kind: str) -> None:
        latch = Latch()
        queue = store.queue("q")

        async def handle_async(value: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(None, latch.wait)

        queue.add_handler(handle_async if kind == "async" else lambda value: latch.wait(), concurrency=3, prefetch=0)
        queue.put_many(range(10))
        with running(store):
            latch.expect(3)
            assert tally(store, "q")[3] == 3
            assert latch.count == 3
            latch.opened.set()
            eventually(lambda: queue.counts().live == 0)

    def test_at_most_once_is_never_prefetched(self, store: QueueStore) -> None:
        latch, queue = Latch(), store.queue("q")
        queue.add_handler(lambda value: latch.wait(), concurrency=1, prefetch=50, retry=Retry(attempts=1))
        queue.put_many(range(10))
        with running(store):
            latch.expect(1)
            assert tally(store, "q")[3] == 1
            latch.opened.set()
            eventually(lambda: queue.counts().live == 0)

    def test_fetched_ahead_everything_is_handled_once(self, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a machine with cores to spare; whether the store is quicker so or not."""
        monkeypatch.setattr(store.driver, "overlaps_round_trips", True)
        monkeypatch.setattr(FreeCore, "is_free", lambda self: True)
        handled: list[int] = []
        queue = store.queue("q", int)
        queue.add_handler(handled.append)
        queue.put_many(range(600))
        with running(store), running(store):
            eventually(lambda: queue.counts().live == 0)
        assert sorted(handled) == list(range(600))

    def test_a_full_named_handler_does_not_take_through_the_family(self, store: QueueStore) -> None:
        """While its own handler is busy, a named queue is still not the family's to claim from."""
        latch, seen = Latch(), threading.Event()
        store.queue("f.named").add_handler(lambda value: latch.wait(), concurrency=1, retry=Retry(attempts=1))
        store.family("f.").add_handler(lambda value: seen.set(), concurrency=5)
        store.queue("f.named").put_many(range(5))
        with running(store):
            latch.expect(1)
            put(store, "f.other")
            assert seen.wait(PATIENCE)
            assert tally(store, "f.named")[3] == 1
            latch.opened.set()
            eventually(lambda: store.family("f.").counts().live == 0)

    def test_a_hanging_queue_stops_no_other(self, store: QueueStore) -> None:
        latch = Latch()
        seen: list[Any] = []
        store.queue("slow").add_handler(lambda value: latch.wait(), concurrency=2)
        store.queue("quick").add_handler(seen.append)
        store.queue("slow").put_many(range(5))
        with running(store):
            latch.expect(2)
            store.queue("quick").put_many(range(50))
            eventually(lambda: len(seen) == 50)
            latch.opened.set()
            eventually(lambda: store.queue("slow").counts().live == 0)

    def test_fifo_queues_run_in_order_one_at_a_time(self, store: QueueStore) -> None:
        seen: dict[str, list[int]] = {}
        busy: set[str] = set()
        overlaps: list[str] = []

        @store.family("f.").handler(concurrency=8)
        def handle(value: int, ctx: Context) -> None:
            name = ctx.entry.queue
            if name in busy:
                overlaps.append(name)
            busy.add(name)
            seen.setdefault(name, []).append(value)
            busy.discard(name)

        for name in ("f.a", "f.b", "f.c"):
            store.queue(name, fifo=True).put_many(range(20))
        with running(store):
            eventually(lambda: store.family("f.").counts().live == 0)
        assert overlaps == []
        assert seen == {name: list(range(20)) for name in ("f.a", "f.b", "f.c")}

    @pytest.mark.parametrize("kind", ["sync", "async", "executor"])
    def test_failures_are_retried(self, store: QueueStore, kind: str) -> None:
        queue = store.queue("q")

        def handle(value: int, ctx: Context) -> None:
            if ctx.entry.attempt < 3:
                raise RuntimeError("not yet")

        async def handle_async(value: int, ctx: Context) -> None:
            handle(value, ctx)

        executor = ThreadPoolExecutor(2) if kind == "executor" else None
        retry = Retry(attempts=3, backoff="0s")
        queue.add_handler(handle_async if kind == "async" else handle, retry=retry, executor=executor)
        ids = [one.id for one in queue.put_many(range(5))]
        with running(store):
            eventually(lambda: queue.counts().live == 0)
        if executor is not None:
            executor.shutdown()
        for id_ in ids:
            assert [row[2] for row in trail(store, id_)] == ["retried", "retried", "done"]

    def test_schedules_fire_and_leases_are_reaped_beside(self, store: QueueStore, clock: FakeClock) -> None:
        seen: list[Any] = []
        put(store, "lost", "lost")
        take_one(store, "lost", owner="vanished")
        store.queue("lost").add_handler(seen.append)
        ticks = store.queue("ticks")
        ticks.add_handler(seen.append)
        ticks.schedule("tick", "tick", every="5m")
        with running(store):
            clock.advance("5m")
            eventually(lambda: sorted(seen) == ["lost", "tick"])

    def test_a_suspect_runs_alone(self, store: QueueStore, clock: FakeClock) -> None:
        suspect = put(store, "q", "suspect")
        take_one(store, "q", owner="vanished")
        clock.advance("2m")
        store.driver.reap(node="one")
        latch, seen = Latch(), []

        @store.queue("q").handler(concurrency=4)
        def handle(value: str) -> None:
            seen.append(value)
            if value == "suspect":
                latch.wait()

        store.queue("q").put_many(["a", "b", "c"])
        with running(store):
            latch.expect(1)
            assert seen == ["suspect"]
            assert tally(store, "q")[3] == 1
            latch.opened.set()
            eventually(lambda: store.queue("q").counts().live == 0)
        assert sorted(seen) == ["a", "b", "c", "suspect"]
        assert trail(store, suspect)[-1] == (1, 2, "done")


class TestComingAndGoing(Contract):
    """Handlers may be added and removed while a worker runs."""

    def test_added_while_running(self, store: QueueStore) -> None:
        seen: list[Any] = []
        put(store, "q", "early")
        with running(store):
            store.queue("q").add_handler(seen.append)
            eventually(lambda: seen == ["early"])
            put(store, "q", "late")
            eventually(lambda: seen == ["early", "late"])

    def test_removed_while_running(self, store: QueueStore) -> None:
        seen: list[Any] = []
        queue = store.queue("q")
        queue.add_handler(seen.append)
        store.queue("other").add_handler(seen.append)
        with running(store):
            queue.put("first")
            eventually(lambda: seen == ["first"])
            queue.remove_handler()
            put(store, "other", "let the worker notice")
            eventually(lambda: len(seen) == 2)
            id_ = queue.put("later").id
            put(store, "other", "and once more")
            eventually(lambda: len(seen) == 3)
            assert living(store, id_).attempt == 0

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_work_in_hand_goes_on_after_the_removal(self, store: QueueStore, kind: str) -> None:
        latch, queue, noticed = Latch(), store.queue("q"), threading.Event()

        async def handle_async(value: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(None, latch.wait)

        queue.add_handler(handle_async if kind == "async" else lambda value: latch.wait())
        store.queue("other").add_handler(lambda value: noticed.set())
        id_ = queue.put("x").id
        with running(store):
            latch.expect(1)
            queue.remove_handler()
            put(store, "other")
            assert noticed.wait(PATIENCE)
            latch.opened.set()
            eventually(lambda: queue.counts().live == 0)
        assert trail(store, id_) == [(1, 1, "done")]

    def test_replaced_while_running(self, store: QueueStore) -> None:
        seen: list[str] = []
        queue = store.queue("q")
        queue.add_handler(lambda value: seen.append("old"))
        with running(store):
            queue.put("x")
            eventually(lambda: seen == ["old"])
            queue.remove_handler()
            queue.add_handler(lambda value: seen.append("new"))
            queue.put("x")
            eventually(lambda: seen == ["old", "new"])


class TestStopping(Contract):
    """No new claims, grace for what runs, the rest released unspent."""

    @pytest.mark.parametrize("kind", ["sync", "async", "executor"])
    def test_running_handlers_get_their_grace(self, store: QueueStore, kind: str) -> None:
        latch, queue = Latch(), store.queue("q")

        async def handle_async(value: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(None, latch.wait)

        executor = ThreadPoolExecutor(2) if kind == "executor" else None
        queue.add_handler(
            handle_async if kind == "async" else lambda value: latch.wait(),
            concurrency=1,
            prefetch=0,
            executor=executor,
        )
        first, second = (queue.put(number).id for number in range(2))
        worker = Worker(store, grace="20s")
        worker.start()
        latch.expect(1)
        threading.Timer(0.2, latch.opened.set).start()
        assert worker.stop() is True
        if executor is not None:
            executor.shutdown()
        assert trail(store, first) == [(1, 1, "done")]
        assert (living(store, second).state, living(store, second).attempt) == ("waiting", 0)

    @pytest.mark.parametrize("kind", ["sync", "async", "executor"])
    def test_what_does_not_end_in_time_is_released_unspent(self, store: QueueStore, kind: str) -> None:
        latch, queue = Latch(), store.queue("q")

        async def handle_async(value: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(None, latch.wait)

        executor = ThreadPoolExecutor(2) if kind == "executor" else None
        handle: Any = handle_async if kind == "async" else lambda value: latch.wait()
        queue.add_handler(handle, concurrency=1, executor=executor)
        id_ = queue.put("x").id
        worker = Worker(store)
        worker.start()
        latch.expect(1)
        try:
            assert worker.stop(grace="0s") is False
            entry = living(store, id_)
            assert (entry.state, entry.attempt, trail(store, id_)) == ("waiting", 0, [])
        finally:
            latch.opened.set()
        if executor is not None:
            executor.shutdown()
        assert take_one(store, "q").attempt == 1

    def test_prepared_entries_are_released_unspent(self, store: QueueStore) -> None:
        latch, queue = Latch(), store.queue("q")
        queue.add_handler(lambda value: latch.wait(), concurrency=1, prefetch=20)
        queue.put_many(range(10))
        worker = Worker(store)
        worker.start()
        latch.expect(1)
        eventually(lambda: tally(store, "q")[3] > 1)
        threading.Timer(0.2, latch.opened.set).start()
        assert worker.stop(grace="20s") is True
        left = queue.find()
        assert len(left) == 9
        assert {(entry.state, entry.attempt) for entry in left} == {("waiting", 0)}
        assert latch.count == 1

    def test_a_stopped_worker_can_start_again(self, store: QueueStore) -> None:
        seen: list[Any] = []
        store.queue("q").add_handler(seen.append)
        worker = Worker(store)
        for number in range(2):
            worker.start()
            put(store, "q", number)
            eventually(lambda number=number: number in seen)  # type: ignore[misc]
            assert worker.stop() is True
        put(store, "q", "after")
        assert worker.stop() is True
        assert seen == [0, 1]

    def test_bad_uses(self, store: QueueStore) -> None:
        worker = Worker(store)
        worker.start()
        try:
            with pytest.raises(Conflict, match="already"):
                worker.start()
        finally:
            worker.stop()
        several: list[dict[str, Any]] = [
            {"batch": 0}, {"batch": 101}, {"batch": "x"}, {"lease": 5}, {"lease": "0s"}, {"grace": "soon"},
            {"poll": "-1s"}, {"queues": ["typo"]}, {"queues": store.queue("q").name},
        ]  # fmt: skip
        for bad in several:
            with pytest.raises(BadInput) as caught:
                Worker(store, **bad)
            assert caught.value.hint
        with pytest.raises(BadInput, match="open_queues"):
            Worker(store.name)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="every"):
            Reaper(store, every="0s")
        with pytest.raises(BadInput, match="lease"):
            store.unit(lease="0s")
        with pytest.raises(BadInput):
            store.queue("q").add_handler(lambda value: None, concurrency=0)
