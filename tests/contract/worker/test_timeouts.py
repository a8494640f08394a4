"""The time limit of a handler: the attempt fails and says so, whatever the handler runs in, on every store alike."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.contract.queue.in_processes import sleep_or_return
from tests.contract.queue.shorthand import Contract, OpenStore, needs

from penstock import Queue, QueueStore, Retry, Worker
from penstock.errors import BadInput
from penstock.testing import drain

ONCE = Retry(attempts=1)
LONG = 60.0


@contextmanager
def running(store: QueueStore, **options: Any) -> Iterator[Worker]:
    worker = Worker(store, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop("5s")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.01)


class TestAsync(Contract):
    def test_it_is_cancelled_and_the_attempt_has_failed(self, open_store: OpenStore) -> None:
        store = open_store(clock=None)
        queue, cancelled = store.queue("q", str), []

        async def handle(value: str) -> None:
            if value == "brief":
                return
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                cancelled.append(value)
                raise

        queue.add_handler(handle, retry=ONCE, timeout="50ms")
        queue.put_many(["long", "brief"])
        with running(store):
            wait_for(lambda: queue.counts().live == 0)
        assert cancelled == ["long"]
        [letter] = queue.dead()
        assert letter.value == "long"
        assert (letter.error or "").startswith("HandlerTimeout: ")
        assert "took longer than 0.05s" in (letter.error or "")
        assert "asyncio.sleep(LONG)" in (letter.traceback or ""), "it shows what the handler waited for"

    def test_a_timeout_of_the_handlers_own_stays_what_it_is(self, store: QueueStore) -> None:
        queue = store.queue("q", str)

        async def handle(value: str) -> None:
            raise TimeoutError("the far side is slow")

        queue.add_handler(handle, retry=ONCE, timeout="10s")
        queue.put("x")
        drain(store)
        assert [letter.error for letter in queue.dead()] == ["TimeoutError: the far side is slow"]

    def test_fifo_and_limited_queues_may_have_one(self, store: QueueStore) -> None:
        async def handle(value: str) -> None:
            return None

        store.queue("a", str, fifo=True).add_handler(handle, timeout="1s")
        store.queue("b", str, rate="10/s").add_handler(handle, timeout="1s")


class TestThreads(Contract):
    @pytest.mark.parametrize("own", [False, True], ids=["slots", "executor"])
    def test_the_attempt_fails_and_the_slot_is_free_when_the_thread_returns(
        self, open_store: OpenStore, own: bool
    ) -> None:
        store = open_store(clock=None)
        queue, go, started = store.queue("q", str), threading.Event(), []

        def handle(value: str) -> None:
            started.append(value)
            if value == "stuck":
                assert go.wait(LONG)

        executor = ThreadPoolExecutor(1) if own else None
        queue.add_handler(handle, retry=ONCE, timeout="100ms", concurrency=1, executor=executor)
        queue.put("stuck")
        with running(store):
            wait_for(lambda: len(queue.dead()) == 1)
            [letter] = queue.dead()
            assert "the thread is still running" in (letter.error or "")
            assert "go.wait(LONG)" in (letter.traceback or ""), "it shows where the thread is"
            queue.put("next")
            store.queue("q").put("and another")
            assert queue.counts().leased == 0
            time.sleep(0.3)  # nothing to wait for: the worker must do nothing
            assert started == ["stuck"], "the only slot is not free"
            go.set()
            wait_for(lambda: queue.counts().live == 0)
        assert sorted(started) == ["and another", "next", "stuck"]
        assert sorted(row.state for row in queue.history()) == ["dead", "done", "done"]
        if executor is not None:
            executor.shutdown()

    def test_it_is_retried_beside_the_thread_that_is_late(self, open_store: OpenStore) -> None:
        """So the docs say; who cannot have that uses processes."""
        store = open_store(clock=None)
        queue, go, runs = store.queue("q", str), threading.Event(), []

        def handle(value: str) -> None:
            runs.append(value)
            if len(runs) == 1:
                assert go.wait(LONG)
                raise RuntimeError("too late for anybody to care")

        queue.add_handler(handle, retry=Retry(attempts=3, backoff="0s"), timeout="100ms", concurrency=2)
        id_ = queue.put("x").id
        with running(store):
            wait_for(lambda: queue.counts().live == 0)
            go.set()
        assert len(runs) == 2
        assert [row.state for row in queue.history(id_)] == ["retried", "done"]

    def test_in_a_drain(self, store: QueueStore) -> None:
        queue = store.queue("q", str)
        queue.add_handler(lambda value: time.sleep(1), retry=ONCE, timeout="20ms")
        queue.put_many(["a", "b"])
        assert drain(store) == 2
        assert len(queue.dead()) == 2

    def test_what_ends_in_time_is_not_touched(self, open_store: OpenStore) -> None:
        store = open_store(clock=None)
        queue, other = store.queue("q", int), store.queue("other", int)

        def handle(number: int, ctx: Any) -> None:
            ctx.put(other, number)

        queue.add_handler(handle, timeout="30s")
        queue.put_many(range(50))
        with running(store):
            wait_for(lambda: queue.counts().live == 0)
        assert [row.state for row in queue.history()] == ["done"] * 50
        assert sorted(entry.value for entry in other.find()) == list(range(50))


class TestRefusals(Contract):
    @pytest.mark.parametrize(
        "options", [{"fifo": True}, {"rate": "10/s"}, {"in_flight": {"customer": 1}}], ids=["fifo", "rate", "in_flight"]
    )
    @pytest.mark.parametrize("opened", ["here", "elsewhere"])
    def test_threads_on_fifo_and_limited_queues(self, store: QueueStore, options: dict[str, Any], opened: str) -> None:
        if "in_flight" in options:
            needs(store, "label_limits")
        queue: Queue[str] = store.queue("q", str, **options)
        if opened == "elsewhere":
            queue = store.queue("q", str)
        with pytest.raises(BadInput, match="processes"):
            queue.add_handler(print, timeout="1s")
        queue.add_handler(sleep_or_return, timeout="1s", executor="processes")

    @pytest.mark.parametrize("timeout", ["0s", "-1s", "soon", 3])
    def test_what_is_no_time(self, store: QueueStore, timeout: Any) -> None:
        with pytest.raises(BadInput):
            store.queue("q", str).add_handler(print, timeout=timeout)

    def test_what_no_process_could_run(self, store: QueueStore) -> None:
        queue = store.queue("q", str)

        async def in_loop(value: str) -> None: ...

        def inside(value: str) -> None: ...

        for function in (in_loop, inside, lambda value: None, print, takes_context):
            with pytest.raises(BadInput, match="processes"):
                queue.add_handler(function, executor="processes")
        with pytest.raises(BadInput, match="executor='threads' is unknown"):
            queue.add_handler(sleep_or_return, executor="threads")  # type: ignore[arg-type]


def takes_context(value: str, ctx: Any) -> None: ...
