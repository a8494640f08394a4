"""The whole stream contract on Spark; tests/spark/test_runner_contract.py runs a part of it every time."""

import pytest
from tests.contract.stream import test_broadcast as broadcast
from tests.contract.stream import test_carried as carried
from tests.contract.stream import test_chains as chains
from tests.contract.stream import test_failing as failing
from tests.contract.stream import test_joins as joins
from tests.contract.stream import test_keeping as keeping
from tests.contract.stream import test_late as late
from tests.contract.stream import test_ready as ready
from tests.contract.stream import test_results as results
from tests.contract.stream import test_running as running
from tests.contract.stream import test_scalar_keys as scalar_keys
from tests.contract.stream import test_timing as timing
from tests.spark.conftest import spark
from tests.spark.runners import clock, logs, patience, runner, without

__all__ = ["clock", "logs", "patience", "runner", "spark"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

MEMORY = "looks at objects of the test's process; tests/spark/test_runner.py has its like"
BATCH = "a batch of Spark is one checkpoint: what it holds comes with it, not before"

TestRunning = without(running.TestRunning, {
    "test_a_checkpoint_can_be_asked_for": BATCH,
    "test_a_large_fan_out_is_split_into_checkpoints": "outputs are written aside on disk; no need to split",
    "test_two_runners_share_the_partitions": "a computation has one driver; the executors share its partitions",
})  # fmt: skip
TestKeeping = without(keeping.TestKeeping, {
    "test_bad_use_of_state_is_told": MEMORY,
})  # fmt: skip
TestVersions = keeping.TestVersions
TestTime = timing.TestTime
TestCarried = without(carried.TestCarried, {
    "test_after_the_end_the_next_run_waits_for_all_writers": "its event cannot be sent to a worker",
})  # fmt: skip
TestFailures = without(failing.TestFailures, {
    "test_retries_that_finally_succeed": MEMORY,
    "test_continue_puts_it_into_the_dead_letters": MEMORY,
    "test_reject_is_not_tried_again": MEMORY,
    "test_a_failing_timer": MEMORY,
    "test_a_slow_record_does_not_end_a_drain_early": "its event cannot be sent to a worker",
    "test_an_error_of_the_store_restarts_the_instance": MEMORY,
})  # fmt: skip
TestBatches = without(failing.TestBatches, {
    "test_full_batches_and_the_rest_after_a_while": "a batch of Spark takes what there is; nothing lingers",
})  # fmt: skip
TestPieces = ready.TestPieces
TestTotals = ready.TestTotals
TestWindows = ready.TestWindows
TestJoins = ready.TestJoins
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
