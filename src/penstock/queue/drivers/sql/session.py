"""Session: named statements on one connection, inside one transaction."""

from __future__ import annotations

from typing import Any

from penstock.clock import Micros
from penstock.queue.drivers.sql.clocks import ServerClock
from penstock.queue.drivers.sql.rows import QueueRow
from penstock.queue.drivers.sql.statements import Statement, numbered


class Session:
    """What a call does its work with; made for every transaction."""

    def __init__(
        self, cursor: Any, statements: dict[str, Statement], clock: ServerClock, *, space: str, repeat: bool = False
    ) -> None:
        """``repeat`` says that this call was sent before and its reply was lost."""
        self._cursor = cursor
        self._statements = statements
        self._clock = clock
        self._space = space
        self.channel = f"penstock_{space}"
        self.repeat = repeat
        self.rings = False  # whether something became claimable
        self.queue_rows: dict[tuple[str, str], QueueRow] = {}

    @property
    def now(self) -> Micros:
        """The store's time, after whatever has been waited for so far."""
        return self._clock.now()

    @property
    def fixed_now(self) -> Micros | None:
        """The time of a fake clock; None where the server's decides."""
        return self._clock.fixed

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; what it gives."""
        cursor, named = self._cursor, self._statements[statement]
        cursor.execute(named.text, named.ordered(parameters))
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    def row(self, statement: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Run a statement; the first row it gives."""
        found = self.rows(statement, **parameters)
        return found[0] if found else None

    def change(self, statement: str, **parameters: Any) -> int:
        """Run a statement; how many rows it changed."""
        cursor, named = self._cursor, self._statements[statement]
        cursor.execute(named.text, named.ordered(parameters))
        return int(cursor.rowcount)

    def search(self, statement: str, tail: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement with conditions of the caller's; what it gives."""
        cursor, begin = self._cursor, self._statements[statement].text
        whole = numbered(f"{begin} {tail.replace('{space}', self._space)}")
        cursor.execute(whole.text, whole.ordered(parameters))
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    def execute(self, text: str) -> None:
        """Run a statement that has no name: a savepoint."""
        self._cursor.execute(text)
