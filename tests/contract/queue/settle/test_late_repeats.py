"""Late repeats: between a call whose reply was lost and its repeat, others have gone on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.queue.settle.test_doubts import losing
from tests.contract.queue.shorthand import (
    Contract,
    end,
    ending,
    new,
    put,
    take_one,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import Conflict, LeaseLost, OutcomeUnknown
from penstock.queue.entry import Unique
from penstock.queue.protocol import Find, NewEvent, Step, Subscription
from penstock.queue.queues import QueueStore


class TestUnitsAndOthers(Contract):
    """A unit was committed, its reply was lost, and it is asked again after others have worked on its entries."""

    @pytest.mark.parametrize("puts", [1, 0])
    @pytest.mark.parametrize("ended", ["done", "dead"])
    @pytest.mark.parametrize("since", ["replayed", "leased", "done", "retry", "snooze", "release", "dead", "cancelled"])
    def test_what_it_ended_was_replayed(self, store: QueueStore, ended: str, since: Any, puts: int) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        with store.unit() as unit:
            [entry] = unit.take(queue)
            if ended == "dead":
                unit.reject(entry, "bad")
            promised = [unit.put(store.queue("out"), "y") for _ in range(puts)]
            with losing(store, happens=True), pytest.raises(OutcomeUnknown):
                unit.commit()
            assert store.driver.replay([id_]) == 1
            if since == "cancelled":
                store.driver.cancel([id_])
            elif since != "replayed":
                other = take_one(store, "q", owner="somebody else")
                if since != "leased":
                    end(store, other, since)
            before = trail(store, id_)
            assert [(one.id, one.created) for one in unit.commit().puts] == [(id_, True) for id_ in promised]
        assert trail(store, id_) == before
        assert values(store.driver.find(Find(queue="out"))) == ["y"] * puts

    @pytest.mark.parametrize("since", ["done", "retry", "snooze", "release", "dead", "cancelled", "reaped"])
    @pytest.mark.parametrize("given", ["retry", "release", "snooze"])
    def test_what_it_gave_back_was_taken_by_others(
        self, store: QueueStore, clock: FakeClock, since: Any, given: Any
    ) -> None:
        """What it put says that it happened."""
        put(store, "q")
        step = Step((ending(take_one(store, "q"), given),), (new("out", "y"),))
        store.driver.commit(step)
        other = take_one(store, "q", owner="somebody else")
        if since == "cancelled":
            store.driver.cancel([other.id], force=True)
        elif since == "reaped":
            clock.advance("2m")
            store.driver.reap(node="one")
        else:
            end(store, other, since)
        [again] = store.driver.commit(Step(step.endings, step.puts, repeat=True)).puts
        assert (again.id, again.created) == (step.puts[0].id, True)
        assert values(store.driver.find(Find(queue="out"))) == ["y"]

    @pytest.mark.parametrize("outcome", ["done", "dead", "retry", "snooze", "release"])
    def test_the_same_ending_by_another_step_is_no_proof(self, store: QueueStore, outcome: Any) -> None:
        put(store, "q")
        taken = take_one(store, "q")
        end(store, taken, outcome)
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((ending(taken, outcome),), (new("out"),), repeat=True))
        assert store.driver.find(Find(queue="out")) == []

    def test_a_rollback_whose_reply_was_lost_is_not_taken_for_the_commit(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("x")
        unit = store.unit()
        [entry] = unit.take(queue)
        unit.retry(entry)
        unit.put(store.queue("out"), "y")
        with losing(store, happens=False), pytest.raises(OutcomeUnknown):
            unit.commit()
        with losing(store, happens=True), pytest.raises(OutcomeUnknown):
            unit.rollback()
        with pytest.raises((LeaseLost, OutcomeUnknown, Conflict)):
            unit.commit()
        assert store.driver.find(Find(queue="out")) == []


class TestPutsAndOthers(Contract):
    """Entries were put, the reply was lost, and they are put again after others have changed things."""

    @pytest.mark.parametrize("ended", [False, True])
    @pytest.mark.parametrize("how", ["updated", "replaced"])
    def test_what_was_put_has_changed_since(self, store: QueueStore, how: str, ended: bool) -> None:
        unit = store.unit()
        id_ = unit.put(store.queue("q"), "as put", unique="u")
        with losing(store, happens=True), pytest.raises(OutcomeUnknown):
            unit.commit()
        if how == "updated":
            store.queue("q").update(id_, "changed")
        else:
            put(store, "q", "changed", unique=Unique("u", on_conflict="replace"))
        if ended:
            end(store, take_one(store, "q"))
        [again] = unit.commit().puts
        assert (again.id, again.created) == (id_, True)
        assert values(store.driver.find(Find())) == ([] if ended else ["changed"])

    @pytest.mark.parametrize("ended", [False, True])
    def test_what_was_kept_out_stays_out(self, store: QueueStore, ended: bool) -> None:
        put(store, "r", "holder", unique="u")
        step = Step(puts=(new("q", "x"), new("r", "kept out", unique=Unique("u"))))
        assert [one.created for one in store.driver.commit(step).puts] == [True, False]
        end(store, take_one(store, "r"))
        if ended:
            end(store, take_one(store, "q"))
        again = store.driver.commit(Step(puts=step.puts, repeat=True))
        assert [one.created for one in again.puts] == [True, False]
        assert values(store.driver.find(Find())) == ([] if ended else ["x"])

    def test_who_subscribed_since_gets_nothing_of_it(self, store: QueueStore) -> None:
        store.driver.subscribe(Subscription("a", "bus.a", ("Thing",)))
        step = Step((), (), (NewEvent(("Thing",), new("bus", "event")),))
        first = store.driver.commit(step)
        store.driver.subscribe(Subscription("b", "bus.b", ("Thing",)))
        again = store.driver.commit(Step((), (), step.events, repeat=True))
        assert [one.id for one in again.published[0]] == [one.id for one in first.published[0]]
        assert [entry.queue for entry in store.driver.find(Find())] == ["bus.a"]
