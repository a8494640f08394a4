"""Event time on Spark: with backlogs larger than a batch, results are those of the definitions."""

import random
from collections.abc import Callable

import pytest
from tests.contract.stream import event_time
from tests.spark.runners import logs, patience, runner

from penstock import LogStore
from penstock.clock import Clock, SystemClock
from penstock.stream.runner import Runner

__all__ = ["logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


# Every computation is a query with workers of its own: one case here, the others with the long tests.
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.faults) for seed in (6, 8, 9, 13, 17, 19))])
def test_results_are_those_of_the_definitions(logs: LogStore, runner: Callable[..., Runner], seed: int) -> None:
    case = event_time.make_case(seed, slowness=0.5)
    event_time.create_edges(case, logs)
    event_time.feed(case, logs, 0.0, 0.4)
    running = runner(event_time.topology(case, probes=False), checkpoint_records=40)
    running.start()
    event_time.feed(case, logs, 0.4, 1.0, random.Random(seed))
    assert running.drain("200s", final=True), running.status()
    event_time.check(case, logs)
