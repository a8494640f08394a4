"""What a repeated step did when it was sent before: read from what it left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.queue.drivers.sql.rows import puts_for
from penstock.queue.store import Ending, NewEntry, PutResult, Step, StepDone, due_at

if TYPE_CHECKING:
    from penstock.queue.stores.sql.steps import Steps

_SETTLED_AS = {"done": "done", "dead": "dead", "retry": "retried"}


def done_before(work: Steps, step: Step) -> StepDone | None:
    """The results of a step that happened whole before; None if it did not. None of its leases may be held.

    Nothing is put again, whatever has ended since, and whoever has subscribed since.
    """
    subscriptions = work.subscriptions() if step.events else []
    events = [puts_for(event, subscriptions) for event in step.events]
    entries = [*step.puts, *(entry for entries in events for entry in entries)]
    known = {entry.id for entry in entries if _is_known(work, entry.id)}
    # Only this very step can have put an id that was made for it.
    if not any(entry.id in known and not entry.repeat for entry in entries):
        # The same lease may have come with another step: a unit whose commit was in doubt is rolled back.
        missing = any(entry.unique is None and entry.id not in known for entry in step.puts)
        if missing or not any(_was_settled(work, ending) for ending in step.endings):
            return None
    puts = tuple(_recall(work, entry, known=entry.id in known) for entry in step.puts)
    published = (tuple(_recall(work, one, known=True) for one in some if one.id in known) for some in events)
    return StepDone(puts, tuple(published))


def _is_known(work: Steps, id_: str) -> bool:
    statements = (work.sql.known_live, work.sql.known_ended)
    return any(work.db.execute(statement, (id_,)).fetchone() for statement in statements)


def _was_settled(work: Steps, ending: Ending) -> bool:
    """Whether this very ending happened before: the history has its row, or the entry was given back with it."""
    lease = ending.lease
    states = work.db.execute(work.sql.settled_as, (lease.entry, lease.token)).fetchall()
    if states:
        return (_SETTLED_AS.get(ending.outcome),) in states
    row = work.row(work.sql.by_id, lease.entry)
    return ending.outcome in ("snooze", "release") and row is not None and row.settled == lease.token


def _recall(work: Steps, entry: NewEntry, *, known: bool) -> PutResult:
    due = due_at(entry, work.now)
    if known or entry.unique is None:
        return PutResult(entry.id, entry.queue, known, due)
    held = work.db.execute(work.sql.unique_holder, (entry.queue, entry.unique.key)).fetchone()
    return PutResult(held[0] if held else entry.id, entry.queue, False, due)
