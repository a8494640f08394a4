"""Every store under the contract suite; its name is part of every test's id."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES, Place, Servers

from penstock import QueueStore, open_queues
from penstock.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=list(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    return STORES[request.param](tmp_path, servers)


@pytest.fixture
def open_store(place: Place, clock: FakeClock) -> Iterator[Callable[..., QueueStore]]:
    opened: list[QueueStore] = []

    def open_another(*, clock: Any = clock, node: str | None = None, space: str | None = None) -> QueueStore:
        mark = "&" if "?" in place.url else "?"
        url = place.url if space is None else f"{place.url}{mark}space={space}"
        opened.append(open_queues(url, clock=clock, node=node or "one"))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def connect(place: Place) -> Iterator[Callable[[], Any]]:
    """A program's own connections to the store's database; one that is not transactional gets something to refuse."""
    made: list[Any] = []

    def connect_another() -> Any:
        made.append((place.connect or object)())
        return made[-1]

    yield connect_another
    for connection in made:
        if hasattr(connection, "close"):
            connection.close()
