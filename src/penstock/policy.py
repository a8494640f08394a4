"""Policies and outcomes: one set for queues, logs and streams.

An outcome (``Snooze``, ``Reject``, ``TryAgain``) is what a handler returns or raises; ``Retry`` is only ever the name
of the policy.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Literal

import msgspec

from penstock.clock import SECOND, Duration, duration, duration_micros
from penstock.errors import BadInput


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a failed entry is tried again, and when it is given up.

    ``attempts`` counts handler starts including the first; ``None`` is without end, 1 is at most once. The first
    ``immediate`` retries come without delay. Then either the fixed ``delays``, the last one repeating, or a backoff
    that doubles up to ``max_backoff``, with full jitter unless ``jitter=False``. With ``relative_to="due"`` each
    delay counts from the entry's original due time instead of from now.

    >>> Retry(attempts=5, backoff="30s").delay(1, random.Random(1)) < timedelta(seconds=30)
    True
    >>> Retry(attempts=3, delays=["1s", "1m"]).delay(2)
    datetime.timedelta(seconds=60)
    """

    attempts: int | None = 5
    backoff: Duration = timedelta(seconds=1)
    max_backoff: Duration = timedelta(minutes=10)
    immediate: int = 0
    delays: tuple[Duration, ...] | list[Duration] | None = None
    jitter: bool = True
    relative_to: Literal["now", "due"] = "now"

    def __post_init__(self) -> None:
        """Refuse what could never work, where it was written."""
        if self.attempts is not None and not _is_number(self.attempts):
            raise BadInput(f"Retry(attempts={self.attempts!r}) is not a number.", hint="Use 1 or more, or None.")
        if self.attempts is not None and self.attempts < 1:
            raise BadInput(f"Retry(attempts={self.attempts}) would never start a handler.", hint="Use 1 or more.")
        if not _is_number(self.immediate) or self.immediate < 0:
            raise BadInput(f"Retry(immediate={self.immediate!r}) is not allowed.", hint="Use 0 or more.")
        if self.delays is not None and not isinstance(self.delays, tuple | list):
            raise BadInput(f"Retry(delays={self.delays!r}) is not a list.", hint='Write it as ["1s", "1m"].')
        if self.relative_to not in ("now", "due"):
            raise BadInput(f"Retry(relative_to={self.relative_to!r}) is unknown.", hint="Use 'now' or 'due'.")
        duration(self.backoff, name="backoff")
        duration(self.max_backoff, name="max_backoff")
        for delay in self.delays or ():
            duration(delay, name="delays")

    def delay(self, attempt: int, rng: random.Random | None = None) -> timedelta | None:
        """How long to wait after the given failed attempt (1 is the first); None: give up."""
        if self.attempts is not None and attempt >= self.attempts:
            return None
        if attempt <= self.immediate:
            return timedelta(0)
        step = attempt - self.immediate - 1
        if self.delays:
            return duration(self.delays[min(step, len(self.delays) - 1)])
        # In whole microseconds doubling cannot overflow; beyond 64 doublings every cap is reached.
        doubled: int = duration_micros(self.backoff) << min(step, 64)
        limit = timedelta(microseconds=min(doubled, duration_micros(self.max_backoff)))
        if not self.jitter:
            return limit
        return limit * (rng or _RNG).random()


class Batching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many to take together and how long to wait for a batch to fill."""

    size: int = 100
    linger: Duration = timedelta(milliseconds=5)

    def __post_init__(self) -> None:
        """Refuse empty batches."""
        if not _is_number(self.size) or self.size < 1:
            raise BadInput(f"Batching(size={self.size!r}) holds nothing.", hint="Use 1 or more.")
        duration(self.linger, name="linger")


class Outcome(Exception):
    """What becomes of an attempt. A handler may return it or raise it; both mean the same."""


class Snooze(Outcome):
    """Outcome: later, without spending an attempt.

    Args:
        after: how long to wait
    """

    def __init__(self, after: Duration) -> None:
        """Check the duration where the handler wrote it."""
        self.micros = duration_micros(after, name="Snooze(after)")
        super().__init__(after)
        self.after = after


class Reject(Outcome):
    """Outcome: to the dead letters now, whatever attempts are left.

    Args:
        reason: kept as the error of the attempt
    """

    def __init__(self, reason: str = "") -> None:
        """Take the reason that the dead letter will show."""
        super().__init__(reason)
        self.reason = reason


class TryAgain(Outcome):
    """Outcome: this attempt failed, under a policy other than the handler's own if one is given.

    The policy of the latest ``TryAgain`` counts, so a handler may shorten or stretch the schedule between tries. The
    handler's own ``attempts`` stay the upper bound.

    Args:
        retry: the policy for this failure; by default the handler's own
        reason: kept as the error of the attempt
    """

    def __init__(self, retry: Retry | None = None, reason: str = "") -> None:
        """Take the policy for this failure and, if wanted, why."""
        if retry is not None and not isinstance(retry, Retry):
            raise BadInput(
                f"TryAgain({retry!r}) names no policy.", hint="Write TryAgain(Retry(...)), or TryAgain(reason=...)."
            )
        super().__init__(reason or "asked to be tried again")
        self.retry = retry

    def __reduce__(self) -> tuple[type[TryAgain], tuple[Retry | None, str]]:
        """Pickle it with its arguments, so that a handler in its own process can send it to the worker."""
        return TryAgain, (self.retry, str(self))


class Rate(msgspec.Struct, frozen=True):
    """At most ``count`` starts per ``period``, over all workers together.

    >>> Rate.parse("100/s")
    Rate(count=100, period=1000000)
    """

    count: int
    period: int  # in microseconds

    def __post_init__(self) -> None:
        """Refuse what is not a rate; a count of 0 removes one."""
        numbers = _is_number(self.count) and _is_number(self.period)
        if not numbers or self.count < 0 or self.period < (1 if self.count else 0):
            raise BadInput(
                f"Rate({self.count!r}, {self.period!r}) is not a rate.",
                hint='Use Rate.parse("100/s"), or give a count and a period in microseconds.',
            )

    @classmethod
    def read(cls, given: str | Rate) -> Rate:
        """A rate as it is given to a queue."""
        if isinstance(given, Rate):
            return given
        if not isinstance(given, str):
            raise BadInput(f"rate {given!r} is not a rate.", hint='Write it as "100/s", "10/m" or "5/30s".')
        return cls.parse(given)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read ``"100/s"``, ``"10/5m"``; ``"none"`` removes a rate."""
        if text == "none":
            return cls(0, SECOND)
        count, slash, period = text.replace(" ", "").partition("/")
        if not slash or not (count.isascii() and count.isdigit()) or not 1 <= int(count[:20]) < 1 << 31:
            raise BadInput(f"rate {text!r} is not a rate.", hint='Write it as "100/s", "10/m" or "5/30s".')
        micros = duration_micros(period if period[:1].isdigit() else f"1{period}", name="rate")
        if micros == 0:
            raise BadInput(f"rate {text!r} has an empty period.", hint='Write it as "100/s".')
        return cls(int(count), micros)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Jitter spreads load and decides nothing that must be secret.
_RNG = random.Random()
