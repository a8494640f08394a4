"""Changing entries: cancel, update, reschedule, with and without force."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    end,
    lease_of,
    live,
    living,
    needs,
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, EntryLeased, EntryNotFound, LeaseLost, WrongType
from penstock.queue.protocol import Changes, Find
from penstock.queue.queues import QueueStore


class TestCancel(Contract):
    """Ends waiting entries, all or none."""

    def test_cancelled_is_a_final_state(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", "x", labels={"a": "1"})
        told: list[tuple[str, ...]] = []
        store.signals.subscribe(lambda one: told.append(one.ids), "cancelled")
        clock.advance("1s")
        assert store.queue("q").cancel(id_) == 1
        assert (live(store, id_), take(store, "q")) == (None, [])
        [row] = store.driver.history(Find(ids=(id_,)))
        assert (row.state, row.attempt, row.started_us, row.ended_us) == ("cancelled", 1, None, clock.micros())
        assert (row.payload, row.labels) == (b'"x"', {"a": "1"})
        assert told == [(id_,)]
        assert store.driver.dead(Find()) == []

    def test_delayed_retrying_and_suspects_too(self, store: QueueStore, clock: FakeClock) -> None:
        suspect = put(store, "q", "s")
        take_one(store, "q")
        clock.advance("2m")
        store.driver.reap(node="one")
        delayed = put(store, "r", "d", delay="1h")
        retrying = put(store, "s", "r")
        end(store, take_one(store, "s"), "retry", delay_us=MINUTE)
        assert store.driver.cancel([suspect, delayed, retrying]) == 3
        assert trail(store, retrying) == [(1, 1, "retried"), (1, 2, "cancelled")]

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_one_unknown_means_none_is(self, store: QueueStore, position: int) -> None:
        ids = [put(store, "q", number) for number in range(2)]
        ids.insert(position, "unknown")
        with pytest.raises(EntryNotFound, match="unknown"):
            store.driver.cancel(ids)
        assert len(store.driver.find(Find())) == 2
        assert store.driver.history(Find()) == []

    def test_ended_otherwise_is_not_found(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"))
        with pytest.raises(EntryNotFound):
            store.driver.cancel([id_])

    def test_already_cancelled_counts_as_nothing(self, store: QueueStore) -> None:
        first, second = put(store, "q"), put(store, "q")
        store.driver.cancel([first])
        assert store.driver.cancel([first, second]) == 1
        assert store.driver.cancel([]) == 0

    def test_one_leased_means_none_is(self, store: QueueStore) -> None:
        leased = put(store, "q", priority=1)
        waiting = put(store, "q")
        taken = take_one(store, "q")
        for ids in ([waiting, leased], [leased, waiting]):
            with pytest.raises(EntryLeased, match=leased):
                store.driver.cancel(ids)
        assert len(store.driver.find(Find())) == 2
        end(store, taken)

    def test_force_takes_it_from_its_worker(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q", owner="me")
        assert store.driver.cancel([id_], force=True) == 1
        with pytest.raises(LeaseLost):
            end(store, taken)
        assert trail(store, id_) == [(1, 1, "cancelled")]
        [row] = store.driver.history(Find())
        assert row.started_us == lease_of(taken).claimed_us

    def test_by_labels(self, store: QueueStore) -> None:
        needs(store, "label_search")
        queue = store.queue("q")
        for number in range(4):
            queue.put(number, labels={"customer": "ann" if number % 2 else "bob"})
        held = take_one(store, "q")
        assert queue.cancel_where(labels={"customer": "ann"}) == 2
        assert queue.cancel_where(labels={"customer": "nobody"}) == 0
        assert queue.cancel_where(labels={"customer": "bob"}) == 1
        assert [one.id for one in queue.find()] == [held.id]

    def test_no_label_is_not_all(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("x")
        with pytest.raises(BadInput, match=r"would cancel all that waits in 'q'"):
            queue.cancel_where(labels={})
        assert len(queue.find()) == 1


class TestUpdate(Contract):
    """Changes what waits."""

    def test_each_field_alone(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        id_ = queue.put("x", labels={"a": "1"}, headers={"h": "1"}, priority=1, delay="1m").id
        before = living(store, id_)
        queue.update(id_, "y")
        queue.update(id_, labels={"b": "2"})
        queue.update(id_, priority=5)
        after = living(store, id_)
        assert (values([after]), after.labels, after.priority) == (["y"], {"b": "2"}, 5)
        for field in ("seq", "created_us", "due_us", "first_due_us", "attempt", "generation", "headers"):
            assert getattr(after, field) == getattr(before, field), field
        if store.capabilities.label_search:
            assert queue.find(labels={"a": "1"}) == []
            assert len(queue.find(labels={"b": "2"})) == 1
        queue.update(id_, labels={})
        assert living(store, id_).labels == {}
        clock.advance("1m")
        assert values(take(store, "q")) == ["y"]

    def test_reschedule_moves_both_due_times(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        id_ = queue.put("x", delay="1h").id
        queue.reschedule(id_, delay="5m")
        entry = living(store, id_)
        assert entry.due_us == entry.first_due_us == clock.micros() + 5 * MINUTE
        clock.advance("5m")
        assert len(take(store, "q")) == 1

    def test_reschedule_to_later(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        queue.reschedule(id_, due=clock.now().replace(hour=5))
        assert take(store, "q") == []
        clock.advance("5h")
        assert len(take(store, "q")) == 1

    def test_reschedule_to_the_time_it_has_sets_the_first_due_time(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        due = clock.micros() + MINUTE
        end(store, take_one(store, "q"), "retry", due_us=due)
        assert living(store, id_).first_due_us == clock.micros()
        store.driver.update(id_, Changes(due_us=due))
        assert living(store, id_).first_due_us == due

    def test_attempts_stay_counted(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "retry", error="e", delay_us=MINUTE)
        store.queue("q").reschedule(id_, delay="0s")
        entry = take_one(store, "q")
        assert (entry.attempt, entry.error) == (2, "e")

    @pytest.mark.parametrize("what", ["unknown", "done", "dead", "cancelled"])
    def test_what_does_not_live_is_not_found(self, store: QueueStore, what: str) -> None:
        id_ = put(store, "q") if what != "unknown" else "unknown"
        if what == "cancelled":
            store.driver.cancel([id_])
        elif what != "unknown":
            end(store, take_one(store, "q"), what)  # type: ignore[arg-type]
        for call in (
            lambda: store.queue("q").update(id_, "y"),
            lambda: store.queue("q").reschedule(id_, delay="1m"),
            lambda: store.queue("q").get(id_),
        ):
            with pytest.raises(EntryNotFound, match=id_):
                call()

    def test_leased_is_refused(self, store: QueueStore) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        taken = take_one(store, "q")
        calls: list[Callable[[], object]]
        calls = [lambda: queue.update(id_, "y"), lambda: queue.reschedule(id_, delay="1m")]
        for call in calls:
            with pytest.raises(EntryLeased, match=id_):
                call()
        end(store, taken)

    def test_force_voids_the_lease_and_spends_the_attempt(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        due = clock.micros()
        taken = take_one(store, "q")
        clock.advance("1s")
        queue.update(id_, "y", force=True)
        entry = living(store, id_)
        assert (values([entry]), entry.state, entry.attempt, entry.due_us) == (["y"], "waiting", 1, due)
        [row] = store.driver.history(Find())
        assert (row.state, row.attempt, row.error) == ("retried", 1, "taken away by an update")
        with pytest.raises(LeaseLost):
            end(store, taken)
        assert take_one(store, "q").attempt == 2

    def test_force_on_what_waits_is_a_plain_update(self, store: QueueStore) -> None:
        queue = store.queue("q")
        id_ = queue.put("x").id
        queue.update(id_, "y", force=True)
        assert (living(store, id_).attempt, trail(store, id_)) == (0, [])

    def test_bad_changes(self, store: QueueStore) -> None:
        queue = store.queue("q", int)
        id_ = queue.put(1).id
        with pytest.raises(WrongType):
            queue.update(id_, "text")  # type: ignore[arg-type]
        calls: list[Callable[[], object]] = [
            lambda: queue.reschedule(id_),
            lambda: queue.reschedule(id_, delay="1m", due=queue.find()[0].due),
            lambda: queue.update(id_, priority=101),
            lambda: queue.update(id_, labels={"no name!": "x"}),
        ]
        for call in calls:
            with pytest.raises(BadInput):
                call()
        assert values(queue.find()) == [1]

    def test_signal_tells_the_fields(self, store: QueueStore) -> None:
        told: list[object] = []
        store.signals.subscribe(lambda one: told.append((one.queue, one.data["fields"])), "updated")
        id_ = put(store, "q")
        store.driver.update(id_, Changes(priority=1, labels={"a": "b"}))
        assert told == [("q", ("labels", "priority"))]

    def test_seen_by_another_handle(self, store: QueueStore, open_store: OpenStore) -> None:
        id_ = put(store, "q", "x")
        other = open_store(node="two")
        other.queue("q").update(id_, "y")
        assert values(take(store, "q")) == ["y"]


class TestScope(Contract):
    """A queue's handle changes what is in that queue (or family), and knows nothing of the rest."""

    def test_entries_elsewhere_are_unknown(self, store: QueueStore) -> None:
        elsewhere = put(store, "r", "x")
        buried = put(store, "s", "y")
        end(store, take_one(store, "s"), "dead")
        here = put(store, "q", "z")
        queue = store.queue("q")
        calls: list[Callable[[], object]] = [
            lambda: queue.cancel(elsewhere),
            lambda: queue.cancel(here, elsewhere),
            lambda: queue.cancel(elsewhere, force=True),
            lambda: queue.update(elsewhere, "changed"),
            lambda: queue.reschedule(elsewhere, delay="1h"),
            lambda: queue.replay(buried),
            lambda: queue.get(elsewhere),
        ]
        for call in calls:
            with pytest.raises(EntryNotFound):
                call()
        assert values(store.driver.find(Find())) == ["x", "z"]

    def test_a_family_covers_its_queues(self, store: QueueStore) -> None:
        family = store.family("f.")
        first, second, other = put(store, "f.1", 1), put(store, "f.2", 2), put(store, "g", 3)
        family.update(first, 10)
        family.reschedule(second, delay="1h")
        with pytest.raises(EntryNotFound):
            family.cancel(first, other)
        assert family.cancel(first, second) == 2
        assert family.replay(first, second) == 2
        assert sorted(values(family.find())) == [2, 10]
