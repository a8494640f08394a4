"""Windows and totals fold the records between two checkpoints first, and touch the state of a key once.

Counts, and sums, least and greatest values of whole numbers come to the same in any order, so what the records of one
key and step come to can be put to its windows at once, with the checkpoint. Everything else goes through ``process``,
record by record: floats (unless a sum is ``approx``), late records, records that cannot be read. So the results are
those of ``process``, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import add, itemgetter
from typing import Any, NamedTuple, cast

from penstock.clock import Micros
from penstock.codec import BytesCodec, Codec, JsonCodec
from penstock.log.record import Headers
from penstock.stream.chaining import chain
from penstock.stream.computation import Computation, names_of
from penstock.stream.context import Context
from penstock.stream.engine.checkpoint import InputBatch
from penstock.stream.engine.window_cell import Span
from penstock.stream.operators import (
    TOTAL,
    FieldFold,
    SideOutput,
    count_record,
    filter_values,
    flat_map,
    larger,
    map_values,
    plus,
    running_fold,
    smaller,
)
from penstock.stream.state import fresh
from penstock.stream.windows import OPEN, OpenWindow, Session, put_session, touching_sessions, windowed_fold

FEW = 8  # records that are sooner processed one by one
MOST_FOLDED = 100_000  # entries that are held before they are put to the state
_AGGREGATES: dict[Any, str] = {plus: "sum", smaller: "min", larger: "max"}
_TOGETHER: dict[Any, Callable[[Any, Any], Any]] = {plus: add, smaller: min, larger: max}  # the same without Nones


class NotExact(Exception):
    """Records cannot be folded together, or windows not closed together, to exactly what comes one by one."""


def aggregate_of(computation: Computation) -> str | None:
    """What a fold computes (count, sum, min or max), or None if that is not known."""
    fold: Any = cast(running_fold | windowed_fold, computation).fold
    if fold is count_record:
        return "count"
    return _AGGREGATES.get(fold.combine) if type(fold) is FieldFold else None


class ValueSteps:
    """The steps of a chain before its fold, on all values of a batch at once."""

    def __init__(self, steps: Sequence[Computation]) -> None:
        """Maps and filters, each of which reads what the one before it writes."""
        self._steps = steps

    def run(self, values: list[Any]) -> tuple[list[Any], Sequence[int]]:
        """What comes out, and of each value which one it comes from. Raises what the functions raise."""
        ranks: Sequence[int] = range(len(values))
        for step in self._steps:
            function = cast(map_values, step).function
            if type(step) is map_values:
                values = list(map(function, values))
            elif type(step) is filter_values:
                passing = [place for place, value in enumerate(values) if function(value)]
                values, ranks = [values[place] for place in passing], [ranks[place] for place in passing]
            else:
                results = [
                    (result, rank) for value, rank in zip(values, ranks, strict=True) for result in function(value)
                ]
                values, ranks = [result for result, _ in results], [rank for _, rank in results]
            if SideOutput in set(map(type, values)):
                raise NotExact("a step has a side output.")
        return values, ranks


def fold_step_of(computation: Computation) -> tuple[Computation, ValueSteps | None]:
    """The computation, or of a chain its last step if those before it are maps and filters in a row; and these."""
    if type(computation) is not chain or computation.stored:
        return computation, None
    *before, last = computation.steps
    streams = [names_of(step.inputs) for step in computation.steps[1:]]
    in_a_row = streams == [names_of(step.outputs) for step in before]
    if in_a_row and all(type(step) in (map_values, filter_values, flat_map) for step in before):
        return last, ValueSteps(before)
    return computation, None


def can_fold(computation: Computation) -> str | None:
    """What is computed if records can be folded between checkpoints; None: its own code sees every record."""
    step, _ = fold_step_of(computation)
    if type(step) is windowed_fold:
        is_session = isinstance(step.window, Session)
        if step.allowed_lateness or (not is_session and step.size % step.every):
            return None
    elif type(step) is not running_fold:
        return None
    return aggregate_of(step)


def fold_of(computation: Computation, codec: Codec[Any] | None) -> BatchFold | None:
    """What folds for a computation whose input has this codec; None: its own code sees every record."""
    if codec is None or can_fold(computation) is None:
        return None
    step, before = fold_step_of(computation)
    aggregate = Aggregate(step, codec, before)
    if isinstance(step, running_fold):
        return TotalFold(step, aggregate)
    windows = cast(windowed_fold, step)
    return (SessionFold if isinstance(windows.window, Session) else WindowFold)(windows, aggregate)


class FoldRows(NamedTuple):
    """What is folded, of each record that comes to the fold."""

    keys: Sequence[str]  # no key and an empty one are the same
    times: Sequence[Micros]
    numbers: Sequence[Any]
    ranks: Sequence[int]  # of the records in their batch


class HalfFolded(Exception):
    """A fold failed in the middle of a batch: what it holds is worth nothing any more."""


class Aggregate:
    """A known fold: what it takes out of records, and how two of its values become one."""

    def __init__(self, computation: Computation, codec: Codec[Any], before: ValueSteps | None = None) -> None:
        """``codec`` is that of the input; ``before`` are the steps between the input and the fold."""
        fold: Any = cast(running_fold | windowed_fold, computation).fold
        self.kind = aggregate_of(computation)
        self.initial = cast(running_fold | windowed_fold, computation).initial
        self.combine: Callable[[Any, Any], Any] = plus if self.kind == "count" else fold.combine
        self._codec = codec
        self._before = before
        self._of: Callable[[Any], Any] | None = fold.of if isinstance(fold, FieldFold) else None
        is_approx = isinstance(fold, FieldFold) and fold.approx
        self._types = frozenset({int, float} if is_approx else {int})

    def rows(self, batch: InputBatch) -> FoldRows:
        """What is folded of a batch; raises for a record that cannot be read, and for what is not exact."""
        payloads = [record.payload for record in batch.records]
        keys, times, ranks = [key or "" for key in batch.keys], batch.times, range(len(payloads))
        if self.kind == "count" and self._before is None and isinstance(self._codec, BytesCodec):
            return FoldRows(keys, times, [1] * len(keys), ranks)
        values = self._values(payloads)  # a record that cannot be read is a failure, even if it is only counted
        if self._before is None:
            return FoldRows(keys, times, self._numbers(values), ranks)
        values, passed = self._before.run(values)
        return FoldRows(
            [keys[rank] for rank in passed], [times[rank] for rank in passed], self._numbers(values), passed
        )

    def _numbers(self, values: list[Any]) -> list[Any]:
        if self.kind == "count":
            return [1] * len(values)
        numbers = values if self._of is None else list(map(self._of, values))
        if not self._types.issuperset(map(type, numbers)):
            raise NotExact("not only whole numbers.")
        return numbers

    def combined(self, held: Any, partial: Any) -> Any:
        """Combine the value held so far with that of new records."""
        return self.combined_many([held], [partial])[0]

    def combined_many(self, held: list[Any], partials: Iterable[Any]) -> list[Any]:
        """Combine the values held so far of many keys with those of new records."""
        kinds = set(map(type, held))
        if not kinds <= {*self._types, type(None)}:
            raise NotExact("the state holds something else than whole numbers.")
        together = self.combine if type(None) in kinds else _TOGETHER.get(self.combine, self.combine)
        return list(map(together, held, partials))

    def _values(self, payloads: list[bytes]) -> list[Any]:
        if isinstance(self._codec, JsonCodec):
            return self._codec.decode_many(payloads)
        return list(map(self._codec.decode, payloads))


LastOfKeys = dict[str, tuple["str | None", Micros, "Headers | None"]]


class TotalFold:
    """Running totals: one result per key and checkpoint, at the time of the key's last record."""

    def __init__(self, totals: running_fold, aggregate: Aggregate) -> None:
        """Nothing is folded yet."""
        self._totals = totals
        self._aggregate = aggregate
        self._counts: Counter[str] = Counter()  # of records
        self._partials: dict[str, Any] = {}  # of other aggregates
        self._last: LastOfKeys = {}

    def take(self, batch: InputBatch, low: Micros) -> bool:
        """Fold a batch."""
        rows = self._aggregate.rows(batch)
        if self._aggregate.kind == "count":
            self._counts.update(rows.keys)
        else:
            partials, combine = self._partials, self._aggregate.combine
            try:
                for key, number in zip(rows.keys, rows.numbers, strict=True):
                    held = partials.get(key)
                    partials[key] = number if held is None else combine(held, number)
            except Exception as error:  # floats have limits
                raise HalfFolded from error
        records, own_keys = batch.records, batch.keys
        if not isinstance(rows.ranks, range):  # a step has passed on some of them
            records, own_keys = [records[rank] for rank in rows.ranks], [own_keys[rank] for rank in rows.ranks]
        headers = [record.headers for record in records] if batch.has_headers else repeat(None)
        self._last.update(zip(rows.keys, zip(own_keys, rows.times, headers, strict=False), strict=False))
        return True

    def put(self, ctx: Context) -> None:
        """Put what was folded to the totals of its keys, and produce these."""
        partials, last = self._counts if self._aggregate.kind == "count" else self._partials, self._last
        self.clear()
        put_to_totals(ctx, self._aggregate, list(partials), list(partials.values()))
        produce_totals(ctx, self._totals, last)

    def clear(self) -> None:
        """Forget what was folded."""
        self._counts, self._partials, self._last = Counter(), {}, {}

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._last)


