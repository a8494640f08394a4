"""Bus: every subscription that wants an event gets an entry of its own, in the same step as the publishing."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    end,
    living,
    new,
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.bus import Bus
from penstock.clock import FakeClock
from penstock.errors import BadInput
from penstock.ids import derived_id
from penstock.queue.entry import Unique
from penstock.queue.protocol import Find, NewEvent, Step, Subscription
from penstock.queue.queues import QueueStore


class Happened(msgspec.Struct, frozen=True):
    """An event."""

    what: str = "something"


class Paid(Happened, frozen=True):
    """A more special one."""

    amount: int = 0


@dataclass
class Other:
    """Another one."""

    n: int = 1


class TestPublishing(Contract):
    """Who gets what."""

    def test_each_matching_subscription_gets_its_own_entry(self, store: QueueStore) -> None:
        bus = Bus(store)
        for name in ("b", "a"):
            bus.subscribe(name, Happened)
        bus.subscribe("c", Other)
        results = bus.publish(Happened("x"))
        assert [(one.queue, one.created) for one in results] == [("bus.a", True), ("bus.b", True)]
        assert len({one.id for one in results}) == 2
        [entry] = store.queue("bus.a", Happened).find()
        assert entry.value == Happened("x")
        assert store.driver.find(Find(queue="bus.c")) == []

    def test_subclasses_reach_those_who_want_the_base(self, store: QueueStore) -> None:
        bus = Bus(store)
        base = bus.subscribe("base", Happened)
        special = bus.subscribe("special", Paid)
        bus.publish(Paid("x", 5))
        bus.publish(Happened("y"))
        assert [one.value.what for one in base.find()] == ["x", "y"]
        assert [one.value for one in special.find()] == [Paid("x", 5)]

    def test_several_types_in_one_subscription(self, store: QueueStore) -> None:
        bus = Bus(store)
        both = bus.subscribe("both", Happened, Other)
        bus.publish(Other(3))
        bus.publish(Happened("x"))
        assert values(both.find()) == [{"n": 3}, {"what": "x"}]

    def test_one_entry_however_many_types_match(self, store: QueueStore) -> None:
        bus = Bus(store)
        bus.subscribe("both", Happened, Paid)
        assert len(bus.publish(Paid("x", 1))) == 1

    def test_nobody_wants_it(self, store: QueueStore) -> None:
        told: list[tuple[object, ...]] = []
        store.signals.subscribe(
            lambda one: told.append((one.kind, *one.data["subscriptions"])), "published", "unwanted"
        )
        bus = Bus(store)
        assert bus.publish(Happened()) == []
        bus.subscribe("a", Happened)
        bus.publish(Happened())
        assert told == [("unwanted",), ("published", "bus.a")]

    def test_ids_come_from_event_and_subscription(self, store: QueueStore) -> None:
        bus = Bus(store)
        bus.subscribe("a", Happened)
        [result] = bus.publish(Happened(), id="event-1")
        assert result.id == derived_id("event-1", "a")
        assert [one.id for one in bus.publish(Happened(), id="event-1")] == [result.id]
        assert len(store.driver.find(Find())) == 1
        end(store, take_one(store, "bus.a"))
        bus.publish(Happened(), id="event-1")
        assert store.driver.find(Find()) == []

    def test_options_of_put_hold(self, store: QueueStore, clock: FakeClock) -> None:
        bus = Bus(store)
        bus.subscribe("a", Happened)
        [result] = bus.publish(Happened(), delay="1m", labels={"a": "1"}, priority=3, sticky=True, headers={"h": "1"})
        entry = living(store, result.id)
        assert (entry.due_us, entry.labels, entry.priority) == (clock.micros() + MINUTE, {"a": "1"}, 3)
        assert (entry.node, entry.headers) == ("one", {"h": "1"})
        bus.publish(Happened(), unique="u")
        assert [one.created for one in bus.publish(Happened(), unique="u")] == [False]

    def test_all_subscriptions_or_none(self, store: QueueStore) -> None:
        bus = Bus(store)
        bus.subscribe("a", Happened)
        bus.subscribe("b", Happened, fifo=True)
        bus.subscribe("c", Happened)
        with pytest.raises(BadInput, match="FIFO"):
            bus.publish(Happened(), priority=1)
        put(store, "bus.c", {"what": "held"}, unique="u")
        with pytest.raises(Exception, match="held"):
            bus.publish(Happened(), unique=Unique("u", on_conflict="raise"))
        assert values(store.driver.find(Find())) == [{"what": "held"}]

    def test_a_failing_subscriber_re_runs_no_other(self, store: QueueStore) -> None:
        bus = Bus(store)
        bus.subscribe("a", Happened)
        bus.subscribe("b", Happened)
        first, second = bus.publish(Happened())
        end(store, take_one(store, "bus.a"), "retry")
        end(store, take_one(store, "bus.b"))
        assert (trail(store, first.id), trail(store, second.id)) == ([(1, 1, "retried")], [(1, 1, "done")])
        assert [one.queue for one in take(store, "bus.a", "bus.b")] == ["bus.a"]

    def test_in_a_step_with_endings(self, store: QueueStore) -> None:
        store.driver.subscribe(Subscription("a", "somewhere", ("T", "U")))
        done = store.driver.commit(Step(events=(NewEvent(("X", "U"), new("bus", 1)), NewEvent(("X",), new("bus", 2)))))
        assert [[one.queue for one in some] for some in done.published] == [["somewhere"], []]


class TestSubscriptions(Contract):
    """Durable, and never read from a client's memory."""

    def test_another_handle_publishes_to_it_at_once(self, store: QueueStore, open_store: OpenStore) -> None:
        other = open_store(node="two")
        assert Bus(other).publish(Happened()) == []
        Bus(store).subscribe("a", Happened)
        assert len(Bus(other).publish(Happened())) == 1
        Bus(store).unsubscribe("a")
        assert Bus(other).publish(Happened()) == []

    def test_listed_by_name_and_changed(self, store: QueueStore) -> None:
        bus = Bus(store)
        bus.subscribe("b", Happened)
        bus.subscribe("a", Other)
        bus.subscribe("b", Other)
        assert [(one.name, one.queue, one.types) for one in bus.subscriptions()] == [
            ("a", "bus.a", ("Other",)), ("b", "bus.b", ("Other",))
        ]  # fmt: skip
        assert bus.publish(Happened()) == []

    def test_what_it_already_has_stays(self, store: QueueStore) -> None:
        bus = Bus(store)
        queue = bus.subscribe("a", Happened)
        bus.publish(Happened())
        assert bus.unsubscribe("a") is True
        assert bus.unsubscribe("a") is False
        assert len(queue.find()) == 1

    def test_bad_subscriptions(self, store: QueueStore) -> None:
        bus = Bus(store)
        for call in (
            lambda: bus.subscribe("a"),
            lambda: bus.subscribe("no name!", Happened),
            lambda: bus.subscribe("a", int),
            lambda: bus.subscribe("a", "Happened"),  # type: ignore[arg-type]
        ):
            with pytest.raises(BadInput):
                call()
        assert bus.subscriptions() == []
