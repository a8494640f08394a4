"""Every log store against the model, by a hypothesis state machine; PENSTOCK_EXAMPLES=2000 looks longer."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.log import machine

from penstock import LogStore, open_logs
from penstock.ids import new_id
from penstock.testing import FakeClock

EXAMPLES = {"memory": 60, "file": 60}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("store", list(EXAMPLES))
def test_store_does_what_the_model_does(store: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    def fresh() -> Callable[[], LogStore]:
        clock = FakeClock()
        url = {
            "memory": lambda: f"memory://{new_id()}",
            "file": lambda: f"file://{tmp_path / str(next(numbers))}?durability=fast",
        }[store]()
        return lambda: open_logs(url, clock=clock)

    machine.run(fresh, examples=max(EXAMPLES[store], int(os.environ.get("PENSTOCK_EXAMPLES", "0"))))
