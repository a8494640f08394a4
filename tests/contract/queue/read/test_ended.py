"""Dead letters and replay: what was given up is kept apart, and comes back as a new generation."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.contract.queue.shorthand import (
    Contract,
    OpenStore,
    claim,
    dead,
    end,
    in_threads,
    lease_of,
    live,
    living,
    needs,
    put,
    take,
    take_one,
    tally,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import EntryNotFound, Undecodable, UniqueHeld
from penstock.queue.entry import Unique
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore
from penstock.queue.worker.maintenance import Reaper


def bury(store: QueueStore, queue: str, value: object = "x", **options: object) -> str:
    """Put an entry and send it to the dead letters."""
    id_ = put(store, queue, value, **options)
    end(store, take_one(store, queue), "dead", error=f"error of {value}")
    return id_


class TestDeadLetters(Contract):
    """Kept until purged or replayed."""

    def test_found_by_queue_family_label_and_page(self, store: QueueStore) -> None:
        for number in range(4):
            bury(store, "f.1", number, labels={"parity": "odd" if number % 2 else "even"})
        bury(store, "g", "g")
        queue = store.queue("f.1")
        assert values(queue.dead()) == [0, 1, 2, 3]
        assert values(store.family("f.").dead()) == [0, 1, 2, 3]
        assert values(queue.dead(limit=2)) == [0, 1]
        assert values(queue.dead(after=queue.dead()[1].seq)) == [2, 3]
        assert tally(store, "f.1")[4] == 4
        if store.capabilities.label_search:
            assert values(queue.dead(labels={"parity": "odd"})) == [1, 3]

    def test_in_the_order_of_death_not_of_the_puts(self, store: QueueStore, clock: FakeClock) -> None:
        leases = []
        for number in range(6):
            put(store, "q", number, labels={"parity": "odd" if number % 2 else "even"})
            leases.append(take_one(store, "q"))
        first = leases.pop(2)
        end(store, first, "dead", error="x")
        clock.advance("1s")
        for lease in reversed(leases):
            end(store, lease, "dead", error="x")
        put(store, "r", "other queue")
        end(store, take_one(store, "r"), "dead", error="x")
        assert values(store.driver.dead(Find())) == [2, 5, 4, 3, 1, 0, "other queue"]
        queue = store.queue("q")
        assert values(queue.dead()) == [2, 5, 4, 3, 1, 0]
        ids = tuple(letter.id for letter in queue.dead())
        assert [letter.id for letter in store.driver.dead(Find(ids=ids[::-1]))] == list(ids)
        if store.capabilities.label_search:
            assert values(queue.dead(labels={"parity": "even"})) == [2, 4, 0]
        numbers = [letter.seq for letter in queue.dead()]
        assert numbers == sorted(set(numbers))
        for newest_first in (False, True):
            for where in (Find(queue="q", limit=2), Find(family="q", limit=2), Find(ids=ids, limit=2)):
                paged: list[object] = []
                after = 0
                while page := store.driver.dead(replace(where, after=after, newest_first=newest_first)):
                    paged += values(page)
                    after = page[-1].seq
                assert paged == ([0, 1, 3, 4, 5, 2] if newest_first else [2, 5, 4, 3, 1, 0])

    def test_what_dies_later_appears_behind_the_mark(self, store: QueueStore) -> None:
        old, young = put(store, "q", "old"), put(store, "q", "young")
        taken = {entry.id: entry for entry in (take_one(store, "q"), take_one(store, "q"))}
        end(store, taken[young], "dead", error="x")
        mark = store.driver.mark("dead")
        end(store, taken[old], "dead", error="x")
        assert values(store.driver.dead(Find(after=mark))) == ["old"]
        # It comes back and dies again: behind all others.
        store.driver.replay([young])
        end(store, take_one(store, "q"), "dead", error="x")
        assert values(store.driver.dead(Find())) == ["old", "young"]

    def test_purge_is_all_that_ends_them(self, store: QueueStore, clock: FakeClock) -> None:
        old = bury(store, "q", "old")
        clock.advance("400d")
        fresh = bury(store, "q", "fresh")
        bury(store, "r", "other")
        told: list[tuple[str, ...]] = []
        store.signals.subscribe(lambda one: told.append(one.ids), "purged")
        store.driver.prune(older_than_us=0)
        assert store.queue("q").purge_dead(before=clock.now() - timedelta(days=1)) == 1
        assert [one.id for one in store.driver.dead(Find(queue="q"))] == [fresh]
        assert store.queue("q").purge_dead() == 1
        assert store.queue("q").purge_dead() == 0
        assert values(store.driver.dead(Find())) == ["other"]
        assert told == [(old,), (fresh,)]

    def test_purge_by_label(self, store: QueueStore) -> None:
        needs(store, "label_search")
        bury(store, "q", "a", labels={"k": "a"})
        bury(store, "q", "b", labels={"k": "b"})
        assert store.queue("q").purge_dead(labels={"k": "a"}) == 1
        assert values(store.driver.dead(Find())) == ["b"]

    def test_a_purge_takes_the_payloads_of_all_attempts_along(self, store: QueueStore) -> None:
        """Also of those that saw another body, and of earlier generations; others keep theirs."""
        queue = store.queue("q")
        id_, other = put(store, "q", "first"), put(store, "r", "other")
        end(store, take_one(store, "q"), "retry")
        queue.update(id_, "second")
        end(store, take_one(store, "q"), "dead")
        queue.replay(id_)
        queue.update(id_, "third")
        end(store, take_one(store, "q"), "dead")
        end(store, take_one(store, "r"), "dead")
        assert [(row.value, row.gap) for row in queue.history(id_)] == [
            ("first", None), ("second", None), ("third", None)
        ]  # fmt: skip
        queue.purge_dead()
        rows = queue.history(id_)
        assert [(row.payload, row.gap) for row in rows] == [(None, "removed")] * 3
        with pytest.raises(Undecodable, match="removed"):
            _ = rows[0].value
        assert [row.value for row in store.queue("r").history(other)] == ["other"]

    def test_purging_leaves_history_alone(self, store: QueueStore) -> None:
        id_ = bury(store, "q")
        store.queue("q").purge_dead()
        assert trail(store, id_) == [(1, 1, "dead")]

    def test_their_own_retention_ends_them(self, store: QueueStore, clock: FakeClock) -> None:
        """Only if it is asked for; the history's says nothing of them."""
        put(store, "q", "old")
        end(store, take_one(store, "q"), "dead", error="x")
        clock.advance("200d")
        put(store, "q", "new")
        end(store, take_one(store, "q"), "dead", error="x")
        Reaper(store).once()
        assert len(store.driver.dead(Find(queue="q"))) == 2
        Reaper(store, keep_dead="90d").once()
        assert values(store.driver.dead(Find(queue="q"))) == ["new"]


