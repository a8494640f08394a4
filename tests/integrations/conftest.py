"""Fixtures of the tests of integrations: places on real servers."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES, Place


@pytest.fixture
def postgres(tmp_path: Path, servers: Callable[[str], Any]) -> Place:
    """An empty schema of the shared PostgreSQL server."""
    return STORES["postgres"](tmp_path, servers)


@pytest.fixture
def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds."""

    def wait(condition: Callable[[], bool], patience: float = 30.0) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < deadline, "it did not become true"
            time.sleep(0.01)

    return wait
