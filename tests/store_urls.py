"""Where stores are for tests that run on all of them: a new store gets a line in STORES."""

import atexit
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
# A connection per server that does the emptying; making one costs more than that.
_admins: dict[int, Any] = {}


def _admin(port: int, connect: Callable[[], Any]) -> Any:
    if port not in _admins:
        _admins[port] = connect()
        atexit.register(_admins[port].close)
    return _admins[port]


def _empty(
    server: str, make: Callable[[str], Any], tables: Callable[[str], list[str]], run: Callable[[str], Any]
) -> str:
    """The name of an empty place on a server: the last test's, emptied, or a new one if that is stuck."""
    name = _shared.get(server)
    if name is not None:
        try:
            run("; ".join(_removal(f"{name}.{table}") for table in tables(name)))
        except Exception:
            name = None
    if name is None:
        name = _shared[server] = f"t{new_nonce()}"
        make(name)
    return name


def _removal(table: str) -> str:
    if table.endswith((".effects", ".business", ".orders")):  # a test's own
        return f"DROP TABLE {table}"
    # The version of the schema stays, so that the tables need not be made again.
    return f"DELETE FROM {table}" + (" WHERE name NOT LIKE 'schema%'" if table.endswith("_meta") else "")


def postgres(folder: Path, servers: Servers) -> Place:
    """A schema in the one server; its tables go with the server."""
    import psycopg

    server = servers("postgres")
    options = "-c lock_timeout=1s"
    admin = _admin(server.port, lambda: psycopg.connect(server.url, autocommit=True, options=options))
    schema = _empty(
        "postgres",
        lambda name: admin.execute(f"CREATE SCHEMA {name}"),
        lambda name: [
            row[0] for row in admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (name,))
        ],
        admin.execute,
    )
    path = f"options=-csearch_path%3D{schema}"
    return Place(f"{server.url}?durability=fast&{path}", lambda: psycopg.connect(f"{server.url}?{path}"))


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
    from pymysql.constants import CLIENT

    server = servers("mysql")
    arguments: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "root", "ssl_disabled": True}
    admin = _admin(
        server.port,
        lambda: pymysql.connect(
            **arguments, autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS,
            init_command="SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1",
        ),
    )  # fmt: skip
    cursor = admin.cursor()

    def tables(name: str) -> list[str]:
        cursor.execute(f"SHOW FULL TABLES FROM {name} WHERE Table_type = 'BASE TABLE'")
        return [row[0] for row in cursor.fetchall()]

    def run(statements: str) -> None:
        cursor.execute(statements)
        while cursor.nextset():
            continue

    name = _empty("mysql", lambda name: cursor.execute(f"CREATE DATABASE {name}"), tables, run)

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
