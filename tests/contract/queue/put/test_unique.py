"""Unique ids: their scope, how long they are held, and what a second put does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    claim,
    end,
    ending,
    in_threads,
    lease_of,
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
from penstock.errors import BadInput, UniqueHeld
from penstock.queue.entry import Unique
from penstock.queue.protocol import Find, Step
from penstock.queue.queues import QueueStore


class TestConflicts(Contract):
    """Keep, replace or raise."""

    def test_keep_leaves_the_holder_as_it_is(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        first = queue.put("first", unique="u", delay="1h", labels={"a": "1"})
        second = queue.put("second", unique="u", labels={"a": "2"})
        assert (second.id, second.created, second.due_us) == (first.id, False, clock.micros() + 60 * MINUTE)
        [entry] = queue.find()
        assert (values([entry]), entry.labels) == (["first"], {"a": "1"})

    def test_keep_also_while_it_is_leased(self, store: QueueStore) -> None:
        first = put(store, "q", unique="u")
        taken = take_one(store, "q")
        assert store.queue("q").put("y", unique="u").id == first
        end(store, taken)

    def test_raise_changes_nothing(self, store: QueueStore) -> None:
        first = put(store, "q", "first", unique="u")
        with pytest.raises(UniqueHeld, match=first):
            put(store, "q", "second", unique=Unique("u", on_conflict="raise"))
        assert values(store.driver.find(Find())) == ["first"]

    def test_scope_is_the_queue(self, store: QueueStore) -> None:
        assert store.queue("q").put("x", unique="u").created
        assert store.queue("r").put("x", unique="u").created
        assert store.queue("q").put("x", unique="U").created
        assert store.queue("q").put("x", unique="u ").created

    def test_replace_keeps_identity_and_takes_the_rest(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        first = queue.put("first", unique="u", delay="1h", labels={"a": "1"}, headers={"h": "1"}, expires="3h")
        before = living(store, first.id)
        put(store, "q", "between", delay="1h")
        clock.advance("1h")
        end(store, take_one(store, "q"), "retry", delay_us=MINUTE, error="oh")
        assert (living(store, first.id).attempt, living(store, first.id).error) == (1, "oh")
        second = queue.put(
            [2],
            unique=Unique("u", on_conflict="replace"),
            delay="2h",
            labels={"b": "2"},
            headers={"h": "2"},
            priority=4,
        )
        due = clock.micros() + 120 * MINUTE
        assert (second.id, second.created, second.due_us) == (first.id, False, due)
        after = living(store, first.id)
        assert (after.seq, after.created_us, after.generation) == (before.seq, before.created_us, 2)
        assert (values([after]), after.labels, after.headers, after.priority) == ([[2]], {"b": "2"}, {"h": "2"}, 4)
        assert (after.due_us, after.first_due_us, after.expires_us) == (due, due, None)
        assert (after.attempt, after.error, after.unique) == (0, None, "u")
        if store.capabilities.label_search:
            assert queue.find(labels={"a": "1"}) == []
            assert [one.id for one in queue.find(labels={"b": "2"})] == [first.id]

    def test_replace_before_any_attempt_is_the_same_generation(self, store: QueueStore) -> None:
        first = put(store, "q", "first", unique="u")
        put(store, "q", "second", unique=Unique("u", on_conflict="replace"))
        assert (living(store, first).generation, living(store, first).attempt) == (1, 0)

    def test_replace_after_an_attempt_keeps_history_keys_apart(self, store: QueueStore) -> None:
        first = put(store, "q", "first", unique="u")
        end(store, take_one(store, "q"), "retry")
        put(store, "q", "second", unique=Unique("u", on_conflict="replace"))
        end(store, take_one(store, "q"))
        assert trail(store, first) == [(1, 1, "retried"), (2, 1, "done")]

    def test_replace_forgets_suspicion(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "first", unique="u")
        take_one(store, "q")
        clock.advance("2m")
        store.driver.reap(node="one")
        put(store, "q", "second", unique=Unique("u", on_conflict="replace"))
        put(store, "q", "innocent")
        assert sorted(values(take(store, "q"))) == ["innocent", "second"]

    @pytest.mark.parametrize(("before", "after"), [("1h", "0s"), ("0s", "1h")])
    def test_replaced_due_time_decides(self, store: QueueStore, clock: FakeClock, before: str, after: str) -> None:
        queue = store.queue("q")
        queue.put("first", unique="u", delay=before)
        queue.put("second", unique=Unique("u", on_conflict="replace"), delay=after)
        if after == "1h":
            assert take(store, "q") == []
            clock.advance("1h")
        assert values(take(store, "q")) == ["second"]

    @pytest.mark.parametrize("sticky", ["first", "second"])
    def test_replaced_entry_is_found_whatever_lane_the_new_one_named(self, store: QueueStore, sticky: str) -> None:
        queue = store.queue("q")
        queue.put("first", unique="u", delay="1h", sticky=sticky == "first")
        queue.put("second", unique=Unique("u", on_conflict="replace"), sticky=sticky == "second")
        assert values(take(store, "q")) == ["second"]

    def test_replace_of_a_leased_one_raises(self, store: QueueStore) -> None:
        put(store, "q", "first", unique="u")
        taken = take_one(store, "q")
        with pytest.raises(UniqueHeld):
            put(store, "q", "second", unique=Unique("u", on_conflict="replace"))
        assert values(store.driver.find(Find())) == ["first"]
        end(store, taken)

    def test_one_of_many_threads_creates(self, store: QueueStore, open_store: OpenStore) -> None:
        handles = [store, open_store(), open_store(node="two")]
        results = in_threads(9, lambda index: handles[index % 3].queue("q").put(index, unique="u"))
        assert sum(one.created for one in results) == 1
        assert len({one.id for one in results}) == 1
        assert len(store.driver.find(Find())) == 1

    @pytest.mark.parametrize("bad", [{"key": ""}, {"key": "k", "until": "later"}, {"key": "k", "on_conflict": "fight"}])
    def test_bad_unique_is_refused(self, bad: dict[str, str]) -> None:
        with pytest.raises(BadInput):
            Unique(**bad)  # type: ignore[arg-type]


class TestHeldUntilDone(Contract):
    """The default: any final state releases, nothing else does."""

    @pytest.mark.parametrize("final", ["done", "dead", "cancelled", "forced", "expired", "reaped", "out of attempts"])
    def test_every_final_state_releases_in_the_same_step(self, store: QueueStore, clock: FakeClock, final: str) -> None:
        queue = store.queue("q")
        expires = "10m" if final == "expired" else None
        first = queue.put("first", unique="u", expires=expires).id
        if final in ("done", "dead"):
            end(store, take_one(store, "q"), final)  # type: ignore[arg-type]
        elif final == "cancelled":
            queue.cancel(first)
        elif final == "forced":
            take_one(store, "q")
            queue.cancel(first, force=True)
        elif final == "expired":
            clock.advance("10m")
            store.driver.reap(node="one")
        elif final == "reaped":
            take_one(store, "q", attempts=1)
            clock.advance("2m")
            store.driver.reap(node="one")
        else:
            end(store, take_one(store, "q", attempts=1), "retry")
            assert claim(store, "q", attempts=1).dead == (first,)
        assert live(store, first) is None
        second = queue.put("second", unique="u")
        assert second.created
        assert second.id != first

    @pytest.mark.parametrize("outcome", ["retry", "snooze", "release", "reaped"])
    def test_what_lives_on_still_holds(self, store: QueueStore, clock: FakeClock, outcome: str) -> None:
        first = put(store, "q", unique="u")
        taken = take_one(store, "q")
        if outcome == "reaped":
            clock.advance("2m")
            store.driver.reap(node="one")
        else:
            end(store, taken, outcome)  # type: ignore[arg-type]
        again = store.queue("q").put("y", unique="u")
        assert (again.id, again.created) == (first, False)

    def test_ending_and_putting_the_same_unique_id_in_one_step(self, store: QueueStore) -> None:
        put(store, "q", "first", unique="u")
        taken = take_one(store, "q")
        [result] = store.driver.commit(
            Step((ending(taken),), (new("q", "second", unique=Unique("u", on_conflict="raise")),))
        ).puts
        assert result.created
        assert values(store.driver.find(Find())) == ["second"]


class TestHeldUntilStarted(Contract):
    """Released at the first claim."""

    def test_released_at_the_claim(self, store: QueueStore) -> None:
        unique = Unique("u", until="started")
        first = put(store, "q", "first", unique=unique)
        assert not store.queue("q").put("x", unique=unique).created
        taken = take_one(store, "q")
        second = store.queue("q").put("second", unique=unique)
        assert second.created
        end(store, taken, "retry")
        assert not store.queue("q").put("x", unique=unique).created
        end(store, take_one(store, "q"))
        assert live(store, first) is None
        again = store.queue("q").put("x", unique=unique)
        assert (again.id, again.created) == (second.id, False)


class TestHeldForAPeriod(Contract):
    """Held by the store's clock from the put on, whatever the entry does."""

    def test_held_after_the_end_of_the_entry(self, store: QueueStore, clock: FakeClock) -> None:
        unique = Unique("u", period="1h")
        first = put(store, "q", unique=unique)
        end(store, take_one(store, "q"))
        clock.advance("59m 59s")
        store.driver.reap(node="one")
        again = store.queue("q").put("y", unique=unique)
        assert (again.id, again.created) == (first, False)
        replaced = store.queue("q").put("y", unique=Unique("u", period="1h", on_conflict="replace"))
        assert (replaced.id, replaced.created) == (first, False)
        with pytest.raises(UniqueHeld):
            put(store, "q", unique=Unique("u", on_conflict="raise"))
        assert store.driver.find(Find()) == []
        clock.advance("1s")
        assert store.queue("q").put("y", unique=unique).created

    def test_over_while_the_entry_still_lives(self, store: QueueStore, clock: FakeClock) -> None:
        first = put(store, "q", "first", unique=Unique("u", period="1h"), delay="2h")
        clock.advance("1h")
        second = store.queue("q").put("second", unique=Unique("u", period="1h"))
        assert second.created
        assert living(store, first).state == "waiting"
        end(store, take_one(store, "q"))
        assert not store.queue("q").put("x", unique="u").created, "the second one's period goes on"

    def test_replace_within_the_period(self, store: QueueStore) -> None:
        first = put(store, "q", "first", unique=Unique("u", period="1h"))
        second = store.queue("q").put("second", unique=Unique("u", period="1h", on_conflict="replace"))
        assert (second.id, second.created) == (first, False)
        assert values(take(store, "q")) == ["second"]

    def test_the_sweep_of_the_reaper_takes_only_what_is_over(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", unique=Unique("short", period="1m"))
        put(store, "q", unique=Unique("long", period="1h"))
        for entry in take(store, "q"):
            end(store, entry)
        clock.advance("2m")
        store.driver.reap(node="one")
        assert store.queue("q").put("x", unique="short").created
        assert not store.queue("q").put("x", unique="long").created

    def test_leases_do_not_know_of_it(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", unique=Unique("u", period=timedelta(seconds=1)))
        taken = take_one(store, "q")
        clock.advance("2s")
        store.queue("q").put("second", unique="u")
        assert lease_of(taken).fence == 1
        end(store, taken)
        assert values(store.driver.find(Find())) == ["second"]
        assert not store.queue("q").put("x", unique="u").created
