"""What ``penstock top`` shows: queues with their rates, workers, circuits and lags, read at one moment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.breaker.breaker import Breaker
from penstock.breaker.circuit import CircuitView
from penstock.breaker.settings import BreakerConfig
from penstock.clock import SECOND, Micros
from penstock.log.store import LogStore
from penstock.queue.entry import Counts
from penstock.queue.queues import QueueStore
from penstock.queue.worker.figure_history import FigureHistory, Series
from penstock.queue.worker.figures import MINUTE, Tally, total
from penstock.queue.worker.presence import KnownWorker, known_workers

WINDOW: Micros = 60 * SECOND  # over which the rate of puts is averaged, once it has been watched for so long
RECENT = 2  # minutes, the running one included, over which the rates of workers are averaged
LATE = 10  # minutes that figures may come late and still count as done between two looks
LOOK_BACK = 24 * 60  # minutes in which a handler of a family tells that there is one


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, or all the queues of a family that one handler serves."""

    name: str
    ready: int = 0
    delayed: int = 0
    retrying: int = 0
    held: int = 0
    leased: int = 0
    slots: int = 0
    dead: int = 0
    oldest: float | None = None  # seconds that the oldest ready entry has waited
    put_rate: float | None = None  # per second, or None before it is known
    done_rate: float = 0.0
    failed_rate: float = 0.0
    locks: str = ""


class LagLine(msgspec.Struct, frozen=True):
    """How far a group is behind in a log."""

    log: str
    group: str
    lag: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown."""

    now_us: Micros
    queues: list[QueueLine]
    workers: list[KnownWorker]
    circuits: list[CircuitView]
    lags: list[LagLine]


class Observer:
    """Reads snapshots of a store, and remembers enough of them to say how much is put."""

    def __init__(self, store: QueueStore, logs: LogStore | None = None, *, members: bool = False) -> None:
        """``members`` shows each queue of a family by itself."""
        self._store = store
        self._logs = logs
        self._members = members
        self._breaker = Breaker(store, BreakerConfig())
        self._figures = FigureHistory(store)
        self._before: tuple[int, Series] | None = None  # the last look, and the first minute to compare the next with
        self._done: Counter[str] = Counter()  # since the first look, by line
        self._seen: deque[tuple[Micros, dict[str, int]]] = deque()

    def look(self) -> Snapshot:
        """Take a snapshot."""
        now = self._store.now()
        workers = known_workers(self._store)
        figures, minute = self._figures.look(LOOK_BACK), now // MINUTE
        families = set() if self._members else _families(workers, figures.by_handler(minute - LOOK_BACK))
        lines = _lines(self._store.counts(), families, now)
        recent = _by_line(figures.since(minute - RECENT + 1), families)
        # A queue whose workers keep it empty has no counts.
        lines += [QueueLine(name=name) for name in sorted(recent.keys() - {line.name for line in lines})]
        self._add_done(figures, families, minute)
        put_rates = self._put_rates(lines, now)
        slots = _slots(workers)
        elapsed = (RECENT - 1) * 60 + (now % MINUTE) / SECOND
        queues = [
            msgspec.structs.replace(
                line, slots=slots.get(line.name, 0), put_rate=put_rates.get(line.name),
                done_rate=recent[line.name].done / elapsed if line.name in recent else 0.0,
                failed_rate=recent[line.name].failed / elapsed if line.name in recent else 0.0,
            )
            for line in lines
        ]  # fmt: skip
        return Snapshot(
            now_us=now,
            queues=queues,
            workers=workers,
            circuits=[circuit for circuit in self._breaker.circuits() if circuit.state != "closed"],
            lags=self._lags(),
        )

    def _add_done(self, figures: Series, families: set[str], minute: int) -> None:
        """Count what was done since the last look."""
        if self._before is not None:
            first, before = self._before
            self._done.update({line: tally.done for line, tally in _by_line(figures.since(first), families).items()})
            self._done.subtract({line: tally.done for line, tally in _by_line(before.since(first), families).items()})
        self._before = minute - LATE, figures

    def _put_rates(self, lines: list[QueueLine], now: Micros) -> dict[str, float]:
        """The rates of puts since the first snapshot of the last minute: the growth of a queue, plus what left it."""
        ever = {
            line.name: line.ready + line.delayed + line.retrying + line.held + line.leased + line.dead
            + self._done[line.name]
            for line in lines
        }  # fmt: skip
        self._seen.append((now, ever))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        if since == now:
            return {}
        seconds = (now - since) / SECOND
        return {name: max(0, count - before.get(name, 0)) / seconds for name, count in ever.items()}

    def _lags(self) -> list[LagLine]:
        if self._logs is None:
            return []
        lines = [
            LagLine(name, group, self._logs.lag(name, group).lag)
            for name in self._logs.names()
            for group in self._logs.groups(name)
        ]
        return sorted(lines, key=lambda line: (-line.lag, line.log, line.group))


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for scripts."""
    return {
        "queues": [msgspec.structs.asdict(line) for line in snapshot.queues],
        "workers": [
            {
                "node": worker.record.node,
                "pid": worker.record.pid,
                "state": worker.state,
                "busy": worker.busy,
                "slots": worker.slots,
            }
            for worker in snapshot.workers
        ],
        "circuits": [
            {"circuit": circuit.circuit, "state": circuit.state, "locked": circuit.locked}
            for circuit in snapshot.circuits
        ],
        "lags": [msgspec.structs.asdict(line) for line in snapshot.lags],
    }


