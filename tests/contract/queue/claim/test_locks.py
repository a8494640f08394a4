"""Locks: a set of holders with reasons; while one is left, nothing is claimed."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import (
    Contract,
    OpenStore,
    claim,
    end,
    in_threads,
    lease_of,
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput
from penstock.queue.protocol import Source
from penstock.queue.queues import QueueStore


class TestLocks(Contract):
    """Locking is pausing."""

    def test_nothing_is_claimed_from_a_locked_queue(self, store: QueueStore, open_store: OpenStore) -> None:
        put(store, "q", "locked")
        put(store, "r", "free")
        store.driver.lock("q", "operator", "for a while")
        assert values(take(open_store(node="two"), "q", "r")) == ["free"]
        assert take(store, sources=[Source("q", 9, family=True)]) == []
        store.driver.unlock("q", "operator")
        assert values(take(store, "q")) == ["locked"]

    def test_a_lock_may_come_before_the_first_entry(self, store: QueueStore) -> None:
        store.driver.lock("later", "me")
        put(store, "later")
        put(store, "later", sticky=True)
        assert take(store, "later") == []
        assert claim(store, "later").next_us is None or take(store, "later") == []
        store.driver.unlock("later", "me")
        assert len(take(store, "later")) == 2

    def test_leases_held_may_be_settled_and_extended(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many([1, 2])
        first, second = take(store, "q")
        store.driver.lock("q", "me")
        assert store.driver.extend([lease_of(first)], 60_000_000) != [None]
        end(store, first)
        end(store, second, "retry")
        assert trail(store, first.id) == [(1, 1, "done")]
        assert take(store, "q") == []
        clock.advance("1h")
        assert take(store, "q") == []

    def test_leases_of_a_locked_queue_run_out_as_any(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        take_one(store, "q")
        store.driver.lock("q", "me")
        clock.advance("2m")
        assert store.driver.reap(node="one").reaped == [(id_, "q")]
        assert take(store, "q") == []

    def test_holders_do_not_overwrite_each_other(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q")
        store.driver.lock("q", "breaker", "circuit open")
        since = clock.micros()
        clock.advance("1m")
        store.driver.lock("q", "operator", "maintenance")
        found = store.locks("q")
        assert [(one.queue, one.holder, one.reason) for one in found] == [
            ("q", "breaker", "circuit open"), ("q", "operator", "maintenance")
        ]  # fmt: skip
        assert [one.since_us for one in found] == [since, clock.micros()]
        assert store.queue("q").counts().locks == tuple(found)
        assert store.driver.unlock("q", "breaker") is True
        assert take(store, "q") == []
        assert store.driver.unlock("q", "breaker") is False
        assert store.driver.unlock("q", "operator") is True
        assert len(take(store, "q")) == 1

    def test_locking_again_replaces_the_reason_and_keeps_the_time(self, store: QueueStore, clock: FakeClock) -> None:
        store.driver.lock("q", "me", "first")
        since = clock.micros()
        clock.advance("1m")
        store.driver.lock("q", "me", "second")
        [lock] = store.locks("q")
        assert (lock.reason, lock.since_us) == ("second", since)

    def test_all_locks_of_the_store(self, store: QueueStore, open_store: OpenStore) -> None:
        store.driver.lock("b", "me")
        store.driver.lock("a", "you", "why")
        assert [(one.queue, one.holder) for one in open_store(node="two").locks()] == [("a", "you"), ("b", "me")]
        assert store.locks("c") == []

    def test_the_handle_of_a_queue_locks_as_operator(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.lock(reason="lunch")
        assert [(one.holder, one.reason) for one in queue.locks()] == [("operator", "lunch")]
        queue.lock(holder="me")
        assert queue.unlock() is True
        assert queue.unlock() is False
        assert len(queue.locks()) == 1
        with pytest.raises(BadInput):
            queue.lock(holder="no such holder!")

    def test_a_family_is_not_locked_as_one(self, store: QueueStore) -> None:
        family = store.family("f.")
        for call in (family.lock, family.unlock):
            with pytest.raises(BadInput, match="member"):
                call()
        put(store, "f.1")
        put(store, "f.2")
        family.member("f.1").lock()
        assert [one.queue for one in take(store, sources=[Source("f.", 9, family=True)])] == ["f.2"]

    def test_puts_and_changes_go_on(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.lock()
        id_ = queue.put("x").id
        queue.update(id_, "y")
        queue.reschedule(id_, delay="1m")
        assert queue.cancel(id_) == 1

    def test_no_claim_after_lock_returned(self, store: QueueStore, open_store: OpenStore) -> None:
        store.queue("q").put_many(range(300))
        handles = [store, open_store(node="two")]
        locked: list[bool] = []
        after: list[int] = []

        def work(index: int) -> None:
            if index == 0:
                take(store, "q", limit=1)
                store.driver.lock("q", "me")
                locked.append(True)
            else:
                for _ in range(40):
                    known = bool(locked)
                    got = take(handles[index % 2], "q", limit=1, owner=f"worker-{index}")
                    if known:
                        after.append(len(got))

        in_threads(3, work)
        assert sum(after) == 0
        assert take(store, "q") == []

    def test_signals_tell_who_and_what_is_left(self, store: QueueStore) -> None:
        told: list[tuple[object, ...]] = []
        store.signals.subscribe(
            lambda one: told.append((one.kind, one.queue, *one.data.values())), "locked", "unlocked"
        )
        store.driver.lock("q", "a", "why")
        store.driver.lock("q", "b")
        store.driver.unlock("q", "a")
        store.driver.unlock("q", "a")
        store.driver.unlock("q", "b")
        assert told == [
            ("locked", "q", "a", "why"), ("locked", "q", "b", ""), ("unlocked", "q", "a", 1), ("unlocked", "q", "b", 0)
        ]  # fmt: skip
