"""The stores the seed promises are held against; the name of each is part of every test's id."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import store_urls
from tests.store_urls import Place, Servers

from penstock import QueueStore, open_queues
from penstock.testing import FakeClock

# ZooKeeper has a seed of its own, and no search by label, which the others' promises are full of.
STORES = {name: make for name, make in store_urls.STORES.items() if name != "zookeeper"}


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