# --- inside ----------------------------------------------------------------------------------------


def _families(workers: list[KnownWorker], tallies: list[Tally]) -> set[str]:
    served = {serving.queue for worker in workers for serving in worker.record.serving if serving.is_family}
    return served | {tally.queue for tally in tallies if tally.is_family}


def _line_of(queue: str, families: set[str]) -> str:
    """The line that a queue belongs to: its own, or that of the closest family."""
    closest = max((family for family in families if queue.startswith(family)), key=len, default=None)
    return queue if closest is None else f"{closest}*"


def _lines(counts: list[Counts], families: set[str], now: Micros) -> list[QueueLine]:
    by_line: dict[str, list[Counts]] = {}
    for queue in counts:
        by_line.setdefault(_line_of(queue.queue, families) if families else queue.queue, []).append(queue)
    return [_joined(name, some, now) for name, some in by_line.items()]


def _joined(name: str, counts: list[Counts], now: Micros) -> QueueLine:
    oldest = min((queue.oldest_ready_us for queue in counts if queue.oldest_ready_us is not None), default=None)
    locked = [queue for queue in counts if queue.locks]
    holders = ", ".join(sorted({lock.holder for queue in locked for lock in queue.locks}))
    return QueueLine(
        name=name,
        ready=sum(queue.ready for queue in counts),
        delayed=sum(queue.delayed for queue in counts),
        retrying=sum(queue.retrying for queue in counts),
        held=sum(queue.held for queue in counts),
        leased=sum(queue.leased for queue in counts),
        dead=sum(queue.dead for queue in counts),
        oldest=None if oldest is None else max(0, now - oldest) / SECOND,
        locks=holders if len(locked) == len(counts) else f"{len(locked)} of {len(counts)}" if locked else "",
    )


def _by_line(tallies: Iterable[Tally], families: set[str]) -> dict[str, Tally]:
    by_line: dict[str, list[Tally]] = {}
    for tally in tallies:
        name = f"{tally.queue}*" if tally.is_family else _line_of(tally.queue, families)
        by_line.setdefault(name, []).append(tally)
    return {name: total(some) for name, some in by_line.items()}


def _slots(workers: list[KnownWorker]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for worker in workers:
        for serving in worker.record.serving if worker.state != "lost" else ():
            name = f"{serving.queue}*" if serving.is_family else serving.queue
            slots[name] = slots.get(name, 0) + serving.slots
    return slots
