"""Windows and totals fold the records between two checkpoints first, and touch the state of a key once.

Counts, and sums, least and greatest values of whole numbers come to the same in any order, so what the records of one
key and step come to can be put to its windows at once, with the checkpoint. Everything else goes through ``process``,
record by record: floats (unless a sum is ``approx``), late records, records that cannot be read. So the results are
those of ``process``, bit for bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from penstock.clock import Micros
from penstock.codec import BytesCodec, Codec, JsonCodec
from penstock.stream.computation import Computation
from penstock.stream.context import Context
from penstock.stream.engine.checkpoint import InputBatch
from penstock.stream.operators import TOTAL, FieldFold, count_record, larger, plus, running_fold, smaller
from penstock.stream.state import fresh
from penstock.stream.windows import OPEN, OpenWindow, Session, put_session, touching_sessions, windowed_fold

FEW = 8  # records that are sooner processed one by one
MOST_FOLDED = 100_000  # entries that are held before they are put to the state
_AGGREGATES: dict[Any, str] = {plus: "sum", smaller: "min", larger: "max"}

Row = tuple[str, Micros, Any]  # key, start of the window, what its records come to


class NotExact(Exception):
    """These records cannot be folded exactly."""


def aggregate_of(computation: Computation) -> str | None:
    """What a fold computes (count, sum, min or max), or None if that is not known."""
    fold: Any = cast(running_fold | windowed_fold, computation).fold
    if fold is count_record:
        return "count"
    return _AGGREGATES.get(fold.combine) if type(fold) is FieldFold else None


def can_fold(computation: Computation) -> str | None:
    """What is computed if records can be folded between checkpoints; None: its own code sees every record."""
    if type(computation) is windowed_fold:
        is_session = isinstance(computation.window, Session)
        if computation.allowed_lateness or (not is_session and computation.size % computation.every):
            return None
    elif type(computation) is not running_fold:
        return None
    return aggregate_of(computation)


def fold_of(computation: Computation, codec: Codec[Any] | None) -> BatchFold | None:
    """What folds for a computation whose input has this codec; None: its own code sees every record."""
    if codec is None or can_fold(computation) is None:
        return None
    if isinstance(computation, running_fold):
        return TotalFold(computation, codec)
    windows = cast(windowed_fold, computation)
    return (SessionFold if isinstance(windows.window, Session) else WindowFold)(windows, codec)


class Aggregate:
    """A known fold: what it takes out of records, and how two of its values become one."""

    def __init__(self, computation: running_fold | windowed_fold, codec: Codec[Any]) -> None:
        """``codec`` is that of the input."""
        fold: Any = computation.fold
        self.kind = aggregate_of(computation)
        self.initial = computation.initial
        self.combine: Callable[[Any, Any], Any] = plus if self.kind == "count" else fold.combine
        self._codec = codec
        self._of: Callable[[Any], Any] | None = fold.of if isinstance(fold, FieldFold) else None
        is_approx = isinstance(fold, FieldFold) and fold.approx
        self._types = frozenset({int, float} if is_approx else {int})

    def numbers(self, payloads: list[bytes]) -> list[Any]:
        """What is folded of each record; raises for a record that cannot be read, and for what is not exact."""
        if self.kind == "count":
            if not isinstance(self._codec, BytesCodec):
                self._values(payloads)  # a record that cannot be read is a failure, even if it is only counted
            return [1] * len(payloads)
        values = self._values(payloads)
        numbers = values if self._of is None else list(map(self._of, values))
        if not self._types.issuperset(map(type, numbers)):
            raise NotExact("not only whole numbers.")
        return numbers

    def combined(self, held: Any, partial: Any) -> Any:
        """Combine the value held so far with that of new records."""
        if held is not None and type(held) not in self._types:
            raise NotExact("the state holds something else than whole numbers.")
        return self.combine(held, partial)

    def _values(self, payloads: list[bytes]) -> list[Any]:
        if isinstance(self._codec, JsonCodec):
            return self._codec.decode_many(payloads)
        return list(map(self._codec.decode, payloads))


class TotalFold:
    """Running totals: one result per key and checkpoint, at the time of the key's last record."""

    def __init__(self, totals: running_fold, codec: Codec[Any]) -> None:
        """Nothing is folded yet."""
        self._totals = totals
        self._aggregate = Aggregate(totals, codec)
        self._counts: Counter[str] = Counter()  # of records
        self._partials: dict[str, Any] = {}  # of other aggregates
        self._last: dict[str, int] = {}  # of each key the last record, as a rank in all batches
        self._batches: list[InputBatch] = []
        self._ends: list[int] = [0]

    def take(self, batch: InputBatch, low: Micros) -> bool:
        """Fold a batch."""
        numbers = self._aggregate.numbers([record.payload for record in batch.records])
        keys = [key or "" for key in batch.keys]
        if self._aggregate.kind == "count":
            self._counts.update(keys)
        else:
            partials, combine = self._partials, self._aggregate.combine
            for key, number in zip(keys, numbers, strict=True):
                held = partials.get(key)
                partials[key] = number if held is None else combine(held, number)
        begin = self._ends[-1]
        self._last.update(zip(keys, range(begin, begin + len(keys)), strict=True))
        self._batches.append(batch)
        self._ends.append(begin + len(keys))
        return True

    def put(self, ctx: Context) -> None:
        """Put what was folded to the totals of its keys, and produce these."""
        total, initial, combined = ctx.value(TOTAL), self._aggregate.initial, self._aggregate.combined
        partials = self._counts if self._aggregate.kind == "count" else self._partials
        for key, rank in self._last.items():
            place = bisect_right(self._ends, rank) - 1
            batch = self._batches[place]
            ctx.stream, ctx.has_headers = batch.stream, batch.has_headers
            ctx.use(batch.records[rank - self._ends[place]])
            held = total.get(None)
            value = combined(fresh(initial) if held is None else held, partials[key])
            total.set(value)
            ctx.produce(self._totals.to, value)
        self.clear()

    def clear(self) -> None:
        """Forget what was folded."""
        self._counts, self._partials, self._last = Counter(), {}, {}
        self._batches, self._ends = [], [0]

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._last)


