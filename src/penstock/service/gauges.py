"""Gauges: what the stores hold at the moment of a scrape, for ``/metrics``."""

from __future__ import annotations

import logging

from penstock.breaker.breaker import Breaker
from penstock.clock import SECOND
from penstock.log.store import LogStore
from penstock.queue.entry import Counts
from penstock.queue.queues import QueueStore
from penstock.queue.worker.presence import KnownWorker, known_workers
from penstock.service.keys import ApiKey
from penstock.telemetry.catalog import MOST_QUEUES
from penstock.telemetry.snapshot import Snapshot

logger = logging.getLogger("penstock.service")

STATES = ("ready", "delayed", "retrying", "held", "leased", "dead")
PAGE = 1000
MOST_READ = 20_000  # queues of one scrape
_warned: set[str] = set()


def add_gauges(
    snapshot: Snapshot, queues: QueueStore, logs: LogStore | None, breaker: Breaker | None, key: ApiKey
) -> None:
    """Add what the stores hold, as far as the key sees it."""
    workers = known_workers(queues)
    if not key.prefix:
        _add_all(snapshot, queues, logs, breaker, workers)
    _add_queues(snapshot, queues, key, _families(queues, workers, key))
    for schedule in queues.schedules():
        if key.sees(schedule.queue):
            next_fire = schedule.next_us / SECOND
            snapshot.add("penstock_schedule_next_timestamp_seconds", (schedule.name,), next_fire)
    if logs is not None:
        for log in filter(key.sees, logs.names()):
            for group in logs.groups(log):
                snapshot.add("penstock_log_lag", (log, group), logs.lag(log, group).lag)


def _add_all(
    snapshot: Snapshot, queues: QueueStore, logs: LogStore | None, breaker: Breaker | None, workers: list[KnownWorker]
) -> None:
    for name, store in (("queues", queues), ("logs", logs)):
        for kind, count in store.signals.totals.items() if store is not None else ():
            snapshot.add("penstock_signals_total", (name, kind), count)
    for circuit in breaker.circuits() if breaker is not None else ():
        snapshot.add("penstock_circuit_state", (circuit.circuit, circuit.state), 1)
    for state in ("alive", "stopping", "lost"):
        snapshot.add("penstock_workers", (state,), sum(worker.state == state for worker in workers))


def _families(queues: QueueStore, workers: list[KnownWorker], key: ApiKey) -> list[str]:
    """The families that workers serve, longest prefix first; a key sees those that are entirely its own."""
    served = {name for name, is_family in queues.handlers if is_family}
    served |= {serving.queue for worker in workers for serving in worker.record.serving if serving.is_family}
    return sorted((prefix for prefix in served if prefix.startswith(key.prefix)), key=len, reverse=True)


def _add_queues(snapshot: Snapshot, queues: QueueStore, key: ApiKey, families: list[str]) -> None:
    now, after, read = queues.now(), "", 0
    labels: set[str] = set()
    while page := queues.driver.page(prefix=key.prefix, after=after, limit=PAGE):
        for counts in page:
            label = next((f"{prefix}*" for prefix in families if counts.queue.startswith(prefix)), counts.queue)
            labels.add(label)
            _add_queue(snapshot, label, counts, now)
        after, read = page[-1].queue, read + len(page)
        if len(page) < PAGE or read >= MOST_READ:
            break
    if len(labels) > MOST_QUEUES and queues.name not in _warned:
        _warned.add(queues.name)
        logger.warning(
            "%s has %d queues: /metrics shows %d of them by name and adds up the others; "
            "queues of a family with a handler count as one", queues.name, len(labels), MOST_QUEUES,
        )  # fmt: skip


def _add_queue(snapshot: Snapshot, label: str, counts: Counts, now: int) -> None:
    for state in STATES:
        snapshot.add("penstock_queue_entries", (label, state), getattr(counts, state))
    snapshot.add("penstock_queue_locks", (label,), len(counts.locks))
    waited = 0.0 if counts.oldest_ready_us is None else max(0, now - counts.oldest_ready_us) / SECOND
    snapshot.add("penstock_queue_oldest_ready_seconds", (label,), waited)
