"""Tables of another system, read in one transaction that cannot write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from penstock.adopt.source import unexpected
from penstock.errors import BadInput, StoreUnavailable
from penstock.location import Location
from penstock.opening import QUEUE_STORES, store_module

PAGE = 1000
POSTGRES = ("postgresql", "postgres")
MYSQL = ("mysql", "mariadb")


class Tables(Protocol):
    """What is read of a database; one snapshot."""

    def columns(self) -> dict[str, set[str]]:
        """The columns of every table that is found without naming a schema."""

    def rows(self, query: str, where: str) -> Iterator[Sequence[Any]]:
        """The rows of a query, a page at a time; ``where`` they are is for the error about what cannot be read."""


@contextmanager
def open_tables(location: Location) -> Iterator[Tables]:
    """A snapshot of a database."""
    if location.scheme not in (*POSTGRES, *MYSQL):
        raise BadInput(
            f"{location.masked} is not a database that these tables are in.", hint="Use postgresql:// or mysql://."
        )
    store_module(location, QUEUE_STORES, "queue")  # says which driver is not installed
    with _postgres(location) if location.scheme in POSTGRES else _mysql(location) as tables:
        yield tables


@contextmanager
def _postgres(location: Location) -> Iterator[Tables]:
    import psycopg

    from penstock.queue.drivers.sql.postgres_connection import connect_arguments

    try:
        with psycopg.connect(**connect_arguments(location, 10)) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield _PostgresTables(connection)
    except psycopg.Error as cause:
        raise _away(location, cause) from cause


class _PostgresTables:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def columns(self) -> dict[str, set[str]]:
        return _grouped(self._connection.execute(_COLUMNS + "ANY(current_schemas(false))"))

    def rows(self, query: str, where: str) -> Iterator[Sequence[Any]]:
        from psycopg import DataError

        with self._connection.cursor(name="adopt") as cursor:  # the rows stay at the server until they are asked for
            cursor.itersize = PAGE
            cursor.execute(query)
            try:
                yield from cursor
            except DataError as cause:
                raise unexpected(where, str(cause), "dates in the years 1 to 9999") from cause


@contextmanager
def _mysql(location: Location) -> Iterator[Tables]:
    import pymysql

    from penstock.queue.drivers.sql.mysql_connection import connect_arguments

    try:
        with pymysql.connect(**connect_arguments(location, 10, 60)) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            yield _MysqlTables(connection)
    except pymysql.Error as cause:
        raise _away(location, cause) from cause


class _MysqlTables:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def columns(self) -> dict[str, set[str]]:
        with self._connection.cursor() as cursor:
            cursor.execute(_COLUMNS + "DATABASE()")
            return _grouped(cursor.fetchall())

    def rows(self, query: str, where: str) -> Iterator[Sequence[Any]]:
        from pymysql.cursors import SSCursor

        with self._connection.cursor(SSCursor) as cursor:
            cursor.execute(query)
            while page := cursor.fetchmany(PAGE):
                yield from page


_COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = "


def _grouped(pairs: Any) -> dict[str, set[str]]:
    tables: dict[str, set[str]] = {}
    for table, column in pairs:
        tables.setdefault(table, set()).add(column)
    return tables


def _away(location: Location, cause: Exception) -> StoreUnavailable:
    text = " ".join(str(cause).split())
    return StoreUnavailable(
        f"{location.masked} cannot be read: {text}.", hint="Is the server up, and may this user read the tables?"
    )
