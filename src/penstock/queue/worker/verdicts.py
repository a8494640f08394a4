"""Verdicts: what guards have learnt from attempts is written in the call that settles them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.queue.guard import Guard, Watch
from penstock.queue.handling.outcomes import Ended
from penstock.queue.messages import Note, Settled

Written = list[tuple[Watch, Sequence[Note]]]


class Verdicts:
    """Those who collect the verdicts of this worker's handlers."""

    def __init__(self) -> None:
        """Nobody collects."""
        self._watches: list[Watch] = []
        self._begun: list[Watch] = []

    def follow(self, guard: Guard | None, *, begin: bool) -> None:
        """A handler with this guard is served from now on; ``begin``: in the background."""
        if guard is None or guard.watch in self._watches:
            return
        self._watches.append(guard.watch)
        if begin:
            guard.watch.begin()
            self._begun.append(guard.watch)

    def close(self) -> None:
        """The worker serves nobody any more."""
        self._watches.clear()
        while self._begun:
            self._begun.pop().end()

    def notes(self, outcomes: list[Ended]) -> Written:
        """What to write together with these outcomes."""
        if not self._watches:
            return []
        if len(self._watches) == 1:
            watch = self._watches[0]
            verdicts = [ctx.verdict for _, ctx in outcomes if ctx is not None and ctx.verdict is not None]
            return [(watch, watch.notes(verdicts))] if verdicts else []
        by_watch: dict[int, tuple[Watch, list[Any]]] = {}
        for _, ctx in outcomes:
            if ctx is not None and ctx.verdict is not None and ctx.handler.guard is not None:
                watch = ctx.handler.guard.watch
                by_watch.setdefault(id(watch), (watch, []))[1].append(ctx.verdict)
        return [(watch, watch.notes(verdicts)) for watch, verdicts in by_watch.values()]

    def written(self, notes: Written, reply: Settled, outcomes: list[Ended]) -> None:
        """The call came through."""
        results = iter(reply.noted)
        for watch, documents in notes:
            watch.noted(documents, [next(results) for _ in documents])
        for _, ctx in outcomes:
            if ctx is not None:
                ctx.verdict = None  # what is settled in a second try says nothing new

    def not_written(self, notes: Written) -> None:
        """The call did not come through; its verdicts will be told again."""
        for watch, documents in notes:
            watch.noted(documents, None)
