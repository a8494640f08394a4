"""Transactions of async drivers (psycopg's AsyncConnection, asyncpg) joined by calls that await nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from penstock.queue.drivers.sql.callers import AsyncCaller

Rows = list[tuple[Any, ...]]


def is_joinable(caller: AsyncCaller) -> bool:
    """Whether we know how to speak through this driver."""
    return isinstance(caller.connection, psycopg.AsyncConnection) or _is_asyncpg(caller.connection)


def transaction_status(caller: AsyncCaller) -> TransactionStatus:
    """What the server last said of the transaction; asyncpg does not tell whether it has failed."""
    connection = caller.connection
    if isinstance(connection, psycopg.AsyncConnection):
        return connection.info.transaction_status
    return TransactionStatus.INTRANS if connection.is_in_transaction() else TransactionStatus.IDLE


def begins_by_itself(caller: AsyncCaller) -> bool:
    """Whether the next statement begins a transaction."""
    connection = caller.connection
    return isinstance(connection, psycopg.AsyncConnection) and not connection.autocommit


def awaited_cursor(caller: AsyncCaller) -> AwaitedCursor:
    """A cursor that waits for the answers of the driver."""
    if isinstance(caller.connection, psycopg.AsyncConnection):
        return PsycopgCursor(caller)
    return AsyncpgCursor(caller)


def _is_asyncpg(connection: Any) -> bool:
    # By name, so that it is imported by nobody but the caller; a pool lends proxies of its connections.
    return any(kind.__module__.partition(".")[0] == "asyncpg" for kind in type(connection).__mro__)


class AwaitedCursor:
    """What statements are run with; each of them is one visit to the event loop."""

    def __init__(self, caller: AsyncCaller) -> None:
        """For one call."""
        self._caller = caller
        self._rows: Rows = []
        self.rowcount = -1

    def execute(self, text: str, parameters: Sequence[Any] = ()) -> AwaitedCursor:
        """Run a statement, and fetch all it gives."""
        self._rows, self.rowcount = self._caller.wait(lambda: self._run(text, parameters))
        return self

    def fetchall(self) -> Rows:
        """The rows that are left."""
        rows, self._rows = self._rows, []
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row."""
        return self._rows.pop(0) if self._rows else None

    async def _run(self, text: str, parameters: Sequence[Any]) -> tuple[Rows, int]:
        raise NotImplementedError


class PsycopgCursor(AwaitedCursor):
    """Through psycopg's AsyncConnection."""

    async def _run(self, text: str, parameters: Sequence[Any]) -> tuple[Rows, int]:
        async with psycopg.AsyncRawCursor(self._caller.connection, row_factory=tuple_row) as cursor:
            cursor.format = Format.BINARY
            await cursor.execute(text, parameters or None)
            rows = await cursor.fetchall() if cursor.description else []
            return rows, cursor.rowcount


class AsyncpgCursor(AwaitedCursor):
    """Through asyncpg, whose errors become psycopg's of the same code."""

    async def _run(self, text: str, parameters: Sequence[Any]) -> tuple[Rows, int]:
        connection = self._caller.connection
        try:
            statement = await connection.prepare(text)
            rows = await statement.fetch(*parameters)
            status = statement.get_statusmsg()
        except Exception as error:
            raise _as_psycopgs(error) from error
        return [tuple(row) for row in rows], _affected(status)


def _affected(status: str) -> int:
    """How many rows the server says that a statement touched, as in ``INSERT 0 3``."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdecimal() else -1


def _as_psycopgs(error: Exception) -> Exception:
    code = getattr(error, "sqlstate", None)
    if type(error).__module__.partition(".")[0] != "asyncpg":
        return error
    if code is None:
        return psycopg.OperationalError(str(error))
    try:
        return psycopg.errors.lookup(code)(str(error))
    except KeyError:
        return (psycopg.OperationalError if code[:2] in ("08", "57") else psycopg.DatabaseError)(str(error))
