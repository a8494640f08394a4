"""How far event time has come in one task: the least of its inputs, moved only at checkpoints.

An input from outside the topology counts with the newest event time it has shown. An input that other computations
write counts with what these have reported (:mod:`penstock.stream.engine.watermark_log`). Each is less the disorder that
its stream was declared with.

A task has two watermarks. ``low`` is the one it works by; it leaves out inputs that are silent. ``firm`` counts those
as well, so it holds whatever comes next. Readers of the task's outputs get both: they may go by ``low`` only while the
silent inputs stay silent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.clock import Micros

LOWEST: Micros = -(1 << 62)  # before everything: nothing is known yet
END: Micros = 1 << 62  # after everything: the input has ended


class SilentInput(NamedTuple):
    """A partition that was read to its end, where nothing had come for a while."""

    log: str
    partition: int
    end: int


class Reach(NamedTuple):
    """How far the writers of an input were when they had written up to a position of it."""

    firm: Micros = LOWEST
    low: Micros = LOWEST  # without the partitions in ``silent``, while they are silent
    silent: tuple[SilentInput, ...] = ()


class Promise(NamedTuple):
    """What a task can say about the event times of everything it will produce."""

    low: Micros = LOWEST  # whatever comes
    idle_low: Micros | None = None  # while the inputs in ``silent`` stay silent; None: no input is silent
    silent: tuple[SilentInput, ...] = ()

    def up_to(self, limit: Micros) -> Promise:
        """The same promise, limited to a time."""
        return Promise(min(self.low, limit), None if self.idle_low is None else min(self.idle_low, limit), self.silent)


class Watermark:
    """The watermark of one task.

    ``inner`` are the inputs that other computations write, ``mixed`` those of them that are written from outside too.
    """

    def __init__(
        self, inputs: Iterable[str], out_of_order: Mapping[str, Micros] | None = None,
        idle: Micros | None = 10_000_000, now: Micros = 0,
        *, inner: Collection[str] = (), mixed: Collection[str] = (), output_delay: Micros = 0,
    ) -> None:  # fmt: skip
        """``out_of_order`` is how much older than the newest record of an input the next ones may be.

        ``idle`` is how long an input from outside is waited for at its end; None: without end.

        ``output_delay`` is how much older than the watermark outputs may be.
        """
        self.low: Micros = LOWEST
        self.firm: Micros = LOWEST
        self.highs: dict[str, Micros] = dict.fromkeys(inputs, LOWEST)
        self.heard: dict[str, Micros] = dict.fromkeys(self.highs, now)  # when each had a record last
        self.reaches: dict[str, Reach] = {name: Reach() for name in inner}
        self.promise = Promise()
        self._ended = False
        # The inputs with records from outside the topology.
        self._fed = frozenset(name for name in self.highs if name not in self.reaches or name in mixed)
        self._out_of_order = out_of_order or {}
        self._idle = idle
        self._output_delay = output_delay
        self._before = (self.low, self.firm, dict(self.highs), self.promise)

    # --- what is seen ------------------------------------------------------------------------------

    def mark(self, stream: str, time: Micros, now: Micros) -> None:
        """Note an event time; it counts with the next checkpoint."""
        self.highs[stream] = max(self.highs[stream], time)
        self.heard[stream] = now

    def set_reach(self, stream: str, reach: Reach) -> None:
        """Set how far the writers of an input were at the processed position."""
        if reach.firm < self.reaches[stream].firm:
            self.firm = LOWEST  # a writer began again: promises based on its reports do not hold any more
        self.reaches[stream] = reach

    def quiet(self, now: Micros) -> list[str]:
        """The inputs from outside that have had no record for ``idle``; silent if they are also read to their ends."""
        if self._idle is None:
            return []
        return [name for name in self.highs if name in self._fed and now - self.heard[name] >= self._idle]

    @property
    def high(self) -> Micros:
        """The highest event time seen."""
        return max(self.highs.values(), default=LOWEST)

    # --- what it comes to --------------------------------------------------------------------------

    def next(self, silent: Mapping[str, SilentInput]) -> Micros:
        """What a checkpoint would move ``low`` to."""
        return self._moved(silent)[0]

    def move(self, silent: Mapping[str, SilentInput]) -> None:
        """Move the watermark at a checkpoint, never back."""
        self.low, self.firm, self.promise = self._moved(silent)
        self._ended = False

    def would_move(self, silent: Mapping[str, SilentInput]) -> bool:
        """Whether a checkpoint would change anything, for the task or for the readers of its outputs."""
        return self._moved(silent) != (self.low, self.firm, self.promise)

    def _moved(self, silent: Mapping[str, SilentInput]) -> tuple[Micros, Micros, Promise]:
        """``low``, ``firm`` and the promise after a checkpoint."""
        # The least of all inputs, and the least without those that are silent, here and before.
        least_of_all = least = END if self.highs else LOWEST
        for name, high in self.highs.items():
            if name in self.reaches:
                least_of_all = min(least_of_all, self._in_order(name, self.reaches[name].firm))
                least = min(least, self._in_order(name, self.reaches[name].low))
            if name in self._fed:
                least_of_all = min(least_of_all, self._in_order(name, high))
                least = least if name in silent else min(least, self._in_order(name, high))
        delay = self._output_delay
        firm = self.firm if least_of_all in (LOWEST, END) else max(self.firm, least_of_all)
        promised = END if least_of_all == END else firm if firm == LOWEST else firm - delay
        idle_low = least if least in (LOWEST, END) else least - delay
        if least == END:  # nothing holds it back: all that was seen counts
            least = self._in_order(next(iter(self.highs)), self.high) if len(self.highs) == 1 else LOWEST
        low = self.low if least == LOWEST else max(self.low, least)
        inputs = {*silent.values(), *(known for reach in self.reaches.values() for known in reach.silent)}
        if not inputs:
            return low, firm, Promise(promised)
        return low, firm, Promise(promised, max(promised, idle_low), tuple(sorted(inputs)))

    def _in_order(self, name: str, time: Micros) -> Micros:
        """How far an input is complete whose newest event time is this."""
        return time if time in (LOWEST, END) else time - self._out_of_order.get(name, 0)

    def promise_until(self, timer: Micros | None) -> Promise | None:
        """The promise of a task whose next event-time timer is this one, or None while a due timer has not fired.

        Even when all inputs are silent or have ended, timers may still fire later. So no reader may go further than the
        task itself.
        """
        if timer is None or self._ended:
            return self.promise
        return None if timer <= self.low else self.promise.up_to(self._promised(self.low))

    def final(self) -> Micros:
        """The watermark after the input has ended: all that was seen counts, whatever the disorder."""
        return max(self.low, self.high)

    def finish(self) -> None:
        """Mark the end of the input, here and for the readers of the outputs."""
        self.low = self.firm = self.final()
        self.promise = Promise(END)
        self._ended = True

    def done(self, time: Micros) -> bool:
        """Whether everything up to that time is processed."""
        return time < self.low

    # --- checkpoints -------------------------------------------------------------------------------

    def position(self) -> tuple[Micros, dict[str, Micros]]:
        """The position as a checkpoint stores it."""
        return self.low, dict(self.highs)

    def load(self, low: Micros, highs: Mapping[str, Micros]) -> None:
        """Load what a checkpoint has stored."""
        self.low = low
        for name, high in highs.items():
            if name in self.highs:
                self.highs[name] = high
        self.apply()

    def resume(self, firm: Micros, reached: Micros) -> None:
        """Continue from earlier reports, which still hold."""
        self.firm = max(self.firm, firm)
        self.low = max(self.low, reached)
        self.promise = Promise(self._promised(self.firm))
        self.apply()

    def _promised(self, low: Micros) -> Micros:
        return low if low == LOWEST else low - self._output_delay

    def apply(self) -> None:
        """Make the marks permanent: the checkpoint was committed."""
        self._before = (self.low, self.firm, dict(self.highs), self.promise)

    def rollback(self) -> None:
        """Undo the marks since the last checkpoint."""
        self.low, self.firm, highs, self.promise = self._before
        self._ended = False
        self.highs = dict(highs)
