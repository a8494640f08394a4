"""Schedule texts: cron lines with zones, over both changes of the clocks, and intervals."""

# ruff: noqa: DTZ001 - times without a zone are what some of these tests are about

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import from_micros, to_micros
from penstock.errors import BadInput
from penstock.queue.schedule import ScheduleSpec

ZURICH = ZoneInfo("Europe/Zurich")


def spec(**given: Any) -> ScheduleSpec:
    return ScheduleSpec.read(**{"cron": None, "every": None, "zone": "UTC", "catch_up": "one", **given})


def fires(cron: str, start: datetime, number: int, zone: str = "Europe/Zurich") -> list[str]:
    """The next fires as local wall-clock times with their offsets."""
    read, moment, found = spec(cron=cron, zone=zone), to_micros(start), []
    for _ in range(number):
        moment = read.after(moment)
        found.append(from_micros(moment).astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z"))
    return found


class TestDaylightSaving:
    """In Zurich 2026 the clocks go from 02:00 to 03:00 on 29 March, and from 03:00 back to 02:00 on 25 October."""

    def test_a_daily_time_keeps_its_place_on_the_wall_in_spring(self) -> None:
        start = datetime(2026, 3, 27, 12, tzinfo=ZURICH)
        assert fires("0 8 * * *", start, 3) == ["28 08:00 +0100", "29 08:00 +0200", "30 08:00 +0200"]

    def test_and_in_autumn(self) -> None:
        start = datetime(2026, 10, 23, 12, tzinfo=ZURICH)
        assert fires("0 8 * * *", start, 3) == ["24 08:00 +0200", "25 08:00 +0100", "26 08:00 +0100"]

    def test_a_time_that_does_not_exist_fires_once_that_day(self) -> None:
        start = datetime(2026, 3, 28, 12, tzinfo=ZURICH)
        found = fires("30 2 * * *", start, 2)
        assert [one[:2] for one in found] == ["29", "30"]
        assert found[1] == "30 02:30 +0200"

    def test_a_time_that_comes_twice_fires_once(self) -> None:
        start = datetime(2026, 10, 24, 12, tzinfo=ZURICH)
        found = fires("30 2 * * *", start, 2)
        assert [one[:8] for one in found] == ["25 02:30", "26 02:30"]

    def test_hourly_goes_on_every_real_hour(self) -> None:
        read = spec(cron="0 * * * *", zone="Europe/Zurich")
        for start in (datetime(2026, 3, 29, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)):
            moment, gaps = to_micros(start), []
            for _ in range(4):
                upcoming = read.after(moment)
                gaps.append((upcoming - moment) // 60_000_000)
                moment = upcoming
            assert gaps == [30, 60, 60, 60]

    @given(st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)), st.integers(0, 23))
    def test_every_day_has_exactly_one_fire(self, start: datetime, hour: int) -> None:
        read, moment = spec(cron=f"15 {hour} * * *", zone="Europe/Zurich"), to_micros(start)
        first = read.after(moment)
        second = read.after(first)
        assert moment < first < second
        days = [from_micros(one).astimezone(ZURICH).date() for one in (first, second)]
        assert days[1] - days[0] == timedelta(days=1)


class TestCron:
    def test_strictly_after(self) -> None:
        read = spec(cron="*/5 * * * *")
        on_time = to_micros(datetime(2026, 1, 1, 0, 5, tzinfo=UTC))
        assert read.after(on_time) == on_time + 5 * 60_000_000
        assert read.after(on_time - 1) == on_time

    def test_days_of_the_week_by_name(self) -> None:
        assert fires("0 8 * * MON-FRI", datetime(2026, 1, 2, 9, tzinfo=UTC), 2, "UTC") == [
            "05 08:00 +0000",
            "06 08:00 +0000",
        ]

    def test_the_end_of_february(self) -> None:
        assert fires("0 0 29 2 *", datetime(2026, 1, 1, tzinfo=UTC), 1, "UTC") == ["29 00:00 +0000"]

    @pytest.mark.parametrize(
        "bad", ["", "* * * *", "60 * * * *", "* 24 * * *", "a b c d e", "* * 31 2 *x", "\0", "@hourlyish"]
    )
    def test_bad_lines(self, bad: str) -> None:
        with pytest.raises(BadInput, match="cron line") as caught:
            spec(cron=bad)
        assert "0 8 * * MON-FRI" in caught.value.hint

    def test_a_line_that_never_fires_is_refused_where_it_is_written(self) -> None:
        with pytest.raises(BadInput):
            spec(cron="0 0 31 2 *").after(to_micros(datetime(2026, 1, 1, tzinfo=UTC)))


class TestEvery:
    @given(st.integers(1000, 10**12), st.integers(0, 10**15), st.integers(0, 10**15))
    def test_multiples_of_the_period_from_the_base(self, period: int, base: int, ahead: int) -> None:
        read = spec(every=timedelta(microseconds=period))
        moment = base + ahead
        upcoming = read.after(moment, base=base)
        assert moment < upcoming <= moment + period
        assert (upcoming - base) % period == 0

    def test_from_the_moment_itself_without_a_base(self) -> None:
        assert spec(every="5m").after(7) == 7 + 5 * 60_000_000

    @pytest.mark.parametrize("bad", ["0s", "0.5ms", "soon", timedelta(-1), 5])
    def test_bad_intervals(self, bad: Any) -> None:
        with pytest.raises(BadInput, match=r"every|interval"):
            spec(every=bad)


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../etc/passwd", "\0", "Europe/Zürich", "x" * 5000])
def test_bad_zones(zone: str) -> None:
    with pytest.raises(BadInput, match="time zone"):
        spec(every="1m", zone=zone)


def test_one_of_cron_and_every() -> None:
    for given_ in ({}, {"cron": "* * * * *", "every": "1m"}):
        with pytest.raises(BadInput, match="exactly one"):
            spec(**given_)


def test_unknown_catch_up() -> None:
    with pytest.raises(BadInput, match="one, all, none"):
        spec(every="1m", catch_up="some")
