"""A handler whose entry is taken away while it runs learns of it at the next heartbeat, on every store alike."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.contract.queue.shorthand import PATIENCE, Contract, lease_of, put, take_one

from penstock import Context, QueueStore, Retry, Worker
from penstock.queue.batch import batch_status
from penstock.queue.protocol import Find
from penstock.testing import FakeClock

LEASE = "150ms"  # so a heartbeat comes soon


@contextmanager
def running(store: QueueStore) -> Iterator[Worker]:
    worker = Worker(store, lease=LEASE, poll="20ms")
    worker.start()
    try:
        yield worker
    finally:
        worker.stop("10s")


class Handler:
    """Runs until it is cancelled, and says so."""

    def __init__(self, store: QueueStore, **options: Any) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.seen: list[tuple[int, bool]] = []  # attempt, and whether it was cancelled before the test ended it
        self.queue = store.queue("work", int)
        self.queue.add_handler(self.handle, retry=Retry(attempts=5, delays=["0s"]), **options)

    def handle(self, number: int, ctx: Context[int]) -> None:
        assert not ctx.cancelled
        self.started.set()
        deadline = time.monotonic() + PATIENCE
        while not (ctx.cancelled or self.go_on.is_set()):
            assert time.monotonic() < deadline, "nobody told the handler"
            time.sleep(0.005)
        self.seen.append((ctx.entry.attempt, ctx.cancelled))


class AsyncHandler(Handler):
    """The same as a coroutine that looks at nothing."""

    async def handle(self, number: int, ctx: Context[int]) -> None:  # type: ignore[override]
        self.started.set()
        try:
            while not self.go_on.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.seen.append((ctx.entry.attempt, ctx.cancelled))
            raise
        self.seen.append((ctx.entry.attempt, ctx.cancelled))


def states(store: QueueStore) -> list[tuple[str, int]]:
    return [(row.state, row.attempt) for row in store.driver.history(Find(queue="work"))]


def wait_for(seen: list[Any], count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(seen) < count:
        assert time.monotonic() < deadline, f"only {seen}"
        time.sleep(0.005)


@pytest.mark.parametrize("kind", [Handler, AsyncHandler])
class TestCancelled(Contract):
    def test_a_handler_learns_that_its_entry_was_cancelled(self, store: QueueStore, kind: type[Handler]) -> None:
        handler = kind(store)
        with running(store):
            id_ = handler.queue.put(1).id
            assert handler.started.wait(PATIENCE)
            store.driver.cancel([id_], force=True)
            wait_for(handler.seen, 1)
            handler.go_on.set()
            handler.queue.put(2)  # its slot is free again
            wait_for(handler.seen, 2)
        assert handler.seen == [(1, True), (1, False)]
        assert states(store) == [("cancelled", 1), ("done", 1)]
        assert store.driver.dead(Find()) == []

    def test_a_cancel_is_no_reason_to_warn(
        self, store: QueueStore, kind: type[Handler], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "penstock")
        handler = kind(store)
        with running(store):
            id_ = handler.queue.put(1).id
            assert handler.started.wait(PATIENCE)
            store.driver.cancel([id_], force=True)
            wait_for(handler.seen, 1)
        assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == []
        assert f"entry {id_} of queue 'work' was cancelled while this worker had it" in caplog.messages

    def test_a_lease_that_was_lost_otherwise_is(
        self, store: QueueStore, clock: FakeClock, kind: type[Handler], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also of an entry that was cancelled in an earlier life."""
        handler = kind(store)
        id_ = handler.queue.put(1).id
        take_one(store, "work", owner="another")
        store.driver.cancel([id_], force=True)
        store.driver.replay([id_])
        with running(store):
            assert handler.started.wait(PATIENCE)
            while not store.driver.reap(node="other").reaped and not handler.seen:
                clock.advance("1h")
            wait_for(handler.seen, 1)
            handler.go_on.set()
            wait_for(handler.seen, 2)
        assert any("came too late" in message for message in caplog.messages)

    def test_a_member_learns_that_its_batch_was_cancelled(self, store: QueueStore, kind: type[Handler]) -> None:
        handler = kind(store, concurrency=2)
        then = store.queue("then", str)
        with store.batch(then=(then, "all")) as batch:
            batch.put_many(handler.queue, range(2))
        with running(store):
            assert handler.started.wait(PATIENCE)
            batch.cancel()
            wait_for(handler.seen, 1)
        assert all(cancelled for _, cancelled in handler.seen)
        assert batch_status(store, batch.id).members == {"cancelled": 2}

    def test_a_handler_learns_that_its_lease_was_lost(
        self, store: QueueStore, clock: FakeClock, kind: type[Handler]
    ) -> None:
        handler = kind(store)
        with running(store):
            handler.queue.put(1)
            assert handler.started.wait(PATIENCE)
            clock.advance("1h")
            while not store.driver.reap(node="other").reaped and not handler.seen:
                clock.advance("1h")  # a heartbeat was quicker
            wait_for(handler.seen, 1)
            handler.go_on.set()
            wait_for(handler.seen, 2)
        assert handler.seen == [(1, True), (2, False)]
        assert [state for state, _ in states(store)][-1] == "done"

    def test_a_handler_that_runs_undisturbed_is_not_cancelled(self, store: QueueStore, kind: type[Handler]) -> None:
        handler = kind(store)
        extended = threading.Event()
        extend = store.driver.extend
        store.driver.extend = lambda *args: (extend(*args), extended.set())[0]  # type: ignore[method-assign]
        with running(store):
            handler.queue.put(1)
            assert extended.wait(PATIENCE)
            handler.go_on.set()
            wait_for(handler.seen, 1)
        assert handler.seen == [(1, False)]
        assert states(store) == [("done", 1)]


