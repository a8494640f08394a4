"""A service over stores of its own, spoken to in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock import LogStore, QueueStore, open_logs, open_queues
from penstock.service import ServiceSettings, create_app


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[QueueStore]:
    with open_queues(f"sqlite:///{tmp_path}/q.db") as store:
        yield store


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogStore]:
    with open_logs(f"file://{tmp_path}/logs") as store:
        yield store


@pytest.fixture
def serving_store() -> Iterator[Callable[..., TestClient]]:
    opened: list[TestClient] = []

    def serve(
        queues: QueueStore, logs: LogStore | None = None, topologies: tuple[Any, ...] = (), **settings: Any
    ) -> TestClient:
        app = create_app(ServiceSettings(queues=queues.name, **settings), queues, logs, topologies)
        client = TestClient(app, "http://127.0.0.1", raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        return client

    yield serve
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def serving(serving_store: Callable[..., TestClient], queues: QueueStore, logs: LogStore) -> Callable[..., TestClient]:
    def serve(*, with_logs: bool = True, topologies: tuple[Any, ...] = (), **settings: Any) -> TestClient:
        return serving_store(queues, logs if with_logs else None, topologies, **settings)

    return serve


@pytest.fixture
def client(serving: Callable[..., TestClient]) -> TestClient:
    return serving()
