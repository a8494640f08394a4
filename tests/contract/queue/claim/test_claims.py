"""Claims: what is handed out, to whom, how much, and when to look again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.contract.queue.shorthand import (
    MINUTE,
    SECOND,
    Contract,
    OpenStore,
    claim,
    dead,
    end,
    ending,
    ids,
    in_threads,
    lease_of,
    live,
    living,
    new,
    put,
    request,
    take,
    take_one,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.queue.protocol import Find, Source, Step
from penstock.queue.queues import QueueStore


class TestClaims(Contract):
    """One claim."""

    def test_claim_leases_and_counts_the_attempt(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        [entry] = claim(store, "q", owner="me", id="claim-1", lease="90s").entries
        lease = lease_of(entry)
        assert (entry.id, entry.state, entry.attempt, entry.generation) == (id_, "leased", 1, 1)
        assert (lease.entry, lease.queue, lease.owner, lease.fence, lease.token) == (id_, "q", "me", 1, "1-claim-1")
        assert (lease.claimed_us, lease.until_us) == (clock.micros(), clock.micros() + 90 * SECOND)
        seen = living(store, id_)
        assert (seen.state, seen.attempt) == ("leased", 1)
        assert lease_of(seen).token == lease.token
        assert trail(store, id_) == []

    def test_nobody_claims_it_twice(self, store: QueueStore, open_store: OpenStore) -> None:
        put(store, "q")
        assert len(take(store, "q")) == 1
        assert take(store, "q") == []
        assert take(open_store(node="two"), "q", owner="worker-b") == []

    def test_not_before_it_is_due(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", delay="10s")
        clock.advance("9999ms")
        assert take(store, "q") == []
        clock.advance("1ms")
        assert len(take(store, "q")) == 1

    def test_due_long_before_the_clocks_were_wound_up(self, store: QueueStore) -> None:
        put(store, "q", "old", due=datetime(1911, 1, 1, tzinfo=UTC))
        put(store, "q", "new")
        assert values(take(store, "q")) == ["old", "new"]

    def test_waiting_long_holds_no_lease(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", delay="10m")
        for _ in range(10):
            assert take(store, "q", lease="60s") == []
            clock.advance("60s")
            assert store.driver.reap(node="one").reaped == []
        assert take_one(store, "q").attempt == 1
        assert trail(store, id_) == []

    def test_only_the_queues_asked_for(self, store: QueueStore) -> None:
        put(store, "q", "q")
        put(store, "r", "r")
        assert take(store, "s") == []
        assert values(take(store, "r")) == ["r"]
        assert values(take(store, "q", "s")) == ["q"]

    def test_limits_of_claim_and_source(self, store: QueueStore) -> None:
        for name in ("q", "r"):
            store.queue(name).put_many(range(10))
        taken = take(store, sources=[Source("q", 2), Source("r", 3)], limit=100)
        assert sorted(entry.queue for entry in taken) == ["q"] * 2 + ["r"] * 3
        assert len(take(store, "q", "r", limit=4)) == 4

    def test_a_familys_limit_is_for_the_family_together(self, store: QueueStore) -> None:
        for name in ("f.1", "f.2", "f.3"):
            store.queue(name).put_many(range(5))
        assert len(take(store, sources=[Source("f.", 4, family=True)])) == 4

    def test_threads_and_handles_claim_apart(self, store: QueueStore, open_store: OpenStore) -> None:
        store.queue("q").put_many(range(120))
        handles = [store, open_store(node="two")]

        def work(index: int) -> list[str]:
            mine: list[str] = []
            while got := take(handles[index % 2], "q", limit=7, owner=f"worker-{index}"):
                mine += ids(got)
            return mine

        taken = [id_ for mine in in_threads(6, work) for id_ in mine]
        assert len(taken) == len(set(taken)) == 120

    def test_steps_come_before_the_claim_of_the_same_call(self, store: QueueStore) -> None:
        first = put(store, "q", "first", priority=1)
        taken = take_one(store, "q")
        steps = [Step((ending(taken),)), Step(puts=(new("q", "second"),))]
        reply = store.driver.settle(steps, request(store, "q"))
        assert values(reply.claimed.entries) == ["second"]
        assert live(store, first) is None

    def test_the_same_call_may_claim_what_it_gives_back(self, store: QueueStore) -> None:
        put(store, "q")
        taken = take_one(store, "q")
        reply = store.driver.settle([Step((ending(taken, "retry"),))], request(store, "q"))
        [again] = reply.claimed.entries
        assert (again.attempt, lease_of(again).fence) == (2, 2)

    def test_reply_tells_the_stores_time(self, store: QueueStore, clock: FakeClock) -> None:
        assert store.driver.settle([]).now_us == clock.micros()
        clock.advance("3s")
        assert store.driver.settle([], request(store, "q")).now_us == clock.micros()


class TestAttempts(Contract):
    """The bound on handler starts is kept by the store."""

    def test_out_of_attempts_is_dead_instead_of_handed_out(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", "poor", labels={"a": "1"})
        for _ in range(2):
            end(store, take_one(store, "q", attempts=2), "retry")
        other = put(store, "q", "next")
        got = claim(store, "q", attempts=2)
        assert (ids(got.entries), got.dead) == ([other], (id_,))
        assert trail(store, id_) == [(1, 1, "retried"), (1, 2, "retried"), (1, 3, "dead")]
        assert store.driver.history(Find(ids=(id_,)))[-1].started_us is None
        letter = dead(store, id_)
        assert (letter.error, letter.labels, values([letter])) == ("no attempts left", {"a": "1"}, ["poor"])
        assert letter.ended_us == clock.micros()

    def test_none_is_without_end(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        for attempt in range(1, 13):
            taken = take_one(store, "q", attempts=None)
            assert taken.attempt == attempt
            end(store, taken, "retry")
        assert len(trail(store, id_)) == 12

    def test_once_is_at_most_one_start(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        take_one(store, "q", attempts=1)
        clock.advance("2m")
        store.driver.reap(node="one")
        assert take(store, "q", attempts=1) == []
        assert trail(store, id_) == [(1, 1, "dead")]

    def test_snooze_and_release_spend_nothing(self, store: QueueStore) -> None:
        put(store, "q")
        for _ in range(4):
            end(store, take_one(store, "q", attempts=1), "snooze")
            end(store, take_one(store, "q", attempts=1), "release")
        assert take_one(store, "q", attempts=1).attempt == 1

    def test_each_source_brings_its_own_bound(self, store: QueueStore) -> None:
        for name in ("q", "f.1"):
            put(store, name, name)
        for entry in take(store, "q", "f.1"):
            end(store, entry, "retry")
        got = claim(store, sources=[Source("q", 9, attempts=1), Source("f.", 9, attempts=2, family=True)])
        assert values(got.entries) == ["f.1"]
        assert len(got.dead) == 1


class TestExpiryAtTheClaim(Contract):
    """Expired entries are met on the way and end."""

    def test_expired_is_not_handed_out(self, store: QueueStore, clock: FakeClock) -> None:
        old = put(store, "q", "old", expires="10s")
        put(store, "q", "fresh")
        clock.advance("10s")
        assert values(take(store, "q")) == ["fresh"]
        assert trail(store, old) == [(1, 1, "expired")]
        [row] = store.driver.history(Find(ids=(old,)))
        assert (row.started_us, row.owner, row.payload) == (None, None, b'"old"')

    def test_expired_ones_do_not_let_lower_priorities_go_first(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "first", priority=5)
        put(store, "q", "expired", priority=5, expires="10s")
        put(store, "q", "low")
        clock.advance("10s")
        put(store, "q", "second", priority=5)
        assert values(take(store, "q", limit=2)) == ["first", "second"]

    def test_just_before_expiry_it_is(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", expires="10s")
        clock.advance("9999ms")
        taken = take_one(store, "q")
        clock.advance("1h")
        end(store, taken)

    def test_a_retry_beyond_expiry_expires(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", expires="1m")
        end(store, take_one(store, "q"), "retry", delay_us=2 * MINUTE)
        clock.advance("2m")
        assert take(store, "q") == []
        assert trail(store, id_) == [(1, 1, "retried"), (1, 2, "expired")]


class TestRepeatedClaims(Contract):
    """A claim whose reply was lost is asked again."""

    def test_the_same_leases_come_again_before_anything_new(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(3))
        wish = request(store, "q", limit=2)
        first = store.driver.claim(wish).entries
        again = store.driver.claim(msgspec.structs.replace(wish, repeat=True)).entries
        assert [(one.id, lease_of(one).token, one.attempt) for one in again] == [
            (one.id, lease_of(one).token, 1) for one in first
        ]
        for entry in again:
            end(store, entry)
        assert len(take(store, "q")) == 1

    def test_what_was_settled_meanwhile_does_not_come_again(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(2))
        wish = request(store, "q")
        first, second = store.driver.claim(wish).entries
        end(store, first)
        assert ids(store.driver.claim(msgspec.structs.replace(wish, repeat=True)).entries) == [second.id]

    def test_a_repeat_of_a_claim_that_never_arrived_claims(self, store: QueueStore) -> None:
        put(store, "q")
        assert take_one(store, "q", repeat=True).attempt == 1

    def test_another_owner_does_not_get_them(self, store: QueueStore) -> None:
        put(store, "q")
        wish = request(store, "q", owner="worker-a")
        store.driver.claim(wish)
        assert store.driver.claim(msgspec.structs.replace(wish, owner="worker-b", repeat=True)).entries == []


class TestWhenToLookAgain(Contract):
    """``next_us`` may be early, never late."""

    def test_nothing_there(self, store: QueueStore) -> None:
        assert claim(store, "q").next_us is None

    def test_only_other_queues(self, store: QueueStore) -> None:
        put(store, "other", delay="1s")
        assert claim(store, "q").next_us is None

    def test_never_later_than_what_can_be_claimed(self, store: QueueStore, clock: FakeClock) -> None:
        for delay in ("5m", "3s", "1h"):
            put(store, "q", delay=delay)
        put(store, "r", delay="2s", priority=-5)
        put(store, "f.1", delay="1s")
        sources = [Source("q", 9), Source("r", 9), Source("f.", 9, family=True)]
        seen = 0
        for _ in range(30):
            got = claim(store, sources=sources, limit=9)
            seen += len(got.entries)
            if seen == 5:
                break
            assert got.next_us is not None
            self.check_nothing_is_missed(store, clock, got.next_us, sources)
        assert seen == 5
        assert claim(store, sources=sources).next_us is None

    def check_nothing_is_missed(self, store: QueueStore, clock: FakeClock, upcoming: int, sources: Any) -> None:
        """Nothing that waits is due before ``upcoming``; then move there."""
        waiting = [one.due_us for one in store.driver.find(Find(states=("waiting",)))]
        assert upcoming <= max(min(waiting), clock.micros())
        if upcoming > clock.micros():
            clock.set(min(one.due for one in store.driver.find(Find(states=("waiting",)))))

    def test_more_than_the_limit_says_now(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(3))
        got = claim(store, "q", limit=2)
        assert got.next_us is not None
        assert got.next_us <= clock.micros()

    def test_a_source_without_room_leaves_something(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(3))
        got = claim(store, sources=[Source("q", 1)], limit=10)
        assert len(got.entries) == 1
        assert got.next_us is not None
        assert got.next_us <= clock.micros()

    def test_a_retry_brings_it_forward(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "late", delay="1h")
        put(store, "q", "now")
        end(store, take_one(store, "q"), "retry", delay_us=MINUTE)
        assert claim(store, "q").next_us == clock.micros() + MINUTE

    def test_full_sources_do_not_hide_the_familys_others(self, store: QueueStore, clock: FakeClock) -> None:
        """However many queues wait longer but belong to a source without room, the rest of the family is served."""
        for name in ("f.1", "f.2", "f.3", "f.x.1", "f.x.2"):
            store.queue(name).put_many(range(3))
        clock.advance("1m")
        put(store, "f.other", "served")
        put(store, "f.other", "later", delay="1m")
        sources = [Source(f"f.{number}", 0) for number in (1, 2, 3)]
        sources += [Source("f.x.", 0, family=True), Source("f.", 1, family=True)]
        assert values(take(store, sources=sources, limit=1)) == ["served"]
        got = claim(store, sources=sources, limit=1)
        assert (got.entries, got.next_us) == ([], clock.micros() + MINUTE), "what has no room is nothing to wake up for"

    def test_one_full_queue_does_not_hide_the_familys_others(self, store: QueueStore) -> None:
        """A named queue that waits longest but has no room left takes no place from the rest of the family."""
        store.queue("f.named").put_many(range(10))
        store.queue("f.other").put_many(range(10))
        taken = take(store, sources=[Source("f.named", 1), Source("f.", 9, family=True)], limit=6)
        assert sorted(entry.queue for entry in taken) == ["f.named"] + ["f.other"] * 5
