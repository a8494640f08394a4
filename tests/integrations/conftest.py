"""Fixtures of the tests of integrations: places on real servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.places import STORES, Place


@pytest.fixture
def postgres(tmp_path: Path, servers: Callable[[str], Any]) -> Place:
    """An empty schema of the shared PostgreSQL server."""
    return STORES["postgres"](tmp_path, servers)
