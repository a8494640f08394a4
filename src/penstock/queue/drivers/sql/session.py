"""Session: named statements on one connection, inside one transaction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from penstock.clock import Micros
from penstock.queue.drivers.sql.rows import QueueRow
from penstock.queue.drivers.sql.statements import Catalogue, Dialect

# So old a reading of the server's clock may be. It is far below every lease, and above what a transaction takes that
# waits for nobody.
FRESH_SECONDS = 0.02


class Session:
    """What a call does its work with; made for every transaction."""

    def __init__(
        self,
        cursor: Any,
        catalogue: Catalogue,
        read_clock: Callable[[], Micros],
        *,
        now: Micros | None = None,
        fixed_now: Micros | None = None,
        repeat: bool = False,
    ) -> None:
        """Make a session whose time is ``fixed_now``, or else what ``read_clock`` asks the server for.

        ``now`` is what the server has just said, if anything. ``repeat`` says that this call was sent before and its
        reply was lost.
        """
        self._cursor = cursor
        self._catalogue = catalogue
        self._read_clock = read_clock
        self._now: Micros = now or 0
        self._asked_at = -math.inf if now is None else time.monotonic()
        self.fixed_now = fixed_now  # the time of a fake clock, or None where the server's decides
        self.channel = f"penstock_{catalogue.space}"
        self.repeat = repeat
        self.rings = False  # whether something became claimable
        self.cascaded: list[tuple[str, str, str]] = []  # id, queue and reason of what others' ends have cancelled
        self.alone = False  # whether what it runs is a transaction by itself
        self.is_callers = False  # whether it is a part of a caller's transaction, which may see what was there before
        self.queue_rows: dict[tuple[str, str], QueueRow] = {}

    @property
    def now(self) -> Micros:
        """The store's time, after whatever has been waited for so far.

        A statement may wait for others' locks for longer than a lease lasts. So the server is asked again when the last
        reading is not fresh: what is stamped after a wait is stamped with the time after it.
        """
        if self.fixed_now is not None:
            return self.fixed_now
        if time.monotonic() - self._asked_at > FRESH_SECONDS:
            self._asked_at = time.monotonic()
            self._now = self._read_clock()
        return self._now

    @property
    def dialect(self) -> Dialect:
        """How conditions are written here."""
        return self._catalogue.dialect

    def knows(self, statement: str) -> bool:
        """Whether this database has such a statement; some do in one what others do in several."""
        return statement in self._catalogue.statements

    def current(self, statement: str, otherwise: str) -> str:
        """The statement that reads past the snapshot of a caller's transaction, if it has one and there is such."""
        return statement if self.is_callers and self.knows(statement) else otherwise

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement. Returns its rows."""
        cursor = self._cursor
        self._catalogue.statements[statement].run(cursor, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def row(self, statement: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Run a statement. Returns its first row, or None."""
        rows = self.rows(statement, **parameters)
        return rows[0] if rows else None

    def change(self, statement: str, **parameters: Any) -> int:
        """Run a statement. Returns how many rows it changed."""
        cursor = self._cursor
        self._catalogue.statements[statement].run(cursor, parameters)
        return int(cursor.rowcount)

    def search(self, statement: str, tail: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement with the caller's conditions. Returns its rows."""
        cursor = self._cursor
        self._catalogue.search(statement, tail).run(cursor, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def execute(self, text: str) -> None:
        """Run a statement that has no name: a savepoint."""
        self._cursor.execute(text)
