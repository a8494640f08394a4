"""Two streams joined by key: pairs whose event times are within a window of each other.

Every pair comes once, whichever record arrives first. A record waits until the watermark has passed its time by the
window; a late one joins what is still waiting. The two streams need the same number of partitions.

What waits is kept as the payload it came with, under a name that begins with its time: the partners of a record lie
side by side, and no others are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from penstock.clock import Duration, Micros, duration_micros
from penstock.errors import BadInput
from penstock.log.record import Record
from penstock.stream.computation import Computation
from penstock.stream.context import Context
from penstock.stream.moments import DIGITS, moment_of, moment_text
from penstock.stream.pieces import check_arguments, check_streams, set_options
from penstock.stream.state import Map
from penstock.stream.timers import Timer

LEFT, RIGHT = "left", "right"  # the states, and the sides
MATCHED = "matched"


class join(Computation):
    """What ``joiner(left, right)`` makes of every pair of one key within ``within``.

    The values come with the types of their streams. The partners of a record come by time, those of one time as they
    were appended. With ``how="left"`` a left record without any partner comes as ``joiner(left, None)`` when none can
    come any more.
    """

    states = (Map(LEFT, bytes), Map(RIGHT, bytes), Map(MATCHED, bool))

    def __init__(
        self,
        name: str,
        left: str,
        right: str,
        to: str,
        *,
        within: Duration,
        joiner: Callable[[Any, Any], Any],
        how: Literal["inner", "left"] = "inner",
        **options: Any,
    ) -> None:
        """From two streams to one."""
        check_arguments(join, name=name, left=left, right=right, to=to, joiner=joiner)
        if how not in ("inner", "left"):
            raise BadInput(f"{name} joins how={how!r}.", hint="Use 'inner' or 'left'.")
        if left == right:
            raise BadInput(f"{name} joins {left} with itself.", hint="Name two streams.")
        self.name = name
        self.inputs = (left, right)
        self.outputs = (to,)
        check_streams(self)
        set_options(self, options)
        self.within: Micros = duration_micros(within, name="within")
        self.joiner = joiner
        self.how = how
        if how == "left":  # a record without a partner comes that much later, with its own time
            wanted = duration_micros(self.output_delay, name="output_delay")
            self.output_delay = timedelta(microseconds=max(wanted, self.within + 1))

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Join it with what waits on the other side, then let it wait itself."""
        is_left = ctx.stream == self.inputs[0]
        side, other, other_stream = (LEFT, RIGHT, self.inputs[1]) if is_left else (RIGHT, LEFT, self.inputs[0])
        value, at = record.value, record.time_us
        name = _name(at, record.offset)
        partners = ctx.map(other).between(moment_text(at - self.within), moment_text(at + self.within + 1))
        for partner, payload in partners:
            waiting = ctx.decode(other_stream, payload)
            pair = (value, waiting) if is_left else (waiting, value)
            ctx.produce(self.outputs[0], self.joiner(*pair), timestamp=max(at, moment_of(partner)))
            if self.how == "left":
                self._note_match(name if is_left else partner, ctx)
        ctx.map(side).set(name, record.payload)
        ctx.set_timer(at + self.within + 1, f"{side} {name}")

    def _note_match(self, name: str, ctx: Context) -> None:
        """A left record has a partner."""
        matched = ctx.map(MATCHED)
        if name not in matched:
            matched.set(name, True)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Nothing can join this record any more."""
        side, _, name = timer.name.partition(" ")
        payload = ctx.map(side).get(name)
        if payload is None:
            return
        ctx.map(side).delete(name)
        if self.how == "left" and side == LEFT:
            if name not in ctx.map(MATCHED):
                value = ctx.decode(self.inputs[0], payload)
                ctx.produce(self.outputs[0], self.joiner(value, None), timestamp=moment_of(name))
            ctx.map(MATCHED).delete(name)


def _name(time: Micros, offset: int) -> str:
    """The name of a record among those that wait: by time, then as they were appended."""
    return f"{moment_text(time)}{offset:0{DIGITS}x}"
