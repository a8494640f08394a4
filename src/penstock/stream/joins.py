"""Joins of two streams by key: by a span of time, by window, with a table, and without a bound.

All of them are called as ``join(name, left, right, to, …)``. ``how`` says what becomes of a record without a
partner: ``"inner"`` drops it, ``"left"`` and ``"right"`` give those of one side with None as the other, ``"outer"``
those of both.
``joiner`` makes the value of a pair, by default ``[left, right]``; ``key`` makes its key, by default that of both. A
:class:`SideOutput` that ``joiner`` gives goes to one of the streams in ``side_outputs``.

============== ============================================== ====================================================
join           partners of a record                           its state
============== ============================================== ====================================================
join           those within a span of event time around it    records, until the watermark has passed their span
window_join    those in the same window                       records, until their windows have ended
table_join     the value that its key had in the table then   a value per key, and records ahead of the watermark
regular_join   all, whenever they come                        all records of both sides, unless ``ttl`` drops them
============== ============================================== ====================================================

Values come with the types of their streams. Partners come by time, those of one time as they were appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, Unpack

from penstock.clock import Duration, Micros, duration_micros
from penstock.errors import BadInput
from penstock.log.record import Record
from penstock.scalars import Scalar
from penstock.stream.computation import Computation, Names, OperatorOptions, names_of
from penstock.stream.context import SAME, Context
from penstock.stream.operators import at_least, check_arguments, check_streams, produce_result, set_options
from penstock.stream.state import TIME_DIGITS, Map, text_of_time, time_of_text
from penstock.stream.timers import Timer
from penstock.stream.windows import (
    OPEN,
    OpenWindow,
    Session,
    Sliding,
    Window,
    Windowed,
    check_window,
    put_session,
    take_sessions,
)

How = Literal["inner", "left", "right", "outer"]
PairKey = Callable[[Any, Any], Scalar]
Joiner = Callable[[Any, Any], Any]

LEFT, RIGHT = "left", "right"  # the states, and the sides
MATCHED = "matched"
VERSIONS = "versions"


class Join(Computation):
    """The common part of all joins: two inputs, an output, and the value of a pair."""

    allowed_how: tuple[str, ...] = ("inner", "left", "right", "outer")
    hint_how = "Use 'inner', 'left', 'right' or 'outer'."

    def __init__(
        self, name: str, left: str, right: str, to: str, *, how: str, key: Callable[..., Any] | None,
        joiner: Callable[..., Any] | None, options: Mapping[str, Any], late: str | None = None,
        side_outputs: Names = (),
    ) -> None:  # fmt: skip
        """From two streams to one; records that come too late go to ``late``, if that is named."""
        check_arguments(
            type(self), name=name, left=left, right=right, to=to, key=key, joiner=joiner,
            late=to if late is None else late,
        )  # fmt: skip
        if how not in self.allowed_how:
            raise BadInput(f"{name} joins how={how!r}.", hint=self.hint_how)
        if left == right:
            raise BadInput(f"{name} joins {left} with itself.", hint="Name two streams.")
        self.name = name
        self.inputs = (left, right)
        outputs = (to, *names_of(side_outputs)) if late is None else (to, late, *names_of(side_outputs))
        self.outputs = tuple(dict.fromkeys(outputs))
        check_streams(self)
        set_options(self, options)
        self.to = to
        self.late = late
        self.how = how
        self.key = key
        self.joiner = joiner
        # The sides whose records are produced without a partner, too.
        self.outer = {"left": {LEFT}, "right": {RIGHT}, "outer": {LEFT, RIGHT}}.get(how, set())

    def side_of(self, ctx: Context) -> str:
        """The side of the current record."""
        return LEFT if ctx.stream == self.inputs[0] else RIGHT

    def decode(self, side: str, payload: bytes, ctx: Context) -> Any:
        """A stored record's value, with the type of its stream."""
        return ctx.decode(self.inputs[0] if side == LEFT else self.inputs[1], payload)

    def produce_pair(self, left: Any, right: Any, at: Micros, ctx: Context) -> None:
        """Produce the result of a left and a right value; one of them may be None."""
        value = [left, right] if self.joiner is None else self.joiner(left, right)
        key = SAME if self.key is None else self.key(left, right)
        produce_result(ctx, self.to, value, key=key, timestamp=at)

    def produce_single(self, side: str, value: Any, at: Micros, ctx: Context) -> None:
        """Produce the result of a value without a partner."""
        left, right = (value, None) if side == LEFT else (None, value)
        self.produce_pair(left, right, at, ctx)


