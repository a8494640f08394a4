"""Filter pushdown: the conditions of a query that let a reader read less.

A reader only skips what cannot match. Every filter goes back to Spark, which looks at the rows that are left, so a
filter that is not understood here, or only in part, costs time and never a row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.clock import to_micros

# The program in which Spark plans a read whose filters it offers. It runs only where the setting below is on; a reader
# with ``pushFilters`` that is planned elsewhere is refused by Spark, so readers have that method only there.
PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
SETTING = "spark.sql.python.filterPushdown.enabled"


def is_offered() -> bool:
    """Whether Spark will offer filters to the reader under construction."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PLANNER in sys.modules or getattr(main, "name", "") == PLANNER


class Span(msgspec.Struct, frozen=True):
    """Whole numbers from ``low`` to before ``high``, or None where there is no bound."""

    low: int | None = None
    high: int | None = None

    def within(self, low: int, high: int) -> tuple[int, int]:
        """The part of another span that is within this one."""
        return (
            low if self.low is None else max(low, self.low),
            high if self.high is None else min(high, self.high),
        )

    @property
    def is_bounded(self) -> bool:
        """Whether anything is left out."""
        return self.low is not None or self.high is not None


def span_of(filters: Sequence[Filter], column: str, number: Callable[[Any], int | None] = lambda value: value) -> Span:
    """The span that the filters leave of a column of numbers; ``number`` reads a value, or returns None."""
    low: int | None = None
    high: int | None = None
    for condition in filters:
        if getattr(condition, "attribute", None) != (column,):
            continue
        at_least, before = _bounds(condition, number)
        low = at_least if low is None else low if at_least is None else max(low, at_least)
        high = before if high is None else high if before is None else min(high, before)
    return Span(low, high)


def values_of(filters: Sequence[Filter], column: str) -> frozenset[Any] | None:
    """The values that the filters leave of a column, or None where they leave all."""
    left: frozenset[Any] | None = None
    for condition in filters:
        if getattr(condition, "attribute", None) != (column,):
            continue
        if isinstance(condition, EqualTo | EqualNullSafe):
            allowed = frozenset([condition.value])
        elif isinstance(condition, In):
            allowed = frozenset(condition.value)
        else:
            continue
        left = allowed if left is None else left & allowed
    return left


def micros_of(value: Any) -> int | None:
    """A timestamp of Spark's in microseconds, or None without a zone, for then it depends on the session's."""
    return to_micros(value) if isinstance(value, datetime) and value.tzinfo is not None else None


def _bounds(condition: Filter, number: Callable[[Any], int | None]) -> tuple[int | None, int | None]:
    """At least this and below that, as one condition says it."""
    if isinstance(condition, In):
        numbers = [number(value) for value in condition.value if value is not None]
        known = [value for value in numbers if value is not None]
        return (min(known), max(known) + 1) if known and len(known) == len(numbers) else (None, None)
    value = number(getattr(condition, "value", None))
    if value is None:
        return None, None
    match condition:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + 1
        case _:
            return None, None
