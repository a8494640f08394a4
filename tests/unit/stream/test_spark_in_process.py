"""The stream contract on SparkRunner with its tasks in this process: the driver, the paths and the commit, without a JVM."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from tests.faults.test_spark_contract import (
    TestBatches,
    TestCarried,
    TestFailures,
    TestJoins,
    TestKeeping,
    TestPieces,
    TestRunning,
    TestTime,
    TestTotals,
    TestVersions,
    TestWindows,
)
from tests.spark.in_process import InProcess
from tests.spark.runners import clock, logs, patience, runner

__all__ = [
    "TestBatches", "TestCarried", "TestFailures", "TestJoins", "TestKeeping", "TestPieces", "TestRunning", "TestTime",
    "TestTotals", "TestVersions", "TestWindows", "clock", "logs", "patience", "runner",
]  # fmt: skip


@pytest.fixture
def spark() -> Any:
    return InProcess()
