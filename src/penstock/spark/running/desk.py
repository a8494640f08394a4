"""The log store as a turn sees it."""

from __future__ import annotations

from typing import Any

from penstock.clock import Micros
from penstock.log.record import NewRecords
from penstock.log.store import Commit, Committed, LogStore, Stage, Staged


class Desk:
    """A log store where time stands still, and what is committed is written aside."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._now: Micros = 0
        self._stages: dict[str, Stage] = {}

    def begin(self, now: Micros) -> None:
        """A turn, at this time."""
        self._now = now
        self._stages = {}

    def now(self) -> Micros:
        """The time of the ticket: a repeated turn has the same."""
        return self._now

    def transact(self, commit: Commit) -> Committed:
        """Write the outputs aside; offsets go with the ticket."""
        by_log: dict[str, list[tuple[int, NewRecords]]] = {}
        for place, records in commit.outputs:
            by_log.setdefault(place.log, []).append((place.index, records))
        for log, parts in by_log.items():
            stage = self._stages.get(log)
            if stage is None:
                stage = self._stages[log] = self._store.stage(log)
            stage.append(parts)
        return Committed()

    def staged(self) -> list[Staged]:
        """What was written aside."""
        return [stage.close() for stage in self._stages.values()]

    def discard(self) -> None:
        """Throw it away."""
        for stage in self._stages.values():
            stage.discard()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
