"""Reaping: what becomes of leases that ran out, and of entries whose worker vanished."""

from __future__ import annotations

from datetime import timedelta

import pytest
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
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.queue.protocol import Find, Source
from penstock.queue.queues import QueueStore
from penstock.queue.worker.maintenance import Reaper


def reaped(store: QueueStore, clock: FakeClock, queue: str = "q", **options: object) -> None:
    """Claim everything of a queue and let the leases run out."""
    take(store, queue, **options)
    clock.advance("2m")
    store.driver.reap(node="one")


class TestReaping(Contract):
    """Run-out leases come back, or end."""

    def test_attempts_left_means_waiting_and_due_now(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        first_due = clock.micros()
        taken = take_one(store, "q", lease="60s", owner="vanished")
        clock.advance("61s")
        found = store.driver.reap(node="one")
        assert (found.reaped, found.dead, found.expired) == ([(id_, "q")], [], [])
        entry = living(store, id_)
        assert (entry.state, entry.attempt, entry.due_us, entry.lease) == ("waiting", 1, clock.micros(), None)
        assert entry.first_due_us == first_due
        [row] = store.driver.history(Find(ids=(id_,)))
        assert (row.state, row.attempt, row.owner, row.payload) == ("reaped", 1, "vanished", b'"x"')
        assert (row.started_us, row.ended_us) == (lease_of(taken).claimed_us, clock.micros())
        assert row.error == "lease ran out"

    def test_not_before_the_time_is_over(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q")
        take_one(store, "q", lease="60s")
        clock.advance(timedelta(seconds=59, microseconds=999_999))
        assert store.driver.reap(node="one").reaped == []
        clock.advance(timedelta(microseconds=2))
        assert len(store.driver.reap(node="one").reaped) == 1

    def test_no_attempts_left_means_dead(self, store: QueueStore, clock: FakeClock) -> None:
        """The bound went with the lease: this reaper never heard of the handler."""
        id_ = put(store, "q", "poison")
        take_one(store, "q", attempts=1)
        clock.advance("2m")
        found = store.driver.reap(node="another")
        assert (found.reaped, found.dead) == ([], [(id_, "q")])
        assert trail(store, id_) == [(1, 1, "dead")]
        letter = dead(store, id_)
        assert (letter.error, values([letter])) == ("lease ran out", ["poison"])

    def test_a_dead_letter_that_a_reaper_makes_is_logged(
        self, store: QueueStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        id_ = put(store, "q", "poison")
        take_one(store, "q", attempts=1)
        clock.advance("2m")
        Reaper(store).once()
        [line] = [one for one in caplog.records if one.name.startswith("penstock")]
        assert line.levelname == "WARNING"
        assert f"entry {id_} of queue 'q'" in line.getMessage()
        assert "dead letter" in line.getMessage()

    def test_without_a_bound_it_always_comes_back(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        for _ in range(8):
            reaped(store, clock, attempts=None)
        assert living(store, id_).attempt == 8

    def test_an_entry_that_kills_every_worker_ends_as_a_dead_letter(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        starts = 0
        for _ in range(6):
            starts += len(take(store, "q", attempts=3))
            clock.advance("2m")
            store.driver.reap(node="one")
        assert starts == 3
        assert trail(store, id_) == [(1, 1, "reaped"), (1, 2, "reaped"), (1, 3, "dead")]

    def test_each_is_reaped_once_by_many_reapers(
        self, store: QueueStore, open_store: OpenStore, clock: FakeClock
    ) -> None:
        store.queue("q").put_many(range(40))
        taken = take(store, "q")
        clock.advance("2m")
        handles = [store, open_store(node="two")]
        found = in_threads(4, lambda index: handles[index % 2].driver.reap(node="one").reaped)
        assert sorted(id_ for some in found for id_, _ in some) == sorted(one.id for one in taken)
        assert len(store.driver.history(Find())) == 40

    def test_limit(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(5))
        take(store, "q")
        clock.advance("2m")
        assert len(store.driver.reap(node="one", limit=2).reaped) == 2
        assert len(store.driver.reap(node="one", limit=9).reaped) == 3

    def test_expired_entries_are_swept(self, store: QueueStore, clock: FakeClock) -> None:
        waiting = put(store, "q", "w", expires="1m")
        late = put(store, "q", "l", expires="1m", delay="1h")
        retried = put(store, "r", "r", expires="1m")
        end(store, take_one(store, "r"), "retry", delay_us=3600 * 1_000_000)
        leased = put(store, "s", "s", expires="1m")
        take_one(store, "s", lease="1h")
        keeper = put(store, "q", "k", expires="2m")
        clock.advance("1m")
        found = store.driver.reap(node="one")
        assert sorted(found.expired) == sorted([(waiting, "q"), (late, "q"), (retried, "r")])
        assert trail(store, waiting) == [(1, 1, "expired")]
        assert trail(store, retried) == [(1, 1, "retried"), (1, 2, "expired")]
        [row] = store.driver.history(Find(ids=(waiting,)))
        assert (row.started_us, row.payload, row.ended_us) == (None, b'"w"', clock.micros())
        assert living(store, leased).state == "leased"
        assert live(store, keeper) is not None
        assert store.driver.dead(Find()) == []

    def test_signals_tell_what_was_found(self, store: QueueStore, clock: FakeClock) -> None:
        told: list[tuple[str, str, int]] = []
        store.signals.subscribe(
            lambda one: told.append((one.kind, one.queue, len(one.ids))), "reaped", "expired", "settled"
        )
        put(store, "q")
        put(store, "q")
        put(store, "r")
        put(store, "s", expires="1m", delay="1h")
        take(store, "q")
        take(store, "r", attempts=1)
        clock.advance("2m")
        store.driver.reap(node="one")
        assert sorted(told) == [("expired", "s", 1), ("reaped", "q", 2), ("settled", "r", 1)]


class TestSuspects(Contract):
    """An entry whose last lease was reaped is handed out by itself."""

    def test_alone_it_is_all_that_comes(self, store: QueueStore, clock: FakeClock) -> None:
        suspect = put(store, "q", "suspect")
        reaped(store, clock)
        put(store, "q", "innocent", priority=50)
        put(store, "r", "innocent too")
        got = claim(store, "q", "r")
        assert (values(got.entries), got.suspect, got.suspect_waits) == (["suspect"], True, False)
        assert got.entries[0].attempt == 2
        end(store, got.entries[0])
        after = claim(store, "q", "r")
        assert (sorted(values(after.entries)), after.suspect) == (["innocent", "innocent too"], False)
        assert trail(store, suspect) == [(1, 1, "reaped"), (1, 2, "done")]

    def test_not_alone_nothing_comes(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "suspect")
        reaped(store, clock)
        put(store, "q", "innocent")
        got = claim(store, "q", alone=False)
        assert (got.entries, got.suspect_waits, got.suspect) == ([], True, False)

    def test_several_come_one_by_one(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many([1, 2, 3])
        reaped(store, clock)
        seen = []
        for _ in range(3):
            [entry] = take(store, "q")
            seen.append(entry)
        assert sorted(values(seen)) == [1, 2, 3]

    @pytest.mark.parametrize("outcome", ["retry", "snooze"])
    def test_one_outcome_clears_it(self, store: QueueStore, clock: FakeClock, outcome: str) -> None:
        put(store, "q", "once suspect")
        reaped(store, clock)
        end(store, take_one(store, "q"), outcome)  # type: ignore[arg-type]
        put(store, "q", "innocent")
        got = claim(store, "q", alone=False)
        assert (sorted(values(got.entries)), got.suspect_waits) == (["innocent", "once suspect"], False)

    def test_a_released_suspect_stays_one(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "suspect")
        reaped(store, clock)
        end(store, take_one(store, "q"), "release")
        put(store, "q", "innocent")
        assert claim(store, "q", alone=False).suspect_waits
        got = claim(store, "q")
        assert (values(got.entries), got.suspect) == (["suspect"], True)

    def test_one_taken_away_by_force_is_none(self, store: QueueStore, clock: FakeClock) -> None:
        """Its last lease was voided, not reaped."""
        id_ = put(store, "q", "once suspect")
        reaped(store, clock)
        take_one(store, "q")
        store.queue("q").update(id_, "updated", force=True)
        put(store, "q", "innocent")
        got = claim(store, "q", alone=False)
        assert (sorted(values(got.entries)), got.suspect_waits) == (["innocent", "updated"], False)

    def test_a_suspect_that_is_reaped_again_stays_one(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "suspect")
        reaped(store, clock)
        reaped(store, clock)
        put(store, "q", "innocent")
        assert values(take(store, "q")) == ["suspect"]

    @pytest.mark.parametrize("why", ["other queue", "locked", "other node", "rescheduled", "no room"])
    def test_one_that_cannot_come_holds_nobody_up(self, store: QueueStore, clock: FakeClock, why: str) -> None:
        id_ = put(store, "q", "suspect", sticky="two" if why == "other node" else False)
        reaped(store, clock, node="two" if why == "other node" else None)
        sources = [Source("q", 9), Source("r", 9)]
        if why == "other queue":
            sources = [Source("r", 9)]
        elif why == "locked":
            store.driver.lock("q", "me")
        elif why == "rescheduled":
            store.queue("q").reschedule(id_, delay="1h")
        elif why == "no room":
            sources = [Source("r", 9), Source("q", 0)]
        put(store, "r", "innocent")
        got = claim(store, sources=sources, alone=False)
        assert (values(got.entries), got.suspect_waits) == (["innocent"], False)

    def test_without_attempts_left_it_is_dead_at_the_claim(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", "suspect")
        reaped(store, clock)
        got = claim(store, "q", attempts=1)
        assert (got.entries, got.dead) == ([], (id_,))
        assert trail(store, id_) == [(1, 1, "reaped"), (1, 2, "dead")]

    def test_an_expired_one_expires_at_the_claim(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", "suspect", expires="10m")
        reaped(store, clock)
        clock.advance("10m")
        assert take(store, "q") == []
        assert trail(store, id_) == [(1, 1, "reaped"), (1, 2, "expired")]

    def test_it_counts_as_ready_and_is_found_as_waiting(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "suspect")
        reaped(store, clock)
        assert store.queue("q").counts().ready == 1
        assert values(store.queue("q").find(state="waiting")) == ["suspect"]

    def test_it_can_be_cancelled_updated_and_prioritised(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.put("a")
        queue.put("b")
        reaped(store, clock)
        first, second = queue.find()
        queue.cancel(first.id)
        queue.update(second.id, "B", labels={"x": "y"})
        assert values(take(store, "q")) == ["B"]