class WindowFold:
    """Tumbling windows, and sliding ones that begin every whole part of their size."""

    def __init__(self, windows: windowed_fold, codec: Codec[Any]) -> None:
        """Nothing is folded yet."""
        self._aggregate = Aggregate(windows, codec)
        self._size, self._every = windows.size, windows.every
        self._partials: dict[tuple[str, Micros], Any] = {}  # by key and step

    def take(self, batch: InputBatch, low: Micros) -> bool:
        """Fold a batch. Returns False, and does nothing, if one of its records is late for all its windows."""
        every, partials, combine = self._every, self._partials, self._aggregate.combine
        oldest = min(batch.times)
        if oldest - oldest % every + self._size <= low:
            return False
        numbers = self._aggregate.numbers([record.payload for record in batch.records])
        for key, time, number in zip(batch.keys, batch.times, numbers, strict=True):
            place = (key or "", time - time % every)
            held = partials.get(place)
            partials[place] = number if held is None else combine(held, number)
        return True

    def put(self, ctx: Context) -> None:
        """Put what was folded to the open windows of its keys."""
        partials, self._partials = self._partials, {}
        put_to_windows(ctx, self._aggregate, self._size, rows_of(partials, self._size, self._every, ctx.low))

    def clear(self) -> None:
        """Forget what was folded."""
        self._partials.clear()

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._partials)


def rows_of(partials: dict[tuple[str, Micros], Any], size: Micros, every: Micros, low: Micros) -> Iterator[Row]:
    """The windows that the moments of each step are in, without those that have ended."""
    for (key, last), partial in partials.items():
        for start in range(last - size + every, last + 1, every):
            if start + size > low:
                yield key, start, partial


def put_to_windows(ctx: Context, aggregate: Aggregate, size: Micros, rows: Iterable[Row]) -> None:
    """Add what was folded to open windows; one that is opened gets its timer."""
    opened, initial, combined = ctx.map(OPEN), aggregate.initial, aggregate.combined
    for key, start, partial in rows:
        ctx.key_text = key
        name = str(start)
        window = opened.get(name)
        if window is None:
            window = OpenWindow(start, start + size, fresh(initial))
            ctx.set_timer(window.end, name)
        window.value = combined(window.value, partial)
        opened.set(name, window)


class SessionFold:
    """Sessions: records of a key that are near each other become one before the state is looked at."""

    def __init__(self, windows: windowed_fold, codec: Codec[Any]) -> None:
        """Nothing is folded yet."""
        self._aggregate = Aggregate(windows, codec)
        self._gap, self._lasts = windows.size, windows.lasts
        self._records: list[tuple[str, Micros, Any]] = []

    def take(self, batch: InputBatch, low: Micros) -> bool:
        """Fold a batch. Returns False, and does nothing, if one of its records may be late."""
        if min(batch.times) + self._gap < low:
            return False
        numbers = self._aggregate.numbers([record.payload for record in batch.records])
        self._records += zip([key or "" for key in batch.keys], batch.times, numbers, strict=True)
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
