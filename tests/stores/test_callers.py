"""What may be given as ``connection=``: what SQLAlchemy and Django hold, and what cannot be used and says why."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES, Servers

from penstock import QueueStore, Unique, open_queues
from penstock.errors import BadInput, UniqueHeld


class DjangoWrapper:
    """Shaped as ``django.db.connection``: it holds the driver's connection once it has connected."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self.connection: Any = None
        self._connect = connect

    def ensure_connection(self) -> None:
        if self.connection is None:
            self.connection = self._connect()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def store(path: Path) -> Iterator[QueueStore]:
    with open_queues(f"sqlite:///{path}") as opened:
        yield opened


@pytest.mark.parametrize("connected", [False, True])
def test_djangos_connection_on_sqlite(store: QueueStore, path: Path, connected: bool) -> None:
    wrapper = DjangoWrapper(lambda: sqlite3.connect(path, isolation_level=None, check_same_thread=False))
    if connected:
        wrapper.ensure_connection()
    queue = store.queue("mails", str)
    with pytest.raises(BadInput, match=r"transaction\.atomic"):
        queue.put("outside", connection=wrapper)
    wrapper.connection.execute("BEGIN")
    queue.put("kept", connection=wrapper)
    wrapper.connection.execute("COMMIT")
    wrapper.connection.execute("BEGIN")
    queue.put("undone", connection=wrapper)
    wrapper.connection.execute("ROLLBACK")
    assert [entry.value for entry in queue.find()] == ["kept"]
    wrapper.connection.close()


def test_djangos_connection_on_a_server(tmp_path: Path, servers: Servers) -> None:
    place = STORES["postgres"](tmp_path, servers)
    assert place.connect is not None
    wrapper = DjangoWrapper(place.connect)
    with open_queues(place.url) as store:
        store.queue("mails", str).put("kept", connection=wrapper)
        wrapper.connection.commit()
        assert len(store.queue("mails", str).find()) == 1
    wrapper.connection.close()


class AsyncDriver:
    """Shaped as an async driver's connection."""

    async def commit(self) -> None: ...

    async def execute(self, text: str) -> None: ...


def test_an_async_drivers_connection_is_refused_with_what_to_do(store: QueueStore) -> None:
    with pytest.raises(BadInput, match=r"an AsyncDriver, whose transaction only an event loop.*sync engine"):
        store.queue("mails", str).put("x", connection=AsyncDriver())


class Holder:
    """Shaped as what SQLAlchemy puts around a driver's connection."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


class SyncSession:
    """Shaped as the Session that ``run_sync`` of an async one gives."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def connection(self) -> Any:
        return Holder(connection=Holder(driver_connection=self._driver))

    def commit(self) -> None: ...


@pytest.mark.parametrize("what", ["Session", "Connection"])
def test_the_hint_for_what_run_sync_gives_does_not_lead_back_to_it(store: QueueStore, what: str) -> None:
    session = SyncSession(AsyncDriver())
    given: Any = session if what == "Session" else session.connection()
    with pytest.raises(BadInput) as caught:
        store.queue("mails", str).put("x", connection=given)
    text = str(caught.value)
    assert "on an async driver (AsyncDriver)" in text
    assert "sync engine" in text
    assert "SQLAlchemy's Connection or Session" not in text


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_threads_that_share_a_connection_do_not_undo_each_other(tmp_path: Path, servers: Servers, kind: str) -> None:
    """A put that is refused rolls back to where it began, and nothing that another thread has put meanwhile."""
    place = STORES[kind](tmp_path, servers)
    if kind == "sqlite":
        file = place.url.removeprefix("sqlite:///").partition("?")[0]
        connection: Any = sqlite3.connect(file, check_same_thread=False)
    else:
        assert place.connect is not None
        connection = place.connect()
    with open_queues(place.url) as store, closing(connection), ThreadPoolExecutor(4) as threads:
        queue = store.queue("mails", str)
        queue.put("holder", unique="held")
        for number in range(10):
            refused = threads.submit(queue.put, "no", connection=connection, unique=Unique("held", on_conflict="raise"))
            kept = [threads.submit(queue.put, f"{number}-{rank}", connection=connection) for rank in range(3)]
            with pytest.raises(UniqueHeld):
                refused.result()
            assert [put.result().created for put in kept] == [True] * 3
            connection.commit()
        wanted = {"holder", *(f"{number}-{rank}" for number in range(10) for rank in range(3))}
        assert {entry.value for entry in queue.find()} == wanted
