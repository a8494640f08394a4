"""Event time on Spark: with backlogs larger than a batch, restarts and silence, results are those of the definitions.

tests/unit/stream/test_spark_timing.py has more of the same without a JVM.
"""

import pytest
from tests.spark import timing
from tests.spark.runners import logs, patience, runner

from penstock import LogStore
from penstock.clock import Clock, SystemClock

__all__ = ["logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


# Every computation is a query with workers of its own: one case here, the others with the long tests.
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.faults) for seed in (6, 8, 9, 13, 17, 19))])
def test_results_are_those_of_the_definitions(logs: LogStore, runner: timing.Make, seed: int) -> None:
    timing.run_with_backlogs(logs, runner, seed, probes=False)


@pytest.mark.faults
@pytest.mark.parametrize("seed", [2, 5])
def test_probes_see_no_late_record(logs: LogStore, runner: timing.Make, seed: int) -> None:
    timing.run_with_backlogs(logs, runner, seed, probes=True)


@pytest.mark.parametrize("seed", [3, pytest.param(7, marks=pytest.mark.faults)])
def test_restarts_change_nothing(logs: LogStore, runner: timing.Make, seed: int) -> None:
    timing.run_with_restarts(logs, runner, seed)


@pytest.mark.parametrize("seed", [4, pytest.param(11, marks=pytest.mark.faults)])
def test_silence_makes_no_record_late_that_waits_in_a_log(logs: LogStore, runner: timing.Make, seed: int) -> None:
    timing.run_with_silence(logs, runner, seed)
