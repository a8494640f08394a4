"""Counts, sums and other folds over windows of event time: tumbling, sliding, sessions.

A window ends when the watermark passes its end; its result is produced then. ``out_of_order`` of the stream keeps the
watermark behind, so that records out of order still find their windows open. A window that is kept for
``allowed_lateness`` after its end takes late records too, and its result comes again with each of them: the last one
counts. A record whose windows are all gone is late: it goes to the stream ``late`` as it is, or nowhere if there is
none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

import msgspec

from penstock.clock import Duration, Micros, duration_micros, from_micros
from penstock.errors import BadInput
from penstock.log.record import Record, micros
from penstock.scalars import MARK, Scalar, scalar_of
from penstock.stream.computation import Names, OperatorOptions, names_of
from penstock.stream.context import SAME, Context
from penstock.stream.engine.window_cell import Span
from penstock.stream.operators import (
    FieldFold,
    Of,
    Operator,
    at_least,
    check_arguments,
    check_initial,
    count_record,
    larger,
    plus,
    produce_result,
    smaller,
)
from penstock.stream.state import Map, Windows, fresh, text_of_time
from penstock.stream.timers import Timer

if TYPE_CHECKING:
    from penstock.stream.engine.cells import MapCell

T = TypeVar("T")
MOST_WINDOWS = 10_000  # that a record may be in
_UNCHANGING = frozenset({int, float, str, bytes, bool, type(None)})
_NO_VALUE: Any = object()  # the record's value was not read yet


class Windowed(msgspec.Struct, Generic[T], frozen=True):
    """The result of a window: ``start`` is in it, ``end`` is not; both in microseconds since 1970.

    A stream of type ``Windowed[Visit]`` gives back values of that type.
    """

    key: str | int | float | bool | None
    start: Micros
    end: Micros
    value: T

    @property
    def begins(self) -> datetime:
        """The start as a datetime."""
        return from_micros(self.start)

    @property
    def ends(self) -> datetime:
        """The end as a datetime."""
        return from_micros(self.end)


class Tumbling(msgspec.Struct, frozen=True):
    """Windows of one size side by side, aligned to 1970."""

    size: Duration

    def starts(self, time: Micros) -> list[Micros]:
        """The starts of the windows a moment is in."""
        return [time - time % self.micros]

    @property
    def micros(self) -> Micros:
        """The size."""
        return _positive(self.size, "size")


class Sliding(msgspec.Struct, frozen=True):
    """Windows of one size that begin every so often, so that a moment is in several."""

    size: Duration
    every: Duration

    def starts(self, time: Micros) -> list[Micros]:
        """The starts of the windows a moment is in."""
        every = _positive(self.every, "every")
        last = time - time % every
        return list(range(last, time - self.micros, -every))[::-1]

    @property
    def micros(self) -> Micros:
        """The size."""
        return _positive(self.size, "size")


class Session(msgspec.Struct, frozen=True):
    """Windows that last as long as records of the key come at most ``gap`` after each other.

    As in Flink, Spark and Kafka Streams, a record exactly ``gap`` after the last one still belongs to the session. A
    session ends ``gap`` after its last record.
    """

    gap: Duration

    @property
    def micros(self) -> Micros:
        """The gap."""
        return _positive(self.gap, "gap")


Window = Tumbling | Sliding | Session
WindowKey = Callable[[Windowed[Any]], Scalar]
WindowResult = Callable[[Windowed[Any]], Any]


OPEN = "open"  # the state


class OpenWindow(msgspec.Struct, Generic[T]):
    """A window that is open."""

    start: Micros
    end: Micros
    value: T

    def joined(self, other: OpenWindow[T], value: T) -> OpenWindow[T]:
        """Merge two sessions, with this value."""
        return OpenWindow(min(self.start, other.start), max(self.end, other.end), value)


class RecordFold(ABC):
    """A fold that needs more of a record than its value: its time, or its payload as it is."""

    @abstractmethod
    def __call__(self, held: Any, record: Record[Any]) -> Any:
        """Fold in one more record."""

    @abstractmethod
    def finish(self, held: Any, decode: Callable[[bytes], Any]) -> Any:
        """What the result of a window holds; ``decode`` makes values of payloads."""


class windowed_fold(Operator):
    """One value per key and window.

    A result is a :class:`Windowed` under the key of its records. With ``allowed_lateness`` it comes again whenever a
    late record changes it.

    Args:
        merge: ``merge(earlier, later)``, for sessions that grow together
        key: ``key(windowed)``: another key of the result
        result: ``result(windowed)``: another value; a :class:`SideOutput` goes to one of the ``side_outputs``
    """

    def __init__(
        self,
        name: str,
        source: str,
        to: str,
        window: Window,
        *,
        initial: Any,
        fold: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None = None,
        accumulator: Any = Any,
        late: str | None = None,
        allowed_lateness: Duration = "0s",
        key: WindowKey | None = None,
        result: WindowResult | None = None,
        side_outputs: Names = (),
        **options: Unpack[OperatorOptions],
    ) -> None:
        """From ``source`` to ``to``."""
        check_arguments(
            windowed_fold, name=name, source=source, to=to, fold=fold, merge=merge, key=key, result=result,
            late=to if late is None else late,
        )  # fmt: skip
        outputs = (to, *names_of(side_outputs)) if late is None else (to, late, *names_of(side_outputs))
        super().__init__(name, source, outputs, options)
        check_window(name, window)
        check_initial(name, initial, accumulator)
        if isinstance(window, Session) and merge is None:
            raise BadInput(f"{name} has sessions and no merge.", hint="Give merge=, for sessions that grow together.")
        self.window = window
        # Durations are read once: a record that is in many windows asks for them often.
        self.size = window.micros
        self.every = duration_micros(window.every) if isinstance(window, Sliding) else window.micros
        self.allowed_lateness = duration_micros(allowed_lateness, name="allowed_lateness")
        # Windows of one start and end close together for all keys, unless they wait for late records.
        self.closes_together = not isinstance(window, Session) and not self.allowed_lateness
        self.states = ((Windows if self.closes_together else Map)(OPEN, OpenWindow[accumulator]),)
        # A session takes a record at its very end, so it lasts a moment longer.
        self.lasts = 1 if isinstance(window, Session) else 0
        self.output_delay = at_least(self.output_delay, self.allowed_lateness + self.lasts)
        self.initial = initial
        self.fold = fold
        self.merge = merge
        self.folds_records = isinstance(fold, RecordFold)
        self.late = late
        self.key = key
        self.result = result

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Fold a record into its windows."""
        if self.closes_together:
            into = self._into_windows
        else:
            into = self._into_session if isinstance(self.window, Session) else self._into_lasting_windows
        if not into(record, ctx) and self.late is not None:
            ctx.produce(self.late, record)

    def _into_windows(self, record: Record[Any], ctx: Context) -> bool:
        """Fold a record into every window it is in. Returns False if it is late for all of them."""
        time, size, fold, low = record.time_us, self.size, self.fold, ctx.low
        starts = range(time - time % self.every, time - size, -self.every)
        is_taken = not starts  # a record between two windows cannot be late
        opened = ctx.windows(OPEN)
        value: Any = _NO_VALUE
        for start in reversed(starts):
            if start + size <= low:
                continue
            is_taken = True
            if value.__class__ not in _UNCHANGING:
                # A fold may change what it is given, and windows share nothing.
                value = record if self.folds_records else record.value
            window = Span(start + size, start)
            held = opened.get(window, _NO_VALUE)
            opened.set(window, fold(fresh(self.initial) if held is _NO_VALUE else held, value))
        return is_taken

    def _into_lasting_windows(self, record: Record[Any], ctx: Context) -> bool:
        """The same for windows that take late records after their ends."""
        time, size, fold, low = record.time_us, self.size, self.fold, ctx.low
        over = low - self.allowed_lateness  # windows that end here or before are gone
        starts = range(time - time % self.every, time - size, -self.every)
        is_taken = not starts  # a record between two windows cannot be late
        opened = ctx.map(OPEN)
        value: Any = _NO_VALUE
        for start in reversed(starts):
            end = start + size
            if end <= over:
                continue
            is_taken = True
            if value.__class__ not in _UNCHANGING:
                # A fold may change what it is given, and windows share nothing.
                value = record if self.folds_records else record.value
            name = str(start)
            window = opened.get(name)
            is_new = window is None
            if is_new:
                window = OpenWindow(start, end, fresh(self.initial))
            window.value = fold(window.value, value)
            opened.set(name, window)
            if is_new or end <= low:
                self._after_change(name, window, ctx)
        return is_taken

    def _after_change(self, name: str, window: OpenWindow[Any], ctx: Context) -> None:
        """The result of a window comes at its end; after its end, at once."""
        closes = window.end + self.lasts
        if closes <= ctx.low:
            self._produce(window, ctx)
            closes += self.allowed_lateness
        ctx.set_timer(closes, name)

    def _into_session(self, record: Record[Any], ctx: Context) -> bool:
        """Fold a record into the session it belongs to. Returns False if that has ended."""
        at, gap = record.time_us, self.size
        sessions = take_sessions(ctx, at, gap, self.allowed_lateness)
        if sessions is None:
            return False
        value = record if self.folds_records else record.value
        first = sessions[0].value if sessions else fresh(self.initial)
        merged = OpenWindow(at, at + gap, self.fold(first, value))
        for rank, session in enumerate(sessions):
            assert self.merge is not None  # noqa: S101 - checked when it was made
            held = merged.value if rank == 0 else self.merge(merged.value, session.value)
            merged = merged.joined(session, held)
        self._after_change(put_session(ctx, merged), merged, ctx)
        return True

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Produce a window that has ended, or drop one that is not kept any longer."""
        if self.closes_together:
            self._close_one(Span(timer.time_us, int(timer.name)), ctx)
            return
        opened = ctx.map(OPEN)
        window = opened.get(timer.name)
        if window is None:
            return
        closes = window.end + self.lasts
        if timer.time_us == closes:
            self._produce(window, ctx)
            if self.allowed_lateness and not ctx.final:
                ctx.set_timer(closes + self.allowed_lateness, timer.name)
                return
        opened.delete(timer.name)

    def _close_one(self, window: Span, ctx: Context) -> None:
        opened = ctx.windows(OPEN)
        value = opened.get(window, _NO_VALUE)
        if value is not _NO_VALUE:
            self._produce(OpenWindow(window.start, window.end, value), ctx)
            opened.delete(window)

    def close_windows(self, ctx: Context) -> int:
        """Produce and drop all windows that have ended, as :meth:`on_timer` does one by one. Returns how many."""
        opened = ctx.windows(OPEN)
        ended, count = opened.ended_by(ctx.low), 0
        for window in ended:
            values = opened.values(window)
            count += len(values)
            if self.result is None and self.key is None and not self.folds_records:
                end, start = window
                results = [
                    Windowed(scalar_of(key) if key[:5] == MARK else key, start, end, value)
                    for key, value in values.items()
                ]
                ctx.produce_many(self.to, results, [key or None for key in values], repeat(micros(end - 1)))
                continue
            for key, value in values.items():
                ctx.at_timer(key, window.end)
                self._produce(OpenWindow(window.start, window.end, value), ctx)
        for window in ended:
            opened.close(window)
        return count

    def _produce(self, window: OpenWindow[Any], ctx: Context) -> None:
        """Produce the result of a window, at its last moment."""
        folded = window.value
        if self.folds_records:
            folded = cast(RecordFold, self.fold).finish(folded, lambda payload: ctx.decode(self.inputs[0], payload))
        windowed = Windowed(ctx.key, window.start, window.end, folded)
        value = windowed if self.result is None else self.result(windowed)
        key = SAME if self.key is None else self.key(windowed)
        produce_result(ctx, self.to, value, key=key, timestamp=window.end - 1)


class WindowOptions(OperatorOptions, total=False):
    """What the counts, sums and other folds of this module pass on; see :class:`windowed_fold`."""

    late: str | None
    allowed_lateness: Duration
    key: WindowKey | None
    result: WindowResult | None
    side_outputs: Names


def windowed_count(name: str, source: str, to: str, window: Window, **options: Unpack[WindowOptions]) -> windowed_fold:
    """How many records each key has in each window.

    Args:
        **options: those of :class:`windowed_fold`
    """
    check_arguments(windowed_count, name=name, source=source, to=to)
    return windowed_fold(name, source, to, window, initial=0, fold=count_record, merge=plus, **options)


def windowed_sum(
    name: str,
    source: str,
    to: str,
    window: Window,
    *,
    of: Of | None = None,
    approx: bool = False,
    **options: Unpack[WindowOptions],
) -> windowed_fold:
    """The sum per key and window of the values, or of what ``of`` takes out of them.

    Args:
        approx: floats may be added in any order, which is faster; the last digits are as they come
        **options: those of :class:`windowed_fold`
    """
    check_arguments(windowed_sum, name=name, source=source, to=to, of=of)
    fold = FieldFold(plus, of, approx=approx)
    return windowed_fold(name, source, to, window, initial=0, fold=fold, merge=plus, **options)


def windowed_min(
    name: str, source: str, to: str, window: Window, *, of: Of | None = None, **options: Unpack[WindowOptions]
) -> windowed_fold:
    """The least per key and window of the values, or of what ``of`` takes out of them.

    Args:
        **options: those of :class:`windowed_fold`
    """
    check_arguments(windowed_min, name=name, source=source, to=to, of=of)
    fold = FieldFold(smaller, of)
    return windowed_fold(name, source, to, window, initial=None, fold=fold, merge=smaller, **options)


def windowed_max(
    name: str, source: str, to: str, window: Window, *, of: Of | None = None, **options: Unpack[WindowOptions]
) -> windowed_fold:
    """The greatest per key and window of the values, or of what ``of`` takes out of them.

    Args:
        **options: those of :class:`windowed_fold`
    """
    check_arguments(windowed_max, name=name, source=source, to=to, of=of)
    fold = FieldFold(larger, of)
    return windowed_fold(name, source, to, window, initial=None, fold=fold, merge=larger, **options)


def take_sessions(ctx: Context, at: Micros, gap: Micros, allowed_lateness: Micros = 0) -> list[OpenWindow[Any]] | None:
    """Take the sessions of the current key that a record at this time belongs to out of the state, by their starts.

    None if the session that the record would begin has ended.
    """
    near = _sessions_near(ctx.map(OPEN), at, at + gap)
    if not near and at + gap + allowed_lateness < ctx.low:
        return None
    return _taken(ctx, near)


def touching_sessions(ctx: Context, start: Micros, end: Micros) -> list[OpenWindow[Any]]:
    """The same for a session of several records."""
    return _taken(ctx, _sessions_near(ctx.map(OPEN), start, end))


def _taken(ctx: Context, sessions: list[tuple[str, Any]]) -> list[OpenWindow[Any]]:
    opened = ctx.map(OPEN)
    for name, _ in sessions:
        opened.delete(name)
        ctx.clear_timer(name)
    return [session for _, session in sessions]


def put_session(ctx: Context, session: OpenWindow[Any]) -> str:
    """Keep a session; returns its name in the state."""
    name = text_of_time(session.start)
    ctx.map(OPEN).set(name, session)
    return name


def _sessions_near(opened: MapCell, start: Micros, end: Micros) -> list[tuple[str, Any]]:
    """The open sessions of the current key that one from ``start`` to ``end`` belongs to, by their starts.

    No two sessions touch, so of those that began before it only the last can reach up to it; no other is read.
    """
    near = opened.between(text_of_time(start), text_of_time(end + 1))
    earlier = opened.last_before(text_of_time(start))
    return [earlier, *near] if earlier is not None and start <= earlier[1].end else near


def check_window(name: str, window: object) -> None:
    """Refuse what is not a window, and one that no record could be put into."""
    if not isinstance(window, Tumbling | Sliding | Session):
        raise BadInput(
            f"{name} was given {window!r} as window.", hint='Use Tumbling("1h"), Sliding(…) or Session("30m").'
        )
    size = window.micros
    if isinstance(window, Sliding):
        count = -(-size // _positive(window.every, "every"))
        if count > MOST_WINDOWS:
            raise BadInput(
                f"{name} would put every record into {count:,} windows; at most {MOST_WINDOWS:,} are possible.",
                hint=f"Let every={window.every!r} be longer, or size={window.size!r} shorter.",
            )


def _positive(value: Duration, name: str) -> Micros:
    micros = duration_micros(value, name=name)
    if micros < 1:
        raise BadInput(f"a window with {name} {value!r} is empty.", hint='Write it as "1h".')
    return micros
