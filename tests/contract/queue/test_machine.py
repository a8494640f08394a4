"""Every store against the model, by a hypothesis state machine; PENSTOCK_EXAMPLES=2000 looks longer."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.queue import machine
from tests.store_urls import STORES

from penstock import QueueStore, open_queues
from penstock.testing import FakeClock

# As many as fit the time that tests may take; a server's answer takes longer than a look into memory.
EXAMPLES = {"memory": 150, "sqlite": 150, "postgres": 60, "mysql": 60, "redis": 60, "zookeeper": 30}


def test_every_store_is_compared_with_the_model() -> None:
    assert list(EXAMPLES) == list(STORES)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("store", list(EXAMPLES))
def test_store_does_what_the_model_does(store: str, tmp_path: Path, servers: Callable[[str], Any]) -> None:
    numbers = itertools.count()

    def opened(clock: FakeClock) -> QueueStore:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        url = STORES[store](folder, servers).url
        # What is not about durability need not wait for the disk.
        url += "?durability=fast" if store == "sqlite" else ""
        return open_queues(url, clock=clock, node="one")

    machine.run(opened, examples=max(EXAMPLES[store], int(os.environ.get("PENSTOCK_EXAMPLES", "0"))))
