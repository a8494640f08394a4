"""From the tables of a lake to the figures of its report: totals, families of queues, and series in bins that fit.

A span of up to two days is counted from the attempts themselves, in bins of a second up to an hour; a longer one from
``hours``, in bins of an hour or a day. Quantiles of several queues or hours come from their sketches, merged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasketches import kll_doubles_sketch

from penstock.clock import from_micros
from penstock.spark.lake.reading import LakeReader

DAY = 86_400
FROM_ATTEMPTS = 2 * DAY  # seconds that are counted from the attempts themselves
BINS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 3 * 3600, 6 * 3600, DAY, 7 * DAY)  # seconds
MOST_BINS = 120
MOST_LINES = 6
OTHERS = "others"
FAILED = ("retried", "dead", "reaped", "expired")
STATES = ("done", *FAILED, "cancelled")

Points = list[tuple[float, float]]  # seconds since 1970, value
Series = dict[str, Points]


class Row(NamedTuple):
    """What one queue did in one bin."""

    queue: str
    at: float
    counts: Mapping[str, int]
    waiting: kll_doubles_sketch
    processing: kll_doubles_sketch


class Total:
    """Several rows added up."""

    def __init__(self) -> None:
        """Start at zero."""
        self.counts: Counter[str] = Counter()
        self.waiting = kll_doubles_sketch()
        self.processing = kll_doubles_sketch()

    def add(self, row: Row) -> None:
        """Add one more row."""
        self.counts.update(row.counts)
        self.waiting.merge(row.waiting)
        self.processing.merge(row.processing)

    @property
    def attempts(self) -> int:
        """The attempts that have ended."""
        return sum(self.counts.values())

    @property
    def failed(self) -> int:
        """Attempts that did not succeed."""
        return sum(self.counts[state] for state in FAILED)

    def quantile(self, kind: str, rank: float) -> float | None:
        """Seconds, or None where nothing was measured."""
        sketch = getattr(self, kind)
        return None if sketch.is_empty() else float(sketch.get_quantile(rank))


class ReportFigures(NamedTuple):
    """All that the report shows."""

    first: datetime | None
    last: datetime | None
    bin_seconds: int
    total: Total
    families: dict[str, Total]  # the busiest first
    by_bin: dict[str, dict[float, Total]]  # of each family
    errors: list[tuple[str, str, int]]  # queue, error, how often
    lag: Series
    circuits: list[dict[str, Any]]


def figures_of(lake: LakeReader) -> ReportFigures:
    """Read what the report needs, and no more."""
    tables = lake.tables()
    rows, width = _rows(lake, tables)
    lines = families(_attempts(rows))
    total = Total()
    per_family: dict[str, Total] = defaultdict(Total)
    by_bin: dict[str, dict[float, Total]] = defaultdict(lambda: defaultdict(Total))
    for row in rows:
        line = lines[row.queue]
        total.add(row)
        per_family[line].add(row)
        by_bin[line][row.at].add(row)
    order = sorted(per_family, key=lambda name: (name == OTHERS, -per_family[name].attempts, name))
    times = [row.at for row in rows]
    return ReportFigures(
        from_micros(int(min(times) * 1e6)) if times else None,
        from_micros(int((max(times) + width) * 1e6)) if times else None,
        width, total, {name: per_family[name] for name in order}, {name: dict(by_bin[name]) for name in order},
        _errors(tables), _lag(tables), tables["circuits"].to_pylist() if "circuits" in tables else [],
    )  # fmt: skip


def families(attempts: Mapping[str, int]) -> dict[str, str]:
    """The line that each queue belongs to: its own, that of all queues with its prefix, or that of the others.

    A prefix is what comes up to the first dot: ``customer.17`` and ``customer.18`` belong to ``customer.*``.
    """
    names = {queue: queue for queue in attempts}
    if len(names) > MOST_LINES:
        shared = Counter(queue.partition(".")[0] for queue in attempts if "." in queue)
        for queue in attempts:
            prefix, dot, _ = queue.partition(".")
            if dot and shared[prefix] > 1:
                names[queue] = f"{prefix}.*"
    sums: Counter[str] = Counter()
    for queue, count in attempts.items():
        sums[names[queue]] += count
    if len(sums) <= MOST_LINES:
        return names
    busiest = set(sorted(sums, key=lambda name: (-sums[name], name))[: MOST_LINES - 1])
    return {queue: name if name in busiest else OTHERS for queue, name in names.items()}


def bin_for(seconds: float) -> int:
    """The narrowest bin that does not give a span too many."""
    return next((width for width in BINS if seconds / width <= MOST_BINS), BINS[-1])


def over_time(by_bin: Mapping[float, Total], width: int, count: str) -> Points:
    """How often per bin, also where nothing happened: a line must not cross a pause."""
    known = sorted(by_bin)
    points: Points = []
    for at, later in pairwise([*known, float("inf")]):
        points.append((at, float(by_bin[at].counts[count])))
        if later - at > width and later != float("inf"):
            points += [(at + width, 0.0), (later - width, 0.0)] if later - at > 2 * width else [(at + width, 0.0)]
    return points


def _rows(lake: LakeReader, tables: Mapping[str, Any]) -> tuple[list[Row], int]:
    if "hours" not in tables:
        return [], BINS[0]
    hours = tables["hours"].to_pylist()
    first, last = (edge(_seconds(row["hour"]) for row in hours) for edge in (min, max))
    if last + 3600 - first <= FROM_ATTEMPTS:
        return _from_attempts(lake)
    width = max(3600, bin_for(last + 3600 - first))
    rows = [
        Row(
            row["queue"], _seconds(row["hour"]) // width * width, {state: row[state] or 0 for state in STATES},
            _sketch(row["waiting"]), _sketch(row["processing"]),
        )
        for row in hours
    ]  # fmt: skip
    return rows, width


def _from_attempts(lake: LakeReader) -> tuple[list[Row], int]:
    """Attempts by queue and bin; in columns, as there may be millions."""
    table = lake.table("history", columns=["queue", "state", "attempt", "due", "started", "ended"])
    queues, states = (table.column(name).combine_chunks().dictionary_encode() for name in ("queue", "state"))
    due, started, ended = (_in_seconds(table.column(name)) for name in ("due", "started", "ended"))
    width = bin_for(float(ended.max() - ended.min()))
    bins = (ended // width).astype(np.int64)
    first_bin = int(bins.min())
    waited = np.where(table.column("attempt").to_numpy() == 1, np.maximum(started - due, 0.0), np.nan)
    took = np.maximum(ended - started, 0.0)
    cells = queues.indices.to_numpy() * (int(bins.max()) - first_bin + 1) + bins - first_bin
    order = np.argsort(cells, kind="stable")
    edges = np.flatnonzero(np.diff(cells[order], prepend=-1))
    rows = []
    for part in np.split(order, edges[1:]):
        counts = np.bincount(states.indices.to_numpy()[part], minlength=len(states.dictionary))
        queue = queues.dictionary[int(queues.indices[int(part[0])].as_py())].as_py()
        by_state = dict(zip(states.dictionary.to_pylist(), counts.tolist(), strict=True))
        start = float(bins[part[0]] * width)
        rows.append(Row(queue, start, by_state, _sketch_of(waited[part]), _sketch_of(took[part])))
    return rows, width


def _in_seconds(column: Any) -> Any:
    """A column of times as seconds since 1970; missing times are NaN."""
    micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).cast(pa.float64())
    return micros.to_numpy() / 1e6


def _attempts(rows: Iterable[Row]) -> Counter[str]:
    """How many, by queue."""
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row.queue] += sum(row.counts.values())
    return sums


def _errors(tables: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in tables["errors"].to_pylist() if "errors" in tables else []:
        counts[row["queue"], row["error"]] += row["count"]
    return [
        (queue, error, count) for (queue, error), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def _lag(tables: Mapping[str, Any]) -> Series:
    lag: Series = defaultdict(list)
    for row in tables["lag"].to_pylist() if "lag" in tables else []:
        lag[f"{row['log']}, group {row['group']}"].append((_seconds(row["hour"]), float(row["most"])))
    worst = sorted(lag, key=lambda name: (-max(value for _, value in lag[name]), name))[:MOST_LINES]
    return {name: sorted(lag[name]) for name in worst}


def _sketch(content: bytes | None) -> kll_doubles_sketch:
    return kll_doubles_sketch() if content is None else kll_doubles_sketch.deserialize(content)


def _sketch_of(values: Any) -> kll_doubles_sketch:
    sketch = kll_doubles_sketch()
    sketch.update(values[~np.isnan(values)])
    return sketch


def _seconds(moment: datetime | date) -> float:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def span_in_words(width: int) -> str:
    """A bin as it is said: "per second", "per 5 minutes"."""
    for seconds, name in ((7 * DAY, "week"), (DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if width % seconds == 0:
            count = width // seconds
            return f"per {name}" if count == 1 else f"per {count} {name}s"
    return f"per {width} seconds"
