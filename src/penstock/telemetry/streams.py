"""Metrics and health of a topology: of any runner, asked when somebody looks.

>>> metrics = StreamMetrics(runner)  # doctest: +SKIP
>>> exporter = Exporter("127.0.0.1", 9301, metrics)  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import threading
import time

from penstock.clock import SECOND, to_micros
from penstock.errors import PenstockError
from penstock.log.store import LogStore
from penstock.stream.engine.resolved import dead_log
from penstock.stream.runner import Runner, Status
from penstock.stream.topology import Node
from penstock.telemetry.health import HealthState
from penstock.telemetry.snapshot import Limited, Snapshot

logger = logging.getLogger("penstock.telemetry")

FRESH = 1.0  # seconds for which what the runner said is good
COUNTED = {
    "records": "penstock_stream_records_total",
    "produced": "penstock_stream_produced_total",
    "timers": "penstock_stream_timers_total",
    "checkpoints": "penstock_stream_checkpoints_total",
    "failures": "penstock_stream_failures_total",
    "skipped": "penstock_stream_skipped_total",
    "restarts": "penstock_stream_restarts_total",
}
STATES = ("starting", "running", "restarting", "failed", "stopped")


class StreamMetrics:
    """What the computations of a runner do, how far they are, and whether they run.

    The counts of an instance that was started again, in another thread or process, are added to those it had before.

    Args:
        runner: to watch
    """

    def __init__(self, runner: Runner) -> None:
        """Ask the runner from now on, at most once a second."""
        self._runner = runner
        self._lock = threading.Lock()
        self._statuses: list[Status] = []
        self._asked: float | None = None
        self._last: dict[tuple[str, int, int, str], int] = {}  # what an instance had counted when it was asked last
        self._totals: dict[tuple[str, str], int] = {}  # by computation and count

    def state(self) -> HealthState:
        """Live unless a computation has failed for good; ready when all of them run."""
        statuses = self._ask()
        failed = sorted({status.computation for status in statuses if status.state == "failed"})
        if failed:
            return HealthState(False, False, f"{', '.join(failed)} has failed: {_error_of(statuses)}")
        waiting = sorted(
            {node.name for node in self._nodes() if node.concurrency}
            - {status.computation for status in statuses if status.state == "running"}
        )
        why = f"{', '.join(waiting)} does not run" if waiting else ""
        return HealthState(True, not waiting, why)

    def snapshot(self) -> Snapshot:
        """The current values."""
        statuses = self._ask()
        snapshot, topology, limited = Snapshot(), self._runner.topology.name, Limited()
        with self._lock:
            for (computation, name), count in self._totals.items():
                snapshot.add(COUNTED[name], (topology, limited(computation)), count)
        for node in self._nodes():
            labels = topology, limited(node.name)
            mine = [status for status in statuses if status.computation == node.name]
            for state in STATES:
                count = sum(status.state == state for status in mine)
                snapshot.add("penstock_stream_instances", (*labels, state), count)
            known = [status.watermark for status in mine if status.watermark is not None]
            if known and len(known) == sum(bool(status.partitions) for status in mine):
                seconds = to_micros(min(known)) / SECOND
                snapshot.add("penstock_stream_watermark_timestamp_seconds", labels, seconds)
            self._look_at_logs(snapshot, node, labels)
        return snapshot

    def _look_at_logs(self, snapshot: Snapshot, node: Node, labels: tuple[str, str]) -> None:
        store: LogStore = self._runner.store
        try:
            behind = sum(store.lag(stream, node.name).lag for stream in node.inputs.values() if store.exists(stream))
            snapshot.add("penstock_stream_lag", labels, behind)
            letters = dead_log(node.name)
            bounds = store.bounds(letters) if store.exists(letters) else []
            snapshot.add("penstock_stream_dead_letters", labels, sum(part.end - part.start for part in bounds))
        except PenstockError as error:
            logger.warning("the logs of %s cannot be measured: %s", node.name, error)

    def _nodes(self) -> list[Node]:
        return list(self._runner.topology.nodes.values())

    def _ask(self) -> list[Status]:
        """What the runner says of its instances, and the totals with it."""
        with self._lock:
            if self._asked is None or time.monotonic() - self._asked >= FRESH:
                self._statuses = self._runner.status()
                self._asked = time.monotonic()
                for status in self._statuses:
                    self._add(status)
            return self._statuses

    def _add(self, status: Status) -> None:
        for name in COUNTED:
            count, key = getattr(status, name), (status.computation, status.process, status.instance, name)
            before = self._last.get(key, 0)
            more = count - before if count >= before else count  # less than before: it began again
            self._last[key] = count
            total = status.computation, name
            self._totals[total] = self._totals.get(total, 0) + more


def _error_of(statuses: list[Status]) -> str:
    return next((status.error for status in statuses if status.state == "failed" and status.error), "see its log")
