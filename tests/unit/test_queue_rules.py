"""The rules over the collections: what is undone leaves no trace, and the indexes say what the collections say."""

import random
from collections import defaultdict
from typing import Any

import pytest

from penstock.clock import SECOND
from penstock.errors import PenstockError, StoreFull
from penstock.queue.entry import Unique
from penstock.queue.forgetting import REMEMBERED
from penstock.queue.protocol import Changes, ClaimRequest, Definition, Ending, Find, NewEntry, Source, Step, StepDone
from penstock.queue.rules import claim, put, read, reap, registry, settle
from penstock.queue.rules.state import State

NOW = 1_000_000 * SECOND


def new(id_: str, queue: str = "q", **fields: Any) -> NewEntry:
    return NewEntry(id_, queue, b"x", "bytes", "bytes", **fields)


def request(number: int, *queues: str, limit: int = 5, attempts: int | None = 3) -> ClaimRequest:
    sources = tuple(Source(name, limit, attempts) for name in queues)
    return ClaimRequest(f"claim-{number}", sources, limit, "me", "here", SECOND)


def taken(state: State, number: int = 0, *queues: str, **options: Any) -> list[Any]:
    return claim.claim(state, request(number, *(queues or ("q",)), **options), NOW).entries


def check_indexes(state: State) -> None:
    """Whatever is derived is what it would be if it were derived again."""
    holders = {id_: key for key, record in state.claims.items() for id_ in record.held}
    assert state.holder_of == holders
    assert not set(state.ready) & set(holders), "an entry waits and is held"
    rows: dict[str, list[int]] = defaultdict(list)
    for seq in sorted(state.history):
        rows[state.history[seq].live.id].append(seq)
    assert dict(state.rows_of) == dict(rows)
    labelled: dict[tuple[str, str], set[str]] = defaultdict(set)
    for id_, body in state.entries.items():
        for label in body.labels.items():
            labelled[label].add(id_)
    assert dict(state.labelled) == dict(labelled)
    for name, queue in state.ready_queues.queues.items():
        assert queue.waiting == {id_: live for id_, live in state.ready.items() if live.queue == name}
        assert queue.claims == {key: record for key, record in state.claims.items() if key[0] == name}
        assert queue.leased == sum(len(record.held) for record in queue.claims.values())
        assert queue.dead == sum(letter.live.queue == name for letter in state.dead.values())
    for live in state.ready.values():
        assert state.entries[live.id] is live.body
    assert set(state.entries) >= set(state.ready) | set(holders) | set(state.dead) | set(rows)
    assert not state.changes, "nothing is left to be undone"


def everything(state: State) -> dict[str, Any]:
    tables = ("entries", "ready", "claims", "history", "dead", "settled", "unique", "schedules", "documents")
    return {name: dict(getattr(state, name)) for name in tables}


