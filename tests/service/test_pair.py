"""Two service processes on one store, one killed: the other one carries on, and nothing stays locked."""

from pathlib import Path
from typing import Any

import pytest
from tests import service_pair
from tests.store_urls import STORES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_nothing_stays_locked_and_nothing_is_lost(kind: str, tmp_path: Path, servers: Any) -> None:
    place = STORES[kind](tmp_path, servers)
    service_pair.check(service_pair.play(place.url, tmp_path, seed=7, rounds=1))
