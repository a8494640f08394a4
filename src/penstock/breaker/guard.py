"""CircuitGuard: the middleware that refuses entries of open circuits, and says what each attempt meant."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.clock import SECOND, Micros
from penstock.errors import PenstockError
from penstock.policy import Outcome, Reject, Snooze
from penstock.queue.entry import Entry
from penstock.queue.handling.context import Context
from penstock.queue.handling.outcomes import Refuse
from penstock.queue.queue import Queue

if TYPE_CHECKING:
    from penstock.breaker.breaker import Breaker
    from penstock.breaker.ledger import Circuit

logger = logging.getLogger("penstock.breaker")

# Where a queue could not be locked, an entry given back at once would come back at once.
REFUSED_PAUSE: Micros = SECOND

Names = str | Callable[[Entry[Any], Any], str | None]
Ids = Callable[[Entry[Any], Any], str]


class _Entered:
    """An attempt that a circuit has let in."""

    __slots__ = ("circuit", "id", "permit")

    def __init__(self, circuit: Circuit, id_: str | None, permit: str) -> None:
        self.circuit = circuit
        self.id = id_
        self.permit = permit


class CircuitGuard:
    """Guards one handler with one circuit, or with the one that a function finds for each entry."""

    def __init__(self, breaker: Breaker, circuit: Names, *, id: Ids | None = None, queue: Queue[Any] | None = None):
        """``id`` tells requests apart (by default by entry). A function for ``circuit`` may return None: unguarded."""
        self.breaker = breaker
        self._fixed = breaker.ledger.circuit(circuit) if isinstance(circuit, str) else None
        self._find: Callable[[Entry[Any], Any], str | None] | None = None if isinstance(circuit, str) else circuit
        self._id = id
        if self._fixed is not None and queue is not None:
            breaker.uses(self._fixed, queue)

    @property
    def sink(self) -> Breaker:
        """Who collects the verdicts."""
        return self.breaker

    def __call__(self, ctx: Context[Any], call_next: Callable[[], Any]) -> Any:
        """Around a sync handler."""
        entered = self._enter(ctx)
        if not isinstance(entered, _Entered):
            return call_next() if entered is None else entered
        if ctx.handler.timeout is not None:
            ctx.on_cut_short = partial(self._leave, ctx, entered, None)
        try:
            result = call_next()
        except BaseException as error:
            self._leave(ctx, entered, None, error)
            raise
        self._leave(ctx, entered, result, None)
        return result

    async def in_loop(self, ctx: Context[Any], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around an async handler."""
        # Only where a circuit is not closed the store is asked, and then not in the loop.
        entered = self._enter(ctx) if self.breaker.is_calm else await asyncio.to_thread(self._enter, ctx)
        if not isinstance(entered, _Entered):
            return await call_next() if entered is None else entered
        try:
            result = await call_next()
        except BaseException as error:
            self._leave(ctx, entered, None, error)
            raise
        self._leave(ctx, entered, result, None)
        return result

    def _enter(self, ctx: Context[Any]) -> _Entered | Refuse | None:
        """Let an attempt begin, or say how its entry is given back unspent. Returns None if no circuit is concerned."""
        circuit = self._fixed
        if circuit is None and self._find is not None:
            name = self._find(ctx.entry, ctx.value)
            if name is not None:
                circuit = self.breaker.ledger.circuit(name)
        if circuit is None:
            return None
        id_ = None if self._id is None else self._id(ctx.entry, ctx.value)
        if circuit.is_closed or not self.breaker.ledger.config.circuit_check_enabled:
            return _Entered(circuit, id_, "")
        try:
            passed = self.breaker.enter(circuit, ctx.entry.queue, ctx.lease.token)
        except PenstockError as error:
            logger.error("circuit %r cannot be asked: %s", circuit.name, error)
            passed = False
        if isinstance(passed, str):
            return _Entered(circuit, id_, passed)
        return Refuse(f"circuit {circuit.name} is {circuit.state}", None if passed else REFUSED_PAUSE)

    def _leave(self, ctx: Context[Any], entered: _Entered, result: Any, error: BaseException | None) -> None:
        """Note how an attempt ended: as the handler reported, otherwise well unless it failed."""
        ok: bool | None
        if ctx.answered is not None:
            ok = ctx.answered
        elif error is None and (result is None or result is True):
            ok = True
        else:
            outcome = result if error is None else error
            says_nothing = isinstance(outcome, Snooze | Reject) or outcome in (Snooze, Reject)
            says_nothing = says_nothing or (isinstance(error, asyncio.CancelledError) and ctx.cancelled)
            ok = None if says_nothing else error is None and result is not False and not _is_outcome(result)
        entry = ctx.entry
        ctx.add_verdict(self.breaker, (entered.circuit, entered.id or entry.id, ok, entry.queue, entered.permit))


def _is_outcome(result: Any) -> bool:
    return isinstance(result, Outcome) or (isinstance(result, type) and issubclass(result, Outcome))
