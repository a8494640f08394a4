"""Settling: what each outcome leaves behind, and steps that happen whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
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
    request,
    take,
    take_one,
    tally,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict, LeaseLost, PenstockError, UniqueHeld
from penstock.queue.entry import Unique
from penstock.queue.protocol import Changes, Find, NewEntry, NewEvent, Step, StepDone, Subscription
from penstock.queue.queues import QueueStore


class TestOutcomes(Contract):
    """The table of endings."""

    def test_done_ends_with_a_row_that_tells_all(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q", {"n": 1}, labels={"a": "1"}, headers={"h": "2"}, delay="1m")
        created, due = clock.micros(), clock.micros() + MINUTE
        clock.advance("2m")
        taken = take_one(store, "q", owner="me")
        clock.advance("5s")
        started = clock.micros() - 2 * SECOND
        end(store, taken, started_us=started)
        assert live(store, id_) is None
        [row] = store.driver.history(Find(ids=(id_,)))
        assert (row.id, row.queue, row.generation, row.attempt, row.state) == (id_, "q", 1, 1, "done")
        assert (row.owner, row.created_us, row.due_us) == ("me", created, due)
        assert (row.started_us, row.ended_us, row.error) == (started, clock.micros(), None)
        assert (row.labels, row.headers, row.codec, row.type) == ({"a": "1"}, {"h": "2"}, "json", "Any")
        assert row.payload == b'{"n":1}'
        assert store.driver.dead(Find()) == []

    def test_without_a_start_the_claim_counts_as_one(self, store: QueueStore, clock: FakeClock) -> None:
        for outcome in ("done", "dead", "retry"):
            id_ = put(store, f"q-{outcome}")
            taken = take_one(store, f"q-{outcome}")
            clock.advance("5s")
            end(store, taken, outcome)
            assert store.driver.history(Find(ids=(id_,)))[0].started_us == lease_of(taken).claimed_us, outcome

    def test_dead_keeps_the_entry_whole(self, store: QueueStore, clock: FakeClock) -> None:
        before = living(store, put(store, "q", {"n": 1}, labels={"a": "1"}, headers={"h": "2"}, priority=3, unique="u"))
        taken = take_one(store, "q")
        clock.advance("5s")
        end(store, taken, "dead", error="broken")
        assert live(store, before.id) is None
        letter = dead(store, before.id)
        assert (letter.state, letter.error, letter.ended_us) == ("dead", "broken", clock.micros())
        for field in ("payload", "codec", "type", "labels", "headers", "priority", "created_us", "due_us", "unique"):
            assert getattr(letter, field) == getattr(before, field), field
        assert (letter.attempt, letter.generation) == (1, 1)
        [row] = store.driver.history(Find(ids=(before.id,)))
        assert (row.state, row.error, row.payload) == ("dead", "broken", b'{"n":1}')

    @pytest.mark.parametrize("by_due", [False, True])
    def test_retry_waits_and_leaves_a_row(self, store: QueueStore, clock: FakeClock, by_due: bool) -> None:
        id_ = put(store, "q")
        first_due = clock.micros()
        taken = take_one(store, "q")
        clock.advance("1s")
        due = clock.micros() + 90 * SECOND
        when: dict[str, Any] = {"due_us": due} if by_due else {"delay_us": 90 * SECOND}
        end(store, taken, "retry", error="oh", **when)
        entry = living(store, id_)
        assert (entry.state, entry.attempt, entry.error, entry.lease) == ("waiting", 1, "oh", None)
        assert (entry.due_us, entry.first_due_us) == (due, first_due)
        [row] = store.driver.history(Find(ids=(id_,)))
        assert (row.attempt, row.state, row.error, row.payload) == (1, "retried", "oh", b'"x"')
        assert tally(store, "q") == (0, 0, 1, 0, 0)
        clock.advance("89s")
        assert take(store, "q") == []
        clock.advance("1s")
        assert take_one(store, "q").attempt == 2

    def test_due_wins_over_delay(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "retry", due_us=clock.micros() + 5, delay_us=MINUTE)
        assert living(store, id_).due_us == clock.micros() + 5

    def test_snooze_spends_nothing_and_leaves_no_row(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        first_due = clock.micros()
        end(store, take_one(store, "q"), "snooze", delay_us=MINUTE)
        entry = living(store, id_)
        assert (entry.state, entry.attempt, entry.due_us) == ("waiting", 0, clock.micros() + MINUTE)
        assert entry.first_due_us == first_due
        assert trail(store, id_) == []
        assert tally(store, "q") == (0, 1, 0, 0, 0)

    def test_release_is_as_if_never_taken(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        before = living(store, id_)
        clock.advance("10s")
        end(store, take_one(store, "q"), "release", delay_us=MINUTE, due_us=5)
        after = living(store, id_)
        assert (after.state, after.attempt, after.due_us, after.seq) == ("waiting", 0, before.due_us, before.seq)
        assert trail(store, id_) == []
        assert take_one(store, "q").attempt == 1

    def test_error_stays_until_the_next(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "retry", error="first")
        end(store, take_one(store, "q"), "retry", error="second")
        assert living(store, id_).error == "second"
        end(store, take_one(store, "q"))
        assert [row.error for row in store.driver.history(Find(ids=(id_,)))] == ["first", "second", None]

    def test_every_row_shows_the_payload(self, store: QueueStore) -> None:
        id_ = put(store, "q", "x")
        end(store, take_one(store, "q"), "retry")
        end(store, take_one(store, "q"))
        assert [row.payload for row in store.driver.history(Find(ids=(id_,)))] == [b'"x"', b'"x"']


class TestSteps(Contract):
    """Atomic one by one, in order, and independent of each other."""

    def test_one_steps_failure_is_no_others(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(4))
        first, second, third, fourth = take(store, "q")
        end(store, second)
        results = store.driver.settle(
            [
                Step((ending(first),)),
                Step((ending(second),), (new("q", "lost"),)),
                Step((ending(third, "retry"),)),
                Step(puts=(new("q", "put"),)),
                Step((ending(fourth),)),
            ]
        ).results
        assert [type(one) for one in results] == [StepDone, LeaseLost, StepDone, StepDone, StepDone]
        assert values(store.driver.find(Find())) == [2, "put"]

    @pytest.mark.parametrize("meanwhile", ["release", "retry", "snooze", "update"])
    def test_a_token_that_is_over_ends_no_lease_of_its_own_worker(self, store: QueueStore, meanwhile: str) -> None:
        """The entry has come back with another claim of the worker, whose successes are settled in the same call."""
        id_ = put(store, "q", "x")
        stale = take_one(store, "q")
        if meanwhile == "update":
            store.driver.update(id_, Changes(payload=b'"new"'), force=True)
        else:
            end(store, stale, meanwhile)  # type: ignore[arg-type]
        other = put(store, "q", "y")
        now = {entry.id: entry for entry in take(store, "q")}
        assert now.keys() == {id_, other}
        settled = store.driver.settle([Step((ending(now[other]),)), Step((ending(stale),))], request(store, "q"))
        assert isinstance(settled.results[0], StepDone)
        assert isinstance(settled.results[1], LeaseLost)
        assert living(store, id_).state == "leased"
        assert end(store, now[id_]) == StepDone()
        assert trail(store, id_)[-1][2] == "done"

    def test_many_plain_successes_with_one_stale_among_them(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(10))
        taken = take(store, "q")
        end(store, taken[4])
        results = store.driver.settle([Step((ending(entry),)) for entry in taken]).results
        assert [isinstance(one, LeaseLost) for one in results] == [index == 4 for index in range(10)]
        assert [trail(store, entry.id) for entry in taken] == [[(1, 1, "done")]] * 10

    def test_two_steps_of_one_call_cannot_both_end_an_entry(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(2))
        first, second = take(store, "q")
        results = store.driver.settle([Step((ending(first),)), Step((ending(second),)), Step((ending(first),))]).results
        assert [type(one) for one in results] == [StepDone, StepDone, LeaseLost]
        assert trail(store, first.id) == [(1, 1, "done")]

    def test_nor_can_they_beside_a_claim(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(3))
        first, second = take(store, "q", limit=2)
        steps = [Step((ending(first),)), Step((ending(second),)), Step((ending(first),))]
        settled = store.driver.settle(steps, request(store, "q"))
        assert [type(one) for one in settled.results] == [StepDone, StepDone, LeaseLost]
        assert len(settled.claimed.entries) == 1
        assert trail(store, first.id) == [(1, 1, "done")]

    def test_a_step_ends_an_entry_once(self, store: QueueStore) -> None:
        put(store, "q")
        taken = take_one(store, "q")
        with pytest.raises(BadInput, match="twice"):
            store.driver.commit(Step((ending(taken), ending(taken, "dead"))))
        assert living(store, taken.id).state == "leased"

    def test_one_lost_lease_undoes_all_endings_and_puts(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(3))
        first, second, third = take(store, "q")
        end(store, third)
        for endings in ((first, second, third), (third, second, first)):
            with pytest.raises(LeaseLost):
                store.driver.commit(Step(tuple(ending(one) for one in endings), (new("r", "child"),)))
            assert living(store, first.id).state == living(store, second.id).state == "leased"
            assert store.driver.find(Find(queue="r")) == []
        assert trail(store, first.id) == []
        store.driver.commit(Step((ending(first), ending(second))))

    @pytest.mark.parametrize("kind", ["unique", "conflict", "fifo"])
    def test_a_put_that_fails_undoes_the_step(self, store: QueueStore, kind: str) -> None:
        store.queue("fifo", fifo=True)
        put(store, "r", "held", unique="u", id="there")
        bad: NewEntry = {
            "unique": new("r", "x", unique=Unique("u", on_conflict="raise")),
            "conflict": new("r", "x", id="there"),
            "fifo": new("fifo", "x", priority=1),
        }[kind]
        expected: type[PenstockError] = {"unique": UniqueHeld, "conflict": Conflict, "fifo": BadInput}[kind]
        store.queue("q").put("x", unique="mine", labels={"a": "1"})
        store.queue("q").put("y")
        taken = take(store, "q")
        outcomes = ("done", "retry")
        endings = tuple(ending(one, how, error="e") for one, how in zip(taken, outcomes, strict=True))  # type: ignore[arg-type]
        with pytest.raises(expected):
            store.driver.commit(
                Step(endings, (new("r", "before"), new("r", "labelled", labels={"a": "1"}), bad, new("r", "after")))
            )
        assert values(store.driver.find(Find(queue="r"))) == ["held"]
        assert [trail(store, one.id) for one in taken] == [[], []]
        assert not store.queue("q").put("z", unique="mine").created
        assert store.driver.extend([lease_of(one) for one in taken], MINUTE) != [None, None]
        store.driver.commit(Step(endings))

    def test_endings_then_puts_then_events(self, store: QueueStore) -> None:
        store.driver.subscribe(Subscription("s", "bus.s", ("Thing",)))
        put(store, "q", "old", unique="u")
        taken = take_one(store, "q")
        done = store.driver.commit(
            Step(
                (ending(taken),),
                (new("q", "one", unique=Unique("u", on_conflict="raise")), new("r", "two"), new("q", "three")),
                (NewEvent(("Thing",), new("bus", "four")), NewEvent(("Thing",), new("bus", "five"))),
            )
        )
        assert [one.queue for one in done.puts] == ["q", "r", "q"]
        assert [[one.queue for one in some] for some in done.published] == [["bus.s"], ["bus.s"]]
        assert values(store.driver.find(Find())) == ["one", "two", "three", "four", "five"]

    def test_a_step_may_be_empty(self, store: QueueStore) -> None:
        assert store.driver.commit(Step()) == StepDone()
        assert store.driver.settle([]).results == []

    def test_no_reader_sees_half_a_step(self, store: QueueStore, open_store: OpenStore) -> None:
        other = open_store(node="two")
        rounds = 20
        seen: list[int] = []

        def work(index: int) -> None:
            if index == 0:
                for number in range(rounds):
                    puts = [new("pair", number) for _ in range(7)]
                    endings = tuple(ending(one) for one in take(store, "pair"))
                    store.driver.commit(Step(endings, tuple(puts)))
            else:
                for _ in range(60):
                    seen.append(len(other.driver.find(Find(queue="pair"))))

        in_threads(2, work)
        assert set(seen) <= {0, 7}

    def test_signals_tell_each_result(self, store: QueueStore) -> None:
        told: list[tuple[str, str]] = []
        store.signals.subscribe(
            lambda one: told.append((one.kind, one.data.get("outcome", ""))), "settled", "lease_lost"
        )
        store.queue("q").put_many(range(2))
        first, second = take(store, "q")
        end(store, first, "retry", error="e")
        store.driver.settle([Step((ending(first),)), Step((ending(second),))])
        assert told == [("settled", "retry"), ("lease_lost", "done"), ("settled", "done")]
