"""Repeats: what a step did when it was sent before and its reply was lost."""

from __future__ import annotations

import msgspec

from penstock.clock import Micros
from penstock.ids import derived_id
from penstock.queue.protocol import Ending, NewEntry, NewEvent, PutResult, Step, StepDone, due_at
from penstock.queue.rules.state import State

# What an outcome is called in the history; the others leave no row there, and are remembered by themselves.
STATES = {"done": "done", "dead": "dead", "retry": "retried"}


def done_before(state: State, step: Step, now: Micros) -> StepDone | None:
    """The results of a step that happened whole before, or None if it did not.

    Nothing is put again, whatever has ended since, and whoever has subscribed since.
    """
    if any(state.held(ending.lease) for ending in step.endings):
        return None
    events = [puts_for(state, event) for event in step.events]
    entries = [*step.puts, *(entry for entries in events for entry in entries)]
    known = {entry.id for entry in entries if state.known(entry.id) is not None}
    # Only this very step can have put an id that was made for it.
    if not any(entry.id in known and not entry.repeat for entry in entries):
        # The same lease may have come with another step: a unit whose commit was in doubt is rolled back.
        missing = any(entry.unique is None and entry.id not in known for entry in step.puts)
        if missing or not any(was_settled(state, ending) for ending in step.endings):
            return None
    puts = tuple(_recall(state, entry, now) for entry in step.puts)
    published = (tuple(_recall(state, entry, now) for entry in entries if entry.id in known) for entries in events)
    return StepDone(puts, tuple(published))


def was_settled(state: State, ending: Ending) -> bool:
    """Whether this very ending happened before."""
    id_, token = ending.lease.entry, ending.lease.token
    remembered = state.settled.get((id_, token))
    if remembered is not None:
        return remembered.outcome == ending.outcome
    rows = (state.history[seq] for seq in state.rows_of.get(id_, ()))
    return any(row.token == token and row.state == STATES.get(ending.outcome) for row in rows)


def _recall(state: State, entry: NewEntry, now: Micros) -> PutResult:
    """What a put gave that happened before."""
    if state.known(entry.id) is not None:
        return known_put(state, entry, now)
    hold = None if entry.unique is None else state.holder(entry.queue, entry.unique.key, now)
    return PutResult(entry.id if hold is None else hold.id, entry.queue, created=False, due_us=due_at(entry, now))


def known_put(state: State, entry: NewEntry, now: Micros) -> PutResult:
    """What a put gave whose entry is known."""
    live = state.live(entry.id)
    due = due_at(entry, now) if live is None else live[0].first_due_us
    return PutResult(entry.id, entry.queue, created=True, due_us=due)


def puts_for(state: State, event: NewEvent) -> list[NewEntry]:
    """One put per subscription that wants the event, with an id that a repeat gives again."""
    return [
        msgspec.structs.replace(
            event.template, id=derived_id(event.template.id, subscription.name), queue=subscription.queue
        )
        for _, subscription in sorted(state.subscriptions.items())
        if not set(event.types).isdisjoint(subscription.types)
    ]
