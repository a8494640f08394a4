"""A part of the stream contract on Spark; tests/faults/test_spark_contract.py has all of it, and takes minutes."""

import pytest
from tests.contract.stream import test_carried as carried
from tests.contract.stream import test_failing as failing
from tests.contract.stream import test_keeping as keeping
from tests.contract.stream import test_ready as ready
from tests.contract.stream import test_running as running
from tests.contract.stream import test_timing as timing
from tests.spark.runners import clock, logs, patience, runner

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


class TestRunning:
    test_key_time_and_headers_are_kept = running.TestRunning.test_key_time_and_headers_are_kept
    test_shutdown = running.TestRunning.test_shutdown_loses_nothing_and_doubles_nothing


class TestKeeping:
    test_timers = keeping.TestKeeping.test_timers_outlive_the_runner
    test_length_and_truth = keeping.TestKeeping.test_length_and_truth_are_those_of_the_current_key


class TestReady:
    test_joined_types = ready.TestJoins.test_both_sides_have_their_types
    test_accumulators = ready.TestWindows.test_an_accumulator_keeps_its_type


class TestTime:
    test_order = timing.TestTime.test_records_before_timers_and_timers_by_time_and_key
    test_the_end_of_the_input = timing.TestTime.test_the_end_of_the_input_fires_all_event_timers


class TestCarried:
    test_disorder = carried.TestCarried.test_disorder_is_waited_for_once


class TestFailures:
    ten = failing.TestFailures.ten
    test_skip = failing.TestFailures.test_the_first_failures_can_be_skipped
