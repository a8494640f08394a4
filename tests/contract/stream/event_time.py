"""Random topologies over event time, and what they have to come to: computed from the definitions, in plain Python.

A case is made from a seed: edge streams whose records are in order within each partition, and two to four steps over
them. The oracle knows no watermarks, partitions or checkpoints: a window is the set of records that lie in it.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections import Counter, defaultdict
from typing import Any

import msgspec

from penstock.log.store import LogStore
from penstock.stream import (
    Computation,
    Session,
    Sliding,
    Topology,
    Tumbling,
    join,
    table_join,
    window_join,
    windowed_fold,
)

Row = tuple[str, Any, int]  # key, value, event time in microseconds
MILLISECOND = 1000
KEYS = [f"k{number}" for number in range(12)]


HOWS: dict[str, Any] = {"join": "inner", "left join": "left", "outer join": "outer"}


class Step(msgspec.Struct, frozen=True):
    """One step of a case: ``kind`` says what it does to the streams ``inputs``, ``number`` how."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    number: int
    slow: dict[int, float] = {}  # seconds per record, by partition
    frozen: dict[int, float] = {}  # seconds before the first record, by partition


class Case(msgspec.Struct, frozen=True):
    """A topology and what is fed to it."""

    seed: int
    partitions: int
    edges: dict[str, list[list[Row]]]  # by stream, by partition
    steps: list[Step]
    options: dict[str, int]
    idle: str | None = None

    @property
    def streams(self) -> list[str]:
        return [*self.edges, *(step.output for step in self.steps)]


STATELESS = ("map", "rekey", "filter", "spread")
WINDOWS = ("tumbling", "sliding", "session", "patient tumbling")
JOINS = ("join", "left join", "outer join", "window join", "session join", "table join")
PATIENT = "patient tumbling"  # takes late records too, of which there are none here


def make_case(
    seed: int, *, slowness: float = 1.0, rows: int = 60, idle: str | None = None, begin: int = 1_000_000_000
) -> Case:
    """The case of a seed; its event times begin at ``begin``."""
    rng = random.Random(seed)
    partitions = rng.randint(1, 4)
    names = ["e0", "e1"][: rng.randint(1, 2)]
    edges = {name: _records(rng, rows, partitions, begin) for name in names}
    steps: list[Step] = []
    streams = list(names)
    for number in range(rng.randint(2, 4)):
        kind = rng.choice([*STATELESS, *WINDOWS, *JOINS, "rekey", "tumbling"])
        if kind in JOINS:
            inputs = tuple(rng.sample(streams, 2)) if len(streams) > 1 else ()
            if kind == "table join" and inputs:
                # Rows of one key and time count as appended, which only the records from outside have an order for.
                table = rng.choice(names)
                others = [stream for stream in streams if stream != table]
                inputs = (rng.choice(others), table)
        elif kind in WINDOWS:
            inputs = (streams[-1],) if rng.random() < 0.7 else (rng.choice(streams),)
        else:
            inputs = tuple(rng.sample(streams, min(len(streams), rng.choice([1, 1, 2]))))
        if not inputs:
            kind, inputs = "rekey", (streams[-1],)
        chosen = [partition for partition in range(partitions) if rng.random() < 0.3]
        slow = {one: rng.choice([0.0005, 0.002]) * slowness for one in chosen if rng.random() < 0.6}
        frozen = {one: rng.choice([0.1, 0.4]) * slowness for one in chosen if one not in slow}
        steps.append(Step(kind, inputs, f"s{number}", rng.randint(0, 3), slow, frozen))
        streams.append(f"s{number}")
    options = {"checkpoint_records": rng.choice([1, 7, 50, 10_000]), "read": rng.choice([1, 10, 200])}
    return Case(seed, partitions, edges, steps, options, idle)


def both(first: Case, second: Case) -> Case:
    """What was fed to the same topology in two runs."""
    edges = {
        name: [[*rows, *more] for rows, more in zip(partitions, second.edges[name], strict=True)]
        for name, partitions in first.edges.items()
    }
    return msgspec.structs.replace(first, edges=edges)


