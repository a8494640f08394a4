"""Held entries: they wait for others, and the step that ends the last of these releases them."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    claim,
    end,
    ending,
    ids,
    live,
    needs,
    new,
    put,
    request,
    take,
    take_one,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict, EntryNotFound, LeaseLost, NotHeld, StoreFull
from penstock.queue.entry import HistoryRow, Unique
from penstock.queue.protocol import Changes, Find, Link, NewEntry, NewResult, On, Step, StepDone, Wait
from penstock.queue.queues import QueueStore
from penstock.queue.transfer import Copy


def held_for(store: QueueStore, *sources: str, on: On = "done", **fields: object) -> str:
    """Put an entry that waits for others; its id."""
    target = new("then", **fields)
    store.driver.commit(Step(puts=(target,), links=tuple(Link(source, target.id, on) for source in sources)))
    return target.id


def batch(store: QueueStore, size: int = 3, on: On = "done") -> tuple[str, list[str]]:
    """Put members and what waits for all of them, in one step."""
    target, members = new("then"), [new("work", number) for number in range(size)]
    links = tuple(Link(member.id, target.id, on) for member in members)
    store.driver.commit(Step(puts=(target, *members), links=links))
    return target.id, [member.id for member in members]


def wait_of(store: QueueStore, id_: str) -> Wait:
    [wait] = store.driver.waits([id_])
    return wait


def state_of(store: QueueStore, id_: str) -> str:
    entry = live(store, id_)
    if entry is not None:
        return entry.state
    rows: list[HistoryRow] = store.driver.history(Find(ids=(id_,)))
    return rows[-1].state


class Holding(Contract):
    """What all these tests need."""

    @pytest.fixture(autouse=True)
    def _links(self, store: QueueStore) -> None:
        needs(store, "links")


class TestHeldEntries(Holding):
    def test_a_held_entry_is_not_handed_out_and_is_counted_as_held(self, store: QueueStore, clock: FakeClock) -> None:
        first = put(store, "work")
        target = held_for(store, first)
        clock.advance("10d")
        assert take(store, "then") == []
        assert state_of(store, target) == "held"
        [counts] = store.driver.counts("then")
        assert (counts.held, counts.ready, counts.delayed, counts.live) == (1, 0, 0, 1)

    def test_held_entries_are_found_as_waiting_and_by_their_own_state(self, store: QueueStore) -> None:
        target = held_for(store, put(store, "work"))
        plain = put(store, "then")
        found = store.driver.find(Find(queue="then", states=("held",)))
        assert (ids(found), found[0].due_us) == ([target], found[0].first_due_us)
        assert set(ids(store.driver.find(Find(queue="then", states=("waiting",))))) == {target, plain}

    def test_the_success_of_the_last_one_releases_it(self, store: QueueStore) -> None:
        target, members = batch(store, 2)
        first, second = take(store, "work")
        end(store, first)
        assert take(store, "then") == []
        end(store, second)
        released = take_one(store, "then")
        assert (released.id, released.attempt, released.state) == (target, 1, "leased")
        assert wait_of(store, target) == Wait(target, 0, done=2)
        assert store.driver.links() == []
        assert len(members) == 2

    def test_many_successes_settled_together_release_it(self, store: QueueStore) -> None:
        target, _ = batch(store, 50)
        entries = take(store, "work")
        settled = store.driver.settle([Step((ending(entry),)) for entry in entries])
        assert not any(isinstance(result, Exception) for result in settled.results)
        assert take_one(store, "then").id == target
        assert wait_of(store, target).done == 50

    def test_the_claim_of_the_same_call_gets_what_it_released(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        entry = take_one(store, "work")
        settled = store.driver.settle([Step((ending(entry),))], request(store, "then"))
        assert ids(settled.claimed.entries) == [target]

    def test_a_chain_goes_on_link_by_link(self, store: QueueStore) -> None:
        parts = [new("work", number) for number in range(4)]
        links = tuple(Link(one.id, two.id) for one, two in itertools.pairwise(parts))
        store.driver.commit(Step(puts=tuple(parts), links=links))
        for part in parts:
            [entry] = take(store, "work")
            assert entry.id == part.id
            end(store, entry)
        assert take(store, "work") == []

    def test_it_keeps_a_due_time_that_is_later(self, store: QueueStore, clock: FakeClock) -> None:
        first = put(store, "work")
        target = held_for(store, first, delay_us=10 * MINUTE)
        end(store, take_one(store, "work"))
        assert (state_of(store, target), take(store, "then")) == ("waiting", [])
        clock.advance("10m")
        assert take_one(store, "then").id == target

    def test_retries_and_reaps_consume_nothing(self, store: QueueStore, clock: FakeClock) -> None:
        target, _ = batch(store, 1)
        end(store, take_one(store, "work"), "retry")
        end(store, take_one(store, "work"), "snooze")
        end(store, take_one(store, "work"), "release")
        take_one(store, "work", lease="1m")
        clock.advance("2m")
        store.driver.reap(node="one")
        assert wait_of(store, target).needs == 1
        end(store, take_one(store, "work"))
        assert take_one(store, "then").id == target

    def test_an_ending_with_a_stale_lease_consumes_nothing(self, store: QueueStore, clock: FakeClock) -> None:
        target, _ = batch(store, 1)
        stale = take_one(store, "work", lease="1m")
        clock.advance("2m")
        store.driver.reap(node="one")
        with pytest.raises(LeaseLost):
            end(store, stale)
        assert wait_of(store, target) == Wait(target, 1)

    def test_a_step_that_fails_consumes_nothing(self, store: QueueStore) -> None:
        target, _ = batch(store, 2)
        first, second = take(store, "work")
        end(store, second)
        step = Step((ending(first), ending(second)))
        with pytest.raises(LeaseLost):
            store.driver.commit(step)
        assert wait_of(store, target) == Wait(target, 1, done=1)

    def test_a_repeated_ending_counts_once(self, store: QueueStore) -> None:
        target, _ = batch(store, 2)
        entry = take_one(store, "work")
        end(store, entry)
        end(store, entry, repeat=True)
        assert wait_of(store, target) == Wait(target, 1, done=1)

    def test_a_repeated_put_makes_its_links_once(self, store: QueueStore) -> None:
        source = put(store, "work")
        target = new("then")
        step = Step(puts=(target,), links=(Link(source, target.id),))
        store.driver.commit(step)
        store.driver.commit(Step(puts=step.puts, links=step.links, repeat=True))
        assert wait_of(store, target.id).needs == 1
        named = NewEntry("my-own", "then", b'"x"', "json", "Any", repeat=True)
        for _ in range(2):
            store.driver.commit(Step(puts=(named,), links=(Link(source, "my-own"),)))
        assert wait_of(store, "my-own").needs == 1
        end(store, take_one(store, "work"))
        assert set(ids(take(store, "then"))) == {target.id, "my-own"}

    def test_one_entry_may_be_waited_for_by_several(self, store: QueueStore) -> None:
        source = put(store, "work")
        targets = {held_for(store, source), held_for(store, source)}
        end(store, take_one(store, "work"))
        assert set(ids(take(store, "then"))) == targets

    def test_an_entry_with_a_unique_id_or_labels_may_be_a_member(self, store: QueueStore) -> None:
        target = new("then")
        member = new("work", labels={"a": "b"}, unique=Unique("u"))
        store.driver.commit(Step(puts=(target, member), links=(Link(member.id, target.id),)))
        end(store, take_one(store, "work"))
        assert take_one(store, "then").id == target.id

    def test_a_member_in_a_fifo_queue_releases(self, store: QueueStore) -> None:
        store.queue("line", fifo=True)
        first, second = put(store, "line"), put(store, "line")
        target = held_for(store, first, second)
        end(store, take_one(store, "line"))
        assert take(store, "then") == []
        end(store, take_one(store, "line"))
        assert take_one(store, "then").id == target

    def test_update_of_a_held_entry_leaves_it_held(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        store.driver.update(target, Changes(payload=b'"new"', delay_us=0, priority=3))
        assert (state_of(store, target), take(store, "then")) == ("held", [])
        end(store, take_one(store, "work"))
        assert take_one(store, "then").payload == b'"new"'

    def test_a_unique_put_that_replaces_a_held_entry_leaves_it_held(self, store: QueueStore) -> None:
        source = put(store, "work")
        target = held_for(store, source, unique=Unique("u"))
        put(store, "then", "new", unique=Unique("u", on_conflict="replace"))
        assert (state_of(store, target), take(store, "then")) == ("held", [])
        end(store, take_one(store, "work"))
        assert take_one(store, "then").payload == b'"new"'


class TestAfter(Holding):
    def test_after_an_entry_that_is_being_worked_on(self, store: QueueStore) -> None:
        source = put(store, "work")
        other = put(store, "work")
        running, sibling = sorted(take(store, "work"), key=lambda entry: entry.id != source)
        target = held_for(store, source)
        settled = store.driver.settle([Step((ending(running),)), Step((ending(sibling),))])
        assert not any(isinstance(result, Exception) for result in settled.results)
        assert take_one(store, "then").id == target
        assert {state_of(store, source), state_of(store, other)} == {"done"}

    def test_after_an_entry_that_is_done_is_due_at_once(self, store: QueueStore) -> None:
        source = put(store, "work")
        end(store, take_one(store, "work"))
        target = held_for(store, source)
        assert take_one(store, "then").id == target
        assert wait_of(store, target) == Wait(target, 0, done=1)

    @pytest.mark.parametrize("how", ["dead", "cancelled"])
    def test_after_one_that_will_never_be_done_is_refused_unless_any_end_will_do(
        self, store: QueueStore, how: str
    ) -> None:
        source = put(store, "work")
        if how == "dead":
            end(store, take_one(store, "work"), "dead")
        else:
            store.driver.cancel([source])
        with pytest.raises(Conflict, match=how):
            held_for(store, source)
        assert store.driver.counts("then")[0].live == 0
        target = held_for(store, source, on="ended")
        assert take_one(store, "then").id == target
        assert wait_of(store, target).tally[how] == 1

    def test_after_an_unknown_id_is_refused(self, store: QueueStore) -> None:
        with pytest.raises(EntryNotFound, match="nowhere"):
            held_for(store, put(store, "work"), "nowhere")
        assert store.driver.counts("then")[0].live == 0
        assert store.driver.links() == []

    def test_circles_are_refused(self, store: QueueStore) -> None:
        one, two = new("then"), new("then")
        with pytest.raises(BadInput, match="wait for each other"):
            store.driver.commit(Step(puts=(one, two), links=(Link(one.id, two.id), Link(two.id, one.id))))
        with pytest.raises(BadInput, match="wait for each other"):
            store.driver.commit(Step(puts=(one,), links=(Link(one.id, one.id),)))
        assert store.driver.counts("then")[0].live == 0

    def test_a_circle_over_links_that_are_there_is_refused(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        behind = held_for(store, target)
        member = new("work")
        with pytest.raises(BadInput, match="wait for each other"):
            store.driver.commit(Step(puts=(member,), links=(Link(member.id, target), Link(behind, member.id))))
        assert wait_of(store, target).needs == 1

    def test_links_between_entries_that_are_there_are_refused(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        with pytest.raises(BadInput):
            store.driver.commit(Step(puts=(new("work"),), links=(Link(put(store, "work"), target),)))

    def test_held_entries_in_fifo_queues_are_refused(self, store: QueueStore) -> None:
        store.queue("line", fifo=True)
        target = new("line")
        with pytest.raises(BadInput, match="FIFO"):
            store.driver.commit(Step(puts=(target,), links=(Link(put(store, "work"), target.id),)))
        assert store.driver.counts("line")[0].live == 0


class TestEndings(Holding):
    def test_a_dead_letter_keeps_its_link_and_a_replay_goes_on(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        entry = take_one(store, "work")
        end(store, entry, "dead")
        assert wait_of(store, target) == Wait(target, 1)
        assert store.driver.links(target=target) == [Link(entry.id, target)]
        store.driver.replay([entry.id])
        end(store, take_one(store, "work"))
        assert take_one(store, "then").id == target
        assert wait_of(store, target) == Wait(target, 0, done=1)

    def test_a_replay_of_what_was_done_counts_no_second_time(self, store: QueueStore) -> None:
        target, members = batch(store, 2)
        end(store, take_one(store, "work"))
        done = next(id_ for id_ in members if live(store, id_) is None)
        store.driver.replay([done])
        replayed = next(entry for entry in take(store, "work") if entry.id == done)
        end(store, replayed)
        assert wait_of(store, target) == Wait(target, 1, done=1)

    def test_what_a_settlement_releases_is_there_for_its_claim_or_the_next(self, store: QueueStore) -> None:
        """As a worker does it: successes of several batches, and a claim, in one call."""
        first, members = batch(store, 3)
        late, _ = batch(store, 2)
        shared, delayed = new("then"), new("then", delay_us=MINUTE)
        ons: list[tuple[NewEntry, On]] = [(shared, "ended"), (delayed, "done")]
        for target, on in ons:
            store.driver.commit(Step(puts=(target,), links=(Link(members[0], target.id, on),)))
        entries = take(store, "work")
        assert len(entries) == 5
        steps = [Step((ending(entry),)) for entry in entries[:4]]
        reply = store.driver.settle(steps, request(store, "then"))
        assert [isinstance(result, StepDone) for result in reply.results] == [True] * 4
        claimed = {entry.id for entry in (*reply.claimed.entries, *take(store, "then"))}
        assert claimed == {first, shared.id}
        assert [wait_of(store, id_) for id_ in (first, shared.id, delayed.id, late)] == [
            Wait(first, 0, done=3), Wait(shared.id, 0, done=1), Wait(delayed.id, 0, done=1), Wait(late, 1, done=1)
        ]  # fmt: skip
        assert (state_of(store, delayed.id), state_of(store, late)) == ("waiting", "held")
        again = store.driver.settle([Step((ending(entries[3]),))], request(store, "then"))
        assert isinstance(again.results[0], LeaseLost)
        store.driver.settle([Step((ending(entries[4]),))], request(store, "work"))
        assert take_one(store, "then").id == late
        assert store.driver.links() == []

    def test_one_that_is_not_held_any_more_takes_nothing_along(self, store: QueueStore) -> None:
        """Of a hundred that a worker settles in one call, one may be somebody else's by now."""
        target, _ = batch(store, 3)
        entries = take(store, "work")
        end(store, entries[1], "release")
        result = NewResult(b"1", "json", 60 * MINUTE)
        steps = [Step((ending(entry, result=result),)) for entry in entries]
        reply = store.driver.settle(steps, request(store, "work"))
        assert [isinstance(result, StepDone) for result in reply.results] == [True, False, True]
        assert isinstance(reply.results[1], LeaseLost)
        assert wait_of(store, target) == Wait(target, 1, done=2)
        assert [store.driver.result(entry.id) is None for entry in entries] == [False, True, False]
        [again] = reply.claimed.entries or take(store, "work")
        assert again.id == entries[1].id
        store.driver.settle([Step((ending(again, result=result),))], request(store, "work"))
        assert store.driver.result(again.id) is not None
        assert take_one(store, "then").id == target

    def test_a_purged_dead_letter_cancels_what_waits_for_it(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        end(store, take_one(store, "work"), "dead")
        store.driver.purge_dead(Find(queue="work"))
        assert state_of(store, target) == "cancelled"
        assert store.driver.links() == []

    def test_with_ended_a_dead_letter_counts(self, store: QueueStore) -> None:
        target, _ = batch(store, 2, on="ended")
        first, second = take(store, "work")
        end(store, first, "dead", error="boom")
        end(store, second)
        assert take_one(store, "then").id == target
        assert wait_of(store, target) == Wait(target, 0, done=1, dead=1)

    def test_with_ended_cancelled_and_expired_count_too(self, store: QueueStore, clock: FakeClock) -> None:
        target, one, two = new("then"), new("work"), new("work", expires_in_us=MINUTE)
        links = (Link(one.id, target.id, "ended"), Link(two.id, target.id, "ended"))
        store.driver.commit(Step(puts=(target, one, two), links=links))
        store.driver.cancel([one.id])
        clock.advance("2m")
        store.driver.reap(node="one")
        assert take_one(store, "then").id == target.id
        assert wait_of(store, target.id) == Wait(target.id, 0, cancelled=1, expired=1)

    def test_a_cancelled_member_cancels_what_waits_and_so_on(self, store: QueueStore) -> None:
        target, members = batch(store, 2)
        behind = held_for(store, target)
        far = held_for(store, behind)
        other = held_for(store, behind, on="ended")
        store.driver.cancel([members[0]])
        assert [state_of(store, id_) for id_ in (target, behind, far)] == ["cancelled"] * 3
        assert take_one(store, "then").id == other
        end(store, take_one(store, "work"))  # the other member ends in peace
        assert take(store, "then") == []

    def test_an_expired_member_cancels_what_waits(self, store: QueueStore, clock: FakeClock) -> None:
        target, member = new("then"), new("work", expires_in_us=MINUTE)
        store.driver.commit(Step(puts=(target, member), links=(Link(member.id, target.id),)))
        clock.advance("2m")
        assert claim(store, "work").entries == []
        store.driver.reap(node="one")
        assert state_of(store, target.id) == "cancelled"

    def test_a_running_member_that_is_cancelled_by_force_cancels_what_waits(self, store: QueueStore) -> None:
        target, members = batch(store, 1)
        entry = take_one(store, "work")
        store.driver.cancel(members, force=True)
        assert state_of(store, target) == "cancelled"
        with pytest.raises(LeaseLost):
            end(store, entry)

    def test_a_member_whose_last_lease_ran_out_is_a_dead_letter_that_keeps_its_link(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        target, _ = batch(store, 1)
        entry = take_one(store, "work", lease="1m", attempts=1)
        clock.advance("2m")
        store.driver.reap(node="one")
        assert (state_of(store, entry.id), wait_of(store, target).needs) == ("dead", 1)

    def test_a_member_without_attempts_left_is_found_by_a_claim(self, store: QueueStore) -> None:
        target, _ = batch(store, 1, on="ended")
        end(store, take_one(store, "work"), "retry")
        assert take(store, "work", attempts=1) == []
        assert take_one(store, "then").id == target
        assert wait_of(store, target).dead == 1

    def test_a_held_entry_may_be_cancelled_and_its_members_go_on(self, store: QueueStore) -> None:
        target, _ = batch(store, 2)
        behind = held_for(store, target)
        store.driver.cancel([target])
        assert [state_of(store, id_) for id_ in (target, behind)] == ["cancelled"] * 2
        for entry in take(store, "work"):
            end(store, entry)
        assert take(store, "then") == []

    def test_a_held_entry_may_expire(self, store: QueueStore, clock: FakeClock) -> None:
        source = put(store, "work")
        target = held_for(store, source, expires_in_us=MINUTE)
        clock.advance("2m")
        store.driver.reap(node="one")
        assert state_of(store, target) == "expired"
        end(store, take_one(store, "work"))
        assert take(store, "then") == []

    def test_what_it_needs_is_never_negative_when_it_is_forgotten_before_its_members_end(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        source = put(store, "work")
        held_for(store, source, id="mine")
        store.driver.cancel(["mine"])
        clock.advance("8d")
        while store.driver.prune(older_than_us=MINUTE):
            pass
        end(store, take_one(store, "work"))
        assert [wait for wait in store.driver.waits() if wait.needs] == []
        held_for(store, put(store, "work"), id="mine")
        assert (state_of(store, "mine"), take(store, "then")) == ("held", [])
        end(store, take_one(store, "work"))
        assert take_one(store, "then").id == "mine"
        assert wait_of(store, "mine") == Wait("mine", 0, done=1)

    def test_what_was_released_and_dies_can_be_replayed(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        end(store, take_one(store, "work"))
        end(store, take_one(store, "then"), "dead")
        store.driver.replay([target])
        assert take_one(store, "then").id == target


class TestReasons(Holding):
    """What is cancelled because of another says so: in the history, in its result and with a signal."""

    def cancel_signals(self, store: QueueStore) -> list[tuple[str, tuple[str, ...], str | None]]:
        """The signals of cancelled entries to come: queue, ids and reason."""
        seen: list[tuple[str, tuple[str, ...], str | None]] = []
        store.signals.subscribe(
            lambda signal: seen.append((signal.queue, tuple(signal.ids), signal.data.get("reason"))), "cancelled"
        )
        return seen

    def error_of(self, store: QueueStore, id_: str) -> str | None:
        [row] = store.driver.history(Find(ids=(id_,)))
        return row.error

    def test_a_cancel_is_told_downwards(self, store: QueueStore) -> None:
        seen = self.cancel_signals(store)
        target, [member] = batch(store, 1)
        behind = held_for(store, target)
        store.driver.cancel([member])
        because = [f"cancelled because {member} was cancelled", f"cancelled because {target} was cancelled"]
        assert [self.error_of(store, id_) for id_ in (target, behind)] == because
        assert self.error_of(store, member) is None
        assert seen == [("work", (member,), None), ("then", (target,), because[0]), ("then", (behind,), because[1])]
        result = store.queue("then").result(target, timeout="60s")
        assert (result.state, result.error) == ("cancelled", because[0])

    def test_an_expiry_is_told_downwards(self, store: QueueStore, clock: FakeClock) -> None:
        seen = self.cancel_signals(store)
        target, member = new("then"), new("work", expires_in_us=MINUTE)
        store.driver.commit(Step(puts=(target, member), links=(Link(member.id, target.id),)))
        clock.advance("2m")
        store.driver.reap(node="one")
        assert self.error_of(store, target.id) == f"cancelled because {member.id} expired"
        assert seen == [("then", (target.id,), f"cancelled because {member.id} expired")]

    def test_an_expiry_that_a_claim_meets_is_told_downwards(self, store: QueueStore, clock: FakeClock) -> None:
        seen = self.cancel_signals(store)
        target, member = new("then"), new("work", expires_in_us=MINUTE)
        store.driver.commit(Step(puts=(target, member), links=(Link(member.id, target.id),)))
        clock.advance("2m")
        assert take(store, "work") == []
        store.driver.reap(node="one")  # where the claim left it
        assert seen == [("then", (target.id,), f"cancelled because {member.id} expired")]

    def test_a_purge_is_told_downwards(self, store: QueueStore) -> None:
        seen = self.cancel_signals(store)
        target, [member] = batch(store, 1)
        end(store, take_one(store, "work"), "dead")
        store.driver.purge_dead(Find(queue="work"))
        assert self.error_of(store, target) == f"cancelled because {member} was purged"
        assert seen == [("then", (target,), f"cancelled because {member} was purged")]
        assert wait_of(store, target) == Wait(target, 0, cancelled=1)

    def test_a_batch_that_was_never_complete_says_so(self, store: QueueStore, clock: FakeClock) -> None:
        target, door = new("then"), new("door", expires_in_us=MINUTE, delay_us=60 * MINUTE)
        store.driver.commit(Step(puts=(target, door), links=(Link(door.id, target.id, "open"),)))
        clock.advance("2m")
        store.driver.reap(node="one")
        assert self.error_of(store, target.id) == (
            f"cancelled because its batch was not complete when {door.id} expired"
        )

    def test_a_cancel_that_fails_tells_nothing(self, store: QueueStore) -> None:
        seen = self.cancel_signals(store)
        _, [member] = batch(store, 1)
        with pytest.raises(EntryNotFound):
            store.driver.cancel([member, "nowhere"])
        put(store, "other")
        assert seen == []


class TestReplays(Holding):
    """What is put back before those it waited for have ended waits for them again."""

    def test_a_cancelled_entry_that_still_needs_others_is_held_again(self, store: QueueStore) -> None:
        target, _ = batch(store, 2)
        store.driver.cancel([target])
        end(store, take_one(store, "work"))
        store.driver.replay([target])
        assert (state_of(store, target), take(store, "then")) == ("held", [])
        assert wait_of(store, target) == Wait(target, 1, done=1)
        more = new("work")
        store.driver.commit(Step(puts=(more,), links=(Link(more.id, target),)))
        for entry in take(store, "work"):
            end(store, entry)
        released = take_one(store, "then")
        assert (released.id, released.generation) == (target, 2)
        assert wait_of(store, target) == Wait(target, 0, done=3)

    def test_an_expired_entry_that_still_needs_others_is_held_again(self, store: QueueStore, clock: FakeClock) -> None:
        source = put(store, "work")
        target = held_for(store, source, expires_in_us=MINUTE)
        clock.advance("2m")
        store.driver.reap(node="one")
        store.driver.replay([target])
        assert (state_of(store, target), take(store, "then")) == ("held", [])
        end(store, take_one(store, "work"))
        assert take_one(store, "then").id == target

    def test_one_whose_others_ended_meanwhile_is_due_at_once(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        store.driver.cancel([target])
        end(store, take_one(store, "work"))
        store.driver.replay([target])
        assert take_one(store, "then").id == target

    def test_one_that_was_cancelled_with_a_member_waits_for_the_members_that_are_left(self, store: QueueStore) -> None:
        target, members = batch(store, 2)
        store.driver.cancel([members[0]])
        store.driver.replay([target])
        assert (state_of(store, target), take(store, "then")) == ("held", [])
        end(store, take_one(store, "work"))
        assert take_one(store, "then").id == target
        assert wait_of(store, target) == Wait(target, 0, done=1, cancelled=1)

    def test_a_replay_that_is_repeated_counts_once(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        store.driver.cancel([target])
        assert store.driver.replay([target]) == 1
        assert store.driver.replay([target]) == 0
        end(store, take_one(store, "work"))
        assert ids(take(store, "then")) == [target]

    def test_what_would_be_held_in_a_fifo_queue_is_refused(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        store.driver.cancel([target])
        store.queue("then", fifo=True)
        with pytest.raises(BadInput, match="FIFO"):
            store.driver.replay([target])
        assert state_of(store, target) == "cancelled"
        end(store, take_one(store, "work"))
        store.driver.replay([target])
        assert take_one(store, "then").id == target


@pytest.mark.timeout(300)
class TestFanOut(Holding):
    """One entry that very many wait for."""

    WAITERS = 2_000

    def waiters(self, store: QueueStore, source: str, on: On = "done", number: int = WAITERS) -> list[str]:
        """Put those that wait, in steps that every store takes."""
        ids_: list[str] = []
        for _ in range(0, number, 250):
            targets = [new("then") for _ in range(250)]
            store.driver.commit(
                Step(puts=tuple(targets), links=tuple(Link(source, target.id, on) for target in targets))
            )
            ids_ += [target.id for target in targets]
        return ids_

    def test_its_end_releases_all(self, store: QueueStore) -> None:
        self.waiters(store, put(store, "work"))
        end(store, take_one(store, "work"))
        [counts] = store.driver.counts("then")
        assert (counts.ready, counts.held) == (self.WAITERS, 0)
        assert store.driver.links(limit=1) == []

    def test_nine_thousand_are_released_or_refused_when_they_are_put(self, store: QueueStore) -> None:
        with contextlib.suppress(StoreFull):
            self.waiters(store, put(store, "work"), number=9_000)
        waiting = store.driver.counts("then")[0].held
        assert waiting >= self.WAITERS
        end(store, take_one(store, "work"))
        assert store.driver.counts("then")[0].ready == waiting

    def test_its_cancel_cancels_all(self, store: QueueStore) -> None:
        source = put(store, "work")
        targets = self.waiters(store, source)
        behind = held_for(store, targets[0], on="ended")
        store.driver.cancel([source])
        assert take_one(store, "then").id == behind
        assert store.driver.counts("then")[0].held == 0
        assert store.driver.links(limit=1) == []

    def test_its_expiry_holds_up_no_other_queue(self, store: QueueStore, clock: FakeClock) -> None:
        source = put(store, "work", expires="1m")
        self.waiters(store, source, on="ended")
        other, running = put(store, "other", expires="1m"), put(store, "running")
        take_one(store, "running", lease="1m")
        clock.advance("2m")
        store.driver.reap(node="one")
        assert [state_of(store, id_) for id_ in (source, other, running)] == ["expired", "expired", "waiting"]
        assert store.driver.counts("then")[0].ready == self.WAITERS


class TestAdding(Holding):
    def test_a_member_adds_members_while_it_ends(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        entry = take_one(store, "work")
        more = new("work")
        store.driver.commit(Step((ending(entry),), (more,), links=(Link(more.id, target),)))
        assert wait_of(store, target) == Wait(target, 1, done=1)
        assert take(store, "then") == []
        end(store, take_one(store, "work"))
        assert take_one(store, "then").id == target
        assert wait_of(store, target) == Wait(target, 0, done=2)

    def test_members_are_added_from_outside_while_it_is_held(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        more = new("work")
        store.driver.commit(Step(puts=(more,), links=(Link(more.id, target),)))
        assert wait_of(store, target).needs == 2

    def test_nothing_is_added_to_what_is_not_held(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        end(store, take_one(store, "work"))
        more = new("work")
        for other in (target, put(store, "then")):
            with pytest.raises(NotHeld, match="not held"):
                store.driver.commit(Step(puts=(more,), links=(Link(more.id, other),)))
        assert store.driver.counts("work")[0].live == 0

    def test_a_failed_attempt_adds_nothing(self, store: QueueStore) -> None:
        target, _ = batch(store, 1)
        entry = take_one(store, "work")
        end(store, entry, "retry")
        more = new("work")
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((ending(entry),), (more,), links=(Link(more.id, target),)))
        assert wait_of(store, target) == Wait(target, 1)

    def test_batches_nest(self, store: QueueStore) -> None:
        outer, [member] = batch(store, 1)
        inner, leaf = new("then"), new("work", "leaf")
        links = (Link(inner.id, outer), Link(leaf.id, inner.id))
        store.driver.commit(Step(puts=(inner, leaf), links=links))
        for entry in take(store, "work"):
            end(store, entry)
        first = take_one(store, "then")
        assert first.id == inner.id
        assert state_of(store, outer) == "held"
        end(store, first)
        assert take_one(store, "then").id == outer
        assert state_of(store, member) == "done"


class TestDoors(Holding):
    """A batch that is put in parts is held by an entry that stands for it until it is complete."""

    def door(self, store: QueueStore) -> tuple[str, str]:
        target, door = new("then"), new("door", expires_in_us=MINUTE, delay_us=60 * MINUTE)
        store.driver.commit(Step(puts=(target, door), links=(Link(door.id, target.id, "open"),)))
        return target.id, door.id

    def test_members_that_end_early_release_nothing(self, store: QueueStore) -> None:
        target, door = self.door(store)
        member = new("work")
        store.driver.commit(Step(puts=(member,), links=(Link(member.id, target),)))
        end(store, take_one(store, "work"))
        assert take(store, "then") == []
        store.driver.cancel([door])
        assert take_one(store, "then").id == target
        assert wait_of(store, target) == Wait(target, 0, done=1)

    def test_a_maker_that_vanished_leaves_a_cancelled_batch(self, store: QueueStore, clock: FakeClock) -> None:
        target, _ = self.door(store)
        clock.advance("2m")
        store.driver.reap(node="one")
        assert state_of(store, target) == "cancelled"


class TestCopies(Holding):
    def test_a_half_done_batch_goes_on_in_another_space(self, store: QueueStore, open_store: OpenStore) -> None:
        target, _ = batch(store, 3)
        dead, done, untouched = take(store, "work")
        end(store, dead, "dead")
        end(store, done)
        end(store, untouched, "release")
        other = open_store(space="elsewhere")
        left_out = () if store.capabilities.full_history else ("history",)
        Copy(store, other, leave_out=left_out).run()
        assert wait_of(other, target) == Wait(target, 2, done=1)
        end(other, take_one(other, "work"))
        other.driver.replay([dead.id])
        end(other, take_one(other, "work"))
        assert take_one(other, "then").id == target

    def test_a_released_entry_keeps_its_tally_and_results_stay_known(
        self, store: QueueStore, open_store: OpenStore, clock: FakeClock
    ) -> None:
        target, _ = batch(store, 2, on="ended")
        first, second = take(store, "work")
        end(store, first, result=NewResult(b"[1, 2]", "json", 60 * MINUTE))
        end(store, second, "dead")
        other = open_store(space="elsewhere")
        left_out = () if store.capabilities.full_history else ("history",)
        copied = Copy(store, other, leave_out=left_out).run()
        assert (copied.carried["links"], copied.carried["results"]) == (1, 1)
        assert take_one(other, "then").id == target
        assert wait_of(other, target) == Wait(target, 0, done=1, dead=1)
        assert other.driver.result(first.id) == store.driver.result(first.id)
        clock.advance("2h")
        other.driver.reap(node="one")
        assert other.driver.result(first.id) is None
