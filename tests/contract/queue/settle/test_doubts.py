"""Doubts: a call whose reply was lost is made again, and says what really happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    PATIENCE,
    Contract,
    end,
    ending,
    new,
    put,
    take_one,
    trail,
    values,
)

from penstock.bus import Bus
from penstock.clock import FakeClock
from penstock.errors import Conflict, LeaseLost, OutcomeUnknown, StoreUnavailable
from penstock.queue import unit as units
from penstock.queue.protocol import Find, Settled, Step
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


@contextmanager
def losing(store: QueueStore, *, happens: bool, times: int = 1, passing: int = 0) -> Iterator[None]:
    """Lose the replies of the next calls that settle or claim: ``happens`` says whether the store did them.

    The first few, ``passing``, are answered.
    """
    settle, left = store.driver._settle, times

    def lose(*arguments: Any, **options: Any) -> Settled:
        nonlocal left, passing
        passing -= 1
        if left < 1 or passing >= 0:
            return settle(*arguments, **options)
        left -= 1
        if happens:
            settle(*arguments, **options)
        raise OutcomeUnknown("the reply was lost.")

    store.driver._settle = lose  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.driver._settle = settle  # type: ignore[method-assign]


def states(store: QueueStore, ids: Sequence[str]) -> list[list[tuple[int, int, str]]]:
    return [trail(store, id_) for id_ in ids]


class TestUnitInDoubt(Contract):
    """``commit()`` raised ``OutcomeUnknown``."""

    @pytest.mark.parametrize("happens", [True, False])
    def test_a_repeated_commit_gives_the_results_and_has_one_effect(self, store: QueueStore, happens: bool) -> None:
        orders, invoices = store.queue("orders"), store.queue("invoices")
        made = [one.id for one in orders.put_many([1, 2, 3])]
        bus = Bus(store)
        heard = bus.subscribe("listener", str)
        with store.unit() as unit:
            unit.take(orders, limit=3)
            promised = [unit.put(invoices, 10), unit.put(invoices, 20, unique="u")]
            unit.publish(bus, "event")
            with losing(store, happens=happens), pytest.raises(OutcomeUnknown):
                unit.commit()
            done = unit.commit()
        assert [(one.id, one.created) for one in done.puts] == [(id_, True) for id_ in promised]
        assert len(done.published[0]) == 1
        assert values(invoices.find()) == [10, 20]
        assert values(heard.find()) == ["event"]
        assert states(store, made) == [[(1, 1, "done")]] * 3

    @pytest.mark.parametrize("happens", [True, False])
    def test_it_may_be_repeated_after_the_block(self, store: QueueStore, happens: bool) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        unit = store.unit()
        with suppress(OutcomeUnknown), unit:
            unit.take(queue)
            promised = unit.put(store.queue("out"), "y")
            with losing(store, happens=happens):
                unit.commit()
        assert [one.id for one in unit.commit().puts] == [promised]
        assert trail(store, id_) == [(1, 1, "done")], "leaving the block gave nothing back"
        assert values(store.queue("out").find()) == ["y"]
        with pytest.raises(Conflict, match="committed"):
            unit.commit()

    @pytest.mark.parametrize("outcome", ["done", "reject", "retry", "release"])
    def test_each_way_to_end_an_entry(self, store: QueueStore, outcome: str) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        with store.unit() as unit:
            [entry] = unit.take(queue)
            if outcome == "reject":
                unit.reject(entry, "bad")
            elif outcome != "done":
                getattr(unit, outcome)(entry)
            unit.put(store.queue("out"), "y")
            with losing(store, happens=True), pytest.raises(OutcomeUnknown):
                unit.commit()
            before = trail(store, id_)
            unit.commit()
        assert trail(store, id_) == before
        assert values(store.queue("out").find()) == ["y"]

    def test_the_heartbeat_that_finds_the_leases_gone_does_not_make_it_a_loss(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        """The commit itself has ended them."""
        queue = store.queue("q")
        queue.put("x")
        with store.unit(lease="150ms") as unit:
            unit.take(queue)
            unit.put(store.queue("out"), "y")
            with losing(store, happens=True), pytest.raises(OutcomeUnknown):
                unit.commit()
            eventually(lambda: not store.driver.heartbeat._held, "the heartbeat has found them gone")
            unit.commit()
        assert values(store.queue("out").find()) == ["y"]

    def test_what_others_did_since_does_not_matter(self, store: QueueStore) -> None:
        """One entry was given back, and has been worked on and ended by somebody else meanwhile."""
        queue = store.queue("q")
        queue.put_many(["mine", "given back"])
        with store.unit() as unit:
            mine, back = unit.take(queue, limit=2)
            unit.release(back)
            unit.put(store.queue("out"), "y")
            with losing(store, happens=True), pytest.raises(OutcomeUnknown):
                unit.commit()
            end(store, take_one(store, "q", owner="somebody else"))
            end(store, take_one(store, "out"))
            unit.commit()
        assert states(store, [mine.id, back.id]) == [[(1, 1, "done")]] * 2
        assert store.driver.find(Find()) == []

    def test_leases_that_really_were_lost_are_told_so(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.put("x")
        with store.unit() as unit:
            unit.take(queue)
            unit.put(store.queue("out"), "y")
            with losing(store, happens=False), pytest.raises(OutcomeUnknown):
                unit.commit()
            clock.advance("2m")
            store.driver.reap(node="one")
            end(store, take_one(store, "q", owner="somebody else"))
            with pytest.raises(LeaseLost):
                unit.commit()
        assert store.driver.find(Find()) == []

    def test_a_unit_that_was_rolled_back_was_not_committed(self, store: QueueStore) -> None:
        """The same lease, settled by another step, is not a proof of this one."""
        queue = store.queue("q")
        id_ = queue.put("x").id
        unit = store.unit()
        unit.take(queue)
        with losing(store, happens=False), pytest.raises(OutcomeUnknown):
            unit.commit()
        unit.rollback()
        with pytest.raises(Conflict, match="rolled back"):
            unit.commit()
        assert trail(store, id_) == [(1, 1, "retried")]

    def test_a_rollback_that_came_too_late_leaves_it_committed(self, store: QueueStore) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        unit = store.unit()
        unit.take(queue)
        with losing(store, happens=True), pytest.raises(OutcomeUnknown):
            unit.commit()
        unit.rollback()
        unit.commit()
        assert trail(store, id_) == [(1, 1, "done")]

    @pytest.mark.parametrize("first", ["retry", "snooze", "release", "dead"])
    def test_another_ending_with_the_same_lease_is_no_repeat(self, store: QueueStore, first: Any) -> None:
        put(store, "q")
        taken = take_one(store, "q")
        end(store, taken, first)
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((ending(taken, "done"),), repeat=True))
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((ending(taken, "done"),), (new("out"),), repeat=True))
        assert store.driver.find(Find(queue="out")) == []

    def test_nothing_else_can_be_done_with_it(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put_many([1, 2])
        with store.unit() as unit:
            [entry] = unit.take(queue)
            with losing(store, happens=False), pytest.raises(OutcomeUnknown):
                unit.commit()
            for change in (
                lambda: unit.take(queue), lambda: unit.put(queue, 3), lambda: unit.release(entry),
            ):  # fmt: skip
                with pytest.raises(Conflict, match=r"commit\(\) again"):
                    change()
            unit.commit()

    def test_a_store_that_is_away_when_asked_again_leaves_it_in_doubt(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("x")
        with store.unit() as unit:
            unit.take(queue)
            with losing(store, happens=True), pytest.raises(OutcomeUnknown):
                unit.commit()
            with away(store), pytest.raises(OutcomeUnknown):
                unit.commit()
            unit.commit()
        assert store.driver.find(Find()) == []

    def test_what_the_store_has_forgotten_is_not_sent_again(
        self, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unit = store.unit()
        unit.put(store.queue("q"), "x")
        with losing(store, happens=True), pytest.raises(OutcomeUnknown):
            unit.commit()
        monkeypatch.setattr(units, "REMEMBERED", -1)
        with pytest.raises(OutcomeUnknown, match="any more"):
            unit.commit()
        assert len(store.driver.find(Find())) == 1

    def test_the_error_of_the_block_is_not_hidden_by_a_rollback_that_fails(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("x")

        def work() -> None:
            with ExitStack() as gone, store.unit() as unit:
                unit.take(queue)
                gone.enter_context(away(store))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()

    def test_a_take_whose_reply_was_lost_is_asked_for_again(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("x")
        with store.unit() as unit:
            with losing(store, happens=True), pytest.raises(OutcomeUnknown):
                unit.take(queue, limit=5)
            [entry] = unit.take(queue, limit=5)
            assert values([entry]) == ["x"]
            unit.commit()
        assert trail(store, entry.id) == [(1, 1, "done")]


class TestWorkerInDoubt(Contract):
    """What a worker settles or claims, and gets no reply to."""

    @pytest.mark.parametrize("happens", [True, False])
    def test_a_drain_that_broke_off_settles_what_was_handled(self, store: QueueStore, happens: bool) -> None:
        queue = store.queue("q")
        queue.put_many([1, 2])
        seen: list[Any] = []

        lost = ExitStack()

        @queue.handler
        def handle(value: Any) -> None:
            seen.append(value)
            if len(seen) == 1:
                lost.enter_context(losing(store, happens=happens))

        worker = Worker(store)
        with lost, pytest.raises(OutcomeUnknown):
            worker.drain()
        worker.drain()
        assert sorted(seen) == [1, 2], "nothing is handled twice"
        assert sorted(row.state for row in store.driver.history(Find())) == ["done", "done"]

    @pytest.mark.parametrize("happens", [True, False])
    def test_a_running_worker_sends_outcomes_again(self, store: QueueStore, happens: bool) -> None:
        queue = store.queue("q")
        seen: list[Any] = []

        @queue.handler
        def handle(value: Any) -> None:
            seen.append(value)

        queue.put_many(range(5))
        worker = Worker(store, poll="20ms")
        with losing(store, happens=happens, times=3):
            worker.start()
            eventually(lambda: len(store.driver.history(Find())) == 5, "all are done")
            assert worker.stop()
        assert sorted(seen) == list(range(5))
        assert [row.state for row in store.driver.history(Find())] == ["done"] * 5


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.01)


def _refuse(*_: Any, **__: Any) -> Settled:
    raise StoreUnavailable("it is away.")


@contextmanager
def away(store: QueueStore) -> Iterator[None]:
    """The store cannot be reached."""
    settle = store.driver._settle
    store.driver._settle = _refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.driver._settle = settle  # type: ignore[method-assign]