def _records(rng: random.Random, most: int, partitions: int, begin: int) -> list[list[Row]]:
    """Records by partition, in order of their event times; a key is always in the same partition."""
    rows: list[list[Row]] = [[] for _ in range(partitions)]
    for _ in range(partitions * rng.randint(most // 3, most)):
        key = rng.choice(KEYS)
        at = begin + rng.randrange(0, 1000) * MILLISECOND
        rows[zlib.crc32(key.encode()) % partitions].append((key, rng.randrange(100), at))
    return [sorted(partition, key=lambda row: row[2]) for partition in rows]


# --- as a topology -----------------------------------------------------------------------------------


class Stateless(Computation):
    """A step without state."""

    def __init__(self, name: str, step: Step, idle: str | None) -> None:
        self.name = name
        self.inputs = step.inputs
        self.outputs = (step.output,)
        self.step = step
        self.idle = idle
        self._first = True

    def process(self, record: Any, ctx: Any) -> None:
        step = self.step
        if self._first:
            self._first = False
            time.sleep(step.frozen.get(ctx.partition, 0))
        time.sleep(step.slow.get(ctx.partition, 0))
        for key, value, at in stateless(step, [(ctx.key, number_of(record.value), record.time_us)]):
            ctx.produce(step.output, value, key=key, timestamp=at)


class Probe(Computation):
    """Passes on what is late."""

    outputs = ("late",)

    def __init__(self, name: str, stream: str, idle: str | None) -> None:
        self.name = name
        self.inputs = (stream,)
        self.idle = idle

    def process(self, record: Any, ctx: Any) -> None:
        if ctx.late:
            ctx.produce("late", [self.inputs[0], record.time_us])


class SlowFold:
    """Adds up, and takes its time for some values."""

    def __init__(self, step: Step) -> None:
        self.pause = max(step.slow.values(), default=0.0)
        self.divisor = step.number + 2

    def __call__(self, total: int, value: Any) -> int:
        number = number_of(value)
        if self.pause and number % self.divisor == 0:
            time.sleep(self.pause)
        return total + number


def pair(left: Any, right: Any) -> int:
    """What a join makes of two values."""
    first, second = (0 if value is None else number_of(value) + 1 for value in (left, right))
    return first * 1000 + second


def pair_in_window(left: Any, right: Any, window: Any) -> int:
    return pair(left, right)


def add(earlier: int, later: int) -> int:
    return earlier + later


def number_of(value: Any) -> int:
    """A value, or that of a window."""
    return int(value["value"]) if isinstance(value, dict) else int(value)


def window_of(step: Step) -> Any:
    size = 20 + 30 * step.number
    if step.kind in ("tumbling", PATIENT, "window join"):
        return Tumbling(f"{size}ms")
    if step.kind == "sliding":
        return Sliding(f"{size}ms", f"{size // 2}ms")
    return Session(f"{3 + 5 * step.number}ms")


def within_of(step: Step) -> int:
    return 2 + 4 * step.number


def join_of(name: str, step: Step, idle: str | None) -> Computation:
    left, right = step.inputs
    if step.kind in ("window join", "session join"):
        how: Any = "left" if step.kind == "window join" else "outer"
        window = window_of(step)
        return window_join(
            name, left, right, step.output, window, how=how, joiner=pair_in_window, late="late", idle=idle
        )
    if step.kind == "table join":
        return table_join(name, left, right, step.output, how="left", joiner=pair, late="late", idle=idle)
    within, how = f"{within_of(step)}ms", HOWS[step.kind]
    return join(name, left, right, step.output, within=within, joiner=pair, idle=idle, how=how)


def topology(case: Case, *, probes: bool = True) -> Topology:
    """The case as a topology; every stream that is read has a probe for late records."""
    made = Topology(f"case{case.seed}", partitions=case.partitions)
    for stream in (*case.streams, "late"):
        made.stream(stream)
    for number, step in enumerate(case.steps):
        name = f"c{number}"
        if step.kind in STATELESS:
            made.add(Stateless(name, step, case.idle))
        elif step.kind in WINDOWS:
            made.add(
                windowed_fold(
                    name,
                    step.inputs[0],
                    step.output,
                    window_of(step),
                    initial=0,
                    fold=SlowFold(step),
                    merge=add,
                    late="late",
                    idle=case.idle,
                    allowed_lateness="25ms" if step.kind == PATIENT else "0s",
                )
            )
        else:
            made.add(join_of(name, step, case.idle))
    for stream in sorted({stream for step in case.steps for stream in step.inputs}) if probes else ():
        made.add(Probe(f"probe-{stream}", stream, case.idle))
    return made


# --- as plain Python ---------------------------------------------------------------------------------


def stateless(step: Step, rows: list[Row]) -> list[Row]:
    if step.kind == "map":
        return [(key, value + step.number, at) for key, value, at in rows]
    if step.kind == "rekey":
        return [(f"r{value % (step.number + 1)}", value, at) for key, value, at in rows]
    if step.kind == "filter":
        return [row for row in rows if row[1] % (step.number + 2)]
    return [(f"x{(value + more) % 3}", value + more, at) for key, value, at in rows for more in range(step.number % 3)]


def windowed(step: Step, rows: list[Row]) -> list[Row]:
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row[0]].append(row)
    size = (20 + 30 * step.number) * MILLISECOND
    results: list[Row] = []
    for key, mine in by_key.items():
        if step.kind == "session":
            results += [(key, value, end - 1) for end, value in _sessions(mine, (3 + 5 * step.number) * MILLISECOND)]
            continue
        every = size if step.kind in ("tumbling", PATIENT) else size // 2 // MILLISECOND * MILLISECOND
        totals: Counter[int] = Counter()
        for _, value, at in mine:
            first = (at - size) // every * every
            for start in range(first, at + 1, every):
                if start <= at < start + size:
                    totals[start] += value
        starts = {start for _, _, at in mine for start in range((at - size) // every * every, at + 1, every)
                  if start <= at < start + size}  # fmt: skip
        results += [(key, totals[start], start + size - 1) for start in starts]
    return results


def _sessions(rows: list[Row], gap: int) -> list[tuple[int, int]]:
    """(end, sum) of each: records of a session are at most the gap apart."""
    sessions: list[list[int]] = []
    for _, value, at in sorted(rows, key=lambda row: row[2]):
        if sessions and at <= sessions[-1][0]:
            sessions[-1][0] = at + gap
            sessions[-1][1] += value
        else:
            sessions.append([at + gap, value])
    return [(end, value) for end, value in sessions]


def spans_of(step: Step, rows: list[Row]) -> set[tuple[int, int]]:
    """Start and end of the windows that records of one key are in."""
    if step.kind == "window join":
        size = (20 + 30 * step.number) * MILLISECOND
        return {(at // size * size, at // size * size + size) for _, _, at in rows}
    ends = [end for end, _ in _sessions(rows, (3 + 5 * step.number) * MILLISECOND)]
    return set(zip([-1, *ends], ends, strict=False))


def joined_in_windows(step: Step, left: list[Row], right: list[Row]) -> list[Row]:
    results: list[Row] = []
    for key in {row[0] for row in (*left, *right)}:
        mine = [[row for row in rows if row[0] == key] for rows in (left, right)]
        for start, end in spans_of(step, [*mine[0], *mine[1]]):
            lefts, rights = ([value for _, value, at in rows if start <= at < end] for rows in mine)
            pairs: list[tuple[Any, Any]] = [(one, other) for one in lefts for other in rights]
            if not rights:
                pairs = [(one, None) for one in lefts]
            elif not lefts and step.kind == "session join":
                pairs = [(None, other) for other in rights]
            results += [(key, pair(*both_sides), end - 1) for both_sides in pairs]
    return results


def looked_up(left: list[Row], table: list[Row]) -> list[Row]:
    results: list[Row] = []
    for key, value, at in left:
        known = [row for row in table if row[0] == key and row[2] <= at]
        latest = max((row[2] for row in known), default=None)
        last = [row[1] for row in known if row[2] == latest]
        results.append((key, pair(value, last[-1] if last else None), at))
    return results


def joined(step: Step, left: list[Row], right: list[Row]) -> list[Row]:
    if step.kind in ("window join", "session join"):
        return joined_in_windows(step, left, right)
    if step.kind == "table join":
        return looked_up(left, right)
    within = within_of(step) * MILLISECOND
    results: list[Row] = []
    for key, value, at in left:
        partners = [row for row in right if row[0] == key and abs(row[2] - at) <= within]
        results += [(key, pair(value, other), max(at, then)) for _, other, then in partners]
        if not partners and step.kind != "join":
            results.append((key, pair(value, None), at))
    if step.kind == "outer join":
        for key, value, at in right:
            if not any(row[0] == key and abs(row[2] - at) <= within for row in left):
                results.append((key, pair(None, value), at))
    return results


def from_environment() -> Topology:
    """The topology of the case whose seed is in the environment, for other processes."""
    idle = os.environ.get("PENSTOCK_CASE_IDLE") or None
    return topology(make_case(int(os.environ["PENSTOCK_CASE"]), idle=idle))


def expected(case: Case) -> dict[str, Counter[Row]]:
    """What has to be in every stream at the end."""
    streams: dict[str, list[Row]] = {
        name: [row for partition in partitions for row in partition] for name, partitions in case.edges.items()
    }
    for step in case.steps:
        if step.kind in JOINS:
            streams[step.output] = joined(step, streams[step.inputs[0]], streams[step.inputs[1]])
        elif step.kind in WINDOWS:
            streams[step.output] = windowed(step, streams[step.inputs[0]])
        else:
            streams[step.output] = stateless(step, [row for name in step.inputs for row in streams[name]])
    return {step.output: Counter(streams[step.output]) for step in case.steps}


# --- feeding and looking -----------------------------------------------------------------------------


def create_edges(case: Case, logs: LogStore) -> None:
    for name in case.edges:
        logs.create(name, case.partitions)


def feed(case: Case, logs: LogStore, begin: float, end: float, rng: random.Random | None = None) -> None:
    """Append a part of every partition, from one share of it to another; with ``rng`` in pieces of a random order."""
    parts = [
        (name, index, rows[int(begin * len(rows)) : int(end * len(rows))])
        for name, partitions in case.edges.items()
        for index, rows in enumerate(partitions)
    ]
    if rng is None:
        with logs.transaction() as transaction:
            for name, index, rows in parts:
                _append(transaction, name, index, rows)
            transaction.commit()
        return
    waiting = [(name, index, rows) for name, index, rows in parts if rows]
    while waiting:
        rank = rng.randrange(len(waiting))
        name, index, rows = waiting[rank]
        count = rng.randint(1, len(rows))
        with logs.transaction() as transaction:
            _append(transaction, name, index, rows[:count])
            transaction.commit()
        waiting[rank : rank + 1] = [(name, index, rows[count:])] if rows[count:] else []
        time.sleep(rng.choice([0, 0, 0.01, 0.05]))


def feed_times(case: Case, logs: LogStore, begin: float, end: float) -> None:
    """Append what lies between two shares of the span of event time, to all partitions in one transaction."""
    first, last = (1_000_000_000 + int(share * 1_000_000) for share in (begin, end))
    with logs.transaction() as transaction:
        for name, partitions in case.edges.items():
            for index, rows in enumerate(partitions):
                _append(transaction, name, index, [row for row in rows if first <= row[2] < last])
        transaction.commit()


def _append(transaction: Any, name: str, index: int, rows: list[Row]) -> None:
    keys, values, times = zip(*rows, strict=True) if rows else ((), (), ())
    transaction.append_many(name, values, keys=keys, partition=index, timestamps=times)


def check(case: Case, logs: LogStore) -> None:
    """Every stream holds exactly what it has to, and nothing came late."""
    late = [record.value for partition in range(case.partitions) for record in logs.log("late").records(partition)]
    assert not late, f"{case}: {len(late)} late records, such as {late[:3]}"
    for stream, rows in expected(case).items():
        there = Counter(
            (record.key, number_of(record.value), record.time_us)
            for partition in range(case.partitions)
            for record in logs.log(stream).records(partition)
        )
        assert there == rows, f"{case}: {stream} lacks {rows - there}, has too much {there - rows}"
