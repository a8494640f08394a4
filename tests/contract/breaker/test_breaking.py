"""Breaking: handlers behind a breaker, drained and in running workers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.breaker.test_circuits import config, locked
from tests.contract.queue.shorthand import PATIENCE, Contract, OpenStore

from penstock.breaker.breaker import Breaker
from penstock.breaker.settings import BreakerSettings
from penstock.clock import FakeClock, SystemClock
from penstock.errors import BadInput
from penstock.policy import Reject, Retry, Snooze
from penstock.queue.handling.context import Context
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker

AT_ONCE = Retry(attempts=None, delays=["0s"])


class FarSide:
    """What handlers call: well, or down; it remembers who called."""

    def __init__(self) -> None:
        """Start down."""
        self.down = True
        self.calls: list[str] = []

    def __call__(self, value: str) -> None:
        """Take a call."""
        self.calls.append(value)
        if self.down:
            raise ConnectionError("nobody is there")


def filled(store: QueueStore, queues: int, each: int) -> Queue[Any]:
    """A family of FIFO queues with values such as "3-0"."""
    family = store.family("q.", fifo=True)
    for number in range(queues):
        family.member(f"q.{number}").put_many([f"{number}-{index}" for index in range(each)])
    return family


def until(wanted: Callable[[], bool], what: str) -> None:
    """Wait for other threads."""
    deadline = time.monotonic() + PATIENCE
    while not wanted():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        threading.Event().wait(0.01)


class TestBreaking(Contract):
    """A breaker guards any handler."""

    def test_an_open_circuit_keeps_entries_back_unspent(self, store: QueueStore) -> None:
        breaker, far, family = Breaker(store, config()), FarSide(), filled(store, 6, 2)
        family.add_handler(far, breaker=breaker.guard("crm"), retry=AT_ONCE)
        worker = Worker(store)
        worker.drain()
        assert len(far.calls) == 4
        assert breaker.circuit("crm").state == "open"
        assert locked(store) == [f"q.{number}" for number in range(6)]
        entries = family.find()
        assert len(entries) == 12
        spent = {entry.queue: entry.attempt for entry in entries if entry.attempt}
        assert spent == {"q.0": 1, "q.1": 1, "q.2": 1, "q.3": 1}
        assert family.history(state="retried", limit=100) != []
        assert {row.state for row in family.history()} == {"retried"}
        worker.drain()
        assert len(far.calls) == 4

    def test_the_whole_way_there_and_back(self, store: QueueStore, clock: FakeClock) -> None:
        breaker, far, family = Breaker(store, config()), FarSide(), filled(store, 6, 3)
        family.add_handler(far, breaker=breaker, retry=AT_ONCE)
        worker = Worker(store)
        worker.drain()
        clock.advance("2m")
        breaker.tick()
        assert breaker.circuit("q.").state == "half_open"
        worker.drain()  # the sample fails
        assert len(far.calls) == 5
        assert breaker.circuit("q.").state == "open"
        assert len(locked(store)) == 6
        far.down = False
        clock.advance("2m")
        breaker.tick()
        worker.drain()
        assert breaker.circuit("q.").state == "closed"
        assert len(locked(store)) == 5
        for _ in range(5):
            breaker.tick()
            worker.drain()
            clock.advance("10s")
        assert locked(store) == []
        assert family.counts().live == 0
        done = [value for value in far.calls if value in {f"{n}-{i}" for n in range(6) for i in range(3)}]
        for number in range(6):
            mine = list(dict.fromkeys(value for value in done if value.startswith(f"{number}-")))
            assert mine == [f"{number}-{index}" for index in range(3)]

    def test_what_a_handler_reports_counts_not_what_becomes_of_the_entry(self, store: QueueStore) -> None:
        breaker, queue = Breaker(store, config()), store.queue("q")

        @queue.handler(breaker=breaker.guard("crm"))
        def handle(value: str, ctx: Context) -> None:
            ctx.report(value != "down")

        queue.put_many(["down", "down", "fine", "down"])
        Worker(store).drain()
        view = breaker.circuit("crm")
        assert (view.state, view.failures, view.successes) == ("open", 3, 1)
        assert queue.counts().live == 0

    def test_outcomes_that_say_nothing_about_the_far_side(self, store: QueueStore) -> None:
        breaker, queue = Breaker(store, config()), store.queue("q")

        @queue.handler(breaker=breaker.guard("crm"), retry=Retry(attempts=1))
        def handle(value: str) -> Any:
            if value == "snooze":
                return Snooze("1h")
            if value == "reject":
                raise Reject("bad")
            return {"false": False, "none": None}[value]

        queue.put_many(["snooze", "reject", "false", "none"])
        Worker(store).drain()
        view = breaker.circuit("crm")
        assert (view.failures, view.successes) == (1, 1)

    def test_a_handler_that_is_cancelled_because_its_entry_was_says_nothing(self, store: QueueStore) -> None:
        breaker, queue = Breaker(store, config()), store.queue("q", int)
        started, ended = threading.Semaphore(0), threading.Semaphore(0)

        async def hang(number: int) -> None:
            started.release()
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                ended.release()

        queue.add_handler(hang, breaker=breaker.guard("crm"), concurrency=6)
        worker = Worker(store, lease="150ms", poll="20ms").start()
        try:
            ids = [put.id for put in queue.put_many(range(6))]
            assert all(started.acquire(timeout=PATIENCE) for _ in ids)
            store.driver.cancel(ids, force=True)
            assert all(ended.acquire(timeout=PATIENCE) for _ in ids)
        finally:
            worker.stop()
        assert breaker.circuit("crm").state == "closed"

    def test_a_probe_that_says_nothing_gives_its_permit_back(self, store: QueueStore, clock: FakeClock) -> None:
        breaker, queue = Breaker(store, config()), store.queue("q")
        answers: list[Any] = [Snooze("1h"), Reject("bad"), None]

        @queue.handler(breaker=breaker.guard("crm"))
        def handle(value: int) -> Any:
            return answers[value]

        breaker.open("crm")
        breaker.half_open("crm")
        queue.put_many([0, 1, 2])
        Worker(store).drain()
        assert breaker.circuit("crm").state == "closed"
        assert queue.counts().live == 1

    def test_entries_choose_their_circuits(self, store: QueueStore) -> None:
        breaker, far, queue = Breaker(store, config()), FarSide(), store.queue("q")
        guard = breaker.guard(lambda entry, value: None if value == "free" else value.split("-")[0], id=lambda e, v: v)

        @queue.handler(breaker=guard, retry=Retry(attempts=1))
        def handle(value: str) -> None:
            if value.startswith("a"):
                far(value)

        queue.put_many(["a-1", "b-1", "a-1", "free", "a-2", "a-3", "b-2"])
        Worker(store).drain()
        assert {view.circuit: (view.failures, view.successes) for view in breaker.circuits()} == {
            "a": (3, 0), "b": (0, 2),
        }  # fmt: skip

    def test_switched_off_it_only_watches(self, store: QueueStore) -> None:
        watching = config(circuit_check_enabled=False)
        breaker, far, family = Breaker(store, watching), FarSide(), filled(store, 6, 1)
        family.add_handler(far, breaker=breaker.guard("crm"), retry=Retry(attempts=2, delays=["0s"]))
        Worker(store).drain(limit=5)
        assert breaker.circuit("crm").state == "open"
        assert len(far.calls) == 5
        off = Breaker(store, config(statistics_update_enabled=False), name="off")
        off.report("crm", "r", False)
        assert off.circuit("crm").failures == 0

    def test_eager_locking_waits_for_no_delivery(self, store: QueueStore) -> None:
        breaker, far = Breaker(store, config(), BreakerSettings(locking="eager")), FarSide()
        family = filled(store, 8, 1)
        family.member("q.8").put("later", delay="1h")  # will not be delivered for long
        family.add_handler(far, breaker=breaker, retry=AT_ONCE)
        Worker(store).drain()
        assert len(far.calls) == 4
        assert locked(store) == [f"q.{number}" for number in range(9)]

    def test_outcomes_ride_with_the_settle(self, open_store: OpenStore, clock: FakeClock) -> None:
        counts = []
        for guarded in (False, True):
            store = open_store(space="guarded" if guarded else "plain")
            queue = store.queue("q")
            breaker = Breaker(store, config())
            breaker.report("q", "first", True)
            queue.add_handler(lambda value: None, breaker=breaker if guarded else None)
            queue.put_many(range(20))
            calls: list[str] = []
            for name in ("_settle", "documents", "now", "_lock", "locks"):
                watch_calls(store, name, calls)
            Worker(store).drain()
            counts.append(calls.count("_settle"))
            assert "documents" not in calls
            assert breaker.circuit("q").successes == (21 if guarded else 1)
        assert counts[0] == counts[1]

    def test_no_breaker_at_all_is_refused(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="breaker="):
            store.queue("q").add_handler(lambda value: None, breaker="crm")
        with pytest.raises(BadInput, match="names no store"):
            Breaker("sqlite:///x.db")  # type: ignore[arg-type]


def watch_calls(store: QueueStore, name: str, calls: list[str]) -> None:
    """Note every call of a method."""
    real = getattr(store.driver, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return real(*arguments, **options)

    setattr(store.driver, name, noted)


class TestBreakingInWorkers(Contract):
    """The same with workers in the background, on the real clock."""

    def test_two_nodes_bring_everything_back_in_order(self, open_store: OpenStore) -> None:
        paced = config(open_to_half_open=100, unlock_queues=10, unlock_sample_queues=50)
        far, lock = FarSide(), threading.Lock()
        workers = []
        stores = [open_store(clock=SystemClock(), node=node) for node in ("one", "two")]
        filled(stores[0], 12, 3)
        for store in stores:
            family = store.family("q.", fifo=True)
            breaker = Breaker(store, paced)

            async def send(value: str) -> None:
                with lock:
                    far(value)

            soon = Retry(attempts=None, delays=["20ms"])
            family.add_handler(send if store is stores[1] else far, breaker=breaker, retry=soon)
            workers.append(Worker(store))
        for worker in workers:
            worker.start()
        try:
            until(lambda: len(locked(stores[0])) >= 11, "all queues to be locked")
            failed = len(far.calls)
            far.down = False
            until(lambda: stores[0].family("q.").counts().live == 0, "all entries to be done")
            until(lambda: locked(stores[0]) == [], "the last lock")
        finally:
            for worker in workers:
                worker.stop()
        assert failed < 100  # each of the twelve a few times, until both nodes have heard of it
        done = far.calls
        for number in range(12):
            mine = list(dict.fromkeys(value for value in done if value.startswith(f"{number}-")))
            assert mine == [f"{number}-{index}" for index in range(3)]
        assert Breaker(stores[0], paced).circuit("q.").state == "closed"

    def test_a_worker_that_stops_gives_its_probe_back(self, open_store: OpenStore) -> None:
        store = open_store(clock=SystemClock())
        breaker, queue = Breaker(store, config()), store.queue("q")
        entered, leave = threading.Event(), threading.Event()

        def slow(value: int) -> None:
            entered.set()
            leave.wait(PATIENCE)

        queue.add_handler(slow, breaker=breaker.guard("crm"))
        breaker.open("crm")
        breaker.half_open("crm")
        queue.put(1)
        worker = Worker(store)
        worker.start()
        assert entered.wait(PATIENCE)
        assert breaker.circuit("crm").probes == 1
        worker.stop(grace="0s")
        leave.set()
        until(lambda: breaker.circuit("crm").probes == 0, "the permit")
        assert breaker.circuit("crm").state == "half_open"

    @pytest.mark.parametrize("kind", ["thread", "async"])
    def test_a_far_side_that_hangs_opens_the_circuit(self, open_store: OpenStore, kind: str) -> None:
        """A handler that is late has failed: that counts when its time is over, not when it returns, if ever."""
        store = open_store(clock=SystemClock())
        breaker, queue, leave = Breaker(store, config()), store.queue("q"), threading.Event()

        def hang(value: int) -> None:
            leave.wait(PATIENCE)

        async def hang_in_loop(value: int) -> None:
            await asyncio.sleep(PATIENCE)

        handler = hang if kind == "thread" else hang_in_loop
        queue.add_handler(handler, breaker=breaker.guard("crm"), retry=AT_ONCE, timeout="50ms", concurrency=20)
        queue.put_many(range(4))
        worker = Worker(store)
        worker.start()
        try:
            until(lambda: breaker.circuits() != [] and breaker.circuit("crm").state == "open", "an open circuit")
            leave.set()
        finally:
            worker.stop("1s")
        assert breaker.circuit("crm").state == "open", "what came late says nothing"
