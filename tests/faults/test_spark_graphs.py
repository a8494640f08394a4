"""Random topologies on Spark against plain Python; PENSTOCK_EXAMPLES=100 looks longer."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream import graphs
from tests.contract.stream.shorthand import Run
from tests.spark.conftest import spark
from tests.spark.runners import LEAST, patience

import penstock
from penstock import LogStore
from penstock.spark import SparkRunner
from penstock.testing import FakeClock

__all__ = ["patience", "spark"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(0)]


def test_random_topologies_do_what_plain_python_does(spark: Any, tmp_path: Path) -> None:
    made = itertools.count()

    def fresh() -> tuple[LogStore, Run]:
        folder = tmp_path / str(next(made))
        logs = penstock.open_logs(f"file://{folder / 'logs'}?durability=fast", clock=FakeClock())

        def run(topology: Any, **options: Any) -> SparkRunner:
            options["checkpoint_records"] = max(LEAST, options["checkpoint_records"])
            return SparkRunner(topology, logs, spark, **options)

        return logs, run

    graphs.run(fresh, examples=int(os.environ.get("PENSTOCK_EXAMPLES", "3")))
