"""Every store against the model, by a hypothesis state machine; PENSTOCK_EXAMPLES=2000 looks longer."""

import itertools
from pathlib import Path

import pytest

from penstock import FakeClock, QueueStore, open_queues
from penstock.ids import new_id
from penstock.testing.contract import machine


@pytest.mark.timeout(0)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_store_does_what_the_model_does(store: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    def opened(clock: FakeClock) -> QueueStore:
        # What is not about durability need not wait for the disk.
        path = tmp_path / f"{next(numbers)}.db"
        url = f"memory://{new_id()}" if store == "memory" else f"sqlite:///{path}?durability=fast"
        return open_queues(url, clock=clock, node="one")

    machine.run(opened)
