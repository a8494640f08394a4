"""Where stores are for tests that run on all of them: a new store gets a line in STORES."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.ids import new_id, new_nonce

Servers = Callable[[str], Any]


class Place:
    """Where one test's store is: its URL, and how a program's own connection to the same database is made."""

    def __init__(self, url: str, connect: Callable[[], Any] | None = None) -> None:
        self.url = url
        self.connect = connect


def memory(folder: Path, servers: Servers) -> Place:
    return Place(f"memory://{new_id()}")


def sqlite(folder: Path, servers: Servers) -> Place:
    path = folder / "store.db"
    return Place(f"sqlite:///{path}", lambda: sqlite3.connect(path, timeout=20))


# The schema or database that tests of one server share, emptied between them: making tables costs more than most tests.
_shared: dict[str, str] = {}


def _empty(
    server: str, make: Callable[[str], None], tables: Callable[[str], list[str]], drop: Callable[[str], None]
) -> str:
    """The name of an empty place on a server: the last test's, emptied, or a new one if that is stuck."""
    name = _shared.get(server)
    if name is not None:
        try:
            for table in tables(name):
                drop(f"{name}.{table}")
        except Exception:
            name = None
    if name is None:
        name = _shared[server] = f"t{new_nonce()}"
        make(name)
    return name


def postgres(folder: Path, servers: Servers) -> Place:
    """A schema in the one server; its tables go with the server."""
    import psycopg

    url = servers("postgres").url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '1s'")
        schema = _empty(
            "postgres",
            lambda name: connection.execute(f"CREATE SCHEMA {name}"),
            lambda name: [row[0] for row in connection.execute(_TABLES, (name,))],
            lambda table: connection.execute(_removal(table)),
        )
    options = f"options=-csearch_path%3D{schema}"
    return Place(f"{url}?durability=fast&{options}", lambda: psycopg.connect(f"{url}?{options}"))


_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"


def _removal(table: str) -> str:
    if table.endswith((".effects", ".business", ".orders")):  # a test's own
        return f"DROP TABLE {table}"
    # The version of the schema stays, so that the tables need not be made again.
    return f"DELETE FROM {table}" + (" WHERE name NOT LIKE 'schema%'" if table.endswith("_meta") else "")


def redis(folder: Path, servers: Servers) -> Place:
    """The one server, emptied: a test may open several spaces."""
    from redis import Redis

    server = servers("redis")
    with Redis(port=server.port) as client:
        client.flushall()
    return Place(server.url)


def mysql(folder: Path, servers: Servers) -> Place:
    """A database in the one server."""
    import pymysql

    server = servers("mysql")
    arguments: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "root", "ssl_disabled": True}
    with contextlib.closing(pymysql.connect(**arguments, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1")

        def tables(name: str) -> list[str]:
            cursor.execute(_TABLES, (name,))
            return [row[0] for row in cursor.fetchall()]

        name = _empty(
            "mysql",
            lambda name: cursor.execute(f"CREATE DATABASE {name}"),
            tables,
            lambda table: cursor.execute(_removal(table)),
        )

    class Connection(pymysql.connections.Connection):  # type: ignore[type-arg]
        """With the execute() that other drivers' connections have."""

        def execute(self, text: str) -> Any:
            cursor = self.cursor()
            cursor.execute(text)
            return cursor

    url = f"mysql://root@127.0.0.1:{server.port}/{name}?durability=fast"
    return Place(url, lambda: Connection(**arguments, database=name))


def zookeeper(folder: Path, servers: Servers) -> Place:
    """A root of its own in the one server."""
    return Place(f"{servers('zookeeper').url}/{new_nonce()}")


# Each is given a fresh schema, database, prefix or root for every test.
STORES: dict[str, Callable[[Path, Servers], Place]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "mysql": mysql,
    "redis": redis,
    "zookeeper": zookeeper,
}
