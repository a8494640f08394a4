"""Every "now", every duration: the system's clock, and fake ones that tests move by hand.

Users see aware UTC datetimes and timedeltas. Inside, a time is a whole number of microseconds since 1970
(``Micros``): exact, sortable on every store, and cheap.
"""

from __future__ import annotations

import os
import re
import threading
import time
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, TypeAlias

from penstock.errors import BadInput

Micros: TypeAlias = int
Duration: TypeAlias = timedelta | str

SECOND: Micros = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SPELLED = {
    ("ms", "millisecond", "milliseconds"): 0.001,
    ("s", "sec", "second", "seconds"): 1.0,
    ("m", "min", "minute", "minutes"): 60.0,
    ("h", "hour", "hours"): 3600.0,
    ("d", "day", "days"): 86400.0,
    ("w", "week", "weeks"): 604800.0,
}
_UNITS = {word: seconds for words, seconds in _SPELLED.items() for word in words}
_PART = re.compile(rf"([0-9]+(?:\.[0-9]+)?)({'|'.join(sorted(_UNITS, key=len, reverse=True))})")
# Longer ones are typing slips, and added to a time they leave the calendar.
_LONGEST = timedelta(days=365_250)


def duration(value: Duration, *, name: str = "duration") -> timedelta:
    """Read a duration: a timedelta, or text such as ``"45m"``, ``"1h30m"``, ``"500ms"``, ``"2 hours"``.

    >>> duration("1h30m")
    datetime.timedelta(seconds=5400)
    """
    if isinstance(value, timedelta):
        result = value
    elif isinstance(value, str):
        text = value.replace(" ", "")
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            if text.startswith("-") and _PART.match(text[1:]):
                raise BadInput(f"{name} {value!r} is negative.", hint="Pass zero or more.")
            raise BadInput(
                f"{name} {value!r} is not a duration.",
                hint='Write it as "500ms", "30s", "45m", "1h30m" or "7d"; in Python a timedelta will do.',
            )
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        result = timedelta(seconds=min(seconds, 2 * _LONGEST.total_seconds()))
    else:
        raise BadInput(
            f"{name} is a bare {type(value).__name__} ({value!r}), whose unit nobody can know.",
            hint='Pass a timedelta or text such as "45m".',
        )
    if result < timedelta(0):
        raise BadInput(f"{name} is negative ({result}).", hint="Pass zero or more.")
    if result > _LONGEST:
        raise BadInput(f"{name} is longer than 1,000 years.", hint="Pass a shorter one; was it meant in another unit?")
    return result


def duration_micros(value: Duration, *, name: str = "duration") -> Micros:
    """A duration as whole microseconds."""
    return duration(value, name=name) // _MICROSECOND


def to_micros(moment: datetime, *, name: str = "time") -> Micros:
    """An aware datetime as microseconds since 1970. A naive one is refused."""
    if not isinstance(moment, datetime):
        raise BadInput(f"{name} is a {type(moment).__name__}, not a datetime.", hint="Pass an aware datetime.")
    if moment.tzinfo is None:
        raise BadInput(
            f"{name} {moment.isoformat()} has no time zone, so it names no moment.",
            hint="Use datetime.now(UTC) or attach a tzinfo.",
        )
    return (moment - _EPOCH) // _MICROSECOND


# The moments that have a place in Python's calendar: the years 1 to 9999.
FIRST_TIME: Micros = to_micros(datetime(1, 1, 2, tzinfo=UTC))
LAST_TIME: Micros = to_micros(datetime(9999, 12, 30, tzinfo=UTC))


_EARLIEST: Micros = to_micros(datetime.min.replace(tzinfo=UTC))
_LATEST: Micros = to_micros(datetime.max.replace(tzinfo=UTC))


