"""How far event time has come in one task: the least of its inputs, moved only at checkpoints.

Each input counts with the highest event time it has shown, less the lateness the computation allows. An input that
has nothing to read and was silent for a while is idle and holds nobody back. An input that other computations write
does not count for more than these have reached (``holds``), idle or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.clock import Micros

LOWEST: Micros = -(1 << 62)  # before everything: nothing is known yet
END: Micros = 1 << 62  # behind everything: there is no more input


class Watermark:
    """The watermark of one task."""

    def __init__(self, inputs: Iterable[str], lateness: Micros = 0, idle: Micros = 10_000_000, now: Micros = 0) -> None:
        """Of these inputs; ``idle`` is how long a silent one is waited for."""
        self.low: Micros = LOWEST
        self.highs: dict[str, Micros] = dict.fromkeys(inputs, LOWEST)
        self._lateness = lateness
        self._idle = idle
        self.heard: dict[str, Micros] = dict.fromkeys(self.highs, now)  # when each had a record last
        self.holds: dict[str, Micros] = {}
        self._before = (self.low, dict(self.highs), dict(self.holds))

    def mark(self, stream: str, time: Micros, now: Micros) -> None:
        """An event time was seen; it counts with the next checkpoint."""
        self.highs[stream] = max(self.highs[stream], time)
        self.heard[stream] = now

    @property
    def high(self) -> Micros:
        """The highest event time seen."""
        return max(self.highs.values(), default=LOWEST)

    def next(self, now: Micros, waiting: Iterable[str] = ()) -> Micros:
        """What a checkpoint would move the watermark to; ``waiting`` inputs have records that were not read yet."""
        behind = set(waiting)
        counted = []
        for one, high in self.highs.items():
            hold = self.holds.get(one, END)
            if len(self.highs) == 1 or one in behind or not self._is_idle(one, now):
                counted.append(min(high, hold))
            elif hold != END:
                counted.append(hold)
        if not counted or min(counted) == LOWEST:
            return self.low
        return max(self.low, min(counted) - self._lateness)

    def _is_idle(self, one: str, now: Micros) -> bool:
        return now - self.heard[one] >= self._idle

    def silent(self, now: Micros) -> Micros | None:
        """What those who go by this one may go up to while nothing comes; None if something came a moment ago."""
        if not all(self._is_idle(one, now) for one in self.highs):
            return None
        return max(self.low, min(self.holds.values(), default=END))

    def move(self, to: Micros) -> None:
        """At a checkpoint: never back."""
        self.low = max(self.low, to)

    def final(self) -> Micros:
        """Where it stays when the input has ended: all that was seen counts, without lateness."""
        return max(self.low, self.high)

    def done(self, time: Micros) -> bool:
        """Whether everything of that time is behind us."""
        return time < self.low

    def kept(self) -> tuple[Micros, dict[str, Micros]]:
        """What a checkpoint keeps."""
        return self.low, dict(self.highs)

    def load(self, low: Micros, highs: Mapping[str, Micros]) -> None:
        """Take what was kept."""
        self.low = low
        for one, high in highs.items():
            if one in self.highs:
                self.highs[one] = high
        self.apply()

    def apply(self) -> None:
        """The checkpoint holds."""
        self._before = (self.low, dict(self.highs), dict(self.holds))

    def rollback(self) -> None:
        """The marks since the last checkpoint never were."""
        self.low, highs, holds = self._before
        self.highs, self.holds = dict(highs), dict(holds)
