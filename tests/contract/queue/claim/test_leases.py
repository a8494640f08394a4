"""Leases: tokens, fences, extension and heartbeats. Safety never rests on a clock."""

from __future__ import annotations

import threading

import msgspec
import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    PATIENCE,
    SECOND,
    Contract,
    OpenStore,
    dead,
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
)

from penstock.clock import FakeClock
from penstock.errors import LeaseLost
from penstock.queue.entry import Lease
from penstock.queue.protocol import Outcome, Step
from penstock.queue.queues import QueueStore

OUTCOMES: tuple[Outcome, ...] = ("done", "dead", "retry", "snooze", "release")


class TestTokens(Contract):
    """The token decides, never the clock."""

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_run_out_but_not_taken_back_is_still_current(
        self, store: QueueStore, clock: FakeClock, outcome: Outcome
    ) -> None:
        put(store, "q")
        taken = take_one(store, "q", lease="60s")
        clock.advance("1h")
        assert take(store, "q", owner="worker-b") == [], "only the reaper takes a lease back"
        end(store, taken, outcome)

    @pytest.mark.parametrize("outcome", OUTCOMES)
    @pytest.mark.parametrize(
        "meanwhile", ["reaped", "reaped dead", "claimed again", "done by another", "cancelled", "updated"]
    )
    def test_a_stale_owner_changes_nothing(
        self, store: QueueStore, clock: FakeClock, outcome: Outcome, meanwhile: str
    ) -> None:
        id_ = put(store, "q")
        stale = take_one(store, "q", attempts=1 if meanwhile == "reaped dead" else 5)
        if meanwhile == "cancelled":
            store.driver.cancel([id_], force=True)
        elif meanwhile == "updated":
            store.queue("q").update(id_, "other", force=True)
        else:
            clock.advance("2m")
            store.driver.reap(node="one")
            if meanwhile in ("claimed again", "done by another"):
                other = take_one(store, "q", owner="worker-b")
                if meanwhile == "done by another":
                    end(store, other)
        before = live(store, id_), trail(store, id_)
        for repeat in (False, True):
            with pytest.raises(LeaseLost, match=id_):
                store.driver.commit(
                    Step((ending(stale, outcome),), (new("q", "child", id=f"child-{repeat}"),), repeat=repeat)
                )
        assert (live(store, id_), trail(store, id_)) == before
        assert live(store, "child-False") is None
        assert live(store, "child-True") is None
        assert store.driver.extend([lease_of(stale)], MINUTE) == [None]

    def test_an_ended_lease_is_not_current(self, store: QueueStore) -> None:
        for outcome in OUTCOMES:
            id_ = put(store, f"q-{outcome}")
            taken = take_one(store, f"q-{outcome}")
            end(store, taken, outcome)
            before = live(store, id_), trail(store, id_)
            for other in OUTCOMES:
                with pytest.raises(LeaseLost):
                    end(store, taken, other)
            assert store.driver.extend([lease_of(taken)], MINUTE) == [None]
            assert (live(store, id_), trail(store, id_)) == before

    @pytest.mark.parametrize("forged", ["2-claim", "1-other", "", "1", "01-claim"])
    def test_a_forged_token_is_refused(self, store: QueueStore, forged: str) -> None:
        put(store, "q")
        taken = take_one(store, "q", id="claim")
        lease = msgspec.structs.replace(lease_of(taken), token=forged)
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((msgspec.structs.replace(ending(taken), lease=lease),)))
        assert store.driver.extend([lease], MINUTE) == [None]
        end(store, taken)

    def test_one_of_many_racing_endings_wins(self, store: QueueStore, open_store: OpenStore) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q")
        handles = [store, open_store(node="two")]

        def work(index: int) -> bool:
            try:
                end(handles[index % 2], taken, ("done", "dead", "retry")[index % 3])
            except LeaseLost:
                return False
            return True

        assert sum(in_threads(6, work)) == 1
        assert len(trail(store, id_)) == 1

    def test_reaper_and_late_finish_race_to_one_outcome(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(20))
        taken = take(store, "q", attempts=1)
        clock.advance("2m")

        def work(index: int) -> int:
            if index == 0:
                return len(store.driver.reap(node="one").dead)
            done = 0
            for entry in taken:
                try:
                    end(store, entry)
                    done += 1
                except LeaseLost:
                    continue
            return done

        assert sum(in_threads(2, work)) == 20
        assert [len(trail(store, entry.id)) for entry in taken] == [1] * 20


