"""Advice: configuration values from what a system bears, what it carries, and what one backend is sent.

The reasoning is the seed's: while a backend is down its queues pile up; the time until the system can bear no more
bounds how long one may wait before a circuit opens.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from penstock.breaker.settings import BreakerConfig, Task, read_config
from penstock.errors import BadInput

MINUTE_MS = 60_000


class Advice(msgspec.Struct, frozen=True):
    """A configuration, and why."""

    config: BreakerConfig
    survival_minutes: float  # without a breaker, after the backend went down
    recovery_minutes: float  # until the last queue is unlocked
    why: dict[str, str]

    def resource(self) -> dict[str, Any]:
        """The configuration resource."""
        return self.config.resource()


def advise(
    *, capacity: int, load: int, per_minute: float, threshold: int = 80, recovery_minutes: float | None = None
) -> Advice:
    """Values for a system that bears ``capacity`` active queues, usually has ``load`` of them, and sends one backend
    ``per_minute`` requests.
    """
    for name, value in (("capacity", capacity), ("per_minute", per_minute)):
        if not value > 0 or not math.isfinite(value):
            raise BadInput(f"{name}={value} makes no sense.", hint="Give a number above 0.")
    if not 0 <= load < capacity:
        raise BadInput(
            f"a load of {load} queues does not fit a capacity of {capacity}.", hint="Give the usual number of queues."
        )
    if not 0 < threshold <= 100:
        raise BadInput(f"threshold={threshold} is not a percentage.", hint="Give 1 to 100.")
    survival = (capacity - load) / per_minute
    window = max(1 / 60, _round_down(survival / 2.5))  # about half of it, in whole minutes where it has some
    expected = per_minute * window
    largest = max(100, math.ceil(expected * 1.25 / 500) * 500 if expected > 400 else math.ceil(expected * 1.25))
    # A tenth of what comes within the window, and never more than a minute's worth: both are soon there.
    smallest = max(1, min(100, int(min(expected / 10, per_minute))))
    waiting = min(capacity, load + per_minute * window)
    wanted = recovery_minutes if recovery_minutes is not None else max(1.0, survival / 2)
    interval = max(1, int(wanted * MINUTE_MS / max(1.0, waiting)))
    probing = max(1000, int(window * MINUTE_MS / 5))
    config = read_config(
        BreakerConfig(
            True, True, threshold, int(window * MINUTE_MS), smallest, largest,
            Task(True, min(probing, 120_000)), Task(True, interval), Task(True, min(probing, 120_000)),
        ).resource()
    )  # fmt: skip
    return Advice(
        config,
        survival,
        waiting * interval / MINUTE_MS,
        {
            "entriesMaxAgeMS": f"{_span(window)}: without a breaker the system lasts about {_span(survival)} "
            f"({capacity - load:,} free queues at {per_minute:g} per minute); "
            + (
                "the window is less than half of that"
                if window < survival / 2
                else "no window is short enough for that"
            ),
            "maxQueueSampleCount": f"{largest:,}: about {expected:,.0f} requests come within the window",
            "minQueueSampleCount": f"{smallest}: reached after {60 * smallest / per_minute:.0f} s at this rate",
            "errorThresholdPercentage": f"{threshold} %: as wished; lower opens sooner",
            "unlockQueues.interval": f"{interval} ms: up to {waiting:,.0f} queues are back after "
            f"{_span(waiting * interval / MINUTE_MS)}",
            "openToHalfOpen.interval": f"{config.open_to_half_open.interval} ms: so often one queue tries",
        },
    )


def _span(minutes: float) -> str:
    return f"{minutes:.3g} min" if minutes >= 1 else f"{60 * minutes:.2g} s"


def _round_down(minutes: float) -> float:
    return float(int(minutes)) if minutes >= 1 else minutes
