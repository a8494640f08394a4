"""Every log store under the contract suite: a new one gets a line in STORES, and its name is in every test's id."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import LogStore
from penstock.ids import new_id
from penstock.testing import FakeClock

Servers = Callable[[str], Any]


def memory(folder: Path, servers: Servers) -> str:
    return f"memory://{new_id()}"


def file(folder: Path, servers: Servers) -> str:
    """What is not about durability need not wait for the disk."""
    return f"file://{folder / 'logs'}?durability=fast"


def kafka(folder: Path, servers: Servers) -> str:
    return f"{servers('kafka').url}/{new_id()}?durability=fast&session.timeout.ms=1500"


# Each is given a fresh folder, topic prefix or name for every test.
STORES: dict[str, Callable[[Path, Servers], str]] = {"memory": memory, "file": file, "kafka": kafka}


@pytest.fixture(params=list(STORES))
def logs_url(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    return STORES[request.param](tmp_path, servers)


@pytest.fixture
def open_logs(logs_url: str, clock: FakeClock) -> Iterator[Callable[..., LogStore]]:
    opened: list[LogStore] = []

    def open_another(*, clock: Any = clock) -> LogStore:
        opened.append(penstock.open_logs(logs_url, clock=clock))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()
