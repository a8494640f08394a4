"""Event time on SparkRunner without a JVM: its tasks run in this process, so there is time for more cases."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from tests.spark import timing
from tests.spark.in_process import InProcess
from tests.spark.runners import logs, patience, runner

from penstock import LogStore
from penstock.clock import Clock, SystemClock

__all__ = ["logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def spark() -> Any:
    return InProcess()


@pytest.mark.parametrize("seed", range(5))
def test_probes_see_no_late_record(logs: LogStore, runner: timing.Make, seed: int) -> None:
    timing.run_with_backlogs(logs, runner, seed, probes=True)


@pytest.mark.parametrize("seed", range(5))
def test_restarts_change_nothing(logs: LogStore, runner: timing.Make, seed: int) -> None:
    timing.run_with_restarts(logs, runner, seed)


@pytest.mark.parametrize("seed", range(5))
def test_silence_makes_no_record_late_that_waits_in_a_log(logs: LogStore, runner: timing.Make, seed: int) -> None:
    timing.run_with_silence(logs, runner, seed)