@pytest.mark.parametrize("seed", range(12))
def test_indexes_follow_whatever_happens_and_whatever_is_undone(seed: int) -> None:
    state, chance, now = State(), random.Random(seed), NOW
    registry.define(state, "fifo", Definition(fifo=True))
    registry.define(state, "narrow", Definition(label_limit=("c", 2)))
    queues = ("q", "fifo", "narrow")
    held: list[Any] = []
    for number in range(150):
        now += chance.randrange(SECOND)
        match chance.randrange(7):
            case 0 | 1:
                unique = chance.choice([None, None, Unique("u", on_conflict="replace"), Unique("v", period="1s")])
                labels = {"c": chance.choice("ab")}
                entries = [new(f"{number}-{part}", chance.choice(queues), labels=labels) for part in range(2)]
                entries.append(new(f"{number}-u", unique=unique, expires_in_us=chance.choice([None, SECOND])))
                settle.settle(state, [Step(puts=tuple(entries))], now)
            case 2 | 3:
                held += claim.claim(state, request(number, *queues, limit=chance.randrange(1, 6)), now).entries
            case 4 if held:
                chance.shuffle(held)
                some, held = held[:3], held[3:]
                outcomes: Any = ("done", "dead", "retry", "snooze", "release")
                endings = tuple(Ending(entry.lease, chance.choice(outcomes)) for entry in some)
                # Half of the steps fail at their last put, after everything else was done.
                bad = (new("bad", priority=1000),) if chance.random() < 0.5 else ()
                before = everything(state)
                [result] = settle.settle(state, [Step(endings, (new(f"{number}-s"), *bad))], now)
                if bad:
                    assert isinstance(result, PenstockError)
                    assert everything(state) == before
            case 5:
                settle.extend(state, [entry.lease for entry in held[::2]], now + SECOND)
                reap.reap(state, "here", 600 * SECOND, 10, now)
            case _ if state.ready:
                id_ = chance.choice(sorted(state.ready))
                with state.atomic():
                    put.update(state, id_, Changes(labels={"c": "z"}), now, force=False, scope=None)
        check_indexes(state)
    reap.prune(state, 0, 10_000, now + SECOND)
    check_indexes(state)
    assert set(state.entries) == {*state.ready, *state.holder_of, *state.dead} | {
        hold.id for hold in state.unique.values() if hold.id in state.entries
    }, "nothing is kept that nobody refers to"


def test_entries_that_are_claimed_together_share_one_record_for_each_queue() -> None:
    state = State()
    settle.settle(state, [Step(puts=tuple(new(f"{queue}{n}", queue) for queue in "ab" for n in range(3)))], NOW)
    assert len(taken(state, 1, "a", "b", limit=6)) == 6
    assert sorted(state.claims) == [("a", "claim-1", 0), ("b", "claim-1", 0)]


def test_a_heartbeat_changes_one_record_and_splits_off_what_it_does_not_name() -> None:
    state = State()
    settle.settle(state, [Step(puts=tuple(new(str(n)) for n in range(4)))], NOW)
    entries = taken(state)
    settle.extend(state, [entry.lease for entry in entries], NOW + 5 * SECOND)
    assert [record.until_us for record in state.claims.values()] == [NOW + 5 * SECOND]
    settle.extend(state, [entry.lease for entry in entries[:2]], NOW + 9 * SECOND)
    assert sorted((record.until_us, len(record.held)) for record in state.claims.values()) == [
        (NOW + 5 * SECOND, 2), (NOW + 9 * SECOND, 2)
    ]  # fmt: skip


def test_an_update_leaves_ended_attempts_the_body_they_saw() -> None:
    state = State()
    settle.settle(state, [Step(puts=(new("a"),))], NOW)
    [entry] = taken(state)
    settle.settle(state, [Step((Ending(entry.lease, "retry"),))], NOW)
    with state.atomic():
        put.update(state, "a", Changes(payload=b"y"), NOW, force=False, scope=None)
    [row] = read.attempts(state, Find())
    assert (row.live.body.payload, state.entries["a"].payload) == (b"x", b"y")


@pytest.mark.parametrize("outcome", ["done", "dead", "retry", "snooze", "release"])
def test_every_outcome_is_recognised_for_a_quarter_of_an_hour(outcome: Any) -> None:
    state = State()
    settle.settle(state, [Step(puts=(new("a"),))], NOW)
    [entry] = taken(state)
    step = Step((Ending(entry.lease, outcome, delay_us=10**12),), repeat=True)
    assert settle.settle(state, [step], NOW) == [StepDone()]
    reap.reap(state, "here", SECOND, 100, NOW + REMEMBERED)
    reap.prune(state, REMEMBERED, 100, NOW + REMEMBERED)
    assert settle.settle(state, [step], NOW + REMEMBERED) == [StepDone()]


def test_a_full_queue_refuses_the_whole_step() -> None:
    state = State()
    state.capacity = 2
    [result] = settle.settle(state, [Step(puts=tuple(new(str(n)) for n in range(3)))], NOW)
    assert isinstance(result, StoreFull)
    assert not state.entries
    assert not state.ready_queues.queues
