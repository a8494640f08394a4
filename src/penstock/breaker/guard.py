"""CircuitGuard: stands before a handler, refuses entries of open circuits, and says what each attempt meant."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.clock import SECOND, Micros
from penstock.errors import PenstockError
from penstock.policy import Outcome, Reject, Snooze
from penstock.queue.entry import Entry
from penstock.queue.handling.context import Context
from penstock.queue.queue import Queue
from penstock.queue.store import Ending

if TYPE_CHECKING:
    from penstock.breaker.breaker import Breaker

logger = logging.getLogger("penstock.breaker")

# Where a queue could not be locked, an entry given back at once would come back at once.
REFUSED_PAUSE: Micros = SECOND

Names = str | Callable[[Entry[Any], Any], str | None]
Ids = Callable[[Entry[Any], Any], str]


class CircuitGuard:
    """Guards one handler with one circuit, or with the one that a function finds for each entry."""

    def __init__(self, breaker: Breaker, circuit: Names, *, id: Ids | None = None, queue: Queue[Any] | None = None):
        """``id`` tells requests apart (by default by entry); a function for ``circuit`` may say None: unguarded."""
        self.breaker = breaker
        self._fixed = breaker.ledger.circuit(circuit) if isinstance(circuit, str) else None
        self._find: Callable[[Entry[Any], Any], str | None] | None = None if isinstance(circuit, str) else circuit
        self._id = id
        if self._fixed is not None and queue is not None:
            breaker.uses(self._fixed, queue)

    @property
    def watch(self) -> Breaker:
        """Who collects the verdicts."""
        return self.breaker

    @property
    def is_calm(self) -> bool:
        """Whether all circuits are closed, as far as is known."""
        return self.breaker.is_calm

    def enter(self, context: Context[Any], value: Any) -> Ending | None:
        """Let an attempt begin, or give its entry back unspent."""
        circuit = self._fixed
        if circuit is None and self._find is not None:
            name = self._find(context.entry, value)
            if name is not None:
                circuit = self.breaker.ledger.circuit(name)
        if circuit is None:
            return None
        id_ = None if self._id is None else self._id(context.entry, value)
        if circuit.is_closed or not self.breaker.ledger.config.circuit_check_enabled:
            context.verdict = (circuit, id_, "")
            return None
        try:
            passed = self.breaker.enter(circuit, context.entry.queue, context.lease.token)
        except PenstockError as error:
            logger.error("circuit %r cannot be asked: %s", circuit.name, error)
            passed = False
        if isinstance(passed, str):
            context.verdict = (circuit, id_, passed)
            return None
        why = f"circuit {circuit.name} is {circuit.state}"
        if passed:
            return Ending(context.lease, "release", error=why)
        return Ending(context.lease, "snooze", REFUSED_PAUSE, error=why)

    def leave(self, context: Context[Any], result: Any, error: BaseException | None) -> None:
        """An attempt has ended: by what the handler reported, else well unless it failed."""
        entered = context.verdict
        if entered is None:
            return
        ok: bool | None
        if context.answered is not None:
            ok = context.answered
        elif error is None and (result is None or result is True):
            ok = True
        else:
            outcome = result if error is None else error
            says_nothing = isinstance(outcome, Snooze | Reject) or outcome in (Snooze, Reject)
            ok = None if says_nothing else error is None and result is not False and not _is_outcome(result)
        circuit, id_, permit = entered
        entry = context.entry
        context.verdict = (circuit, id_ or entry.id, ok, entry.queue, permit)

    def forget(self, context: Context[Any]) -> None:
        """The outcome will never be settled: give the probe's permit back."""
        verdict: tuple[Any, ...] | None = context.verdict
        if verdict is not None and verdict[-1]:
            self.breaker.tell([(verdict[0], context.entry.id, None, context.entry.queue, verdict[-1])])


def _is_outcome(result: Any) -> bool:
    return isinstance(result, Outcome) or (isinstance(result, type) and issubclass(result, Outcome))