def put_to_totals(ctx: Context, aggregate: Aggregate, keys: list[str], partials: list[Any]) -> None:
    """Add what the records of each key come to."""
    ctx.value(TOTAL).fold(keys, partials, aggregate.initial, aggregate.combined_many)


def produce_totals(ctx: Context, totals: running_fold, last: LastOfKeys) -> None:
    """Produce the totals of these keys as results of their last records: with key, time and headers of those."""
    rows = last.values()
    own_keys, times, headers = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    ctx.produce_many(totals.to, ctx.value(TOTAL).values_of(last), own_keys, times, headers)


class WindowFold:
    """Tumbling windows, and sliding ones that begin every whole part of their size."""

    def __init__(self, windows: windowed_fold, aggregate: Aggregate) -> None:
        """Nothing is folded yet."""
        self._aggregate = aggregate
        self._windows = windows
        self._size, self._every = windows.size, windows.every
        self._partials: dict[Micros, dict[str, Any]] = {}  # by step and key

    def take(self, batch: InputBatch, low: Micros) -> bool:
        """Fold a batch. Returns False, and does nothing, if one of its records is late for all its windows."""
        every, partials, combine = self._every, self._partials, self._aggregate.combine
        oldest = min(batch.times)
        if oldest - oldest % every + self._size <= low:
            return False
        rows = self._aggregate.rows(batch)
        try:
            for key, time, number in zip(rows.keys, rows.times, rows.numbers, strict=True):
                step = time - time % every
                of_step = partials.get(step)
                if of_step is None:
                    of_step = partials[step] = {}
                held = of_step.get(key)
                of_step[key] = number if held is None else combine(held, number)
        except Exception as error:  # floats have limits
            raise HalfFolded from error
        return True

    def put(self, ctx: Context) -> None:
        """Put what was folded to the open windows of its keys."""
        partials, self._partials = self._partials, {}
        for last, of_step in partials.items():
            put_to_windows(ctx, self._windows, self._aggregate, last, of_step)

    def clear(self) -> None:
        """Forget what was folded."""
        self._partials.clear()

    def __len__(self) -> int:
        """How many entries are held."""
        return sum(map(len, self._partials.values()))