def check_time(value: Micros | None, *, name: str = "time") -> Micros | None:
    """Refuse a moment that has no date in UTC: what is stored has to be readable."""
    if value is not None and not _EARLIEST <= value <= _LATEST:
        raise BadInput(f"{name} is outside of the calendar.", hint="Use a time in the years 1 to 9999.")
    return value


def from_micros(value: Micros) -> datetime:
    """Microseconds since 1970 as an aware UTC datetime. A time outside the calendar becomes the calendar's end."""
    return _EPOCH + timedelta(microseconds=min(max(value, _EARLIEST), _LATEST))


class Clock(Protocol):
    """What tells the time."""

    def micros(self) -> Micros:
        """The time now."""

    def fixed(self) -> Micros | None:
        """The time that stores must use, or None when a store's own clock decides."""

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when the clock is moved by hand. Returns a function that ends this."""


class SystemClock:
    """The real time."""

    def micros(self) -> Micros:
        """The host's wall clock."""
        return time.time_ns() // 1000

    def fixed(self) -> Micros | None:
        """None: a server's own clock decides."""
        return None

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """The real clock is never moved by hand."""
        return lambda: None


class FakeClock:
    """A clock that stands still until a test moves it. Threads may share it.

    >>> clock = FakeClock(datetime(2026, 1, 31, tzinfo=UTC))
    >>> clock.advance("36h"); clock.now().isoformat()
    '2026-02-01T12:00:00+00:00'

    Args:
        start: 2026-01-01 by default
    """

    def __init__(self, start: datetime | None = None) -> None:
        """Start at the given moment, by default at the first second of 2026."""
        self._start = to_micros(start or datetime(2026, 1, 1, tzinfo=UTC))
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._init_value(self._start)

    def micros(self) -> Micros:
        """The time the test set."""
        return self._load()

    def fixed(self) -> Micros | None:
        """The same time, binding for every store."""
        return self._load()

    def now(self) -> datetime:
        """The time the test set, as a datetime."""
        return from_micros(self._load())

    def advance(self, by: Duration = timedelta(0), *, months: int = 0, years: int = 0) -> None:
        """Move on.

        Args:
            by: a duration
            months, years: of the calendar
        """
        with self._lock:
            value = self._load() + duration_micros(by)
            if months or years:
                value = to_micros(_add_months(from_micros(value), months + 12 * years))
            self._store(value)
        self._tell()

    def set(self, moment: datetime) -> None:
        """Jump to a moment, forwards or backwards.

        Args:
            moment: an aware ``datetime``
        """
        with self._lock:
            self._store(to_micros(moment))
        self._tell()

    def reset(self) -> None:
        """Go back to where the clock started."""
        self.set(from_micros(self._start))

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every move."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _tell(self) -> None:
        for callback in list(self._callbacks):
            callback()

    def _init_value(self, value: Micros) -> None:
        self._value = value

    def _load(self) -> Micros:
        return self._value

    def _store(self, value: Micros) -> None:
        self._value = value


class FileClock(FakeClock):
    """A fake clock kept in a file, so that a test moves several processes at once.

    Args:
        path: of the file
        start: if the file is new
    """

    def __init__(self, path: str | os.PathLike[str], start: datetime | None = None) -> None:
        """Join the clock at ``path``, or create it there."""
        self._path = Path(path)
        super().__init__(start)

    def _init_value(self, value: Micros) -> None:
        if not self._path.exists():
            self._store(value)

    def _load(self) -> Micros:
        return int(self._path.read_text())

    def _store(self, value: Micros) -> None:
        # A rename is atomic: a reader sees the old time or the new one, never half of it.
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}")
        fresh.write_text(str(value))
        fresh.replace(self._path)


def _add_months(moment: datetime, months: int) -> datetime:
    """The same day ``months`` later, or that month's last day."""
    index = moment.year * 12 + moment.month - 1 + months
    year, month = divmod(index, 12)
    return moment.replace(year=year, month=month + 1, day=min(moment.day, monthrange(year, month + 1)[1]))
