"""Durable queues, logs and stream computations for Python.

Done once: a ``Queue``, opened with ``open_queues``, worked on by a ``Worker``.
Read many times: a ``Log``, opened with ``open_logs``, written by an ``Appender``, read by a
``Tailer``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AppenderTaken,
    BadInput,
    CannotOpen,
    CircuitNotFound,
    Closed,
    ComputationFailed,
    Conflict,
    EntryLeased,
    EntryNotFound,
    Fenced,
    HandlerDied,
    HandlerTimeout,
    LeaseLost,
    LogNotFound,
    MissingExtra,
    NotAllowed,
    NotOpen,
    OffsetOutOfRange,
    OutcomeUnknown,
    PartitionNotFound,
    PartitionTaken,
    PayloadTooLarge,
    PayloadTooNew,
    PenstockError,
    PenstockWarning,
    ProducerFenced,
    RecordCorrupt,
    ScheduleChanged,
    SchemaMismatch,
    StoreCorrupt,
    StoreForbidden,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    Undecodable,
    UniqueHeld,
    UnitNotCommitted,
    UnitTooLarge,
    UnknownScheme,
    Unsupported,
    WrongType,
)
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.breaker.breaker import Breaker
    from penstock.breaker.settings import BreakerConfig, BreakerSettings, Override
    from penstock.bus import Bus
    from penstock.clock import FakeClock, FileClock, SystemClock
    from penstock.declared import Queues
    from penstock.log.appender import Appender
    from penstock.log.log import Log
    from penstock.log.pool import ConsumerPolicy, ConsumerPool, Each, Together
    from penstock.log.producers import Message, ProducerPool
    from penstock.log.protocol import LogSettings, Retention
    from penstock.log.record import Bounds, Lag, Latency, Offset, Partition, Record
    from penstock.log.store import LogStore
    from penstock.log.tailer import Tailer
    from penstock.log.transaction import Transaction
    from penstock.opening import open_logs, open_queues
    from penstock.policy import Rate, Reject, Retry, Snooze, TryAgain
    from penstock.queue.batch import Batch
    from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock, Unique
    from penstock.queue.handling.context import Context
    from penstock.queue.handling.handler import Handler
    from penstock.queue.protocol import Finding, PutResult, Schedule
    from penstock.queue.queue import Queue
    from penstock.queue.queues import QueueStore
    from penstock.queue.results import Progress, Result
    from penstock.queue.unit import UnitOfWork
    from penstock.queue.worker import Worker
    from penstock.queue.worker.maintenance import Reaper
    from penstock.signals import Signal, Signals
    from penstock.versions import versioned

__version__ = VERSION

__all__ = [
    "Appender",
    "AppenderTaken",
    "BadInput",
    "Batch",
    "Bounds",
    "Breaker",
    "BreakerConfig",
    "BreakerSettings",
    "Bus",
    "CannotOpen",
    "CircuitNotFound",
    "Closed",
    "ComputationFailed",
    "Conflict",
    "ConsumerPolicy",
    "ConsumerPool",
    "Context",
    "Counts",
    "Each",
    "Entry",
    "EntryLeased",
    "EntryNotFound",
    "FakeClock",
    "Fenced",
    "FileClock",
    "Finding",
    "Handler",
    "HandlerDied",
    "HandlerTimeout",
    "HistoryRow",
    "Lag",
    "Latency",
    "Lease",
    "LeaseLost",
    "Lock",
    "Log",
    "LogNotFound",
    "LogSettings",
    "LogStore",
    "Message",
    "MissingExtra",
    "NotAllowed",
    "NotOpen",
    "Offset",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Override",
    "Partition",
    "PartitionNotFound",
    "PartitionTaken",
    "PayloadTooLarge",
    "PayloadTooNew",
    "PenstockError",
    "PenstockWarning",
    "ProducerFenced",
    "ProducerPool",
    "Progress",
    "PutResult",
    "Queue",
    "QueueStore",
    "Queues",
    "Rate",
    "Reaper",
    "Record",
    "RecordCorrupt",
    "Reject",
    "Result",
    "Retention",
    "Retry",
    "Schedule",
    "ScheduleChanged",
    "SchemaMismatch",
    "Signal",
    "Signals",
    "Snooze",
    "StoreCorrupt",
    "StoreForbidden",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "SystemClock",
    "Tailer",
    "Together",
    "Transaction",
    "TryAgain",
    "Undecodable",
    "Unique",
    "UniqueHeld",
    "UnitNotCommitted",
    "UnitOfWork",
    "UnitTooLarge",
    "UnknownScheme",
    "Unsupported",
    "Worker",
    "WrongType",
    "open_logs",
    "open_queues",
    "versioned",
]

# Imported when somebody asks for them: a process that only reads a log does not wait for workers and breakers.
_HOMES = {
    "penstock.breaker.breaker": "Breaker",
    "penstock.breaker.settings": "BreakerConfig BreakerSettings Override",
    "penstock.bus": "Bus",
    "penstock.declared": "Queues",
    "penstock.clock": "FakeClock FileClock SystemClock",
    "penstock.log.appender": "Appender",
    "penstock.log.log": "Log",
    "penstock.log.pool": "ConsumerPolicy ConsumerPool Each Together",
    "penstock.log.producers": "Message ProducerPool",
    "penstock.log.record": "Bounds Lag Latency Offset Partition Record",
    "penstock.log.store": "LogSettings LogStore Retention",
    "penstock.log.tailer": "Tailer",
    "penstock.log.transaction": "Transaction",
    "penstock.opening": "open_logs open_queues",
    "penstock.policy": "Rate Reject Retry Snooze TryAgain",
    "penstock.queue.batch": "Batch",
    "penstock.queue.entry": "Counts Entry HistoryRow Lease Lock Unique",
    "penstock.queue.handling.context": "Context",
    "penstock.queue.handling.handler": "Handler",
    "penstock.queue.protocol": "Finding PutResult Schedule",
    "penstock.queue.queue": "Queue",
    "penstock.queue.worker.maintenance": "Reaper",
    "penstock.queue.queues": "QueueStore",
    "penstock.queue.results": "Progress Result",
    "penstock.queue.unit": "UnitOfWork",
    "penstock.queue.worker": "Worker",
    "penstock.signals": "Signal Signals",
    "penstock.versions": "versioned",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    """What is public."""
    return __all__
