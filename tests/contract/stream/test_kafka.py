"""The stream contract on Kafka: what depends on the store, as every test there takes seconds."""

import pytest
from tests.contract.stream import test_carried as carried
from tests.contract.stream import test_failing as failing
from tests.contract.stream import test_keeping as keeping
from tests.contract.stream import test_ready as ready
from tests.contract.stream import test_running as running
from tests.contract.stream.places import KAFKA, logs, runner

__all__ = ["logs", "runner"]


@pytest.fixture
def kind() -> str:
    return KAFKA


class TestRunning:
    test_a_diamond = running.TestRunning.test_a_diamond
    test_key_time_and_headers_are_kept = running.TestRunning.test_key_time_and_headers_are_kept


class TestKeeping:
    test_all_kinds_of_state_over_restarts = keeping.TestKeeping.test_all_kinds_of_state_over_restarts
    test_the_changelog_is_bounded = keeping.TestKeeping.test_the_changelog_is_bounded


class TestCarried:
    test_a_slow_partition = carried.TestCarried.test_records_of_a_slow_partition_are_not_late


class TestFailures:
    ten = failing.TestFailures.ten
    test_dead_letters = failing.TestFailures.test_continue_puts_it_into_the_dead_letters


class TestJoins:
    test_pairs = ready.TestJoins.test_pairs_within_the_window
