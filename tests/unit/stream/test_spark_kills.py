"""A driver killed at every named point, again and again: the results are those of a run in which nothing died.

tests/faults/test_spark_runner.py does the same with Spark itself, and kills workers, executors and hosts too.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from tests.contract.stream.shorthand import fill, numbers
from tests.faults.test_spark_runner import check

ROOT = Path(__file__).parents[3]
POINTS = [
    "spark.batch.planned",
    "spark.batch.computed",
    "log.transaction.committed",
    *(
        pytest.param(point, marks=pytest.mark.faults)
        for point in (
            "stream.checkpoint.before", "log.transaction.written", "log.transaction.before",
            "log.transaction.published", "log.transaction.offsets", "stream.checkpoint.after",
        )
    ),
]  # fmt: skip


def drive(folder: Path, point: str = "none", times: int = 1) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.unit.stream.spark_killed", f"file://{folder}/logs", point, str(times)]
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=200, check=False).returncode


@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point(tmp_path: Path, point: str) -> None:
    with penstock.open_logs(f"file://{tmp_path}/logs") as store:
        fill(store, "in", numbers(300), partitions=2)
    for times in (3, 5):
        assert drive(tmp_path, point, times) in (-9, 0)
    assert drive(tmp_path) == 0
    check(tmp_path)
