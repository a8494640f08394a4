"""Two service processes on one store, killed at any moment while a backend goes down and comes back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import service_pair

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql", "redis"])
def test_nothing_stays_locked_and_nothing_is_lost(
    kind: str, seed: int, tmp_path: Path, own: Callable[..., Any]
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}" if kind == "sqlite" else own(kind).url
    seen = service_pair.play(url, tmp_path, seed=seed, rounds=4)
    print(f"{kind}: {seen.kills} kills, {seen.openings} openings, all back after {seen.recovered:.1f} s")
    service_pair.check(seen)
