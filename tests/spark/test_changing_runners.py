"""Computations change between LocalRunner and SparkRunner."""

import pytest
from tests.spark.changing import TestChangingRunners as Changing
from tests.spark.runners import clock, logs, patience, runner

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


class TestChangingRunners(Changing):
    """tests/unit/stream/test_spark_in_process.py has the same without a JVM."""
