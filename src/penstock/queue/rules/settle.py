"""Settle: steps of endings, puts and events, each atomic by itself; cancelling; and what keeps leases alive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.queue import refusals
from penstock.queue.entry import Lease
from penstock.queue.protocol import Ending, Scope, Step, StepDone
from penstock.queue.rules.endings import Endings, following, take_out, with_held
from penstock.queue.rules.put import changeable, put
from penstock.queue.rules.repeats import done_before, puts_for, was_settled
from penstock.queue.rules.rows import ClaimKey, Live
from penstock.queue.rules.state import State

_DONE = StepDone()


def settle(state: State, steps: Sequence[Step], now: Micros) -> list[StepDone | PenstockError]:
    """Do each step in order: those of one ending that follow each other together, the others one by one."""
    results: list[StepDone | PenstockError] = []
    for alone, group in groupby(steps, key=_is_one_ending):
        run = list(group)
        if alone and len({step.endings[0].lease.entry for step in run}) == len(run):
            results += _settle_endings(state, run, now)
        else:
            results += [_guarded(state, step, now) for step in run]
    return results


def _is_one_ending(step: Step) -> bool:
    return len(step.endings) == 1 and not step.puts and not step.events and not step.links


def _settle_endings(state: State, steps: Sequence[Step], now: Micros) -> list[StepDone | PenstockError]:
    """End many entries at once; each ending is its own step, so one that is not current hinders no other."""
    results: list[StepDone | PenstockError] = []
    endings = Endings(state, now)
    for step in steps:
        [ending] = step.endings
        held = state.held(ending.lease)
        if held is not None:
            _end(endings, *held, ending, now)
            results.append(_DONE)
        elif step.repeat and was_settled(state, ending):
            results.append(_DONE)
        else:
            results.append(refusals.lease_lost(ending.lease))
    with state.atomic():
        endings.apply()
    return results


def _guarded(state: State, step: Step, now: Micros) -> StepDone | PenstockError:
    try:
        with state.atomic():
            return _step(state, step, now)
    except PenstockError as error:
        return error


def _step(state: State, step: Step, now: Micros) -> StepDone:
    """Endings, then puts, then events; raises when anything of the step cannot be."""
    if step.repeat and (done := done_before(state, step, now)) is not None:
        return done
    follow = following(state, now)
    # 1. Everything that is ended has to be held.
    if step.endings:
        endings = Endings(state, now, follow)
        for ending in step.endings:
            held = state.held(ending.lease)
            if held is None:
                raise refusals.lease_lost(ending.lease)
            _end(endings, *held, ending, now)
        # 2. It leaves its claims, and what follows from its end happens.
        endings.apply()
    # 3. New entries, also those that subscriptions get of events.
    known = {entry.id for entry in step.puts if state.known(entry.id) is not None} if step.links else set()
    puts = tuple([put(state, entry, now) for entry in step.puts])
    published = tuple([tuple([put(state, entry, now) for entry in puts_for(state, event)]) for event in step.events])
    # 4. Who waits for whom; what waits for nothing any more is released last.
    if step.links:
        follow.linked(step.links, step.puts, puts, known)
    follow.finish()
    return StepDone(puts, published)


def _end(endings: Endings, live: Live, key: ClaimKey, ending: Ending, now: Micros) -> None:
    """What becomes of one entry."""
    outcome, error = ending.outcome, ending.error
    if outcome in ("done", "dead"):
        endings.end(live, outcome, key=key, started=ending.started_us, error=error, by_owner=True, result=ending.result)
        return
    due = live.due_us
    if outcome != "release":
        due = now + ending.delay_us if ending.due_us is None else ending.due_us
    if outcome == "retry":
        endings.record(live, "retried", key=key, started=ending.started_us, error=error, by_owner=True)
        endings.give_back(live, due, key=key, attempt=live.attempt, error=error)
        return
    # Released means untouched: nothing has shown that a suspect is harmless.
    suspect = outcome == "release" and live.suspect
    endings.give_back(live, due, key=key, attempt=live.attempt - 1, error=error, suspect=suspect)
    endings.remember(live, key, outcome)


# --- leases --------------------------------------------------------------------------------------------


def extend(state: State, leases: Sequence[Lease], until_us: Micros) -> list[Micros | None]:
    """Prolong leases. Returns the end asked for, for each lease, or None if it is lost."""
    ends: list[Micros | None] = []
    named: dict[ClaimKey, list[str]] = {}
    for lease in leases:
        held = state.held(lease)
        ends.append(None if held is None else until_us)
        if held is not None:
            named.setdefault(held[1], []).append(lease.entry)
    with state.atomic():
        for key, ids in named.items():
            _extend_claim(state, key, ids, until_us)
    return ends


def _extend_claim(state: State, key: ClaimKey, ids: list[str], until_us: Micros) -> None:
    claim = state.claims[key]
    # A heartbeat must not shorten what a handler asked for.
    if until_us <= claim.until_us:
        return
    if len(set(ids)) == len(claim.held):
        state.claims[key] = replace(claim, until_us=until_us)
        return
    # Those that are not named run out as they would have.
    held = {id_: claim.held[id_] for id_ in ids}
    state.claims[free_key(state, claim.queue, claim.id)] = with_held(replace(claim, until_us=until_us), held)
    take_out(state, key, list(held))


def free_key(state: State, queue: str, claim_id: str) -> ClaimKey:
    """The key of a new record of a claim."""
    part = 0
    while (queue, claim_id, part) in state.claims:
        part += 1
    return queue, claim_id, part


# --- cancelling ----------------------------------------------------------------------------------------


def cancel(state: State, ids: Sequence[str], now: Micros, *, force: bool, scope: Scope | None) -> list[tuple[str, str]]:
    """End entries as cancelled, all or none."""
    cancelled = []
    with state.atomic():
        for id_ in ids:
            end = state.last_end(id_) if state.live(id_) is None else None
            if end is not None and end.state == "cancelled":
                continue
            live, _ = changeable(state, id_, force=force, scope=scope)
            endings = Endings(state, now)
            endings.end(live, "cancelled", key=state.holder_of.get(id_))
            endings.apply()
            cancelled.append((id_, live.queue))
    return cancelled
