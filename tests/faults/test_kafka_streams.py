"""The whole stream contract on Kafka; tests/contract/test_streams_kafka.py runs a part of it every time."""

import pytest
from tests.contract.conftest import clock
from tests.contract.stream import test_broadcast as broadcast
from tests.contract.stream import test_carried as carried
from tests.contract.stream import test_chains as chains
from tests.contract.stream import test_failing as failing
from tests.contract.stream import test_joins as joins
from tests.contract.stream import test_keeping as keeping
from tests.contract.stream import test_late as late
from tests.contract.stream import test_ready as ready
from tests.contract.stream import test_resilience as stubborn
from tests.contract.stream import test_results as results
from tests.contract.stream import test_running as running
from tests.contract.stream import test_scalar_keys as scalar_keys
from tests.contract.stream import test_timing as timing
from tests.contract.stream.places import KAFKA, logs, runner

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
TestResults = results.TestResults
TestJoin = joins.TestJoin
TestWindowJoin = joins.TestWindowJoin
TestTableJoin = joins.TestTableJoin
TestRegularJoin = joins.TestRegularJoin
TestDisorder = late.TestDisorder
TestAllowedLateness = late.TestAllowedLateness
TestTop = late.TestTop
TestChains = chains.TestChains
TestSideOutputs = chains.TestSideOutputs
TestBroadcast = broadcast.TestBroadcast
TestScalarKeys = scalar_keys.TestScalarKeys
