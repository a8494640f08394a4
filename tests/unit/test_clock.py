"""Clocks and durations."""

# ruff: noqa: DTZ001 - times without a zone are what some of these tests are about

import multiprocessing
import threading
import time
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SystemClock, duration, duration_micros, from_micros, to_micros
from penstock.errors import BadInput
from penstock.testing import FakeClock, FileClock

MOMENTS = st.datetimes(timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("45m", 2700),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("7d", 604800),
        ("2w", 1209600),
        ("1.5h", 5400),
        ("0s", 0),
        ("0.000001s", 0.000001),
        ("1d1d", 172800),
        ("45min", 2700),
        ("1 hour", 3600),
        ("2 seconds", 2),
        ("1 hour 30 minutes", 5400),
        ("1week2days", 777600),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)
    assert duration_micros(text) == round(seconds * 1_000_000)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "soon",
        "5",
        "5 parsecs",
        "5 months",
        "1 hourly",
        "-5s",
        "s5",
        "1h-30m",
        "1,5h",
        "5S",
        "1h30",
        "١s",
        timedelta(seconds=-1),
        5,
        5.0,
        None,
        True,
        b"5s",
        "9" * 400 + "w",
        "999999999999w",
        timedelta.max,
        "366000d",
    ],
)
def test_bad_durations_say_what_and_how(bad: object) -> None:
    with pytest.raises(BadInput, match="delay") as caught:
        duration(bad, name="delay")  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize("text", ["-5s", "- 5s", "-1h30m"])
def test_a_negative_text_is_called_negative(text: str) -> None:
    with pytest.raises(BadInput, match=f"delay '{text}' is negative. Pass zero or more."):
        duration(text, name="delay")


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=100_000)))
def test_timedeltas_are_kept_to_the_microsecond(value: timedelta) -> None:
    assert timedelta(microseconds=duration_micros(value)) == value


@given(MOMENTS)
def test_moments_come_back(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


@given(MOMENTS, MOMENTS)
def test_micros_sort_as_moments_do(one: datetime, other: datetime) -> None:
    assert (to_micros(one) < to_micros(other)) == (one < other)


def test_every_zone_names_the_same_moment() -> None:
    here = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert to_micros(here) == to_micros(here.astimezone(UTC))
    assert from_micros(to_micros(here)).tzinfo is UTC


@pytest.mark.parametrize("bad", [datetime(2026, 1, 1), date(2026, 1, 1), 0, None, "2026-01-01T00:00:00Z"])
def test_what_names_no_moment_is_refused(bad: object) -> None:
    with pytest.raises(BadInput, match="due") as caught:
        to_micros(bad, name="due")  # type: ignore[arg-type]
    assert caught.value.hint


def test_system_clock_tells_this_hosts_time_and_fixes_nothing() -> None:
    before = time.time_ns() // 1000
    now = SystemClock().micros()
    assert before <= now <= time.time_ns() // 1000
    assert SystemClock().fixed() is None
    SystemClock().on_change(lambda: None)()


class TestFakeClock:
    def test_stands_still_until_moved(self) -> None:
        clock = FakeClock()
        assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
        assert clock.micros() == clock.fixed() == to_micros(clock.now())
        clock.advance("90m")
        assert clock.now() == datetime(2026, 1, 1, 1, 30, tzinfo=UTC)
        clock.set(datetime(2020, 2, 29, tzinfo=UTC))
        assert clock.now().year == 2020
        clock.reset()
        assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("start", "months", "years", "end"),
        [
            ("2026-01-31", 1, 0, "2026-02-28"),
            ("2024-01-31", 1, 0, "2024-02-29"),
            ("2024-02-29", 0, 1, "2025-02-28"),
            ("2026-12-15", 1, 0, "2027-01-15"),
            ("2026-03-31", 25, 0, "2028-04-30"),
            ("2026-05-05", 0, 0, "2026-05-05"),
        ],
    )
    def test_calendar_moves(self, start: str, months: int, years: int, end: str) -> None:
        clock = FakeClock(datetime.fromisoformat(start).replace(tzinfo=UTC))
        clock.advance(months=months, years=years)
        assert clock.now() == datetime.fromisoformat(end).replace(tzinfo=UTC)

    def test_listeners_are_told_of_every_move_until_they_end(self) -> None:
        clock, told = FakeClock(), []
        end = clock.on_change(lambda: told.append(clock.micros()))
        clock.advance("1s")
        clock.set(clock.now())
        end()
        clock.advance("1s")
        assert len(told) == 2

    def test_no_move_is_lost_between_threads(self) -> None:
        clock = FakeClock()
        start = clock.micros()
        threads = [threading.Thread(target=lambda: [clock.advance("1s") for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clock.micros() - start == 800 * 1_000_000

    def test_bad_moves(self) -> None:
        for move in (lambda c: c.advance("-1s"), lambda c: c.set(datetime(2026, 1, 1)), lambda c: c.advance(5)):
            with pytest.raises(BadInput):
                move(FakeClock())
        with pytest.raises(BadInput):
            FakeClock(datetime(2026, 1, 1))


def _advance_there(path: str) -> None:
    FileClock(path).advance("1h")


class TestFileClock:
    def test_all_who_join_see_the_same_time(self, tmp_path: Path) -> None:
        first = FileClock(tmp_path / "clock", datetime(2030, 1, 1, tzinfo=UTC))
        second = FileClock(str(tmp_path / "clock"))
        assert second.now() == datetime(2030, 1, 1, tzinfo=UTC)
        second.advance("1d")
        assert first.now() == datetime(2030, 1, 2, tzinfo=UTC)
        assert [one.name for one in tmp_path.iterdir()] == ["clock"]

    def test_another_process_moves_it(self, tmp_path: Path) -> None:
        clock = FileClock(tmp_path / "clock")
        start = clock.micros()
        process = multiprocessing.get_context("spawn").Process(target=_advance_there, args=(str(tmp_path / "clock"),))
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert clock.micros() - start == 3600 * 1_000_000


def test_what_lies_outside_of_the_calendar_is_shown_as_its_end() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert from_micros(to_micros(first)) == from_micros(to_micros(first) - 1) == from_micros(-(2**63)) == first
    assert from_micros(to_micros(last)) == from_micros(to_micros(last) + 1) == from_micros(2**63) == last