class TestClaimedAgain(Contract):
    def test_a_lease_is_lost_when_the_same_process_claims_the_entry_again(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        put(store, "work")
        heartbeat, lost = store.driver.heartbeat, []
        first = lease_of(take_one(store, "work", lease="1m"))
        heartbeat.hold([first], 60_000_000, lost.append)
        clock.advance("2m")
        store.driver.reap(node="other")
        second = lease_of(take_one(store, "work"))
        for _ in range(2):  # a claim may be repeated
            heartbeat.hold([second], 60_000_000, lost.append)
        assert lost == [first]
        assert (heartbeat.has_lost(first), heartbeat.has_lost(second)) == (True, False)
        heartbeat.drop([first, second])
        assert not heartbeat.has_lost(first)


class TestGoingOn(Contract):
    def test_a_handler_that_goes_on_all_the_same_changes_nothing(self, store: QueueStore) -> None:
        """Sync and async, with puts: they are dropped with its outcome."""
        work, then = store.queue("work", int), store.queue("then", int)
        outcomes: list[bool] = []

        async def stubborn(number: int, ctx: Context[int]) -> None:
            ctx.put(then, number)
            started.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                outcomes.append(ctx.cancelled)

        started = threading.Event()
        work.add_handler(stubborn)
        with running(store):
            id_ = work.put(1).id
            assert started.wait(PATIENCE)
            store.driver.cancel([id_], force=True)
            wait_for(outcomes, 1)
        assert outcomes == [True]
        assert states(store) == [("cancelled", 1)]
        assert store.driver.find(Find()) == []

    def test_nothing_is_cancelled_after_finish(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        outcomes: list[bool] = []

        async def finished(number: int, ctx: Context[int]) -> None:
            ctx.finish()
            outcomes.append(ctx.cancelled)

        work.add_handler(finished)
        with running(store):
            work.put(1)
            wait_for(outcomes, 1)
        assert outcomes == [False]
        assert states(store) == [("done", 1)]