class TestReplay(Contract):
    """Same id, generation + 1."""

    def test_a_dead_letter_comes_back_fresh(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", "x", labels={"a": "1"}, headers={"h": "1"}, priority=2, expires="1h")
        before = living(store, id_)
        end(store, take_one(store, "q"), "retry", error="first")
        end(store, take_one(store, "q"), "dead", error="last")
        clock.advance("2h")
        told: list[tuple[str, ...]] = []
        store.signals.subscribe(lambda one: told.append(one.ids), "replayed")
        assert store.queue("q").replay(id_) == 1
        entry = living(store, id_)
        assert (entry.state, entry.generation, entry.attempt, entry.error) == ("waiting", 2, 0, None)
        assert entry.due_us == entry.first_due_us == clock.micros()
        assert entry.expires_us is None
        for field in ("payload", "codec", "type", "labels", "headers", "priority", "created_us"):
            assert getattr(entry, field) == getattr(before, field), field
        assert entry.seq > before.seq
        assert store.driver.dead(Find()) == []
        assert told == [(id_,)]
        taken = take_one(store, "q")
        assert (taken.attempt, lease_of(taken).fence) == (1, 3)
        end(store, taken)
        assert trail(store, id_) == [(1, 1, "retried"), (1, 2, "dead"), (2, 1, "done")]

    @pytest.mark.parametrize("state", ["done", "cancelled", "expired"])
    def test_other_ends_come_back_from_history(self, store: QueueStore, clock: FakeClock, state: str) -> None:
        id_ = put(store, "q", "x", labels={"a": "1"}, expires="1m" if state == "expired" else None)
        if state == "done":
            end(store, take_one(store, "q"))
        elif state == "cancelled":
            store.driver.cancel([id_])
        else:
            clock.advance("1m")
            store.driver.reap(node="one")
        assert store.driver.replay([id_]) == 1
        store.driver.reap(node="one")
        [entry] = take(store, "q")
        assert (entry.id, entry.generation, entry.labels, values([entry])) == (id_, 2, {"a": "1"}, ["x"])
        assert trail(store, id_) == [(1, 1, state)]

    def test_again_and_again(self, store: QueueStore) -> None:
        id_ = put(store, "q", "x")
        for generation in range(1, 6):
            entry = take_one(store, "q")
            assert (entry.generation, entry.attempt, lease_of(entry).fence) == (generation, 1, generation)
            end(store, entry, "done" if generation % 2 else "dead")
            store.driver.replay([id_])
        assert [row[0] for row in trail(store, id_)] == [1, 2, 3, 4, 5]

    def test_a_live_one_is_not_counted(self, store: QueueStore) -> None:
        alive = put(store, "q", "alive")
        buried = bury(store, "r", "dead")
        assert store.driver.replay([alive, buried]) == 1
        assert store.driver.replay([alive, buried]) == 0
        assert living(store, alive).generation == 1

    @pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
    def test_of_many_who_replay_it_at_once_one_does(self, store: QueueStore, open_store: OpenStore, state: str) -> None:
        handles = [store, open_store(node="two"), open_store(node="three")]
        for _ in range(10):
            id_ = put(store, "q")
            if state == "cancelled":
                store.driver.cancel([id_])
            else:
                end(store, take_one(store, "q"), state)
            replayed = in_threads(3, lambda index, id_=id_: handles[index].driver.replay([id_]))  # type: ignore[misc]
            assert sorted(replayed) == [0, 0, 1]
            [entry] = take(store, "q")
            assert (entry.id, entry.generation) == (id_, 2)
            end(store, entry)

    @pytest.mark.parametrize("unknown_first", [True, False])
    def test_unknown_means_none_of_them(self, store: QueueStore, unknown_first: bool) -> None:
        buried = bury(store, "q")
        ids = ["unknown", buried] if unknown_first else [buried, "unknown"]
        with pytest.raises(EntryNotFound, match="unknown"):
            store.driver.replay(ids)
        assert live(store, buried) is None
        assert dead(store, buried).id == buried

    def test_a_purged_letter_is_gone(self, store: QueueStore) -> None:
        id_ = bury(store, "q")
        store.queue("q").purge_dead()
        with pytest.raises(EntryNotFound):
            store.driver.replay([id_])

    def test_a_purged_letter_does_not_fall_back_to_an_older_generation(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"))
        store.driver.replay([id_])
        end(store, take_one(store, "q"), "dead")
        store.queue("q").purge_dead()
        with pytest.raises(EntryNotFound):
            store.driver.replay([id_])
        assert store.driver.find(Find()) == []

    def test_pruned_is_gone(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"))
        clock.advance("8d")
        store.driver.prune(older_than_us=0)
        with pytest.raises(EntryNotFound):
            store.driver.replay([id_])

    def test_the_unique_id_is_taken_again(self, store: QueueStore) -> None:
        id_ = bury(store, "q", unique="u")
        store.driver.replay([id_])
        again = store.queue("q").put("y", unique="u")
        assert (again.id, again.created) == (id_, False)
        end(store, take_one(store, "q"))
        assert store.queue("q").put("y", unique="u").created

    def test_held_by_another_nothing_comes_back(self, store: QueueStore) -> None:
        first = bury(store, "q", "first", unique="u")
        other = bury(store, "q", "other")
        put(store, "q", "holder", unique="u")
        for ids in ([other, first], [first, other]):
            with pytest.raises(UniqueHeld):
                store.driver.replay(ids)
        assert values(store.driver.find(Find())) == ["holder"]
        assert len(store.driver.dead(Find())) == 2

    def test_a_period_is_not_started_again(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = bury(store, "q", "first", unique=Unique("u", period="1h"))
        store.driver.replay([id_])
        clock.advance("2h")
        assert store.queue("q").put("second", unique="u").created
        assert sorted(values(take(store, "q"))) == ["first", "second"]

    def test_it_goes_to_the_tail(self, store: QueueStore) -> None:
        first = bury(store, "q", "first")
        put(store, "q", "second")
        store.driver.replay([first])
        assert values(store.driver.find(Find())) == ["second", "first"]

    def test_after_out_of_attempts_it_has_them_all_again(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q", attempts=1), "retry")
        assert claim(store, "q", attempts=1).dead == (id_,)
        store.driver.replay([id_])
        end(store, take_one(store, "q", attempts=1))
        assert trail(store, id_) == [(1, 1, "retried"), (1, 2, "dead"), (2, 1, "done")]
