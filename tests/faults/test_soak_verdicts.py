"""The verdicts over a long run can fail."""

import pytest
from tests.faults.soak_verdicts import Sample, claims_while_all_ready, growths, starved

pytestmark = pytest.mark.faults

FAMILIES = {"red.": 1, "blue.": 2}


def run_of(sizes: list[int], calls_each: int = 100) -> list[Sample]:
    return [Sample(number * 10**9, number * calls_each, {"t rows": size}) for number, size in enumerate(sizes)]


def test_a_measure_that_goes_up_and_down_is_flat() -> None:
    (growth,) = growths(run_of([10_000 + 2_000 * (number % 7) for number in range(120)]), 10)
    assert growth.after <= growth.allowed


def test_a_leak_of_a_fiftieth_of_all_rows_is_growth() -> None:
    kept_for, rate, leaked = 10, 1_000, 20
    (growth,) = growths(run_of([kept_for * rate + leaked * second for second in range(240)]), 10)
    assert growth.after > growth.allowed


def test_twice_the_work_may_leave_twice_as_much() -> None:
    calls = [100 * number for number in range(60)] + [6_000 + 200 * number for number in range(60)]
    samples = [Sample(number * 10**9, done, {"t rows": 10_000 if number < 60 else 20_000})
               for number, done in enumerate(calls)]  # fmt: skip
    (growth,) = growths(samples, 10)
    assert growth.after <= growth.allowed


def test_what_is_kept_follows_the_calls_of_the_time_it_is_kept() -> None:
    """Not those of the whole run: the machine may have been busy for half of it."""
    paces = [100] * 60 + [50] * 25 + [300] * 60
    calls, samples = 0, []
    for number, pace in enumerate(paces):
        calls += pace
        samples.append(Sample(number * 10**9, calls, {"t rows": sum(paces[max(0, number - 20) : number])}))
    (growth,) = growths(samples, 20)
    assert growth.before < growth.after <= growth.allowed


def test_a_short_run_says_nothing() -> None:
    assert growths(run_of([1, 1_000_000] * 15), 10) == []


def test_only_claims_between_two_looks_that_found_work_everywhere_count() -> None:
    events = [{"op": "claimed", "at": at, "queue": f"red.{at}"} for at in (5, 15, 25, 35)]
    assert claims_while_all_ready(events, [(0, 3), (10, 3), (20, 0), (30, 1), (40, 1)]) == ["red.5", "red.35"]


def test_equal_shares_are_fair() -> None:
    assert starved(["red.0", "blue.0", "red.0", "blue.1"] * 200, FAMILIES) == []


def test_shares_by_queue_are_as_fair_as_those_by_family() -> None:
    assert starved(["red.0", "blue.0", "blue.1"] * 200, FAMILIES) == []


def test_a_family_that_gets_a_ninth_where_a_third_is_fair_starves() -> None:
    assert starved(["red.0", *["blue.0", "blue.1"] * 4] * 200, FAMILIES)


def test_a_queue_that_its_family_passes_over_starves() -> None:
    assert starved(["red.0"] * 300 + ["blue.0"] * 300, FAMILIES)
