"""Running totals per key: counts, sums, least, greatest and any other fold, without windows.

The state has one value per key for ever. What comes out is its newest total whenever it has changed: once per batch of
records, so that a key that is busy does not tell all the totals in between. How records come in batches depends on the
runner; the last total of every key does not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from penstock.log.record import Record
from penstock.policy import Batch
from penstock.stream.context import Context
from penstock.stream.folds import Of, Taking, added, greatest, least, one_more
from penstock.stream.pieces import Piece, check_arguments, check_initial
from penstock.stream.state import Value, fresh

TOTAL = "total"


class running_fold(Piece):
    """One value per key: ``fold(value so far, record's value)``, beginning with ``initial``.

    ``accumulator`` is the type of these values; without one they are plain JSON.
    """

    batch = Batch(1_000, timedelta(milliseconds=20))

    def __init__(
        self,
        name: str,
        source: str,
        to: str,
        *,
        initial: Any,
        fold: Callable[[Any, Any], Any],
        accumulator: Any = Any,
        **options: Any,
    ) -> None:
        """From ``source`` to ``to``."""
        check_arguments(running_fold, name=name, source=source, to=to, fold=fold)
        super().__init__(name, source, (to,), options)
        check_initial(name, initial, accumulator)
        self.states = (Value(TOTAL, accumulator),)
        self.initial = initial
        self.fold = fold

    def process_batch(self, records: list[Record[Any]], ctx: Context) -> None:
        """Fold all, then tell the totals, each at the time of its last record."""
        total = ctx.value(TOTAL)
        last: dict[str, Record[Any]] = {}
        for record in records:
            ctx.use(record)
            held = total.get(None)
            total.set(self.fold(fresh(self.initial) if held is None else held, record.value))
            last[ctx.key] = record
        for record in last.values():
            ctx.use(record)
            ctx.produce(self.to, total.get())


def running_count(name: str, source: str, to: str, **options: Any) -> running_fold:
    """How many records each key has had."""
    check_arguments(running_count, name=name, source=source, to=to)
    return running_fold(name, source, to, initial=0, fold=one_more, **options)


def running_sum(name: str, source: str, to: str, *, of: Of | None = None, **options: Any) -> running_fold:
    """The sum of the values, or of what ``of`` takes out of them."""
    check_arguments(running_sum, name=name, source=source, to=to, of=of)
    return running_fold(name, source, to, initial=0, fold=Taking(added, of), **options)


def running_min(name: str, source: str, to: str, *, of: Of | None = None, **options: Any) -> running_fold:
    """The least of the values, or of what ``of`` takes out of them."""
    check_arguments(running_min, name=name, source=source, to=to, of=of)
    return running_fold(name, source, to, initial=None, fold=Taking(least, of), **options)


def running_max(name: str, source: str, to: str, *, of: Of | None = None, **options: Any) -> running_fold:
    """The greatest of the values, or of what ``of`` takes out of them."""
    check_arguments(running_max, name=name, source=source, to=to, of=of)
    return running_fold(name, source, to, initial=None, fold=Taking(greatest, of), **options)
