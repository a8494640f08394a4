"""Metrics of streaming queries: a ``StreamingQueryListener`` that counts in the names of our catalog.

>>> metrics = QueryMetrics(spark)  # doctest: +SKIP
>>> exporter = Exporter("127.0.0.1", 9464, metrics)  # doctest: +SKIP
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.clock import SECOND, to_micros
from penstock.spark.errors import explain
from penstock.telemetry.catalog import METRICS, MOST_ERRORS
from penstock.telemetry.health import HealthState
from penstock.telemetry.snapshot import Limited, Snapshot, bucket_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BOUNDS = METRICS["penstock_spark_batch_seconds"].bounds


class _Query:
    """What one query has done, by its name."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.seconds = bucket_counts("penstock_spark_batch_seconds")
        self.behind: int | None = None
        self.watermark: float | None = None


class QueryMetrics(StreamingQueryListener):
    """Counts what the streaming queries of one session do, from now on.

    A query is counted under its name; those without one are counted together as ``unnamed``.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Listen until :meth:`close`."""
        self._spark = spark
        self._lock = threading.Lock()
        self._queries: defaultdict[str, _Query] = defaultdict(_Query)
        self._failures: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._running: dict[str, str] = {}  # names by run
        self._names, self._errors = Limited(), Limited(MOST_ERRORS)
        spark.streams.addListener(self)

    def close(self) -> None:
        """Stop listening."""
        self._spark.streams.removeListener(self)

    def state(self) -> HealthState:
        """Live and ready: a query that fails is counted, and does not end the process."""
        return HealthState(True, True)

    def snapshot(self) -> Snapshot:
        """The current values."""
        snapshot = Snapshot()
        with self._lock:
            snapshot.add("penstock_spark_queries", (), len(self._running))
            for name, query in self._queries.items():
                snapshot.add("penstock_spark_batches_total", (name,), query.batches)
                snapshot.add("penstock_spark_rows_total", (name,), query.rows)
                snapshot.add("penstock_spark_batch_seconds", (name,), query.seconds)
                if query.behind is not None:
                    snapshot.add("penstock_spark_behind", (name,), query.behind)
                if query.watermark is not None:
                    snapshot.add("penstock_spark_watermark_timestamp_seconds", (name,), query.watermark)
            for labels, count in self._failures.items():
                snapshot.add("penstock_spark_failures_total", labels, count)
        return snapshot

    # --- for Spark -----------------------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        """Count a query that starts."""
        with self._lock:
            self._running[str(event.runId)] = self._names(event.name or "unnamed")

    def onQueryProgress(self, event: Any) -> None:
        """Count a micro-batch that has ended."""
        progress = event.progress
        seconds = progress.durationMs.get("triggerExecution", 0) / 1000
        with self._lock:
            query = self._queries[self._names(progress.name or "unnamed")]
            query.batches += 1
            query.rows += progress.numInputRows
            query.seconds[bisect_left(_BOUNDS, seconds)] += 1
            query.seconds[-1] += seconds
            query.behind = _behind(progress.sources)
            query.watermark = _watermark(progress.eventTime)

    def onQueryIdle(self, event: Any) -> None:
        """Note that there was nothing to do."""

    def onQueryTerminated(self, event: Any) -> None:
        """Count a query that has ended, by itself or with an error."""
        with self._lock:
            name = self._running.pop(str(event.runId), "unnamed")
            if event.exception:
                ours = explain(RuntimeError(event.exception))
                kind = type(ours).__name__ if ours is not None else event.errorClassOnException or "other"
                self._failures[name, self._errors(kind)] += 1


def _behind(sources: list[Any]) -> int | None:
    """The records left to read, or None if no source is ours."""
    known = [left for source in sources if source.latestOffset and (left := _left(source)) is not None]
    return sum(known) if known else None


def _left(source: Any) -> int | None:
    """The records left in one source. Spark does not name it; our offsets are known by their shape."""
    latest, end = (msgspec.json.decode(text or "null") for text in (source.latestOffset, source.endOffset))
    if not isinstance(latest, dict) or not isinstance(end, dict) or "id" not in latest:
        return None
    if "after" in latest:  # of queues
        return max(0, int(latest["after"]) - int(end["after"]))
    done = end.get("offsets", {})
    return sum(max(0, int(at) - int(done.get(index, 0))) for index, at in latest.get("offsets", {}).items())


def _watermark(event_time: dict[str, str]) -> float | None:
    text = event_time.get("watermark", "")
    if not text or text.startswith("1970"):
        return None
    return to_micros(datetime.fromisoformat(text)) / SECOND
