"""The tables of one space on a database server: whether they are there, and bringing them up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from penstock.clock import Clock
from penstock.errors import CannotOpen, PenstockError, StoreReadOnly, StoreUnavailable
from penstock.queue.drivers.sql import schema
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.sql.migrations import Migration, Migrator, Phase, Version
from penstock.queue.drivers.sql.server import Server
from penstock.queue.drivers.sql.transactions import Transactions


class TableServer(Server, Protocol):
    """A database server that keeps tables."""

    name: str
    space: str
    tables: Tables
    transactions: Transactions

    def cursor(self, connection: Any) -> Any:
        """What statements are run with."""

    def translated(self, error: BaseException) -> PenstockError:
        """The driver's error as one of ours."""

    def steps(self, cursor: Any) -> list[Migration]:
        """The steps to the tables of the space, in the words of this server."""

    def has_table(self, cursor: Any, name: str) -> bool:
        """Whether there is a table of this name."""

    def migrating(self, cursor: Any) -> AbstractContextManager[None]:
        """Keep every other process from migrating this space meanwhile."""

    def is_already_there(self, error: BaseException) -> bool:
        """Whether a statement of a step failed because what it makes is there."""

    def check_settings(self, cursor: Any) -> None:
        """Refuse a server that is too old, or that contradicts the durable profile."""


class Tables:
    """The tables of a server's space."""

    def __init__(self, server: TableServer) -> None:
        """Look at nothing yet."""
        self._server = server

    def prepare(self) -> None:
        """Make the tables or bring them up to date; refuse a server that cannot keep them safely."""
        with self._cursor() as cursor:
            if self._checked_version(cursor).pre < schema.VERSION:
                with self._server.migrating(cursor):
                    version = self._checked_version(cursor)  # another process may have done it meanwhile
                    if version.pre < schema.VERSION:
                        self._run_steps(cursor, version, "pre" if version.pre else "all")
            self._server.check_settings(cursor)

    def version(self) -> Version:
        """How far the tables have come."""
        with self._cursor() as cursor:
            return self._version(cursor)

    def migrate(self, phase: Phase) -> list[str]:
        """Bring the tables to the version of this code. Returns what was done."""
        with self._cursor() as cursor, self._server.migrating(cursor):
            return self._run_steps(cursor, self._version(cursor), phase)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        try:
            with self._server.transactions.connection() as connection:
                yield self._server.cursor(connection)
        except PenstockError:
            raise
        except Exception as error:
            raise self._server.translated(error) from error

    def _checked_version(self, cursor: Any) -> Version:
        version = self._version(cursor)
        schema.check(version, self._server.space)
        return version

    def _version(self, cursor: Any) -> Version:
        space = self._server.space
        return Migrator(cursor, space).version() if self._server.has_table(cursor, f"{space}_meta") else Version()

    def _run_steps(self, cursor: Any, version: Version, phase: Phase) -> list[str]:
        steps = self._server.steps(cursor)
        migrator = Migrator(cursor, self._server.space, self._server.is_already_there)
        return migrator.migrate(steps, version=version, phase=phase)


def open_on(server: TableServer, clock: Clock, *, prepare: bool) -> SqlDriver:
    """A driver on this server; ``prepare=False`` leaves the tables alone."""
    try:
        if prepare:
            server.tables.prepare()
    except BaseException as error:
        server.close()
        if isinstance(error, StoreUnavailable) and not isinstance(error, StoreReadOnly):
            raise CannotOpen(str(error)) from error
        raise
    return SqlDriver(server, server.space, clock, server.name)


def are_there(server: TableServer) -> bool:
    """Whether the space has tables; looks, makes none, and lets go of the server."""
    try:
        return server.tables.version().pre > 0
    finally:
        server.close()
