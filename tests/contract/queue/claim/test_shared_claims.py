"""Entries that were claimed together and end apart: what happens to one of them is no other's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    SECOND,
    Contract,
    ending,
    lease_of,
    living,
    put,
    take,
)

from penstock.clock import FakeClock
from penstock.errors import LeaseLost
from penstock.queue.protocol import Find, Outcome, Step, StepDone
from penstock.queue.queues import QueueStore

OUTCOMES: tuple[Outcome, ...] = ("done", "dead", "retry", "snooze", "release")
ENDS: tuple[Outcome, ...] = ("done", "dead", "retry")
STATES = {"done": "done", "dead": "dead", "retry": "retried"}


def claimed(store: QueueStore, count: int, **options: Any) -> list[Any]:
    """So many entries of one claim."""
    for number in range(count):
        put(store, "q", number)
    entries = take(store, "q", limit=count, **options)
    assert len(entries) == count
    return entries


class TestSharedClaims(Contract):
    """A claim of several entries."""

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_one_ends_and_the_others_are_held_as_before(self, store: QueueStore, outcome: Outcome) -> None:
        first, *others = claimed(store, 4)
        store.driver.commit(Step((ending(first, outcome),)))
        for entry in others:
            assert living(store, entry.id).state == "leased"
            assert lease_of(living(store, entry.id)) == lease_of(entry)
        assert [type(result) for result in store.driver.settle([Step((ending(one),)) for one in others]).results] == [
            StepDone
        ] * 3

    def test_those_that_are_not_named_by_a_heartbeat_run_out(self, store: QueueStore, clock: FakeClock) -> None:
        named, silent, also_named = claimed(store, 3, lease="60s")
        clock.advance("50s")
        ends = store.driver.extend([named.lease, also_named.lease], MINUTE)
        assert ends == [store.now() + MINUTE] * 2
        assert lease_of(living(store, silent.id)).until_us == silent.lease.until_us
        clock.advance("20s")
        assert store.driver.reap(node="one").reaped == [(silent.id, "q")]
        assert [
            type(one) for one in store.driver.settle([Step((ending(entry),)) for entry in (named, also_named)]).results
        ] == [StepDone] * 2
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((ending(silent),)))

    def test_one_is_extended_beyond_the_others(self, store: QueueStore, clock: FakeClock) -> None:
        long, short = claimed(store, 2, lease="60s")
        [end] = store.driver.extend([long.lease], 10 * MINUTE)
        assert end == store.now() + 10 * MINUTE
        assert store.driver.extend([long.lease, short.lease], MINUTE) == [store.now() + MINUTE] * 2
        assert lease_of(living(store, long.id)).until_us == end, "never shortened"
        clock.advance("2m")
        assert store.driver.reap(node="one").reaped == [(short.id, "q")]
        store.driver.commit(Step((ending(long),)))

    def test_one_is_taken_away_by_force(self, store: QueueStore) -> None:
        one, forced, other = claimed(store, 3)
        store.driver.cancel([forced.id], force=True)
        results = store.driver.settle([Step((ending(entry),)) for entry in (one, forced, other)]).results
        assert [type(result) for result in results] == [StepDone, LeaseLost, StepDone]

    def test_a_unit_over_some_of_them_is_whole(self, store: QueueStore) -> None:
        entries = claimed(store, 4)
        store.driver.cancel([entries[0].id], force=True)
        with pytest.raises(LeaseLost):
            store.driver.commit(Step(tuple(ending(entry) for entry in entries[:3])))
        assert all(living(store, entry.id).state == "leased" for entry in entries[1:])
        store.driver.commit(Step(tuple(ending(entry) for entry in entries[1:3])))
        assert [entry.id for entry in store.driver.find(Find())] == [entries[3].id]

    @pytest.mark.parametrize("seed", range(5))
    def test_any_order_of_endings_ends_each_once(self, store: QueueStore, clock: FakeClock, seed: int) -> None:
        """Groups of random size with random outcomes, extensions in between: every attempt is recorded once."""
        chance = random.Random(seed)
        entries = claimed(store, 12)
        chance.shuffle(entries)
        expected: list[tuple[str, str]] = []
        while entries:
            count = chance.randint(1, min(5, len(entries)))
            group, entries = entries[:count], entries[count:]
            outcomes: list[Outcome] = [chance.choice(ENDS) for _ in group]
            endings = [ending(entry, outcome, delay_us=SECOND) for entry, outcome in zip(group, outcomes, strict=True)]
            steps = [Step((one,)) for one in endings]
            assert [type(result) for result in store.driver.settle(steps).results] == [StepDone] * count
            expected += [(entry.id, STATES[outcome]) for entry, outcome in zip(group, outcomes, strict=True)]
            assert None not in store.driver.extend([entry.lease for entry in entries], MINUTE)
            again = store.driver.settle(steps).results
            assert all(isinstance(result, LeaseLost) for result in again), "ended is ended"
        if store.capabilities.full_history:
            assert sorted((row.id, row.state) for row in store.driver.history(Find())) == sorted(expected)
        assert {entry.id for entry in store.driver.find(Find())} == {
            id_ for id_, state in expected if state == "retried"
        }
