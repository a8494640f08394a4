"""Signals: what happened inside is told once, with ids and store times, after the store has agreed."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, end, new, put, take, take_one

from penstock.clock import FakeClock
from penstock.errors import BadInput, UniqueHeld
from penstock.queue.entry import Unique
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker
from penstock.signals import Signal


class TestSignals(Contract):
    """The life of an entry as a listener hears it."""

    @pytest.fixture
    def told(self, store: QueueStore) -> list[Signal]:
        """Everything told so far."""
        heard: list[Signal] = []
        store.signals.subscribe(heard.append)
        return heard

    def test_a_life_told_in_order(self, store: QueueStore, clock: FakeClock, told: list[Signal]) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: None)
        id_ = queue.put("x").id
        clock.advance("1s")
        Worker(store).drain()
        assert [one.kind for one in told] == ["put", "claimed", "started", "settled"]
        assert {one.ids for one in told} == {(id_,)}
        assert {one.queue for one in told} == {"q"}
        assert told[0].at == clock.micros() - 1_000_000
        assert told[1].at == told[3].at == clock.micros()
        assert told[1].data["owner"].startswith("one/")
        assert told[2].data["attempt"] == 1
        assert told[3].data["outcome"] == "done"

    def test_puts_by_queue_and_only_what_was_created(self, store: QueueStore, told: list[Signal]) -> None:
        store.driver.put([new("a"), new("b"), new("a", unique=Unique("u"))])
        store.queue("a").put("again", unique="u")
        puts = [(one.queue, len(one.ids)) for one in told if one.kind == "put"]
        assert puts == [("a", 2), ("b", 1)]

    def test_what_failed_is_not_told(self, store: QueueStore, told: list[Signal]) -> None:
        put(store, "q", unique="u")
        told.clear()
        with pytest.raises(UniqueHeld):
            store.driver.put([new("q"), new("q", unique=Unique("u", on_conflict="raise"))])
        assert [one.kind for one in told] == []

    def test_claims_by_queue(self, store: QueueStore, told: list[Signal]) -> None:
        store.queue("a").put_many([1, 2])
        put(store, "b")
        told.clear()
        take(store, "a", "b")
        assert sorted((one.kind, one.queue, len(one.ids)) for one in told) == [("claimed", "a", 2), ("claimed", "b", 1)]

    def test_a_failing_listener_harms_nobody(self, store: QueueStore) -> None:
        def bad(signal: Signal) -> None:
            raise RuntimeError("listener")

        heard: list[str] = []
        stop = store.signals.subscribe(bad)
        store.signals.subscribe(lambda signal: heard.append(signal.kind), "put", "settled")
        put(store, "q")
        end(store, take_one(store, "q"))
        assert heard == ["put", "settled"]
        stop()

    def test_a_subscription_ends(self, store: QueueStore) -> None:
        heard: list[Signal] = []
        stop = store.signals.subscribe(heard.append, "put")
        put(store, "q")
        stop()
        put(store, "q")
        assert len(heard) == 1

    def test_unknown_kinds_are_refused(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="settled"):
            store.signals.subscribe(lambda signal: None, "finished")

    def test_totals_count_with_and_without_listeners(self, store: QueueStore, open_store: OpenStore) -> None:
        for handle in (store, open_store()):
            if handle is store:
                handle.signals.subscribe(lambda signal: None)
            handle.queue("q").put_many(range(5))
            for entry in take(handle, "q"):
                end(handle, entry)
            totals = handle.signals.totals
            assert (totals["put"], totals["claimed"], totals["settled"]) == (5, 5, 5)
