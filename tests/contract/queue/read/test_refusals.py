"""What a store refuses is said in the same words by every store."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import Contract, end, ending, lease_of, new, put, take_one

from penstock.errors import BadInput, Conflict, EntryLeased, EntryNotFound, LeaseLost, PenstockError, UniqueHeld
from penstock.queue import refusals
from penstock.queue.entry import Unique
from penstock.queue.protocol import Changes, Definition, Step
from penstock.queue.queues import QueueStore


def said(error: pytest.ExceptionInfo[PenstockError]) -> str:
    """The whole message, hint included."""
    return str(error.value)


class TestRefusals(Contract):
    """One text for each of them."""

    def test_a_lease_that_is_lost(self, store: QueueStore) -> None:
        put(store, "q")
        entry = take_one(store, "q")
        end(store, entry)
        with pytest.raises(LeaseLost) as error:
            store.driver.commit(Step((ending(entry),)))
        assert said(error) == str(refusals.lease_lost(lease_of(entry)))
        [result] = store.driver.settle([Step((ending(entry, "retry"),))]).results
        assert str(result) == said(error)

    def test_a_unique_id_that_is_held(self, store: QueueStore) -> None:
        holder = put(store, "q", unique="k")
        with pytest.raises(UniqueHeld) as error:
            put(store, "q", unique=Unique("k", on_conflict="raise"))
        assert said(error) == str(refusals.unique_held("q", "k", holder))

    def test_an_id_that_no_entry_can_have(self, store: QueueStore) -> None:
        """A store that cannot even be asked for it is not away."""
        queue = store.queue("q")
        queue.put(1)
        for ask in (queue.get, queue.cancel, queue.replay, lambda id_: queue.reschedule(id_, delay="1s")):
            with pytest.raises((EntryNotFound, BadInput)):
                ask("a\0b")

    def test_an_id_that_is_taken(self, store: QueueStore) -> None:
        put(store, "q", "x", id="mine")
        with pytest.raises(Conflict) as error:
            store.driver.put([new("q", "y", id="mine")])
        assert said(error) == str(refusals.id_taken("mine", "q"))

    @pytest.mark.parametrize("call", ["cancel", "update"])
    def test_an_entry_that_is_being_worked_on(self, store: QueueStore, call: str) -> None:
        id_ = put(store, "q")
        take_one(store, "q", owner="somebody")
        with pytest.raises(EntryLeased) as error:
            store.driver.cancel([id_]) if call == "cancel" else store.driver.update(id_, Changes(priority=1))
        assert said(error) == str(refusals.entry_leased(id_, "q", "somebody"))

    def test_an_id_that_no_live_entry_has(self, store: QueueStore) -> None:
        with pytest.raises(EntryNotFound) as error:
            store.driver.cancel(["nobody"])
        assert said(error) == str(refusals.not_live("nobody"))

    def test_an_id_that_no_ended_entry_has(self, store: QueueStore) -> None:
        with pytest.raises(EntryNotFound) as error:
            store.driver.replay(["nobody"])
        assert said(error) == str(refusals.not_ended("nobody"))

    def test_a_priority_in_a_fifo_queue(self, store: QueueStore) -> None:
        store.driver.define("q", Definition(fifo=True))
        with pytest.raises(BadInput) as error:
            store.driver.put([new("q", priority=1)])
        assert said(error) == str(refusals.not_for_fifo("q"))
        id_ = put(store, "q")
        with pytest.raises(BadInput) as error:
            store.driver.update(id_, Changes(priority=1))
        assert said(error) == str(refusals.not_for_fifo("q"))

    def test_an_order_that_cannot_change(self, store: QueueStore) -> None:
        put(store, "q")
        with pytest.raises(Conflict) as error:
            store.driver.define("q", Definition(fifo=True))
        assert said(error) == str(refusals.fifo_fixed("q"))
