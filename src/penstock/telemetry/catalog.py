"""The catalog of metrics: every name that Penstock exports, with its labels and its meaning.

Only what is listed here can be exported. The table in ``docs/telemetry.md`` is generated from it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Join = Literal["sum", "max", "min"]

MOST_QUEUES = 500  # label values of one metric; later ones are added up as ``other``
MOST_ERRORS = 20  # classes of errors of one queue
OTHER = "other"

RUN_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
WAIT_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
STORE_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metric(NamedTuple):
    """One metric. ``source`` says who exports it, ``join`` how the values of several processes become one."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    source: str
    meaning: str
    bounds: tuple[float, ...] = ()  # upper ends of a histogram's buckets; the last bucket has none
    join: Join = "sum"


WORKER, SERVICE, BOTH, STREAM, SPARK = "worker", "service", "both", "stream", "spark"

_COMPUTATION = ("topology", "computation")

_ALL = (
    Metric("penstock_put_total", "counter", ("queue",), BOTH, "Entries that this process put."),
    Metric(
        "penstock_attempts_total", "counter", ("queue", "outcome"), BOTH,
        "Ended attempts: done, retried, dead, snoozed, released; lost: the lease ran out.",
    ),
    Metric("penstock_attempt_seconds", "histogram", ("queue",), BOTH, "How long handlers ran.", RUN_BOUNDS),
    Metric(
        "penstock_wait_seconds", "histogram", ("queue",), BOTH,
        "How long entries had been due when their first attempt started.", WAIT_BOUNDS,
    ),
    Metric(
        "penstock_failures_total", "counter", ("queue", "error"), BOTH,
        "Failed attempts by class of error; 20 classes for each queue, then other.",
    ),
    Metric("penstock_running", "gauge", ("queue",), BOTH, "Handlers that run now."),
    Metric("penstock_slots", "gauge", ("queue",), BOTH, "Handlers that may run at once."),
    Metric(
        "penstock_longest_running_seconds", "gauge", ("queue",), BOTH,
        "For how long the handler that started first has been running.", join="max",
    ),
    Metric("penstock_reaped_total", "counter", ("queue",), BOTH, "Leases that ran out and were taken back."),
    Metric("penstock_leases_lost_total", "counter", ("queue",), BOTH, "Outcomes that were refused as too late."),
    Metric("penstock_expired_total", "counter", ("queue",), BOTH, "Entries that passed their expiry unclaimed."),
    Metric(
        "penstock_circuit_changes_total", "counter", ("circuit", "state"), BOTH,
        "How often this process saw a circuit change to a state.",
    ),
    Metric(
        "penstock_store_seconds", "histogram", ("operation",), BOTH,
        "Calls to the store: put, claim, settle, round_trip (settle and claim in one), extend, write.", STORE_BOUNDS,
    ),
    Metric(
        "penstock_store_errors_total", "counter", ("operation", "error"), BOTH,
        "Background steps that failed and are tried again.",
    ),
    Metric(
        "penstock_last_round_trip_timestamp_seconds", "gauge", (), BOTH,
        "When the store last answered the worker's loop; of several processes the oldest.", join="min",
    ),
    Metric("penstock_processes", "gauge", (), WORKER, "Worker processes that run under this port."),
    Metric("penstock_info", "gauge", ("version", "node", "space"), BOTH, "Always 1.", join="max"),
    Metric(
        "penstock_queue_entries", "gauge", ("queue", "state"), SERVICE,
        "Entries by state: ready, delayed, retrying, held, leased, dead.",
    ),
    Metric(
        "penstock_queue_oldest_ready_seconds", "gauge", ("queue",), SERVICE,
        "For how long the oldest ready entry has waited.", join="max",
    ),
    Metric("penstock_queue_locks", "gauge", ("queue",), SERVICE, "Holders that lock a queue."),
    Metric("penstock_workers", "gauge", ("state",), SERVICE, "Workers by state: alive, stopping, lost."),
    Metric(
        "penstock_schedule_next_timestamp_seconds", "gauge", ("schedule",), SERVICE,
        "When a schedule fires next; a time in the past means that no worker fires it.", join="min",
    ),
    Metric("penstock_circuit_state", "gauge", ("circuit", "state"), SERVICE, "1 for the state a circuit is in."),
    Metric("penstock_log_lag", "gauge", ("log", "group"), SERVICE, "Records that a group is behind."),
    Metric(
        "penstock_stream_records_total", "counter", _COMPUTATION, STREAM, "Records that computations have processed."
    ),
    Metric("penstock_stream_produced_total", "counter", _COMPUTATION, STREAM, "Records that they have produced."),
    Metric("penstock_stream_timers_total", "counter", _COMPUTATION, STREAM, "Timers that have fired."),
    Metric("penstock_stream_checkpoints_total", "counter", _COMPUTATION, STREAM, "Checkpoints that were committed."),
    Metric("penstock_stream_failures_total", "counter", _COMPUTATION, STREAM, "Attempts that failed."),
    Metric(
        "penstock_stream_skipped_total", "counter", _COMPUTATION, STREAM,
        "Records and timers that were given up after their last attempt, and are dead letters.",
    ),
    Metric(
        "penstock_stream_restarts_total", "counter", _COMPUTATION, STREAM,
        "How often an instance began again after a failure.",
    ),
    Metric(
        "penstock_stream_instances", "gauge", (*_COMPUTATION, "state"), STREAM,
        "Instances by state: starting, running, restarting, failed, stopped.",
    ),
    Metric(
        "penstock_stream_lag", "gauge", _COMPUTATION, STREAM, "Records that a computation is behind, over its inputs.",
        join="max",
    ),
    Metric(
        "penstock_stream_dead_letters", "gauge", _COMPUTATION, STREAM, "Records in the log of its dead letters.",
        join="max",
    ),
    Metric(
        "penstock_stream_watermark_timestamp_seconds", "gauge", _COMPUTATION, STREAM,
        "The low watermark of a computation, as far as this process runs it; one without a watermark has no value.",
        join="min",
    ),
    Metric("penstock_spark_queries", "gauge", (), SPARK, "Streaming queries that run now."),
    Metric("penstock_spark_batches_total", "counter", ("query",), SPARK, "Micro-batches that have ended."),
    Metric("penstock_spark_rows_total", "counter", ("query",), SPARK, "Rows that micro-batches have read."),
    Metric(
        "penstock_spark_batch_seconds", "histogram", ("query",), SPARK, "How long micro-batches took.", RUN_BOUNDS
    ),
    Metric(
        "penstock_spark_behind", "gauge", ("query",), SPARK,
        "Records of our logs, or rows of our queues, that a query had still to read after its last micro-batch.",
    ),
    Metric(
        "penstock_spark_watermark_timestamp_seconds", "gauge", ("query",), SPARK,
        "The watermark of a query; a query without one has no value.", join="min",
    ),
    Metric("penstock_spark_failures_total", "counter", ("query", "error"), SPARK, "Queries that ended with an error."),
    Metric("penstock_signals_total", "counter", ("store", "kind"), SERVICE, "What happened through this process."),
)  # fmt: skip

METRICS = {metric.name: metric for metric in _ALL}


def table() -> str:
    """The catalog as a table of Markdown."""
    rows = ["| metric | type | labels | exported by | meaning |", "|---|---|---|---|---|"]
    exporters = {WORKER: "workers", SERVICE: "the service", BOTH: "both", STREAM: "topologies", SPARK: "`QueryMetrics`"}
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {exporters[metric.source]} | {metric.meaning} |")
    return "\n".join(rows) + "\n"
