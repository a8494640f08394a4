"""Several at once, and what a process may do to itself: locks, unique ids, lost replies, forks."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import pytest
from tests.contract.queue.shorthand import PATIENCE, Contract, OpenStore, end, in_threads, put, take, take_one
from tests.contract.worker.test_running import eventually, running

from penstock.clock import FakeClock
from penstock.errors import StoreUnavailable, UniqueHeld
from penstock.policy import Retry
from penstock.queue.entry import Unique
from penstock.queue.protocol import ClaimRequest, Settled
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


class TestCrowdedLocks(Contract):
    """Holders who come and go at the same time."""

    def test_who_lets_go_last_opens_the_queue(self, store: QueueStore, open_store: OpenStore) -> None:
        handles = [store, open_store(node="two")]
        for round_ in range(12):
            put(store, "q", round_)
            for number in range(2):
                store.queue("q").lock(holder=f"h{number}")
            in_threads(2, lambda number: handles[number].queue("q").unlock(holder=f"h{number}"))
            assert store.locks("q") == []
            end(store, take_one(store, "q"))

    def test_a_lock_taken_while_another_goes_holds(self, store: QueueStore, open_store: OpenStore) -> None:
        handles = [store, open_store(node="two")]
        put(store, "q")
        for _ in range(12):
            store.queue("q").lock(holder="old")

            def change(number: int) -> None:
                queue = handles[number].queue("q")
                queue.lock(holder="new") if number else queue.unlock(holder="old")

            in_threads(2, change)
            assert take(store, "q") == []
            store.queue("q").unlock(holder="new")


class TestCrowdedUniqueIds(Contract):
    """A unique id that is taken and released at the same time."""

    @pytest.mark.parametrize("on_conflict", ["keep", "replace"])
    def test_puts_against_endings(self, store: QueueStore, open_store: OpenStore, on_conflict: Any) -> None:
        handles = [store, open_store(node="two")]
        unique = Unique("one", on_conflict=on_conflict)

        def work(number: int) -> int:
            mine, made = handles[number], 0
            for round_ in range(40):
                if number:
                    for entry in take(mine, "q", limit=5):
                        end(mine, entry)
                        made += 1
                else:
                    with contextlib.suppress(UniqueHeld):  # who replaces cannot while it is being worked on
                        mine.queue("q").put(round_, unique=unique)
            return made

        in_threads(2, work)
        assert len(store.queue("q").find()) <= 1
        assert store.queue("q").put("last", unique=unique).id


class TestCrowdedWorkers(Contract):
    """What a worker does when it does not hear the answer."""

    def test_a_claim_whose_reply_was_lost_is_asked_for_again(
        self, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise what may be tried once only dies without having been tried."""
        settle, lost = store.driver.settle, threading.Event()

        def losing(steps: Any, claim: ClaimRequest | None = None, **options: Any) -> Settled:
            reply = settle(steps, claim, **options)
            if reply.claimed.entries and not lost.is_set():
                lost.set()
                raise StoreUnavailable("the reply was lost.")
            return reply

        monkeypatch.setattr(store.driver, "settle", losing)
        seen: list[Any] = []
        store.queue("q").add_handler(seen.append, retry=Retry(attempts=1))
        put(store, "q", "once")
        with running(store):
            eventually(lambda: bool(seen))
            eventually(lambda: not store.queue("q").find())
        assert lost.is_set()
        assert seen == ["once"]
        assert store.queue("q").dead() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="declares no forks")
class TestCrowdedProcesses(Contract):
    """A process that forks after it has used a store."""

    @pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
    def test_parent_and_child_get_in_nobodys_way(self, store: QueueStore, clock: FakeClock) -> None:
        if not store.capabilities.durable:
            pytest.skip(f"{store.name} declares durable=False: a child has a store of its own")
        queue = store.queue("q", int)
        queue.put_many(range(60))
        assert queue.counts().ready == 60
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = 0 if _finish(store, 20) == 20 else 2
                finally:
                    os._exit(status)
            children.append(child)
        done = _finish(store, 20)
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert done == 20
        assert Worker(store, [queue]).owner
        counts = queue.counts()
        assert (counts.live, len(queue.history(limit=100))) == (0, 60)


def _finish(store: QueueStore, number: int) -> int:
    """Take and end so many, one by one."""
    done = 0
    give_up = threading.Event()
    timer = threading.Timer(PATIENCE, give_up.set)
    timer.daemon = True
    timer.start()
    while done < number and not give_up.is_set():
        for entry in take(store, "q", limit=1):
            end(store, entry)
            done += 1
    timer.cancel()
    return done
