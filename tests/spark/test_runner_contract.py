"""A part of the stream contract on Spark; tests/faults/test_spark_contract.py has all of it, and takes minutes."""

import pytest
from tests.contract.stream import test_broadcast as broadcast
from tests.contract.stream import test_carried as carried
from tests.contract.stream import test_chains as chains
from tests.contract.stream import test_failing as failing
from tests.contract.stream import test_joins as joins
from tests.contract.stream import test_keeping as keeping
from tests.contract.stream import test_late as late
from tests.contract.stream import test_metrics as metrics
from tests.contract.stream import test_ready as ready
from tests.contract.stream import test_running as running
from tests.contract.stream import test_scalar_keys as scalar_keys
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


class TestMetrics:
    test_counts = metrics.TestStreamMetrics.test_each_computation_is_counted
    test_health = metrics.TestStreamMetrics.test_what_has_failed_for_good_is_not_live


class TestReady:
    test_joined_types = ready.TestJoins.test_both_sides_have_their_types
    test_accumulators = ready.TestWindows.test_an_accumulator_keeps_its_type


class TestMorePieces:
    test_table_join = joins.TestTableJoin.test_it_does_not_matter_which_side_is_read_first
    test_late_updates = late.TestAllowedLateness.test_a_late_record_changes_the_result_until_it_is_too_late
    test_top = late.TestTop.test_the_busiest_of_all_keys_in_two_steps
    test_broadcast = broadcast.TestBroadcast.test_the_streams_can_have_other_names
    test_side_outputs = chains.TestSideOutputs.test_of_functions_on_values
    test_chain = chains.TestChains.test_nothing_is_stored_between_the_steps
    test_scalars = scalar_keys.TestScalarKeys.test_windows_and_totals_give_back_the_scalars


class TestTime:
    test_order = timing.TestTime.test_records_before_timers_and_timers_by_time_and_key
    test_the_end_of_the_input = timing.TestTime.test_the_end_of_the_input_fires_all_event_timers


class TestCarried:
    test_disorder = carried.TestCarried.test_disorder_is_waited_for_once


class TestFailures:
    ten = failing.TestFailures.ten
    test_skip = failing.TestFailures.test_the_first_failures_can_be_skipped
