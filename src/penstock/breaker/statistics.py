"""Statistics of one circuit: which requests succeeded and failed recently, each counted once, however often tried.

A FIFO queue tries its head again and again, so one request that fails a hundred times says no more about a backend than
one that fails once. Counting distinct ids makes the number of samples mean "so many different requests, in as many
queues".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

import msgspec

from penstock.clock import SECOND, Micros


class SampleCounts(msgspec.Struct, frozen=True):
    """What the samples of a window say."""

    successes: int
    failures: int

    @property
    def samples(self) -> int:
        """How many there are."""
        return self.successes + self.failures

    @property
    def ratio(self) -> int:
        """Failures in percent of all, rounded down; 0 without any."""
        return 100 * self.failures // self.samples if self.failures else 0


class Statistics:
    """Outcomes by request id, the newest last, within a window of time and a number of entries.

    ``both`` keeps an id that failed and then succeeded in both sets, as gateleen does; otherwise its last outcome
    counts alone. Not thread safe: its circuit's lock guards it.
    """

    def __init__(self, *, both: bool = False) -> None:
        """Start empty."""
        self.both = both
        self.succeeded: dict[str, Micros] = {}
        self.failed: dict[str, Micros] = {}

    def add(self, id_: str, ok: bool, at: Micros) -> None:
        """DocumentWrite an outcome, unless a later one of the same request is known."""
        mine, other = (self.succeeded, self.failed) if ok else (self.failed, self.succeeded)
        if not self.both and (before := other.get(id_)) is not None:
            if before > at:
                return
            del other[id_]
        before = mine.pop(id_, at)
        mine[id_] = max(before, at)

    def add_successes(self, ids: list[str], at: Micros) -> None:
        """DocumentWrite many successes of one moment: what a busy worker brings by the hundred."""
        failed, succeeded = self.failed, self.succeeded
        if failed and not self.both:
            for id_ in ids:
                if (before := failed.get(id_)) is not None and before <= at:
                    del failed[id_]
        if not succeeded.keys().isdisjoint(ids):
            for id_ in ids:
                succeeded.pop(id_, None)
        succeeded.update(dict.fromkeys(ids, at))

    def count(self, now: Micros, max_age: Micros) -> SampleCounts:
        """What counts now: samples that are not older than ``max_age``."""
        oldest, latest = now - max_age, now + SECOND
        for samples in (self.succeeded, self.failed):
            _drop_old(samples, oldest, latest)
        return SampleCounts(len(self.succeeded), len(self.failed))

    def trim(self, most: int) -> None:
        """Leave the newest in each set."""
        for samples in (self.succeeded, self.failed):
            if len(samples) > most:
                # In one go: each look for the first passes over all that were removed before it.
                for id_ in list(islice(samples, len(samples) - most)):
                    del samples[id_]

    def clear(self) -> None:
        """Forget everything."""
        self.succeeded.clear()
        self.failed.clear()

    def __iter__(self) -> Iterator[tuple[str, bool, Micros]]:
        """All samples: id, whether it succeeded, when."""
        yield from ((id_, True, at) for id_, at in self.succeeded.items())
        yield from ((id_, False, at) for id_, at in self.failed.items())


def _drop_old(samples: dict[str, Micros], oldest: Micros, latest: Micros) -> None:
    # They are in the order of arrival. That is the order of their times, except for late reports of other nodes.
    old = [id_ for id_, at in takewhile(lambda sample: sample[1] < oldest, samples.items())]
    # A sample from the future was taken before the clock was set back. Its age is unknown.
    old += [id_ for id_, at in takewhile(lambda sample: sample[1] > latest, reversed(samples.items()))]
    for id_ in old:
        del samples[id_]
