"""A part of the stream contract on Spark; tests/faults/test_spark_contract.py has all of it, and takes minutes."""

import pytest
from tests.spark.runners import clock, logs, patience, runner

from penstock.testing.stream_contract import failing, keeping, ready, running, timing

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


class TestRunning:
    test_key_time_and_headers_are_kept = running.TestRunning.test_key_time_and_headers_are_kept
    test_a_diamond = running.TestRunning.test_a_diamond
    test_stop_and_resume_where_it_was = running.TestRunning.test_stop_and_resume_where_it_was
    test_shutdown = running.TestRunning.test_shutdown_loses_nothing_and_doubles_nothing
    test_status_says_what_it_does = running.TestRunning.test_status_says_what_it_does


class TestKeeping:
    test_all_kinds_of_state_over_restarts = keeping.TestKeeping.test_all_kinds_of_state_over_restarts
    test_timers_outlive_the_runner = keeping.TestKeeping.test_timers_outlive_the_runner


class TestVersions:
    topology = keeping.TestVersions.topology
    ran_before = keeping.TestVersions.ran_before
    test_another_shape_is_refused = keeping.TestVersions.test_an_older_version_is_refused
    test_upgrade_converts_what_is_kept = keeping.TestVersions.test_upgrade_converts_what_is_kept


class TestTime:
    test_order = timing.TestTime.test_records_before_timers_and_timers_by_time_and_key
    test_the_end_of_the_input = timing.TestTime.test_the_end_of_the_input_fires_all_event_timers
    test_the_slowest_input = timing.TestTime.test_the_slowest_input_holds_the_watermark


class TestFailures:
    ten = failing.TestFailures.ten
    test_stop = failing.TestFailures.test_the_default_stops_and_leaves_the_record
    test_skip = failing.TestFailures.test_the_first_failures_can_be_skipped
    test_a_long_pause = failing.TestFailures.test_stop_does_not_wait_for_a_long_pause


class TestBatches:
    topology = staticmethod(failing.TestBatches.topology)
    test_a_failing_batch_is_taken_apart = failing.TestBatches.test_a_failing_batch_is_taken_apart


class TestJoins:
    test_pairs = ready.TestJoins.test_pairs_within_the_window
