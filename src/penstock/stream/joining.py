"""Two streams joined by key: pairs whose event times are within a window of each other.

Every pair comes once, whichever record arrives first. A record is kept until the watermark has passed its time by the
window; a late one joins what is still kept. The two streams need the same number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import msgspec

from penstock.clock import Duration, Micros, duration_micros
from penstock.errors import BadInput
from penstock.log.record import Record
from penstock.stream.computation import OPTIONS, Computation
from penstock.stream.context import Context
from penstock.stream.state import Map, Value
from penstock.stream.timers import Timer


class Side(msgspec.Struct):
    """A record that waits for the other side."""

    time: Micros
    value: Any
    matched: bool = False


class join(Computation):
    """What ``joiner(left, right)`` makes of every pair of one key within ``within``.

    With ``how="left"`` a left record without any partner comes as ``joiner(left, None)`` when none can come any more.
    """

    states = (Map("left", Side), Map("right", Side), Value("number", int, 0))

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
        if how not in ("inner", "left"):
            raise BadInput(f"{name} joins how={how!r}.", hint="Use 'inner' or 'left'.")
        if left == right:
            raise BadInput(f"{name} joins {left} with itself.", hint="Name two streams.")
        self.name = name
        self.inputs = (left, right)
        self.outputs = (to,)
        for option, value in options.items():
            if option not in OPTIONS or option in ("name", "inputs", "outputs", "states", "batch"):
                raise BadInput(f"option {option!r} of {name} is unknown.", hint="Use policy, lateness or idle.")
            setattr(self, option, value)
        self.within: Micros = duration_micros(within, name="within")
        self.joiner = joiner
        self.how = how
        if how == "left":  # a record without a partner comes that much later, with its own time
            self.output_delay = timedelta(microseconds=self.within + 1)

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Join it with what waits on the other side, then let it wait itself."""
        is_left = ctx.stream == self.inputs[0]
        mine, other = ("left", "right") if is_left else ("right", "left")
        value, at = record.value, record.time_us
        waiting = ctx.map(other)
        matched = False
        for name, one in waiting.items().items():
            if abs(one.time - at) > self.within:
                continue
            matched = True
            pair = (value, one.value) if is_left else (one.value, value)
            ctx.produce(self.outputs[0], self.joiner(*pair), timestamp=max(at, one.time))
            if not is_left and not one.matched:
                waiting.set(name, Side(one.time, one.value, matched=True))
        number = ctx.value("number")
        number.set(number.get() + 1)
        name = f"{number.get()}"
        ctx.map(mine).set(name, Side(at, value, matched))
        ctx.set_timer(at + self.within + 1, f"{mine} {name}")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Nothing can join this record any more."""
        side, _, name = timer.name.partition(" ")
        waiting = ctx.map(side)
        one = waiting.get(name)
        if one is None:
            return
        waiting.delete(name)
        if self.how == "left" and side == "left" and not one.matched:
            ctx.produce(self.outputs[0], self.joiner(one.value, None), timestamp=one.time)
