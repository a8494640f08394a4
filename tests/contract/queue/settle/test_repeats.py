"""Repeats: a call whose reply was lost is sent again and has one effect."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    end,
    ending,
    live,
    living,
    new,
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import LeaseLost
from penstock.queue.entry import Unique
from penstock.queue.protocol import Find, NewEvent, Outcome, Step, StepDone, Subscription
from penstock.queue.queues import QueueStore

OUTCOMES: tuple[Outcome, ...] = ("done", "dead", "retry", "snooze", "release")


class TestRepeats(Contract):
    """Steps with ``repeat=True``."""

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_a_repeated_ending_has_one_effect(self, store: QueueStore, clock: FakeClock, outcome: Outcome) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q")
        first = end(store, taken, outcome, delay_us=MINUTE, error="e")
        before = live(store, id_), trail(store, id_), store.driver.dead(Find())
        clock.advance("10s")
        for _ in range(3):
            assert end(store, taken, outcome, delay_us=MINUTE, error="e", repeat=True) == first
        assert (live(store, id_), trail(store, id_), store.driver.dead(Find())) == before

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_a_repeat_of_what_never_arrived_happens(self, store: QueueStore, outcome: Outcome) -> None:
        id_ = put(store, "q")
        assert end(store, take_one(store, "q"), outcome, repeat=True) == StepDone()
        entry = live(store, id_)
        assert entry is None or entry.state == "waiting"

    def test_another_handle_may_repeat(self, store: QueueStore, open_store: OpenStore) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q")
        end(store, taken)
        assert end(open_store(node="two"), taken, repeat=True) == StepDone()
        assert trail(store, id_) == [(1, 1, "done")]

    def test_a_rollback_after_a_commit_in_doubt_changes_nothing(self, store: QueueStore) -> None:
        ids = {put(store, "q"), put(store, "q")}
        taken = take(store, "q", limit=2)
        made = [new("out"), new("out")]
        committed = Step(tuple(ending(entry) for entry in taken), tuple(made))
        assert isinstance(store.driver.settle((committed,)).results[0], StepDone)
        back = tuple(Step((ending(entry, "retry", error="rolled back"),), repeat=True) for entry in taken)
        for result in store.driver.settle(back).results:
            assert isinstance(result, LeaseLost) or result == StepDone()
        assert {id_: trail(store, id_) for id_ in ids} == {id_: [(1, 1, "done")] for id_ in ids}
        assert all(living(store, one.id).queue == "out" for one in made)

    @pytest.mark.parametrize("ended", [False, True])
    def test_puts_of_a_repeated_step_happen_once(self, store: QueueStore, ended: bool) -> None:
        put(store, "q")
        taken = take_one(store, "q")
        step = Step(
            (ending(taken),), (new("r", "a"), new("r", "b", labels={"k": "v"}, unique=Unique("u"))), repeat=False
        )
        first = store.driver.commit(step)
        if ended:
            for entry in take(store, "r"):
                end(store, entry)
        again = store.driver.commit(Step(step.endings, step.puts, repeat=True))
        assert [(one.id, one.created) for one in again.puts] == [(one.id, True) for one in first.puts]
        assert values(store.driver.find(Find())) == ([] if ended else ["a", "b"])
        assert len(store.driver.history(Find(queue="r"))) == (2 if ended else 0)

    @pytest.mark.parametrize("how", ["updated", "replaced"])
    def test_what_a_repeated_step_put_may_have_changed_since(self, store: QueueStore, how: str) -> None:
        put(store, "q")
        step = Step((ending(take_one(store, "q")),), (new("r", "as put", unique=Unique("u")),))
        [made] = store.driver.commit(step).puts
        if how == "updated":
            store.queue("r").update(made.id, "changed")
        else:
            put(store, "r", "changed", unique=Unique("u", on_conflict="replace"))
        [again] = store.driver.commit(Step(step.endings, step.puts, repeat=True)).puts
        assert (again.id, again.created) == (made.id, True)
        assert values(store.driver.find(Find())) == ["changed"]

    def test_a_put_that_was_kept_out_stays_out_when_the_step_is_repeated(self, store: QueueStore) -> None:
        """The holder may have ended between the first try and the repeat: the step happened, and not again."""
        put(store, "r", "holder", unique="u")
        put(store, "q")
        taken = take_one(store, "q")
        step = Step((ending(taken),), (new("r", "kept out", unique=Unique("u")),))
        assert not store.driver.commit(step).puts[0].created
        end(store, take_one(store, "r"))
        store.driver.commit(Step(step.endings, step.puts, repeat=True))
        assert store.driver.find(Find()) == []

    @pytest.mark.parametrize("ended", [False, True])
    def test_events_of_a_repeated_step_happen_once(self, store: QueueStore, ended: bool) -> None:
        store.driver.subscribe(Subscription("a", "bus.a", ("Thing",)))
        store.driver.subscribe(Subscription("b", "bus.b", ("Thing",)))
        put(store, "q")
        taken = take_one(store, "q")
        step = Step((ending(taken),), (), (NewEvent(("Thing",), new("bus", "event")),))
        first = store.driver.commit(step)
        if ended:
            end(store, take_one(store, "bus.a"))
        again = store.driver.commit(Step(step.endings, (), step.events, repeat=True))
        assert [one.id for one in again.published[0]] == [one.id for one in first.published[0]]
        assert len(store.driver.find(Find())) == (1 if ended else 2)

    def test_a_plain_put_repeated_through_the_step(self, store: QueueStore) -> None:
        step = Step(puts=(new("q", "x"),))
        store.driver.commit(step)
        end(store, take_one(store, "q"))
        assert store.driver.commit(Step(puts=step.puts, repeat=True)).puts[0].created
        assert store.driver.find(Find()) == []

    def test_a_unit_with_several_endings_repeated(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(4))
        first, second, third, fourth = take(store, "q")
        endings = (ending(first), ending(second, "dead", error="e"), ending(third, "retry"), ending(fourth, "release"))
        step = Step(endings, (new("r", "child"),))
        done = store.driver.commit(step)
        assert store.driver.commit(Step(step.endings, step.puts, repeat=True)).puts[0].id == done.puts[0].id
        assert [trail(store, one.id) for one in (first, second, third, fourth)] == [
            [(1, 1, "done")], [(1, 1, "dead")], [(1, 1, "retried")], []
        ]  # fmt: skip
        assert values(store.driver.find(Find())) == [2, 3, "child"]

    def test_a_repeat_does_not_forge_an_end_that_another_made(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q")
        stale = take_one(store, "q")
        clock.advance("2m")
        store.driver.reap(node="one")
        end(store, take_one(store, "q", owner="worker-b"))
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((ending(stale),), (new("r", "child"),), repeat=True))
        assert store.driver.find(Find()) == []

    def test_steps_of_one_call_are_repeated_one_by_one(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(3))
        taken = take(store, "q")
        end(store, taken[1])
        results = store.driver.settle([Step((ending(one),), repeat=True) for one in taken]).results
        assert results == [StepDone()] * 3
        assert [trail(store, one.id) for one in taken] == [[(1, 1, "done")]] * 3


class TestRepeatedCalls(Contract):
    """The other mutating calls."""

    def test_cancel(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        assert store.driver.cancel([id_]) == 1
        assert store.driver.cancel([id_]) == 0
        assert trail(store, id_) == [(1, 1, "cancelled")]

    def test_replay(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "dead")
        assert store.driver.replay([id_]) == 1
        assert store.driver.replay([id_]) == 0
        assert living(store, id_).generation == 2

    def test_update_and_reschedule(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        for _ in range(2):
            queue.update(id_, "y", labels={"a": "1"})
            queue.reschedule(id_, due=clock.now())
        entry = living(store, id_)
        assert (values([entry]), entry.labels, entry.attempt) == (["y"], {"a": "1"}, 0)

    def test_locks_subscriptions_and_definitions(self, store: QueueStore) -> None:
        for _ in range(2):
            store.driver.lock("q", "me", "why")
            store.driver.subscribe(Subscription("s", "bus.s", ("A",)))
            store.queue("f", fifo=True, rate="5/s")
        assert len(store.locks("q")) == len(store.driver.subscriptions()) == 1
        assert store.driver.unlock("q", "me") is True
        assert store.driver.unlock("q", "me") is False
        assert store.driver.unsubscribe("s") is True
        assert store.driver.unsubscribe("s") is False

    def test_extend(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q")
        lease = take_one(store, "q").lease
        assert lease is not None
        assert store.driver.extend([lease], MINUTE) == store.driver.extend([lease], MINUTE) == [clock.micros() + MINUTE]
