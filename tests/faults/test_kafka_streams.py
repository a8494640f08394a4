"""The whole stream contract on Kafka; tests/contract/test_streams_kafka.py runs a part of it every time."""

import pytest
from tests.contract.conftest import clock
from tests.contract.streams import KAFKA, logs, runner

from penstock.testing.stream_contract import carried, failing, keeping, ready, running, stubborn, timing

__all__ = ["clock", "logs", "runner"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest.fixture
def kind() -> str:
    return KAFKA


TestRunning = running.TestRunning
TestKeeping = keeping.TestKeeping
TestVersions = keeping.TestVersions
TestTime = timing.TestTime
TestCarried = carried.TestCarried
TestFailures = failing.TestFailures
TestBatches = type(
    "TestBatches", (failing.TestBatches,), {"test_full_batches_and_the_rest_after_a_while": None}
)  # looking at a stream takes longer here than a batch waits
TestPieces = ready.TestPieces
TestTotals = ready.TestTotals
TestWindows = ready.TestWindows
TestJoins = ready.TestJoins
TestStubbornStates = stubborn.TestStubbornStates
TestStubbornTimes = stubborn.TestStubbornTimes