class join(Join):
    """Pairs of records of the same key whose times are near each other.

    The right time is from ``before`` earlier up to ``after`` later than the left time, both included. A pair has the
    later of its two times. A record without a partner comes when the watermark says that none can come any more, with
    its own time.

    Args:
        within: ``"5s"`` means 5 seconds before and after
        before, after: instead of ``within``; a negative bound moves the span to one side: with ``before="-1s",
            after="5s"`` a right record has to come 1 to 5 seconds later
        key: ``key(left, right)``: another key of the result
    """

    states = (Map(LEFT, bytes), Map(RIGHT, bytes), Map(MATCHED, bool))

    def __init__(
        self,
        name: str,
        left: str,
        right: str,
        to: str,
        *,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        how: How = "inner",
        key: PairKey | None = None,
        joiner: Joiner | None = None,
        side_outputs: Names = (),
        **options: Unpack[OperatorOptions],
    ) -> None:
        """From two streams to one."""
        super().__init__(
            name, left, right, to, how=how, key=key, joiner=joiner, options=options, side_outputs=side_outputs,
        )  # fmt: skip
        if (within is None) == (before is None and after is None):
            raise BadInput(
                f"{name} needs one span of time to join in.", hint='Give within="5s", or before= and after=, not both.'
            )
        spans = [within if within is not None else "0s" if bound is None else bound for bound in (before, after)]
        self.before, self.after = _signed_micros(spans[0], "before"), _signed_micros(spans[1], "after")
        if -self.before > self.after:
            raise BadInput(
                f"the sides of {name} can never meet: after={after} is earlier than before={before}.",
                hint="Let after be at least the negative of before.",
            )
        # How long after its own time a record of a side can still find a partner.
        self.waits = {LEFT: self.after, RIGHT: self.before}
        delay = max((self.waits[side] + 1 for side in self.outer), default=0)
        self.output_delay = at_least(self.output_delay, delay)

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Join a record with those that wait on the other side, then let it wait, too."""
        side = self.side_of(ctx)
        other = RIGHT if side == LEFT else LEFT
        value, at = record.value, record.time_us
        name = _name(at, record.offset)
        first, last = at - self.waits[other], at + self.waits[side]
        for partner, payload in ctx.map(other).between(text_of_time(first), text_of_time(last + 1)):
            waiting = self.decode(other, payload, ctx)
            left, right = (value, waiting) if side == LEFT else (waiting, value)
            self.produce_pair(left, right, max(at, time_of_text(partner)), ctx)
            self._note_match(side, name, ctx)
            self._note_match(other, partner, ctx)
        ctx.map(side).set(name, record.payload)
        ctx.set_timer(last + 1, f"{side} {name}")

    def _note_match(self, side: str, name: str, ctx: Context) -> None:
        """Note that a record has a partner, where records without one are produced alone."""
        if side in self.outer:
            matched, name = ctx.map(MATCHED), f"{side} {name}"
            if name not in matched:
                matched.set(name, True)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Drop a record that nothing can join any more; produce it alone if it had no partner."""
        side, _, name = timer.name.partition(" ")
        payload = ctx.map(side).get(name)
        if payload is None:
            return
        ctx.map(side).delete(name)
        if side in self.outer:
            if timer.name not in ctx.map(MATCHED):
                self.produce_single(side, self.decode(side, payload, ctx), time_of_text(name), ctx)
            ctx.map(MATCHED).delete(timer.name)


