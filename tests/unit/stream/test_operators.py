"""What ready-made computations refuse when they are made, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.clock import duration_micros
from penstock.errors import BadInput, WrongType
from penstock.stream import (
    Sliding,
    Tumbling,
    deduplicate,
    filter_values,
    flat_map,
    join,
    latest,
    map_values,
    rate_limit,
    rekey,
    running_count,
    running_fold,
    windowed_count,
    windowed_fold,
)

SECOND = 1_000_000


class Visit(msgspec.Struct):
    """A value with a type of its own."""

    count: int = 0


@pytest.mark.parametrize(("size", "every"), [("10s", "0s"), ("10s", "now"), ("0s", "10s"), ("1h", "1ms")])
def test_a_sliding_window_that_could_not_run(size: str, every: str) -> None:
    with pytest.raises(BadInput):
        windowed_count("m", "in", "out", Sliding(size, every))


def test_a_record_may_be_in_ten_thousand_windows() -> None:
    windowed_count("m", "in", "out", Sliding("10s", "1ms"))
    assert len(Sliding("10s", "1ms").starts(5)) == 10_000
    with pytest.raises(BadInput, match="10,001 windows"):
        windowed_count("m", "in", "out", Sliding("10001ms", "1ms"))


def windowed(initial: Any, accumulator: Any) -> windowed_fold:
    return windowed_fold("m", "in", "out", Tumbling("1h"), initial=initial, fold=max, accumulator=accumulator)


def running(initial: Any, accumulator: Any) -> running_fold:
    return running_fold("m", "in", "out", initial=initial, fold=max, accumulator=accumulator)


@pytest.mark.parametrize("make", [windowed, running])
@pytest.mark.parametrize(
    ("initial", "accumulator"), [("x", int), (1.5, int), ({"count": 0}, Visit), ([1], list[str]), ("x", bytes)]
)
def test_an_initial_of_another_type_than_the_accumulator(
    make: Callable[..., Any], initial: Any, accumulator: Any
) -> None:
    with pytest.raises(WrongType, match=r"m begins with initial="):
        make(initial, accumulator)


@pytest.mark.parametrize("make", [windowed, running])
@pytest.mark.parametrize(
    ("initial", "accumulator"),
    [(0, int), (None, int), (0, float), (b"", bytes), (Visit(), Visit), ([], list[str]), ("x", Any), ((), Any)],
)
def test_an_initial_that_fits(make: Callable[..., Any], initial: Any, accumulator: Any) -> None:
    """None stands for nothing yet, and a whole number for a float."""
    assert make(initial, accumulator).initial == initial


@pytest.mark.parametrize(
    "make",
    [
        lambda: map_values("m", str, "in", "in"),
        lambda: filter_values("m", bool, "in", "in"),
        lambda: filter_values("m", bool, "in", "out", otherwise="in"),
        lambda: flat_map("m", list, "in", "in"),
        lambda: rekey("m", str, "in", "in"),
        lambda: deduplicate("m", "in", "in", within="1h"),
        lambda: rate_limit("m", "in", "in", "10/m"),
        lambda: rate_limit("m", "in", "out", "10/m", over="in"),
        lambda: latest("m", "in", "in"),
        lambda: windowed_count("m", "in", "in", Tumbling("1h")),
        lambda: windowed_count("m", "in", "out", Tumbling("1h"), late="in"),
        lambda: running_count("m", "in", "in"),
        lambda: join("m", "in", "in2", "in", within="1s", joiner=max),
        lambda: join("m", "in2", "in", "in", within="1s", joiner=max),
    ],
)
def test_no_piece_writes_what_it_reads(make: Callable[[], Any]) -> None:
    with pytest.raises(BadInput, match="m reads in and writes it"):
        make()


@pytest.mark.parametrize(
    ("how", "given", "delay"),
    [
        ("left", {}, 3 * SECOND + 1),
        ("left", {"output_delay": "10s"}, 10 * SECOND),
        ("left", {"output_delay": "1s"}, 3 * SECOND + 1),
        ("inner", {"output_delay": "10s"}, 10 * SECOND),
        ("inner", {}, 0),
    ],
)
def test_a_left_join_may_delay_its_outputs_more_than_it_must(how: Any, given: dict[str, Any], delay: int) -> None:
    made = join("m", "left", "right", "out", within="3s", joiner=max, how=how, **given)
    assert duration_micros(made.output_delay) == delay


def test_a_delay_that_is_no_duration() -> None:
    with pytest.raises(BadInput):
        join("m", "left", "right", "out", within="3s", joiner=max, how="left", output_delay="soon")


def test_a_slip_in_an_option_is_named_with_what_there_is() -> None:
    with pytest.raises(
        BadInput, match=r"'allowed_latenes' of c is unknown. Did you mean allowed_lateness\? It takes .*late"
    ):
        windowed_count("c", "in", "out", Tumbling("10s"), allowed_latenes="8s")
