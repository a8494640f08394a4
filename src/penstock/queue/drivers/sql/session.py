"""Session: named statements on one connection, inside one transaction."""

from __future__ import annotations

from typing import Any

from penstock.clock import Micros
from penstock.queue.drivers.sql.clocks import ServerClock
from penstock.queue.drivers.sql.rows import QueueRow
from penstock.queue.drivers.sql.statements import Catalogue, Dialect


class Session:
    """What a call does its work with; made for every transaction."""

    def __init__(self, cursor: Any, catalogue: Catalogue, clock: ServerClock, *, repeat: bool = False) -> None:
        """``repeat`` says that this call was sent before and its reply was lost."""
        self._cursor = cursor
        self._catalogue = catalogue
        self._clock = clock
        self.channel = f"penstock_{catalogue.space}"
        self.repeat = repeat
        self.rings = False  # whether something became claimable
        self.alone = False  # whether what it runs is a transaction by itself
        self.queue_rows: dict[tuple[str, str], QueueRow] = {}

    @property
    def now(self) -> Micros:
        """The store's time, after whatever has been waited for so far."""
        return self._clock.now()

    @property
    def fixed_now(self) -> Micros | None:
        """The time of a fake clock; None where the server's decides."""
        return self._clock.fixed

    @property
    def dialect(self) -> Dialect:
        """How conditions are written here."""
        return self._catalogue.dialect

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; what it gives."""
        cursor = self._cursor
        self._catalogue[statement].run(cursor, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    def row(self, statement: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Run a statement; the first row it gives."""
        found = self.rows(statement, **parameters)
        return found[0] if found else None

    def change(self, statement: str, **parameters: Any) -> int:
        """Run a statement; how many rows it changed."""
        cursor = self._cursor
        self._catalogue[statement].run(cursor, parameters)
        return int(cursor.rowcount)

    def search(self, statement: str, tail: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement with conditions of the caller's; what it gives."""
        cursor = self._cursor
        self._catalogue.search(statement, tail).run(cursor, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    def execute(self, text: str) -> None:
        """Run a statement that has no name: a savepoint."""
        self._cursor.execute(text)
