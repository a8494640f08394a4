"""Sticky entries: kept for one node, freed when that node has vanished."""

from __future__ import annotations

from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    claim,
    end,
    living,
    put,
    take,
    take_one,
    tally,
    trail,
    values,
)

from penstock.clock import FakeClock, duration_micros
from penstock.queue.protocol import Find, Source
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


class TestSticky(Contract):
    """Lanes of nodes."""

    def test_only_workers_of_the_node_get_it(self, store: QueueStore, open_store: OpenStore) -> None:
        other = open_store(node="two")
        put(store, "q", "mine", sticky=True)
        put(store, "q", "theirs", sticky="two")
        put(store, "q", "anybodys")
        assert living(store, store.driver.find(Find())[0].id).node == "one"
        assert values([*take(other, "q", limit=1, sources=()), *take(other, "q")]) in (
            ["theirs", "anybodys"], ["anybodys", "theirs"]
        )  # fmt: skip
        assert values(take(store, "q")) == ["mine"]

    def test_another_nodes_entry_is_nothing_to_wait_for(self, store: QueueStore) -> None:
        put(store, "q", sticky="two", delay="1m")
        assert claim(store, "q").next_us is None
        assert take(store, sources=[Source("q", 9, family=True)]) == []

    def test_counts_finds_and_locks_are_over_all_lanes(self, store: QueueStore) -> None:
        put(store, "q", 1, sticky=True)
        store.driver.lock("q", "me")
        put(store, "q", 2, sticky="two")
        put(store, "q", 3)
        assert tally(store, "q")[0] == 3
        assert [one.queue for one in store.counts()] == ["q"]
        assert values(store.queue("q").find()) == [1, 2, 3]
        assert take(store, "q") == []
        assert take(store, "q", node="two") == []
        store.driver.unlock("q", "me")
        assert sorted(values(take(store, "q"))) == [1, 3]
        assert values(take(store, "q", node="two")) == [2]

    def test_an_outcome_keeps_it_on_its_node(self, store: QueueStore) -> None:
        id_ = put(store, "q", sticky=True)
        end(store, take_one(store, "q"), "retry")
        assert living(store, id_).node == "one"
        assert take(store, "q", node="two") == []
        end(store, take_one(store, "q"), "dead")
        store.driver.replay([id_])
        assert living(store, id_).node == "one"

    def test_owner_tells_the_node(self, store: QueueStore) -> None:
        assert Worker(store).owner.startswith("one/")
        assert Worker(store).owner != Worker(store).owner

    def test_nodes_tells_when_each_was_heard_of(self, store: QueueStore, clock: FakeClock) -> None:
        store.driver.beat("one")
        first = clock.micros()
        clock.advance("5s")
        store.driver.beat("two")
        assert store.driver.nodes() == {"one": first, "two": clock.micros()}
        store.driver.beat("one")
        assert store.driver.nodes()["one"] == clock.micros()

    def test_a_node_that_was_silent_for_a_week_is_forgotten(self, store: QueueStore, clock: FakeClock) -> None:
        store.driver.beat("gone")
        clock.advance("6d 23h")
        store.driver.beat("two")
        store.driver.reap(node="one")
        assert sorted(store.driver.nodes()) == ["gone", "two"]
        clock.advance("1h")
        store.driver.reap(node="one", sticky_after_us=duration_micros("8d"))
        assert sorted(store.driver.nodes()) == ["gone", "two"], "somebody still waits for it"
        store.driver.reap(node="one")
        assert sorted(store.driver.nodes()) == ["two"]
        store.driver.beat("gone")
        assert sorted(store.driver.nodes()) == ["gone", "two"]


class TestFreeing(Contract):
    """Overdue and the node silent: anybody may have it."""

    def test_freed_when_overdue_and_the_node_was_never_heard_of(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", "x", sticky="gone", priority=3)
        clock.advance("9m 59s")
        assert store.driver.reap(node="one").freed == []
        clock.advance("1s")
        found = store.driver.reap(node="one")
        assert (found.freed, found.late) == ([(id_, "q")], [])
        entry = living(store, id_)
        assert (entry.node, entry.priority, entry.attempt) == (None, 3, 0)
        assert trail(store, id_) == []
        assert values(take(store, "q")) == ["x"]
        assert store.driver.reap(node="one").freed == []

    def test_not_while_the_node_is_heard_of(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", sticky="two")
        for _ in range(5):
            clock.advance("5m")
            store.driver.beat("two")
            assert store.driver.reap(node="one").freed == []
        clock.advance("10m")
        assert len(store.driver.reap(node="one").freed) == 1

    def test_not_while_it_is_not_overdue(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", sticky="gone", delay="1h")
        clock.advance("1h 9m")
        assert store.driver.reap(node="one").freed == []
        clock.advance("1m")
        assert len(store.driver.reap(node="one").freed) == 1

    def test_own_late_entries_are_only_told(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", sticky=True)
        told: list[tuple[str, ...]] = []
        store.signals.subscribe(lambda one: told.append(one.ids), "late")
        clock.advance("30m")
        found = store.driver.reap(node="one")
        assert (found.late, found.freed) == ([(id_, "q")], [])
        assert told == [(id_,)]
        assert living(store, id_).node == "one"

    def test_late_ones_are_told_although_their_queue_is_being_served(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(4), sticky=True)
        store.queue("r").put_many(range(4))
        clock.advance("9m")
        taken = take(store, "q", "r", limit=2)
        clock.advance("2m")
        left = {entry.id for entry in store.queue("q").find(state="waiting")}
        assert len(taken) == 2
        assert {id_ for id_, _ in store.driver.reap(node="one").late} >= left

    def test_the_threshold_is_the_callers(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", sticky="gone")
        clock.advance("1m")
        assert len(store.driver.reap(node="one", sticky_after_us=MINUTE).freed) == 1

    def test_a_leased_one_is_not_freed_but_its_lease_runs_out(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", sticky="gone")
        take_one(store, "q", node="gone", lease="1h")
        clock.advance("30m")
        assert store.driver.reap(node="one").freed == []
        clock.advance("30m")
        store.driver.reap(node="one")
        clock.advance("10m")
        store.driver.reap(node="one")
        assert living(store, id_).node is None
        assert take_one(store, "q").attempt == 2

    def test_own_late_ones_do_not_hide_those_to_free(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(6), sticky=True)
        freed = put(store, "r", sticky="gone")
        clock.advance("30m")
        seen = [store.driver.reap(node="one", limit=3).freed for _ in range(3)]
        assert (freed, "r") in [one for some in seen for one in some]
