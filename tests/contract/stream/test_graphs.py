"""Random topologies on every runner against plain Python; PENSTOCK_EXAMPLES=500 looks longer."""

import functools
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream import graphs
from tests.contract.stream.places import RUNNERS
from tests.contract.stream.shorthand import Run

import penstock
from penstock import LogStore
from penstock.testing import FakeClock

EXAMPLES = {"local-memory": 25, "local-file": 12}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", list(EXAMPLES))
def test_random_topologies_do_what_plain_python_does(kind: str, tmp_path: Path) -> None:
    made = itertools.count()

    def fresh() -> tuple[LogStore, Run]:
        run, url = RUNNERS[kind]

        def servers(name: str) -> Any:
            raise AssertionError(f"{name} is not asked for here")

        logs = penstock.open_logs(url(tmp_path / str(next(made)), servers), clock=FakeClock())
        return logs, lambda topology, **options: functools.partial(run, **options)(topology, logs)

    graphs.run(fresh, examples=max(EXAMPLES[kind], int(os.environ.get("PENSTOCK_EXAMPLES", "0"))))
