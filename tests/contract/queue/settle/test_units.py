"""Units of work: take N and put K, committed together or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    PATIENCE,
    Contract,
    OpenStore,
    dead,
    in_threads,
    live,
    living,
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.bus import Bus
from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict, LeaseLost, UniqueHeld, UnitNotCommitted, UnitTooLarge
from penstock.queue.entry import Unique
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore


class TestCommit(Contract):
    """All of it happens."""

    def test_takes_are_finished_and_puts_are_there(self, store: QueueStore, open_store: OpenStore) -> None:
        orders, invoices, mails = (store.queue(name) for name in ("orders", "invoices", "mails"))
        made = [one.id for one in orders.put_many([1, 2, 3])]
        other = open_store(node="two")
        with store.unit() as unit:
            taken = unit.take(orders, limit=10)
            assert values(taken) == [1, 2, 3]
            for entry in taken:
                unit.put(invoices, entry.value * 10)
            promised = unit.put(mails, "sum", delay="1h", labels={"a": "1"})
            assert other.driver.find(Find(queue="invoices")) == []
            done = unit.commit()
        assert done.puts[-1].id == promised
        assert values(other.driver.find(Find(queue="invoices"))) == [10, 20, 30]
        assert living(other, promised).labels == {"a": "1"}
        assert [trail(store, id_) for id_ in made] == [[(1, 1, "done")]] * 3

    def test_each_taken_entry_may_end_its_own_way(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.put_many(["done", "reject", "retry", "release"])
        with store.unit() as unit:
            done, reject, retry, release = unit.take(queue, limit=4)
            unit.reject(reject, "bad")
            unit.retry(retry, after="1m", error="later")
            unit.release(release)
            unit.commit()
        assert trail(store, done.id) == [(1, 1, "done")]
        assert dead(store, reject.id).error == "rejected: bad"
        assert (living(store, retry.id).due_us, living(store, retry.id).error) == (clock.micros() + MINUTE, "later")
        assert (living(store, release.id).attempt, trail(store, release.id)) == (0, [])

    def test_take_from_several_queues_and_several_times(self, store: QueueStore) -> None:
        store.queue("a").put_many([1, 2])
        put(store, "b", 3)
        with store.unit() as unit:
            taken = [*unit.take(store.queue("a")), *unit.take(store.queue("b")), *unit.take(store.queue("a"), limit=5)]
            unit.commit()
        assert values(taken) == [1, 3, 2]
        assert store.driver.find(Find()) == []

    def test_publish_rides_along(self, store: QueueStore) -> None:
        bus = Bus(store)
        queue = bus.subscribe("listener", str)
        with store.unit() as unit:
            unit.publish(bus, "event")
            assert queue.find() == []
            unit.commit()
        assert values(queue.find()) == ["event"]

    def test_an_empty_unit_commits(self, store: QueueStore) -> None:
        with store.unit() as unit:
            assert unit.take(store.queue("q")) == []
            assert unit.commit().puts == ()

    def test_a_unit_may_be_filled_by_several_threads(self, store: QueueStore) -> None:
        queue = store.queue("q")
        with store.unit() as unit:
            in_threads(4, lambda index: [unit.put(queue, [index, number]) for number in range(25)])
            unit.commit()
        assert len(queue.find()) == 100

    def test_queues_of_another_handle_of_the_same_space(self, store: QueueStore, open_store: OpenStore) -> None:
        with store.unit() as unit:
            unit.put(open_store(node="two").queue("q"), "x")
            unit.commit()
        assert len(store.driver.find(Find())) == 1


class TestRollback(Contract):
    """Nothing happens, and the attempt is spent."""

    @pytest.mark.parametrize("how", ["leave", "raise", "rollback"])
    def test_everything_is_given_back(self, store: QueueStore, how: str) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id

        def work() -> None:
            with store.unit() as unit:
                unit.take(queue)
                unit.put(queue, "never")
                if how == "raise":
                    raise RuntimeError("in the middle")
                if how == "rollback":
                    unit.rollback()

        expected: dict[str, Any] = {
            "raise": pytest.raises(RuntimeError), "leave": pytest.warns(UnitNotCommitted), "rollback": nullcontext(),
        }  # fmt: skip
        with expected[how]:
            work()
        assert values(queue.find()) == ["x"]
        entry = living(store, id_)
        assert (entry.state, entry.attempt, entry.error) == ("waiting", 1, "rolled back")
        assert trail(store, id_) == [(1, 1, "retried")]
        assert take_one(store, "q").attempt == 2

    def test_rollbacks_are_bounded_by_attempts(self, store: QueueStore) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        taken = 0
        for _ in range(5):
            with store.unit() as unit:
                taken += len(unit.take(queue, attempts=3))
                unit.rollback()
        assert taken == 3
        assert dead(store, id_).error == "no attempts left; last: rolled back"
        assert trail(store, id_)[-1] == (1, 4, "dead")

    def test_the_warning_shows_where_the_block_is(self, store: QueueStore) -> None:
        with pytest.warns(UnitNotCommitted, match=r"unit\.commit\(\)") as told, store.unit() as unit:
            unit.put(store.queue("q"), "never")
        assert told[0].filename == __file__
        assert store.driver.find(Find()) == []

    @pytest.mark.parametrize("how", ["nothing to lose", "rolled back", "refused", "raised"])
    def test_who_knows_what_became_of_it_is_not_warned(self, store: QueueStore, how: str) -> None:
        queue = store.queue("q")
        put(store, "q", unique="u")

        def work() -> None:
            with store.unit() as unit:
                if how == "nothing to lose":
                    unit.take(store.queue("empty"))
                    return
                unit.put(queue, "x", unique=Unique("u", on_conflict="raise"))
                if how == "rolled back":
                    unit.rollback()
                elif how == "raised":
                    raise RuntimeError("in the middle")
                else:
                    unit.commit()

        with suppress(RuntimeError, UniqueHeld):
            work()  # a warning would be an error here
        assert len(store.driver.find(Find())) == 1

    def test_rollback_is_safe_to_repeat_and_after_commit(self, store: QueueStore) -> None:
        put(store, "q")
        unit = store.unit()
        unit.take(store.queue("q"))
        unit.rollback()
        unit.rollback()
        done = store.unit()
        done.put(store.queue("q"), "y")
        done.commit()
        done.rollback()
        assert len(store.driver.find(Find())) == 2

    @pytest.mark.parametrize("call", ["commit", "put", "take", "release"])
    def test_an_ended_unit_takes_nothing_more(self, store: QueueStore, call: str) -> None:
        queue = store.queue("q")
        queue.put("x")
        unit = store.unit()
        [entry] = unit.take(queue)
        unit.commit()
        calls: dict[str, Callable[[], object]] = {
            "commit": unit.commit,
            "put": lambda: unit.put(queue, "y"),
            "take": lambda: unit.take(queue),
            "release": lambda: unit.release(entry),
        }
        with pytest.raises(Conflict, match="committed"):
            calls[call]()

    def test_rollback_leaves_lost_entries_to_their_new_owner(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        unit = store.unit()
        unit.take(store.queue("q"))
        clock.advance("2m")
        store.driver.reap(node="one")
        take_one(store, "q", owner="worker-b")
        unit.rollback()
        assert (living(store, id_).state, trail(store, id_)) == ("leased", [(1, 1, "reaped")])


class TestAllOrNone(Contract):
    """A commit that cannot happen whole leaves nothing."""

    def test_a_lost_lease_fails_the_whole_unit(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.put_many([1, 2])
        unit = store.unit()
        first, second = unit.take(queue, limit=2)
        unit.put(store.queue("r"), "child")
        store.queue("q").cancel(second.id, force=True)
        with pytest.raises(LeaseLost):
            unit.commit()
        assert store.driver.find(Find(queue="r")) == []
        assert trail(store, first.id) == []
        unit.rollback()
        assert trail(store, first.id) == [(1, 1, "retried")]

    def test_a_refused_put_fails_the_whole_unit(self, store: QueueStore) -> None:
        put(store, "r", "held", unique="u")
        put(store, "q")
        with store.unit() as unit:
            [entry] = unit.take(store.queue("q"))
            unit.put(store.queue("r"), "good")
            unit.put(store.queue("r"), "bad", unique=Unique("u", on_conflict="raise"))
            with pytest.raises(UniqueHeld):
                unit.commit()
        assert values(store.driver.find(Find(queue="r"))) == ["held"]
        assert trail(store, entry.id) == [(1, 1, "retried")]

    def test_too_large_is_said_before_anything_is_sent(self, store: QueueStore) -> None:
        store.driver.unit_limit = 5
        store.queue("q").put_many(range(3))
        with store.unit() as unit:
            unit.take(store.queue("q"), limit=3)
            for number in range(3):
                unit.put(store.queue("r"), number)
            with pytest.raises(UnitTooLarge):
                unit.commit()
        assert store.driver.find(Find(queue="r")) == []

    def test_spaces_are_not_crossed(self, store: QueueStore, open_store: OpenStore) -> None:
        foreign = open_store(space="other").queue("q")
        foreign.put("x")
        with store.unit() as unit:
            with pytest.raises(BadInput):
                unit.put(foreign, "y")
            with pytest.raises(BadInput):
                unit.take(foreign)
            with pytest.raises(BadInput):
                unit.publish(Bus(foreign.store), "event")
        assert len(foreign.find()) == 1

    def test_bad_calls(self, store: QueueStore) -> None:
        put(store, "q")
        taken = take_one(store, "q")
        with store.unit() as unit:
            with pytest.raises(BadInput, match="limit=0"):
                unit.take(store.queue("q"), limit=0)
            with pytest.raises(BadInput, match="not taken"):
                unit.reject(taken, "not mine")

    def test_what_cannot_be_read_is_a_dead_letter(self, store: QueueStore) -> None:
        put(store, "q", "no number")
        good = store.queue("q", int)
        good.put(7)
        with store.unit() as unit:
            assert values(unit.take(good, limit=2)) == [7]
            unit.commit()
        [letter] = store.driver.dead(Find())
        assert letter.error is not None
        assert "Undecodable" in letter.error
        assert take(store, "q") == []


class TestUnitLeases(Contract):
    """Leases are kept alive until the unit ends."""

    def test_leases_are_extended_until_the_end(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        beaten = threading.Event()
        store.signals.subscribe(lambda signal: beaten.set(), "extended")
        with store.unit(lease="150ms") as unit:
            unit.take(store.queue("q"))
            clock.advance("140ms")
            beaten.clear()
            assert beaten.wait(PATIENCE)
            clock.advance("140ms")
            assert store.driver.reap(node="one").reaped == []
            unit.commit()
        assert live(store, id_) is None

    def test_a_unit_that_lost_an_entry_says_so_at_once(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        lost = threading.Event()
        store.signals.subscribe(lambda signal: lost.set(), "lease_lost")
        unit = store.unit(lease="90ms")
        unit.take(store.queue("q"))
        store.queue("q").cancel(id_, force=True)
        assert lost.wait(PATIENCE)
        for _ in range(200):
            try:
                unit.put(store.queue("q"), "late")
            except LeaseLost:
                break
            threading.Event().wait(0.05)
        else:
            pytest.fail("the unit was never told")
        unit.rollback()
