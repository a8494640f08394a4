"""Metrics of one process: of its store and its worker.

Everything is counted in plain numbers under one lock, once per round trip; nothing is written or sent until a snapshot
is requested.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections import defaultdict
from typing import Any

from penstock.clock import SECOND, Micros
from penstock.queue.handling.context import Context
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.outcomes import OUTCOMES
from penstock.queue.protocol import Ending
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker
from penstock.queue.worker.figures import MOST_PENDING
from penstock.signals import Signal
from penstock.telemetry.catalog import METRICS, MOST_ERRORS, OTHER
from penstock.telemetry.snapshot import Labels, Limited, Snapshot, bucket_counts
from penstock.version import VERSION

_ERROR_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_RUN_BOUNDS = METRICS["penstock_attempt_seconds"].bounds
_WAIT_BOUNDS = METRICS["penstock_wait_seconds"].bounds


class StoreMetrics:
    """What happens through one store handle: puts, trouble, and how long its calls take.

    Args:
        store: to watch
    """

    def __init__(self, store: QueueStore) -> None:
        """Count from now on, until :meth:`close`."""
        self.store = store
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._calls: dict[str, list[float]] = {}
        self._queues, self._circuits, self._errors = Limited(), Limited(), Limited(MOST_ERRORS)
        self._families: tuple[frozenset[tuple[str, bool]], tuple[str, ...]] = (frozenset(), ())
        self._end = store.signals.subscribe(self._hear, *_HEARD)
        store.driver.on_call = self._called

    def close(self) -> None:
        """Stop counting."""
        self._end()
        self.store.driver.on_call = None

    def snapshot(self) -> Snapshot:
        """The current values."""
        snapshot = Snapshot()
        snapshot.add("penstock_info", (VERSION, self.store.node, self.store.space), 1)
        with self._lock:
            for (name, labels), count in self._counts.items():
                snapshot.add(name, labels, count)
            for operation, buckets in self._calls.items():
                snapshot.add("penstock_store_seconds", (operation,), buckets)
        return snapshot

    def label(self, queue: str) -> str:
        """The label of a queue: its name, or the family that serves it here; ``other`` without a name."""
        handlers = self.store.handlers
        if not queue:
            return OTHER
        if (queue, False) not in handlers:
            if self._families[0] != handlers.keys():
                prefixes = sorted((name for name, is_family in handlers if is_family), key=len, reverse=True)
                self._families = frozenset(handlers), tuple(prefixes)
            for prefix in self._families[1]:
                if queue.startswith(prefix):
                    return f"{prefix}*"
        return self._queues(queue)

    def _hear(self, signal: Signal) -> None:
        with self._lock:
            for name, labels in self._counted(signal):
                self._counts[name, labels] += signal.count

    def _counted(self, signal: Signal) -> list[tuple[str, Labels]]:
        if signal.kind == "circuit":
            circuit = self._circuits(str(signal.data.get("circuit")))
            return [("penstock_circuit_changes_total", (circuit, str(signal.data.get("state"))))]
        if signal.kind == "store_error":
            error = self._errors(type(signal.data.get("error")).__name__)
            return [("penstock_store_errors_total", (str(signal.data.get("step")), error))]
        queue = self.label(signal.queue)
        counted: list[tuple[str, Labels]] = []
        if signal.kind in _COUNTED_AS:
            counted.append((_COUNTED_AS[signal.kind], (queue,)))
        if signal.kind in _ENDED_AS:
            counted.append(("penstock_attempts_total", (queue, _ENDED_AS[signal.kind])))
        return counted

    def _called(self, operation: str, seconds: float) -> None:
        buckets = self._calls.get(operation)
        with self._lock:
            if buckets is None:
                buckets = self._calls.setdefault(operation, bucket_counts("penstock_store_seconds"))
            buckets[bisect_left(_STORE_BOUNDS, seconds)] += 1
            buckets[-1] += seconds


_STORE_BOUNDS = METRICS["penstock_store_seconds"].bounds
_COUNTED_AS = {
    "put": "penstock_put_total",
    "reaped": "penstock_reaped_total",
    "exhausted": "penstock_reaped_total",
    "lease_lost": "penstock_leases_lost_total",
    "expired": "penstock_expired_total",
}
_ENDED_AS = {"reaped": "lost", "exhausted": "dead"}
_HEARD = (*_COUNTED_AS, "circuit", "store_error")


class _Served:
    """What one handler did."""

    __slots__ = ("errors", "outcomes", "seconds", "waits")

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.seconds = bucket_counts("penstock_attempt_seconds")
        self.waits = bucket_counts("penstock_wait_seconds")
        self.errors: dict[str, int] = {}

    def failed(self, error: str | None) -> None:
        name = (error or "").partition(":")[0].partition("\n")[0].strip()
        if not _ERROR_CLASS.fullmatch(name) or (name not in self.errors and len(self.errors) >= MOST_ERRORS):
            name = OTHER
        self.errors[name] = self.errors.get(name, 0) + 1


class WorkerMetrics:
    """What one worker does, and what happens through its store.

    >>> import penstock
    >>> store = penstock.open_queues("memory://")
    >>> handler = store.queue("mails", str).handler(str.upper)
    >>> metrics = WorkerMetrics(Worker(store))
    >>> id = store.queue("mails", str).put("x").id
    >>> 'penstock_put_total{queue="mails"} 1' in metrics.snapshot().text()
    True

    Args:
        worker: to watch
    """

    def __init__(self, worker: Worker) -> None:
        """Count from now on."""
        self.worker = worker
        self.store = StoreMetrics(worker.store)
        self._lock = threading.Lock()
        self._pending: list[tuple[Handler, str, float | None, Micros | None, str | None]] = []
        self._served: dict[Handler, _Served] = {}
        worker.add_counter(self)

    def close(self) -> None:
        """Stop listening to the store."""
        self.store.close()

    def count(self, ended: list[tuple[Ending, Context[Any]]], now: Micros) -> None:
        """The store has accepted these outcomes."""
        with self._lock:
            pending = self._pending
            for ending, context in ended:
                entry = context.entry
                waited_us = context.started_us - entry.due_us if entry.attempt == 1 else None
                pending.append((context.handler, ending.outcome, context.seconds, waited_us, ending.error))
            if len(pending) >= MOST_PENDING:
                self._add_up()

    def _add_up(self) -> None:
        """Count the attempts that were noted: many at once cost half of what they cost one by one."""
        for handler, outcome, seconds, waited_us, error in self._pending:
            served = self._served.get(handler)
            if served is None:
                served = self._served[handler] = _Served()
            served.outcomes[outcome] += 1
            if seconds is not None:
                buckets = served.seconds
                buckets[bisect_left(_RUN_BOUNDS, seconds)] += 1
                buckets[-1] += seconds
            if waited_us is not None:
                waited = max(0, waited_us) / SECOND
                buckets = served.waits
                buckets[bisect_left(_WAIT_BOUNDS, waited)] += 1
                buckets[-1] += waited
            if outcome in ("retry", "dead"):
                served.failed(error)
        self._pending.clear()

    def snapshot(self) -> Snapshot:
        """The current values."""
        snapshot = self.store.snapshot()
        limited = Limited()
        for serving in self.worker.serving():
            label = (limited(_label(serving.queue, serving.is_family)),)
            snapshot.add("penstock_running", label, serving.busy)
            snapshot.add("penstock_slots", label, serving.slots)
        for (queue, is_family), seconds in self.worker.longest_running().items():
            snapshot.add("penstock_longest_running_seconds", (limited(_label(queue, is_family)),), seconds)
        answered_us = self.worker.pulse().answered_us
        if answered_us:
            snapshot.add("penstock_last_round_trip_timestamp_seconds", (), answered_us / SECOND)
        with self._lock:
            self._add_up()
            for handler, served in self._served.items():
                queue = limited(_label(handler.queue.name, handler.queue.is_family))
                for outcome, count in served.outcomes.items():
                    snapshot.add("penstock_attempts_total", (queue, OUTCOMES[outcome]), count)
                for error, count in served.errors.items():
                    snapshot.add("penstock_failures_total", (queue, error), count)
                snapshot.add("penstock_attempt_seconds", (queue,), served.seconds)
                snapshot.add("penstock_wait_seconds", (queue,), served.waits)
        return snapshot


def _label(queue: str, is_family: bool) -> str:
    return f"{queue}*" if is_family else queue
