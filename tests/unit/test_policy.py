"""Policies: when to try again, and limits."""

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Rate, Reject, Retry, Snooze, TryAgain
from penstock.errors import BadInput
from penstock.log import Batching

SECOND = timedelta(seconds=1)


class TestRetry:
    def test_the_defaults_of_the_design(self) -> None:
        retry = Retry()
        assert (retry.attempts, retry.backoff, retry.max_backoff) == (5, SECOND, timedelta(minutes=10))
        assert retry.jitter is True

    def test_attempts_count_starts_including_the_first(self) -> None:
        retry = Retry(attempts=3, jitter=False)
        assert [retry.delay(attempt) for attempt in (1, 2, 3, 4)] == [SECOND, 2 * SECOND, None, None]
        assert Retry(attempts=1).delay(1) is None

    def test_backoff_doubles_up_to_the_most(self) -> None:
        retry = Retry(attempts=None, backoff="10s", max_backoff="1m", jitter=False)
        assert [retry.delay(attempt) for attempt in range(1, 6)] == [
            10 * SECOND,
            20 * SECOND,
            40 * SECOND,
            60 * SECOND,
            60 * SECOND,
        ]

    @given(st.integers(1, 10_000), st.integers(0, 10**9), st.integers(0, 10**9))
    def test_no_attempt_number_is_too_large(self, attempt: int, backoff: int, most: int) -> None:
        retry = Retry(attempts=None, backoff=timedelta(seconds=backoff), max_backoff=timedelta(seconds=most))
        delay = retry.delay(attempt)
        assert delay is not None
        assert timedelta(0) <= delay <= timedelta(seconds=most)

    @given(st.integers(1, 30), st.integers())
    def test_full_jitter_stays_below_the_backoff(self, attempt: int, seed: int) -> None:
        plain = Retry(attempts=None, jitter=False).delay(attempt)
        jittered = Retry(attempts=None).delay(attempt, random.Random(seed))
        assert plain is not None
        assert jittered is not None
        assert timedelta(0) <= jittered <= plain

    def test_jitter_comes_from_the_given_random(self) -> None:
        retry = Retry(attempts=None, backoff="1h")
        assert retry.delay(3, random.Random(7)) == retry.delay(3, random.Random(7))
        assert retry.delay(3, random.Random(7)) != retry.delay(3, random.Random(8))

    def test_fixed_delays_the_last_one_repeating(self) -> None:
        retry = Retry(attempts=6, delays=["1s", "1m"], jitter=True)
        assert [retry.delay(attempt) for attempt in range(1, 7)] == [SECOND, *[60 * SECOND] * 4, None]

    def test_immediate_ones_come_first(self) -> None:
        retry = Retry(attempts=5, immediate=2, backoff="10s", jitter=False)
        assert [retry.delay(attempt) for attempt in range(1, 6)] == [
            0 * SECOND,
            0 * SECOND,
            10 * SECOND,
            20 * SECOND,
            None,
        ]

    @pytest.mark.parametrize(
        "bad",
        [
            {"attempts": 0},
            {"attempts": -1},
            {"immediate": -1},
            {"attempts": "3"},
            {"attempts": 2.5},
            {"attempts": True},
            {"immediate": "1"},
            {"delays": "1s"},
            {"backoff": "soon"},
            {"backoff": -SECOND},
            {"backoff": 5},
            {"max_backoff": "x"},
            {"delays": ["1s", "x"]},
            {"relative_to": "then"},
        ],
        ids=repr,
    )
    def test_bad_policies_are_refused_where_they_are_written(self, bad: dict[str, Any]) -> None:
        with pytest.raises(BadInput) as caught:
            Retry(**bad)
        assert caught.value.hint


class TestRate:
    @pytest.mark.parametrize(
        ("text", "count", "seconds"),
        [("100/s", 100, 1), ("10/5m", 10, 300), ("1/h", 1, 3600), ("5 / 30s", 5, 30), ("3/500ms", 3, 0.5)],
    )
    def test_read(self, text: str, count: int, seconds: float) -> None:
        assert Rate.parse(text) == Rate(count, round(seconds * 1_000_000))

    @pytest.mark.parametrize(("count", "period"), [(100, "1s"), ("100", 1), (1, 0), (-1, 1), (True, 1), (1, 1.5)])
    def test_made_by_hand_it_has_to_be_one(self, count: Any, period: Any) -> None:
        with pytest.raises(BadInput, match="is not a rate"):
            Rate(count, period)

    @pytest.mark.parametrize("bad", ["", "5", "/s", "0/s", "-1/s", "1.5/s", "5/0s", "5/x", "5/s/s", "five/s", "٥/s"])
    def test_bad(self, bad: str) -> None:
        with pytest.raises(BadInput, match="rate") as caught:
            Rate.parse(bad)
        assert caught.value.hint


def test_outcomes_are_checked_where_they_are_written() -> None:
    assert Snooze("5m").after == "5m"
    assert Reject("why").reason == "why"
    for bad in ("soon", timedelta(-1), 5):
        with pytest.raises(BadInput, match="Snooze"):
            Snooze(bad)  # type: ignore[arg-type]


def test_try_again_carries_policy_and_reason() -> None:
    error = TryAgain(Retry(attempts=2), "busy")
    assert error.retry == Retry(attempts=2)
    assert str(error) == "busy"
    assert str(TryAgain(Retry()))
    assert TryAgain().retry is None
    with pytest.raises(BadInput, match="TryAgain"):
        TryAgain("busy")  # type: ignore[arg-type]


def test_batch() -> None:
    assert Batching().size == 100
    for bad in ({"size": 0}, {"linger": "x"}, {"linger": -SECOND}):
        with pytest.raises(BadInput):
            Batching(**bad)  # type: ignore[arg-type]
