"""Windows and totals of many keys on Spark and on changing runners."""

import pytest
from tests.spark.many_keys import TestManyKeys as ManyKeys
from tests.spark.many_keys import TestManyTotals as ManyTotals
from tests.spark.runners import clock, logs, patience, runner

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


class TestManyKeys(ManyKeys):
    """tests/unit/stream/test_spark_in_process.py has the same without a JVM."""


class TestManyTotals(ManyTotals):
    """The same."""