def put_to_windows(
    ctx: Context, windows: windowed_fold, aggregate: Aggregate, last: Micros, partials: Mapping[str, Any]
) -> None:
    """Add what the records of one step come to, for each key, to the windows that the step is in and that are open."""
    opened, size = ctx.windows(OPEN), windows.size
    for start in range(last - size + windows.every, last + 1, windows.every):
        if start + size > ctx.low:
            opened.fold(Span(start + size, start), partials, aggregate.initial, aggregate.combined_many)


class SessionFold:
    """Sessions: records of a key that are near each other become one before the state is looked at."""

    def __init__(self, windows: windowed_fold, aggregate: Aggregate) -> None:
        """Nothing is folded yet."""
        self._aggregate = aggregate
        self._gap, self._lasts = windows.size, windows.lasts
        self._records: list[tuple[str, Micros, Any]] = []

    def take(self, batch: InputBatch, low: Micros) -> bool:
        """Fold a batch. Returns False, and does nothing, if one of its records may be late."""
        if min(batch.times) + self._gap < low:
            return False
        rows = self._aggregate.rows(batch)
        self._records += zip(rows.keys, rows.times, rows.numbers, strict=True)
        return True

    def put(self, ctx: Context) -> None:
        """Join what was folded with the open sessions of its keys."""
        records, self._records = self._records, []
        records.sort(key=itemgetter(0, 1))
        for key, group in groupby(records, key=itemgetter(0)):
            ctx.key_text = key
            for session in self._sessions(group):
                self._put_one(ctx, session)

    def _sessions(self, records: Iterable[tuple[str, Micros, Any]]) -> Iterator[OpenWindow[Any]]:
        """Records of one key, by their times, as sessions."""
        session: OpenWindow[Any] | None = None
        for _, time, number in records:
            if session is not None and time <= session.end:
                session.end = time + self._gap
                session.value = self._aggregate.combine(session.value, number)
                continue
            if session is not None:
                yield session
            session = OpenWindow(time, time + self._gap, number)
        if session is not None:
            yield session

    def _put_one(self, ctx: Context, session: OpenWindow[Any]) -> None:
        value = self._aggregate.combined(fresh(self._aggregate.initial), session.value)
        for open_one in touching_sessions(ctx, session.start, session.end):
            value = self._aggregate.combined(open_one.value, value)
            session = session.joined(open_one, value)
        session.value = value
        ctx.set_timer(session.end + self._lasts, put_session(ctx, session))

    def clear(self) -> None:
        """Forget what was folded."""
        self._records.clear()

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._records)


BatchFold = TotalFold | WindowFold | SessionFold
