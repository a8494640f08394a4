"""Durable queues, logs and stream computations for Python.

Done once: a ``Queue``, opened with ``open_queues``, worked on by a ``Worker``.
Read many times: a ``Log``, opened with ``open_logs``, written by an ``Appender``, read by a ``Tailer``.

What only some programs need has a module of its own: ``penstock.errors``, ``penstock.log`` (pools, offsets, retention),
``penstock.breaker``, ``penstock.stream``, ``penstock.spark``, ``penstock.aio``, ``penstock.testing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.importing import names_on_demand
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.breaker.breaker import Breaker
    from penstock.bus import Bus
    from penstock.declared import Queues
    from penstock.log.appender import Appender
    from penstock.log.log import Log
    from penstock.log.record import Record
    from penstock.log.store import LogStore
    from penstock.log.tailer import Tailer
    from penstock.log.transaction import Transaction
    from penstock.opening import open_logs, open_queues
    from penstock.policy import Rate, Reject, Retry, Snooze, TryAgain
    from penstock.queue.batch import Batch
    from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock, Unique
    from penstock.queue.handling.context import Context
    from penstock.queue.handling.handler import Handler
    from penstock.queue.protocol import Finding, PutResult, Schedule, Subscription
    from penstock.queue.queue import Queue
    from penstock.queue.queues import QueueStore
    from penstock.queue.results import Progress, Result
    from penstock.queue.task import Task
    from penstock.queue.unit import UnitOfWork
    from penstock.queue.worker import Worker
    from penstock.queue.worker.maintenance import Reaper
    from penstock.signals import Signal, Signals
    from penstock.versions import versioned

__version__ = VERSION

__all__ = [
    "Appender",
    "Batch",
    "Breaker",
    "Bus",
    "Context",
    "Counts",
    "Entry",
    "Finding",
    "Handler",
    "HistoryRow",
    "Lease",
    "Lock",
    "Log",
    "LogStore",
    "PenstockError",
    "Progress",
    "PutResult",
    "Queue",
    "QueueStore",
    "Queues",
    "Rate",
    "Reaper",
    "Record",
    "Reject",
    "Result",
    "Retry",
    "Schedule",
    "Signal",
    "Signals",
    "Snooze",
    "Subscription",
    "Tailer",
    "Task",
    "Transaction",
    "TryAgain",
    "Unique",
    "UnitOfWork",
    "Worker",
    "open_logs",
    "open_queues",
    "versioned",
]

# A process that only reads a log does not wait for workers and breakers to be imported.
__getattr__, __dir__ = names_on_demand(
    __name__,
    __all__,
    {
        "penstock.breaker.breaker": "Breaker",
        "penstock.bus": "Bus",
        "penstock.declared": "Queues",
        "penstock.log.appender": "Appender",
        "penstock.log.log": "Log",
        "penstock.log.record": "Record",
        "penstock.log.store": "LogStore",
        "penstock.log.tailer": "Tailer",
        "penstock.log.transaction": "Transaction",
        "penstock.opening": "open_logs open_queues",
        "penstock.policy": "Rate Reject Retry Snooze TryAgain",
        "penstock.queue.batch": "Batch",
        "penstock.queue.entry": "Counts Entry HistoryRow Lease Lock Unique",
        "penstock.queue.handling.context": "Context",
        "penstock.queue.handling.handler": "Handler",
        "penstock.queue.protocol": "Finding PutResult Schedule Subscription",
        "penstock.queue.queue": "Queue",
        "penstock.queue.queues": "QueueStore",
        "penstock.queue.results": "Progress Result",
        "penstock.queue.task": "Task",
        "penstock.queue.unit": "UnitOfWork",
        "penstock.queue.worker": "Worker",
        "penstock.queue.worker.maintenance": "Reaper",
        "penstock.signals": "Signal Signals",
        "penstock.versions": "versioned",
    },
)
