"""Seed systems' data on real servers, from recordings of what the Java originals wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import store_urls
from tests.adopt.layout import KILLBILL_TABLES, killbill_ddl, recording
from tests.store_urls import Place, Servers
from typer.testing import CliRunner

from penstock import QueueStore, open_queues
from penstock.cli.app import app
from penstock.ids import new_nonce

SOURCE_DATABASE = 5  # of Redis; stores under test use others


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Where things are taken to, unless a test is about the stores."""
    return f"sqlite:///{tmp_path}/target.db"


@pytest.fixture(params=[name for name in store_urls.STORES if name != "memory"])
def any_target(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    return store_urls.STORES[request.param](tmp_path, servers)


@pytest.fixture
def opened() -> Iterator[Callable[[str], QueueStore]]:
    """Opens stores, and closes them when the test is over."""
    made: list[QueueStore] = []

    def open_one(url: str) -> QueueStore:
        made.append(open_queues(url))
        return made[-1]

    yield open_one
    for store in made:
        store.close()


Killbill = Callable[..., tuple[str, Any]]


@pytest.fixture(params=["postgresql", "mariadb"])
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def killbill(dialect: str, servers: Servers) -> Iterator[tuple[str, Callable[[str], list[Any]]]]:
    """The four tables as the Java library left them: their URL, and how a statement is run there."""
    url, connection = (_postgres if dialect == "postgresql" else _mariadb)(servers)

    def run(statement: str, *values: Any) -> list[Any]:
        cursor = connection.cursor()
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []

    for table, content in recording(f"killbill-{dialect}").items():
        marks = ", ".join(["%s"] * len(content["columns"]))
        for row in content["rows"]:
            run(f"INSERT INTO {table} ({', '.join(content['columns'])}) VALUES ({marks})", *row)
    yield url, run
    connection.close()


def _postgres(servers: Servers) -> tuple[str, Any]:
    import psycopg

    server, schema = servers("postgres"), f"k{new_nonce()}"
    connection = psycopg.connect(server.url, autocommit=True)
    connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}")
    connection.execute(killbill_ddl("postgresql"))
    return f"{server.url}?options=-csearch_path%3D{schema}", connection


def _mariadb(servers: Servers) -> tuple[str, Any]:
    import pymysql
    from pymysql.constants import CLIENT

    server, database = servers("mysql"), f"k{new_nonce()}"
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user="root", autocommit=True, ssl_disabled=True,
        client_flag=CLIENT.MULTI_STATEMENTS,
    )  # fmt: skip
    cursor = connection.cursor()
    cursor.execute(f"CREATE DATABASE {database}; USE {database}; {killbill_ddl('mysql')}")
    while cursor.nextset():
        pass
    return f"mysql://root@127.0.0.1:{server.port}/{database}", connection


@pytest.fixture
def killbill_tables(killbill: tuple[str, Any]) -> Callable[[], Any]:
    """All that is in the tables, to see that nothing changes there."""
    return lambda: [killbill[1](f"SELECT * FROM {table} ORDER BY record_id") for table in KILLBILL_TABLES]


@pytest.fixture
def redis_source(servers: Servers) -> Iterator[tuple[str, Any]]:
    """An empty Redis database for a seed's keys: its URL, and a client."""
    import redis

    server = servers("redis")
    client = redis.Redis(port=server.port, db=SOURCE_DATABASE, decode_responses=True)
    client.flushdb()
    yield f"{server.url.rpartition('/')[0]}/{SOURCE_DATABASE}", client
    client.flushdb()
    client.close()


def fill(client: Any, name: str, *, without: str = "") -> None:
    """Write the keys of a recording, but those that begin with ``without``."""
    for key, held in recording(name).items():
        if without and key.startswith(without):
            continue
        if held["type"] == "zset":
            client.zadd(key, dict(held["value"]))
        elif held["type"] == "hash":
            client.hset(key, mapping=held["value"])
        elif held["type"] == "list":
            client.rpush(key, *held["value"])
        else:
            client.set(key, held["value"])


def everything(client: Any) -> dict[str, Any]:
    """All keys with what they hold, to see that nothing changes there."""
    read = {
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True), "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1), "string": client.get,
    }  # fmt: skip
    return {key: read[client.type(key)](key) for key in client.scan_iter()}


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def adopt() -> Callable[..., Ended]:
    """Runs ``penstock adopt``."""

    def run(*words: str, code: int = 0) -> Ended:
        done = CliRunner().invoke(app, ["adopt", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == code, done.output
        return Ended(done.exit_code, done.stdout, done.stderr)

    return run