class window_join(Join):
    """All pairs of a key whose records are in the same window; they come when the window ends, with its last moment.

    A record whose windows have all ended is late.

    Args:
        key: ``key(left, right, window)``: another key of the result; the window is a :class:`Windowed` without a value
        joiner: ``joiner(left, right, window)``; by default a result is a :class:`Windowed` of the pair
    """

    states = (Map(LEFT, bytes), Map(RIGHT, bytes), Map(OPEN, OpenWindow[None]))

    def __init__(
        self,
        name: str,
        left: str,
        right: str,
        to: str,
        window: Window,
        *,
        how: How = "inner",
        late: str | None = None,
        key: Callable[[Any, Any, Windowed[None]], Scalar] | None = None,
        joiner: Callable[[Any, Any, Windowed[None]], Any] | None = None,
        side_outputs: Names = (),
        **options: Unpack[OperatorOptions],
    ) -> None:
        """From two streams to one."""
        super().__init__(
            name, left, right, to, how=how, key=key, joiner=joiner, options=options, late=late,
            side_outputs=side_outputs,
        )  # fmt: skip
        check_window(name, window)
        self.window = window
        self.size = window.micros
        self.every = duration_micros(window.every) if isinstance(window, Sliding) else window.micros
        self.output_delay = at_least(self.output_delay, 1 if isinstance(window, Session) else 0)

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Let a record wait for the end of its windows."""
        at = record.time_us
        if isinstance(self.window, Session):
            is_taken = self._into_session(at, ctx)
        else:
            starts = self.window.starts(at)
            opened = [start for start in starts if start + self.size > ctx.low]
            for start in opened:
                ctx.set_timer(start + self.size, text_of_time(start))
            if not starts:
                return  # a record between two windows cannot be late
            is_taken = bool(opened)
        if is_taken:
            ctx.map(self.side_of(ctx)).set(_name(at, record.offset), record.payload)
        elif self.late is not None:
            ctx.produce(self.late, record)

    def _into_session(self, at: Micros, ctx: Context) -> bool:
        """Extend or begin the session of this time. Returns False if it has ended."""
        sessions = take_sessions(ctx, at, self.size)
        if sessions is None:
            return False
        merged: OpenWindow[None] = OpenWindow(at, at + self.size, None)
        for session in sessions:
            merged = merged.joined(session, None)
        ctx.set_timer(merged.end + 1, put_session(ctx, merged))  # a record at its very end still belongs to it
        return True

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Join a window that has ended, and drop records that are in no later one."""
        start = time_of_text(timer.name)
        if isinstance(self.window, Session):
            session = ctx.map(OPEN).get(timer.name)
            if session is None:
                return
            ctx.map(OPEN).delete(timer.name)
            window = Windowed(ctx.key, session.start, session.end, None)
            needless_before = session.end
        else:
            window = Windowed(ctx.key, start, start + self.size, None)
            needless_before = start + self.every
        lefts, rights = (ctx.map(side).between(timer.name, text_of_time(window.end)) for side in (LEFT, RIGHT))
        for left, right in self._pairs([payload for _, payload in lefts], [payload for _, payload in rights], ctx):
            self._produce(left, right, window, ctx)
        for side, records in ((LEFT, lefts), (RIGHT, rights)):
            for name, _ in records:
                if time_of_text(name) < needless_before:
                    ctx.map(side).delete(name)

    def _pairs(self, lefts: list[bytes], rights: list[bytes], ctx: Context) -> Iterable[tuple[Any, Any]]:
        """The pairs of a window; values that a function may change are decoded for each."""
        for left in lefts:
            for right in rights:
                yield self.decode(LEFT, left, ctx), self.decode(RIGHT, right, ctx)
        if not rights and LEFT in self.outer:
            yield from ((self.decode(LEFT, left, ctx), None) for left in lefts)
        if not lefts and RIGHT in self.outer:
            yield from ((None, self.decode(RIGHT, right, ctx)) for right in rights)

    def _produce(self, left: Any, right: Any, window: Windowed[None], ctx: Context) -> None:
        at = window.end - 1
        if self.joiner is None:
            value = Windowed(window.key, window.start, window.end, [left, right])
        else:
            value = self.joiner(left, right, window)
        key = SAME if self.key is None else self.key(left, right, window)
        produce_result(ctx, self.to, value, key=key, timestamp=at)


