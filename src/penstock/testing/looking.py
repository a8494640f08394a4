"""Assertions about what a queue holds, with messages that show what is really there.

Each takes a queue and any of these conditions: ``value``, ``labels`` (those given must be there, others may be),
``due`` (the due time) and ``within`` (how far from ``due`` it may be; without ``due``: due no later than that from
now).
"""

from __future__ import annotations

from datetime import datetime
from types import EllipsisType
from typing import Any, TypeVar

from penstock.clock import Duration, Micros, duration_micros, to_micros
from penstock.errors import Undecodable
from penstock.queue.entry import Entry
from penstock.queue.queue import Queue

T = TypeVar("T")

SHOWN = 20  # entries listed in a message
ALL = 1_000_000


def all_put(
    queue: Queue[T],
    value: T | EllipsisType = ...,
    *,
    labels: dict[str, str] | None = None,
    due: datetime | None = None,
    within: Duration | None = None,
) -> list[Entry[T]]:
    """The live entries (waiting or being worked on) that fit, in the order they were put.

    Args:
        queue, value, labels, due, within: as of :func:`assert_put`
    """
    earliest, latest = _bounds(queue, due, within)
    return [
        entry
        for entry in queue.find(limit=ALL)
        if (value is ... or _value(entry) == value)
        and (labels or {}).items() <= entry.labels.items()
        and (earliest is None or entry.due_us >= earliest)
        and (latest is None or entry.due_us <= latest)
    ]


def assert_put(
    queue: Queue[T],
    value: T | EllipsisType = ...,
    *,
    count: int | None = None,
    labels: dict[str, str] | None = None,
    due: datetime | None = None,
    within: Duration | None = None,
) -> list[Entry[T]]:
    """Assert that an entry that fits is there.

    Args:
        queue: where to look
        value: any by default
        count: exactly so many; by default one or more
        labels: those that it must have
        due: its due time
        within: how far from ``due`` it may be

    Returns:
        the entries that fit
    """
    entries = all_put(queue, value, labels=labels, due=due, within=within)
    if not entries if count is None else len(entries) != count:
        wanted = "at least one entry" if count is None else f"{count} entries"
        raise AssertionError(
            f"expected {wanted} in {queue.name!r}{_conditions(value, labels, due, within)}, found {len(entries)}."
            f"\n{_shown(queue)}"
        )
    return entries


def refute_put(
    queue: Queue[T],
    value: T | EllipsisType = ...,
    *,
    labels: dict[str, str] | None = None,
    due: datetime | None = None,
    within: Duration | None = None,
) -> None:
    """Assert that no entry that fits is there.

    Args:
        queue, value, labels, due, within: as of :func:`assert_put`
    """
    entries = all_put(queue, value, labels=labels, due=due, within=within)
    if entries:
        raise AssertionError(
            f"expected no entry in {queue.name!r}{_conditions(value, labels, due, within)}, found {len(entries)}."
            f"\n{_shown(queue)}"
        )


def _bounds(queue: Queue[Any], due: datetime | None, within: Duration | None) -> tuple[Micros | None, Micros | None]:
    reach = 0 if within is None else duration_micros(within, name="within")
    if due is not None:
        moment = to_micros(due, name="due")
        return moment - reach, moment + reach
    return None, None if within is None else queue.store.now() + reach


def _value(entry: Entry[Any]) -> Any:
    try:
        return entry.value
    except Undecodable:
        return entry.payload


def _conditions(value: Any, labels: dict[str, str] | None, due: datetime | None, within: Duration | None) -> str:
    named = [f"value {value!r}"] if value is not ... else []
    named += [f"labels {labels!r}"] if labels else []
    named += [f"due {due.isoformat()}"] if due is not None else []
    named += [f"within {within}"] if within is not None else []
    return f" with {', '.join(named)}" if named else ""


def _shown(queue: Queue[Any]) -> str:
    entries = queue.find(limit=ALL)
    if not entries:
        others = [f"{counted.queue} ({counted.live})" for counted in queue.store.counts() if counted.live]
        return f"The queue is empty; the store holds: {', '.join(others) or 'nothing'}."
    lines = [f"The queue holds {len(entries)}:"]
    for entry in entries[:SHOWN]:
        labels = f" labels {entry.labels!r}" if entry.labels else ""
        lines.append(f"  {_value(entry)!r} {entry.state}, due {entry.due.isoformat()}{labels}")
    if len(entries) > SHOWN:
        lines.append(f"  ... and {len(entries) - SHOWN} more")
    return "\n".join(lines)
