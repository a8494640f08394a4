"""The stream contract on SparkRunner without a JVM: its tasks run in this process."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from tests.faults.test_spark_contract import (
    TestAllowedLateness,
    TestBatches,
    TestBroadcast,
    TestCarried,
    TestChains,
    TestDisorder,
    TestFailures,
    TestJoin,
    TestJoins,
    TestKeeping,
    TestPieces,
    TestRegularJoin,
    TestResults,
    TestRunning,
    TestScalarKeys,
    TestSideOutputs,
    TestTableJoin,
    TestTime,
    TestTop,
    TestTotals,
    TestVersions,
    TestWindowJoin,
    TestWindows,
)
from tests.spark.changing import TestChangingRunners
from tests.spark.in_process import InProcess
from tests.spark.many_keys import TestManyKeys, TestManyTotals
from tests.spark.runners import clock, logs, patience, runner

__all__ = [
    "TestAllowedLateness", "TestBatches", "TestBroadcast", "TestCarried", "TestChains", "TestChangingRunners",
    "TestDisorder", "TestFailures", "TestJoin", "TestJoins", "TestKeeping", "TestManyKeys",
    "TestManyTotals", "TestPieces", "TestRegularJoin", "TestResults", "TestRunning", "TestScalarKeys",
    "TestSideOutputs", "TestTableJoin", "TestTime", "TestTop", "TestTotals", "TestVersions",
    "TestWindowJoin", "TestWindows", "clock", "logs", "patience", "runner",
]  # fmt: skip


@pytest.fixture
def spark() -> Any:
    return InProcess()
