"""Servers that a test may stop, freeze or set up badly, and what it asks of them with nothing but their own drivers."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from kazoo.client import KazooClient
from redis import Redis as RedisClient
from tools.servers import SERVERS, Missing, Server

from penstock import QueueStore, Worker
from penstock.errors import OutcomeUnknown, StoreUnavailable
from penstock.ids import new_id
from penstock.queue.protocol import ClaimRequest, NewEntry, Source

PATIENCE = 30.0

Start = Callable[..., Any]


@contextlib.contextmanager
def starting() -> Iterator[Start]:
    """Starts servers with settings of their own; they are gone when the block ends."""
    running: list[Server] = []

    def start(name: str, **settings: Any) -> Server:
        try:
            running.append(SERVERS[name](**settings))
        except Missing as missing:
            pytest.skip(f"{name} is not installed here: {missing}")
        return running[-1].start()

    try:
        yield start
    finally:
        for server in running:
            server.close()


@contextlib.contextmanager
def mysql_cursor(port: int, **options: Any) -> Iterator[Any]:
    """Statements as root, each committed."""
    connection = pymysql.connect(
        host="127.0.0.1", port=port, user="root", autocommit=True, ssl_disabled=True, **options
    )
    with contextlib.closing(connection), connection.cursor() as cursor:
        yield cursor


@contextlib.contextmanager
def zookeeper_client(port: int) -> Iterator[Any]:
    client = KazooClient(hosts=f"127.0.0.1:{port}")
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def redis_client(port: int) -> RedisClient:
    return RedisClient(port=port)


def with_options(url: str, *options: str) -> str:
    """A URL with more options."""
    return "&".join([url + ("" if "?" in url else "?space=penstock"), *options])


def eventually(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def persistently(call: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What a careful caller does: ask again while the store does not answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (StoreUnavailable, OutcomeUnknown):
            assert time.monotonic() < deadline, "the store never came back"
            time.sleep(0.05)


@contextlib.contextmanager
def working(*stores: QueueStore, **options: Any) -> Iterator[None]:
    workers = [Worker(store, **options) for store in stores]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop(grace="5s")


def connection_of(store: Any) -> Any:
    """A connection of a store's pool, as a context manager."""
    server = getattr(store.driver, "server", None)
    return store.driver._connection() if server is None else server.transactions.connection()


def claim(store: QueueStore, *queues: str, limit: int = 100, **fields: Any) -> Any:
    sources = tuple(Source(name, limit, fields.pop("attempts", None)) for name in queues)
    wish = ClaimRequest(fields.pop("id", new_id()), sources, limit, "worker", "one", 60_000_000, **fields)
    return store.driver.claim(wish)


def new(queue: str, payload: bytes = b'"x"', **fields: Any) -> NewEntry:
    return NewEntry(new_id(), queue, payload, "json", "Any", **fields)


class Calling:
    """A call in a thread, to be looked at while it is under way."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    @property
    def under_way(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float = PATIENCE) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"the call hangs for more than {seconds:g} s"
        if self.error is not None:
            raise self.error
        return self.result