class TestFences(Contract):
    """The fence rises with every claim, whatever happens between, and is never reused."""

    def test_fence_rises_through_everything(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        fences = []

        def next_claim() -> Lease:
            entry = take_one(store, "q", attempts=None)
            fences.append(lease_of(entry).fence)
            assert lease_of(entry).token.startswith(f"{fences[-1]}-")
            self.entry = entry
            return lease_of(entry)

        for outcome in ("retry", "snooze", "release"):
            next_claim()
            end(store, self.entry, outcome)
        next_claim()
        clock.advance("2m")
        store.driver.reap(node="one")
        next_claim()
        store.queue("q").update(id_, "new", force=True)
        next_claim()
        end(store, self.entry, "dead")
        store.driver.replay([id_])
        next_claim()
        end(store, self.entry)
        store.driver.replay([id_])
        next_claim()
        store.queue("q").cancel(id_, force=True)
        store.driver.replay([id_])
        next_claim()
        assert fences == list(range(1, len(fences) + 1))

    def test_an_old_generations_token_is_stale(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        old = take_one(store, "q", id="same-claim")
        end(store, old, "dead")
        store.driver.replay([id_])
        take_one(store, "q", id="same-claim")
        with pytest.raises(LeaseLost):
            end(store, old)
        assert living(store, id_).state == "leased"


class TestExtending(Contract):
    """Extending goes by the token too."""

    def test_extend_prolongs_from_now(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q", lease="60s")
        clock.advance("50s")
        assert store.driver.extend([lease_of(taken)], MINUTE) == [clock.micros() + MINUTE]
        assert lease_of(living(store, id_)).until_us == clock.micros() + MINUTE
        clock.advance("59s")
        assert store.driver.reap(node="one").reaped == []
        clock.advance("2s")
        assert len(store.driver.reap(node="one").reaped) == 1

    def test_a_run_out_lease_can_be_extended_until_it_is_taken_back(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q")
        taken = take_one(store, "q")
        clock.advance("1h")
        assert store.driver.extend([lease_of(taken)], MINUTE) == [clock.micros() + MINUTE]
        assert store.driver.reap(node="one").reaped == []

    def test_each_lease_gets_its_own_answer(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(3))
        first, second, third = take(store, "q")
        end(store, second)
        until = clock.micros() + 90 * SECOND
        assert store.driver.extend([lease_of(first), lease_of(second), lease_of(third)], 90 * SECOND) == [
            until,
            None,
            until,
        ]
        assert store.driver.extend([], MINUTE) == []

    def test_a_stale_owner_does_not_prolong_anothers_lease(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        stale = take_one(store, "q")
        clock.advance("2m")
        store.driver.reap(node="one")
        current = take_one(store, "q", owner="worker-b")
        assert store.driver.extend([lease_of(stale)], 60 * MINUTE) == [None]
        assert lease_of(living(store, id_)).until_us == lease_of(current).until_us


class TestHeartbeat(Contract):
    """Leases in hand are extended by themselves; a lost one is told."""

    def test_held_leases_are_extended(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        beaten = threading.Event()
        store.signals.subscribe(lambda signal: beaten.set() if id_ in signal.ids else None, "extended")
        taken = take_one(store, "q", lease="150ms")
        store.driver.heartbeat.hold([lease_of(taken)], 150_000)
        clock.advance("100ms")
        beaten.clear()
        assert beaten.wait(PATIENCE)
        store.driver.heartbeat.drop([lease_of(taken)])
        assert lease_of(living(store, id_)).until_us == clock.micros() + 150_000

    def test_a_lost_lease_is_told_once(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q", lease="90ms")
        lost: list[Lease] = []
        told = threading.Event()

        def on_lost(lease: Lease) -> None:
            lost.append(lease)
            told.set()

        store.driver.heartbeat.hold([lease_of(taken)], 90_000, on_lost)
        store.queue("q").cancel(id_, force=True)
        assert told.wait(PATIENCE)
        assert lost == [lease_of(taken)]

    def test_lease_lost_is_a_signal(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q")
        store.queue("q").cancel(id_, force=True)
        told: list[tuple[str, ...]] = []
        store.signals.subscribe(lambda signal: told.append((*signal.ids, signal.data["outcome"])), "lease_lost")
        with pytest.raises(LeaseLost):
            end(store, taken)
        store.driver.extend([lease_of(taken)], MINUTE)
        assert told == [(id_, "done"), (id_, "extend")]

    def test_dead_letters_hold_no_lease(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "dead", error="no")
        assert dead(store, id_).lease is None
