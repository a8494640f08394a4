"""What is missing or unknown is told with the next step, whichever seed it is."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

SOURCES = {
    "killbill": "postgresql://127.0.0.1:1/shop",
    "delayedqueue": "redis://127.0.0.1:1/0",
    "zkqueue": "zookeeper://127.0.0.1:1/zms",
    "redisques": "redis://127.0.0.1:1/0",
}


@pytest.mark.parametrize("seed", SOURCES)
def test_a_driver_that_is_not_installed_is_named(
    seed: str, target: str, adopt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install" in adopt(seed, SOURCES[seed], "--to", target, code=2).err


@pytest.mark.parametrize("seed", SOURCES)
def test_a_url_of_another_kind_is_refused(seed: str, target: str, adopt: Any) -> None:
    assert "is not a" in adopt(seed, "kafka://127.0.0.1:1", "--to", target, code=2).err


def test_an_unknown_seed_is_refused_with_those_there_are(target: str, adopt: Any) -> None:
    assert "killbill" in adopt("kilbill", SOURCES["killbill"], "--to", target, code=2).err
