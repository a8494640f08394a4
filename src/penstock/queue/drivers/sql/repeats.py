"""Repeats: what a call did when it was sent before and its reply was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.ids import new_nonce
from penstock.queue.drivers.sql import registry
from penstock.queue.drivers.sql.rows import puts_for
from penstock.queue.drivers.sql.session import Session
from penstock.queue.forgetting import REMEMBERED
from penstock.queue.protocol import Ending, NewEntry, PutResult, Step, StepDone, due_at

T = TypeVar("T")

# What an outcome is called in the history; the others leave no row there, and are remembered by themselves.
_STATES = {"done": "done", "dead": "dead", "retry": "retried"}
_ANSWER = "answer."


# --- steps: recognised by their leases and the ids they put ----------------------------------------------------------


def done_before(session: Session, step: Step) -> StepDone | None:
    """The results of a step that happened whole before, or None if it did not. None of its leases may be held.

    Nothing is put again, whatever has ended since, and whoever has subscribed since.
    """
    subscriptions = registry.subscriptions(session) if step.events else []
    events = [puts_for(event, subscriptions) for event in step.events]
    entries = [*step.puts, *(entry for entries in events for entry in entries)]
    known = {entry.id for entry in entries if session.row("known", id=entry.id)}
    # Only this very step can have put an id that was made for it.
    if not any(entry.id in known and not entry.repeat for entry in entries):
        # The same lease may have come with another step: a unit whose commit was in doubt is rolled back.
        missing = any(entry.unique is None and entry.id not in known for entry in step.puts)
        if missing or not any(was_settled(session, ending) for ending in step.endings):
            return None
    puts = tuple(_recall(session, entry, known=entry.id in known) for entry in step.puts)
    published = (
        tuple(_recall(session, entry, known=True) for entry in entries if entry.id in known) for entries in events
    )
    return StepDone(puts, tuple(published))


def was_settled(session: Session, ending: Ending) -> bool:
    """Whether this very ending happened before."""
    lease = ending.lease
    states = {state for (state,) in session.rows("settled_as", id=lease.entry, claim=lease.ref.claim)}
    return _STATES.get(ending.outcome, ending.outcome) in states


def _recall(session: Session, entry: NewEntry, *, known: bool) -> PutResult:
    due = due_at(entry, session.now)
    if known or entry.unique is None:
        return PutResult(entry.id, entry.queue, known, due)
    holder = session.row("unique_holder", queue=entry.queue, key=entry.unique.key)
    return PutResult(holder[0] if holder else entry.id, entry.queue, False, due)


# --- other calls: recognised by the answer they wrote down in their own transaction ----------------------------------


class Answered:
    """A call without an id of its own: what it would give if it were tried again says nothing of what it did."""

    def __init__(self, work: Callable[[Session], T], kind: Any) -> None:
        """``kind`` is the type of the answer, which JSON can carry."""
        self._work = work
        self._kind = kind
        self._nonce = new_nonce()
        self._name = ""

    def __call__(self, session: Session) -> Any:
        """Do the work and keep its answer, or give the one that was kept."""
        before = self._kept(session)
        if before is not None:
            return before
        try:
            result = self._work(session)
        except PenstockError:
            # The first try may have been under way until its locks were waited for.
            before = self._kept(session)
            if before is None:
                raise
            return before
        if not _changed(result):
            before = self._kept(session)
            return result if before is None else before
        self._name = _named(session.now, self._nonce)
        session.change("keep_answer", name=self._name, value=msgspec.json.encode(result).decode())
        return result

    def _kept(self, session: Session) -> Any:
        row = session.row("answer", name=self._name) if session.repeat else None
        return None if row is None else msgspec.json.decode(row[0], type=self._kind)


def forgettable_answers(now: Micros) -> tuple[str, str]:
    """The names of answers that no repeat asks for any more: from the first on, and before the second."""
    return _ANSWER, _named(now - REMEMBERED, "")


def _changed(result: Any) -> bool:
    return any(msgspec.structs.astuple(result)) if isinstance(result, msgspec.Struct) else bool(result)


def _named(now: Micros, nonce: str) -> str:
    return f"{_ANSWER}{max(now, 0):020d}.{nonce}"