class table_join(Join):
    """Every record of the stream ``left`` with the value that its key had in the table ``right`` at its time.

    The table is a stream (a compacted log, say) of which the latest value of a key counts, from its own event time on;
    None removes the key. A record waits until the watermark has passed it, so that the result does not depend on which
    input is read first: that of Flink's temporal join.

    Args:
        how: ``"left"`` also gives the records whose key has no value
        allowed_lateness: how long old values are stored: a record that is older than the watermark by more is late
        key: ``key(left, right)``: another key of the result
    """

    allowed_how = ("inner", "left")
    hint_how = "Use 'inner' or 'left': the rows of a table are not events, so they never come alone."
    states = (Map(LEFT, bytes), Map(VERSIONS, bytes))

    def __init__(
        self,
        name: str,
        left: str,
        right: str,
        to: str,
        *,
        how: Literal["inner", "left"] = "inner",
        allowed_lateness: Duration = "0s",
        late: str | None = None,
        key: PairKey | None = None,
        joiner: Joiner | None = None,
        side_outputs: Names = (),
        **options: Unpack[OperatorOptions],
    ) -> None:
        """From a stream and a table to a stream."""
        super().__init__(
            name, left, right, to, how=how, key=key, joiner=joiner, options=options, late=late,
            side_outputs=side_outputs,
        )  # fmt: skip
        self.allowed_lateness = duration_micros(allowed_lateness, name="allowed_lateness")
        self.output_delay = at_least(self.output_delay, self.allowed_lateness)

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Store a row as a new version of its key; let a record wait for the rows up to its time."""
        at = record.time_us
        name = _name(at, record.offset)
        if self.side_of(ctx) == RIGHT:
            ctx.map(VERSIONS).set(name, record.payload)
            ctx.set_timer(at + 1 + self.allowed_lateness, f"{VERSIONS} {name}")
        elif at + self.allowed_lateness >= ctx.low:
            ctx.map(LEFT).set(name, record.payload)
            ctx.set_timer(at + 1, f"{LEFT} {name}")
        elif self.late is not None:
            ctx.produce(self.late, record)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Join a record, or drop versions that no record can need any more."""
        kind, _, name = timer.name.partition(" ")
        end = text_of_time(time_of_text(name) + 1)
        versions = ctx.map(VERSIONS)
        version = versions.last_before(end)
        if kind == VERSIONS:
            if version is not None:
                for needless, _ in versions.between("", version[0]):
                    versions.delete(needless)
            return
        payload = ctx.map(LEFT).get(name)
        ctx.map(LEFT).delete(name)
        row = None if version is None else self.decode(RIGHT, version[1], ctx)
        if row is not None or self.how == "left":
            self.produce_pair(self.decode(LEFT, payload, ctx), row, time_of_text(name), ctx)


class regular_join(Join):
    """All pairs of a key, whenever their records come: a join without a bound of time.

    Its state holds all records of both sides and grows with them. A pair has the later of its two times.

    Args:
        ttl: a record is dropped so long (processing time) after it was read, and which pairs are found then depends on
            when records are read
        key: ``key(left, right)``: another key of the result
    """

    allowed_how = ("inner",)
    hint_how = "Use 'inner': without a bound of time a partner may always come; join() has one."

    def __init__(
        self,
        name: str,
        left: str,
        right: str,
        to: str,
        *,
        how: Literal["inner"] = "inner",
        ttl: Duration | None = None,
        key: PairKey | None = None,
        joiner: Joiner | None = None,
        side_outputs: Names = (),
        **options: Unpack[OperatorOptions],
    ) -> None:
        """From two streams to one."""
        super().__init__(
            name, left, right, to, how=how, key=key, joiner=joiner, options=options, side_outputs=side_outputs,
        )  # fmt: skip
        self.states = (Map(LEFT, bytes, ttl=ttl), Map(RIGHT, bytes, ttl=ttl))

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Join a record with all records of the other side."""
        side = self.side_of(ctx)
        other = RIGHT if side == LEFT else LEFT
        value, at = record.value, record.time_us
        for partner, payload in ctx.map(other).pairs():
            waiting = self.decode(other, payload, ctx)
            left, right = (value, waiting) if side == LEFT else (waiting, value)
            self.produce_pair(left, right, max(at, time_of_text(partner)), ctx)
        ctx.map(side).set(_name(at, record.offset), record.payload)


def _name(time: Micros, offset: int) -> str:
    """The name of a record among those that wait: by time, then as they were appended."""
    return f"{text_of_time(time)}{offset:0{TIME_DIGITS}x}"


def _signed_micros(value: Duration, name: str) -> Micros:
    """A duration that may be negative."""
    if isinstance(value, str) and value.startswith("-"):
        return -duration_micros(value[1:], name=name)
    if isinstance(value, timedelta) and value < timedelta(0):
        return -duration_micros(-value, name=name)
    return duration_micros(value, name=name)
