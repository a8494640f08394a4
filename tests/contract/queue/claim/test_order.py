"""Order: priority, FIFO queues, families, and fair shares over many queues."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    claim,
    end,
    in_threads,
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict
from penstock.queue.entry import Unique
from penstock.queue.protocol import Changes, Find, Source
from penstock.queue.queues import QueueStore


class TestPriority(Contract):
    """Per queue: priority (high first), due, sequence."""

    def test_priority_then_due_then_sequence(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        clock.advance("1h")
        queue.put("low", priority=-100)
        queue.put("late", due=clock.now())
        queue.put("early", due=clock.now().replace(minute=0, hour=0))
        queue.put("first", priority=100)
        queue.put("second", priority=100)
        queue.put("late again", due=clock.now())
        expected = ["first", "second", "early", "late", "late again", "low"]
        assert values(take_one(store, "q") for _ in range(6)) == expected

    def test_one_claim_of_many_follows_the_same_order(self, store: QueueStore) -> None:
        queue = store.queue("q")
        for priority in (0, 5, -5, 100, -100, 5):
            queue.put(priority, priority=priority)
        assert values(take(store, "q", limit=4)) == [100, 5, 5, 0]
        assert values(take(store, "q")) == [-5, -100]

    @pytest.mark.parametrize("limit", [1, 2, 3, 4])
    def test_the_limit_holds_over_all_priorities(self, store: QueueStore, limit: int) -> None:
        queue = store.queue("q")
        for priority in (5, 0, 0, 0, -5, -5):
            queue.put(priority, priority=priority)
        assert values(take(store, "q", limit=limit)) == [5, 0, 0, 0][:limit]

    def test_high_priority_that_is_not_due_holds_nobody_up(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "high", priority=9, delay="1m")
        put(store, "q", "low")
        assert values(take(store, "q")) == ["low"]
        clock.advance("1m")
        assert values(take(store, "q")) == ["high"]

    def test_priority_counts_in_every_lane(self, store: QueueStore, clock: FakeClock) -> None:
        for lane, sticky in (("plain", False), ("sticky", True)):
            put(store, "q", f"{lane} low", sticky=sticky)
            clock.advance("1s")
            put(store, "q", f"{lane} high", sticky=sticky, priority=50)
        first_two = values(take(store, "q", limit=1) + take(store, "q", limit=1))
        assert all(value.endswith("high") for value in first_two) or len({value[:5] for value in first_two}) == 1
        everything = first_two + values(take(store, "q"))
        for lane in ("plain", "sticky"):
            assert [value for value in everything if value.startswith(lane)] == [f"{lane} high", f"{lane} low"]

    def test_an_updated_priority_counts(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("a")
        queue.update(queue.put("b").id, priority=1)
        assert values([take_one(store, "q")]) == ["b"]


class TestFifo(Contract):
    """Order is the sequence, one in flight, and the head blocks."""

    @pytest.fixture(autouse=True)
    def fifo(self, store: QueueStore) -> None:
        store.queue("q", fifo=True)

    def test_one_at_a_time_in_the_order_of_puts(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(5))
        seen = []
        for _ in range(5):
            [entry] = take(store, "q")
            assert take(store, "q", owner="worker-b") == []
            seen.append(entry)
            end(store, entry)
        assert values(seen) == list(range(5))
        assert take(store, "q") == []

    def test_sequence_decides_not_due(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "head", delay="10m")
        put(store, "q", "ready")
        got = claim(store, "q")
        assert (got.entries, got.next_us) == ([], clock.micros() + 10 * MINUTE)
        clock.advance("10m")
        assert values(take(store, "q")) == ["head"]

    def test_a_claim_that_got_something_also_says_when_other_heads_are_due(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        put(store, "q", "ready")
        store.queue("r", fifo=True).put("later", delay="10m")
        got = claim(store, "q", "r")
        assert (values(got.entries), got.next_us) == (["ready"], clock.micros() + 10 * MINUTE)

    def test_heads_that_ended_on_the_way_cost_no_second_look(self, store: QueueStore, clock: FakeClock) -> None:
        for number in range(3):
            put(store, "q", number, expires="1m")
        put(store, "q", "next")
        clock.advance("2m")
        assert values(claim(store, "q").entries) == ["next"]

    @pytest.mark.parametrize("outcome", ["retry", "snooze"])
    def test_a_head_that_comes_back_later_blocks(self, store: QueueStore, clock: FakeClock, outcome: str) -> None:
        store.queue("q").put_many(["head", "next"])
        end(store, take_one(store, "q"), outcome, delay_us=MINUTE)  # type: ignore[arg-type]
        assert take(store, "q") == []
        clock.advance("1m")
        head = take_one(store, "q")
        assert values([head]) == ["head"]
        end(store, head)
        assert values(take(store, "q")) == ["next"]

    def test_a_released_head_is_next(self, store: QueueStore) -> None:
        store.queue("q").put_many(["head", "next"])
        end(store, take_one(store, "q"), "release")
        assert values(take(store, "q")) == ["head"]

    def test_a_reaped_head_is_next(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(["head", "next"])
        take_one(store, "q")
        clock.advance("2m")
        assert take(store, "q") == [], "a lease that ran out blocks until it is taken back"
        store.driver.reap(node="one")
        assert values(take(store, "q")) == ["head"]
        assert take(store, "q") == []

    @pytest.mark.parametrize("how", ["done", "dead", "cancel", "force", "expire", "out of attempts", "reaped dead"])
    def test_every_end_of_the_head_frees_the_next(self, store: QueueStore, clock: FakeClock, how: str) -> None:
        queue = store.queue("q")
        head = queue.put("head", expires="10m" if how == "expire" else None).id
        queue.put("next")
        if how in ("done", "dead"):
            end(store, take_one(store, "q"), how)  # type: ignore[arg-type]
        elif how == "cancel":
            queue.cancel(head)
        elif how == "force":
            take_one(store, "q")
            queue.cancel(head, force=True)
        elif how == "expire":
            clock.advance("10m")
        elif how == "out of attempts":
            end(store, take_one(store, "q", attempts=1), "retry")
        else:
            take_one(store, "q", attempts=1)
            clock.advance("2m")
            store.driver.reap(node="one")
        # What ends at the claim itself may take a second look.
        got = take(store, "q", attempts=1) or take(store, "q", attempts=1)
        assert values(got) == ["next"]
        assert trail(store, head)[-1][2] in ("done", "dead", "cancelled", "expired")

    def test_replay_goes_to_the_tail(self, store: QueueStore) -> None:
        first = put(store, "q", "first")
        put(store, "q", "second")
        end(store, take_one(store, "q"), "dead")
        store.driver.replay([first])
        seen = []
        for _ in range(2):
            seen.append(take_one(store, "q"))
            end(store, seen[-1])
        assert values(seen) == ["second", "first"]

    def test_replace_keeps_the_place(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "a", unique="u")
        put(store, "q", "b")
        put(store, "q", "A", unique=Unique("u", on_conflict="replace"), delay="1m")
        assert take(store, "q") == []
        clock.advance("1m")
        assert values(take(store, "q")) == ["A"]

    def test_rescheduling_the_head_moves_the_queue(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        head = queue.put("head", delay="1h").id
        queue.put("next")
        queue.reschedule(head, delay="0s")
        assert values(take(store, "q")) == ["head"]

    def test_priority_and_sticky_mean_nothing_here(self, store: QueueStore) -> None:
        queue = store.queue("q")
        for options in ({"priority": 1}, {"priority": -1}, {"sticky": True}):
            with pytest.raises(BadInput, match="FIFO"):
                queue.put("x", **options)
        id_ = queue.put("x").id
        with pytest.raises(BadInput, match="FIFO"):
            store.driver.update(id_, Changes(priority=3))
        with pytest.raises(BadInput, match="FIFO"):
            store.queue("q", fifo=True).add_handler(lambda value: None, prefetch=3)

    def test_prefetch_raises_also_through_a_handle_that_follows_the_store(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="FIFO"):
            store.queue("q").add_handler(lambda value: None, prefetch=3)

    def test_a_queue_with_entries_cannot_change(self, store: QueueStore) -> None:
        put(store, "q")
        put(store, "r")
        with pytest.raises(Conflict):
            store.queue("q", fifo=False)
        with pytest.raises(Conflict):
            store.queue("r", fifo=True)
        store.queue("q", fifo=True)
        assert store.queue("q").counts().fifo
        end(store, take_one(store, "q"))
        store.queue("q", fifo=False)
        assert not store.queue("q").counts().fifo

    def test_other_handles_follow_what_is_stored(self, store: QueueStore, open_store: OpenStore) -> None:
        other = open_store(node="two")
        other.queue("q").put_many([1, 2])
        assert len(take(other, "q")) == 1
        assert take(store, "q") == []

    def test_threads_never_have_two_of_a_queue(self, store: QueueStore, open_store: OpenStore) -> None:
        store.queue("q").put_many(range(30))
        handles = [store, open_store(node="two")]
        seen: list[int] = []

        def work(index: int) -> None:
            while len(seen) < 30:
                for entry in take(handles[index % 2], "q", owner=f"worker-{index}"):
                    seen.extend(values([entry]))
                    end(handles[index % 2], entry)

        in_threads(4, work)
        assert seen == list(range(30))

    def test_many_fifo_queues_give_a_head_each(self, store: QueueStore) -> None:
        for number in range(150):
            store.queue(f"many.{number:03}", fifo=True).put_many([f"{number}-a", f"{number}-b"])
        family = [Source("many.", 1000, family=True)]
        first = take(store, sources=family, limit=1000)
        assert sorted(values(first)) == sorted(f"{number}-a" for number in range(150))
        assert take(store, sources=family, limit=1000) == []
        for entry in first[:20]:
            end(store, entry)
        assert len(take(store, sources=family, limit=1000)) == 20


class TestFamilies(Contract):
    """All queues whose name starts with a prefix."""

    def test_a_family_covers_by_prefix_bytewise(self, store: QueueStore) -> None:
        for name in ("f", "f.1", "f-2", "F.1", "g", "e.f."):
            put(store, name, name)
        assert sorted(values(take(store, sources=[Source("f", 99, family=True)]))) == ["f", "f-2", "f.1"]

    def test_a_name_wins_over_a_family_and_a_long_prefix_over_a_short(self, store: QueueStore) -> None:
        for name in ("f.1", "f.2", "f.2.3"):
            put(store, name, name)
            end(store, take_one(store, name), "retry")
        # Each has had one start: whoever answers for it with attempts=1 makes it a dead letter.
        sources = [Source("f.", 9, 5, family=True), Source("f.2", 9, 1, family=True), Source("f.2.3", 9, 5)]
        got = claim(store, sources=sources)
        assert sorted(values(got.entries)) == ["f.1", "f.2.3"]
        assert [values([one]) for one in store.driver.dead(Find(queue="f.2"))] == [["f.2"]]

    def test_the_order_of_sources_means_nothing(self, store: QueueStore) -> None:
        store.queue("f.1").put_many(range(5))
        named, family = Source("f.1", 2), Source("f.", 9, family=True)
        assert len(take(store, sources=[family, named])) == 2
        assert len(take(store, sources=[named, family])) == 2

    def test_a_queue_made_later_belongs_to_it(self, store: QueueStore, open_store: OpenStore) -> None:
        family = [Source("f.", 9, family=True)]
        assert take(store, sources=family) == []
        put(open_store(node="two"), "f.new", "new")
        assert values(take(store, sources=family)) == ["new"]

    def test_find_and_counts_of_a_family(self, store: QueueStore) -> None:
        family = store.family("f.")
        family.member("f.1").put(1)
        family.member("f.2").put(2, delay="1h")
        put(store, "g")
        assert values(family.find()) == [1, 2]
        assert (family.counts().ready, family.counts().delayed) == (1, 1)


class TestPages(Contract):
    """Queues are listed by name, a page at a time."""

    def test_pages_by_name(self, store: QueueStore) -> None:
        for name in ("b", "a.2", "a", "a.10", "A", "a-1", "c"):
            put(store, name)
        put(store, "a", "again")
        store.queue("a.2").lock(reason="why")
        assert [one.queue for one in store.driver.page(limit=4)] == ["A", "a", "a-1", "a.10"]
        assert [one.queue for one in store.driver.page(after="a.10", limit=4)] == ["a.2", "b", "c"]
        assert store.driver.page(after="c") == []
        assert [one.queue for one in store.driver.page(prefix="a.")] == ["a.10", "a.2"]
        assert [one.queue for one in store.driver.page(prefix="a.", after="a.10")] == ["a.2"]
        assert [one.queue for one in store.driver.page(prefix="a", after="B")] == ["a", "a-1", "a.10", "a.2"]
        assert store.driver.page(prefix="zz") == []
        everything = {one.queue: one for one in store.driver.page()}
        assert everything == {one.queue: one for one in store.counts()}
        assert everything["a"].ready == 2
        assert [lock.reason for lock in everything["a.2"].locks] == ["why"]

    def test_dead_letters_and_leases_are_in_it(self, store: QueueStore) -> None:
        put(store, "a")
        put(store, "b")
        end(store, take_one(store, "a"), "dead", error="no")
        take_one(store, "b")
        assert [(one.queue, one.dead, one.leased) for one in store.driver.page()] == [("a", 1, 0), ("b", 0, 1)]

    def test_a_queue_exists_once_it_was_used(self, store: QueueStore) -> None:
        queue = store.queue("q")
        assert not queue.exists()
        put(store, "q")
        assert queue.exists()
        end(store, take_one(store, "q"))
        assert queue.exists()
        store.queue("slow", rate="1/s")
        assert store.queue("slow").exists()


class TestFairness(Contract):
    """No queue is starved."""

    def test_two_queues_share_a_claim(self, store: QueueStore) -> None:
        store.queue("big").put_many(range(100))
        store.queue("small").put_many(range(3))
        shares = Counter(entry.queue for entry in take(store, "big", "small", limit=10))
        assert (shares["small"], shares["big"]) == (3, 7)

    def test_what_one_leaves_the_others_get(self, store: QueueStore) -> None:
        for number in range(4):
            put(store, f"f.{number}")
        store.queue("f.big").put_many(range(50))
        assert len(take(store, sources=[Source("f.", 40, family=True)], limit=40)) == 40

    def test_more_queues_than_places_are_served_in_turn(self, store: QueueStore, clock: FakeClock) -> None:
        for number in range(30):
            store.queue(f"f.{number:02}").put_many(range(3))
        family = [Source("f.", 10, family=True)]
        rounds = []
        for _ in range(3):
            clock.advance("1ms")
            rounds.append(take(store, sources=family, limit=10))
        for taken in rounds:
            assert len({entry.queue for entry in taken}) == 10
        assert len({entry.queue for taken in rounds for entry in taken}) == 30

    def test_families_are_served_in_turn(self, store: QueueStore, clock: FakeClock) -> None:
        sizes = {"longest.": 3, "long.": 4, "f.": 1}
        for family, size in sizes.items():
            for number in range(size):
                store.queue(f"{family}{number}").put_many(range(30))
        families = [Source(family, 100, family=True) for family in sizes]
        assert_fair_shares(store, clock, families, queues=8)

    def test_a_family_is_served_in_turn_with_queues_that_have_names(self, store: QueueStore, clock: FakeClock) -> None:
        for name in ("a", "b", "c", "f.1", "f.2"):
            store.queue(name).put_many(range(30))
        sources = [*(Source(name, 100) for name in "abc"), Source("f.", 100, family=True)]
        assert_fair_shares(store, clock, sources, queues=5)

    def test_a_family_without_room_does_not_come_through_a_wider_one(self, store: QueueStore, clock: FakeClock) -> None:
        for number in range(3):
            store.queue(f"f.{number}").put_many(range(2))
            store.queue(f"f.x.{number}").put_many(range(2))
        sources = [Source("f.", 10, family=True), Source("f.x.", 0, family=True)]
        for _ in range(6):
            clock.advance("1ms")
            [entry] = take(store, sources=sources, limit=1)
            assert not entry.queue.startswith("f.x.")
        assert take(store, sources=sources, limit=1) == []

    def test_the_queue_that_has_waited_longest_comes_first(self, store: QueueStore, clock: FakeClock) -> None:
        for name in ("third", "first", "second"):
            put(store, name, name, delay={"first": "1s", "second": "2s", "third": "3s"}[name])
        clock.advance("10s")
        assert values(take_one(store, "first", "second", "third") for _ in range(3)) == ["first", "second", "third"]

    def test_a_long_backlog_does_not_starve_a_newcomer(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("backlog").put_many(range(50))
        clock.advance("1h")
        put(store, "newcomer", "new")
        seen: list[str] = []
        for _ in range(5):
            clock.advance("1ms")
            seen += [entry.queue for entry in take(store, "backlog", "newcomer", limit=1)]
        assert "newcomer" in seen
        assert len(seen) == 5


def assert_fair_shares(store: QueueStore, clock: FakeClock, sources: list[Source], *, queues: int) -> None:
    """Many small claims give every one of the queues about the same."""
    for limit in (1, 2, 3):
        shares: Counter[str] = Counter()
        for _ in range(6 * queues):
            clock.advance("1ms")
            shares.update(entry.queue for entry in take(store, sources=sources, limit=limit)[:limit])
            if shares.total() >= 6 * queues:
                break
        assert len(shares) == queues, shares
        assert min(shares.values()) >= 3, shares
