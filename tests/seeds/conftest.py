"""The stores the seed promises are held against: a new one gets a line in STORES, and its name is part of every id."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import FakeClock, QueueStore, open_queues
from penstock.ids import new_id, new_nonce


class Place:
    """Where one test's store is, and how a program opens a connection of its own to the same database."""

    def __init__(self, url: str, connect: Callable[[], Any] | None = None) -> None:
        self.url = url
        self.connect = connect


Servers = Callable[[str], Any]


def memory(folder: Path, servers: Servers) -> Place:
    return Place(f"memory://{new_id()}")


def sqlite(folder: Path, servers: Servers) -> Place:
    path = folder / "store.db"
    return Place(f"sqlite:///{path}", lambda: sqlite3.connect(path, timeout=20))


def redis(folder: Path, servers: Servers) -> Place:
    """The one server, with a space of the test's own."""
    return Place(f"{servers('redis').url}&space=s{new_nonce()}")


STORES: dict[str, Callable[[Path, Servers], Place]] = {"memory": memory, "sqlite": sqlite, "redis": redis}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=list(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    return STORES[request.param](tmp_path, servers)


@pytest.fixture
def open_store(place: Place, clock: FakeClock) -> Iterator[Callable[..., QueueStore]]:
    """Opens handles on the one store of the test; each may be another node."""
    opened: list[QueueStore] = []

    def open_another(*, node: str = "here", clock: Any = clock) -> QueueStore:
        opened.append(open_queues(place.url, clock=clock, node=node))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., QueueStore]) -> QueueStore:
    return open_store()


@pytest.fixture
def connection(place: Place) -> Iterator[Any]:
    """A program's own connection to the database that holds the queues."""
    if place.connect is None:
        pytest.skip(f"{place.url.partition(':')[0]} declares that it knows no transactions of the caller")
    with contextlib.closing(place.connect()) as made:
        yield made


@pytest.fixture
def transaction(place: Place) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A transaction of the caller's, committed at the end; on a store that has none, none."""

    @contextlib.contextmanager
    def begin() -> Iterator[Any]:
        if place.connect is None:
            yield None
            return
        with contextlib.closing(place.connect()) as made:
            yield made
            made.commit()

    return begin
