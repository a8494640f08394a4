"""What a long run has shown: whether anything grew, and whether anybody starved. Pure functions over plain rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

RATIO = 1.1  # the last third may be that much above the first
# What a measure may grow by besides: what comes and goes in pieces (files, pages, heaps), and what is kept for good
# (dead letters). A leak of one entry in fifty is above all of these in an hour.
SLACK = {
    "memory": 8_000_000, "file handles": 10, "threads": 10, "nodes rows": 40, "penstock_nodes rows": 40,
    "WAL bytes": 80_000_000, "append-only file bytes": 150_000_000, "process bytes": 150_000_000,
    "history list": 20_000, "dead rows": 20_000,
}  # fmt: skip
BYTES, COUNT = 4_000_000, 500  # of all others
SHARE = 0.5  # of what would be an equal share
CLAIMS = 50  # per queue on average, in one look at the shares


class Sample(NamedTuple):
    """What something took at a moment, and how many calls had been answered until then."""

    at_ns: int
    calls: int
    sizes: Mapping[str, int]


class Growth(NamedTuple):
    """A measure in the first part of a run, after its start, and in its last third."""

    name: str
    before: float
    after: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.name} {self.before:,.0f} -> {self.after:,.0f} (at most {self.allowed:,.0f})"


def growths(samples: Sequence[Sample], kept_seconds: float) -> list[Growth]:
    """How every measure went, or none when the run was too short to say.

    What is kept for a time is as much as came in during that time, so more is allowed when more calls were answered.
    """
    third = len(samples) // 3
    if third < 6 or samples[-1].at_ns - samples[0].at_ns < 45e9:  # a start is still a large part of it
        return []
    parts = range(third // 2, third + third // 2), range(len(samples) - third, len(samples))
    quiet, busy = (median(_calls_before(samples, number, kept_seconds) for number in part) for part in parts)
    busier = max(1.0, busy / max(quiet, 1.0))
    names = sorted({name for sample in samples for name in sample.sizes})
    measured = []
    for name in names:
        before, after = (median(samples[number].sizes.get(name, 0) for number in part) for part in parts)
        slack = SLACK.get(name, BYTES if name.endswith("bytes") else COUNT)
        measured.append(Growth(name, before, after, before * busier * RATIO + slack))
    return measured


def _calls_before(samples: Sequence[Sample], number: int, seconds: float) -> float:
    """How many calls were answered in the time before a sample, or in as much of it as was seen, in proportion."""
    sample = samples[number]
    earlier = [one for one in samples[:number] if one.at_ns >= sample.at_ns - seconds * 1e9] or [samples[number - 1]]
    return (sample.calls - earlier[0].calls) / (sample.at_ns - earlier[0].at_ns) * seconds * 1e9


def claims_while_all_ready(events: Iterable[Mapping[str, Any]], looks: Sequence[tuple[int, int]]) -> list[str]:
    """The queues of claimed entries, in order, between two looks that both found work in every queue."""
    spans = [(start, end) for (start, fewest), (end, then) in pairwise(looks) if fewest > 0 and then > 0]
    claims = sorted((event["at"], event["queue"]) for event in events if event["op"] == "claimed")
    queues: list[str] = []
    number = 0
    for at, queue in claims:
        while number < len(spans) and spans[number][1] <= at:
            number += 1
        if number < len(spans) and spans[number][0] <= at:
            queues.append(queue)
    return queues


def starved(queues: Sequence[str], families: Mapping[str, int]) -> list[str]:
    """Queues that got less than half of their fair share while all had work, and as many slots for each family.

    A store gives every ready queue the same, so that is fair where it has to choose. Where it is slots that are scarce,
    every family gets the same, and so do the queues of a family. Which of the two it is depends on the machine: the
    smaller share is due in any case. It is due again and again, so that nobody goes without for long.
    """
    complaints = []
    size = CLAIMS * sum(families.values())
    for number in range(len(queues) // size):
        claimed = Counter(queues[number * size : (number + 1) * size])
        for family, members in families.items():
            fair = size * min(1 / sum(families.values()), 1 / (len(families) * members))
            complaints += [
                f"look {number}: {family}{member} got {claimed[f'{family}{member}']} of {size}, fair are {fair:.0f}"
                for member in range(members)
                if claimed[f"{family}{member}"] < SHARE * fair
            ]
    return complaints
