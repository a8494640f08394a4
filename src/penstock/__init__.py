"""Durable queues, logs and stream computations for Python.

Done once: a ``Queue``, opened with ``open_queues``, worked on by a ``Worker``.
Read many times: a ``Log``, opened with ``open_logs``, written by an ``Appender``, read by a
``Tailer``.
"""

from penstock.breaker.breaker import Breaker
from penstock.breaker.settings import BreakerConfig, BreakerSettings
from penstock.bus import Bus
from penstock.clock import FakeClock, FileClock, SystemClock
from penstock.errors import (
    AppenderTaken,
    BadInput,
    CannotOpen,
    CircuitNotFound,
    Closed,
    Conflict,
    EntryLeased,
    EntryNotFound,
    Fenced,
    LeaseLost,
    LogNotFound,
    MissingExtra,
    NotAllowed,
    OffsetOutOfRange,
    OutcomeUnknown,
    PartitionNotFound,
    PartitionTaken,
    PayloadTooLarge,
    PenstockError,
    ProducerFenced,
    RecordCorrupt,
    SchemaMismatch,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    Undecodable,
    UniqueHeld,
    UnitTooLarge,
    UnknownScheme,
    Unsupported,
    WrongType,
)
from penstock.log.appender import Appender
from penstock.log.log import Log
from penstock.log.pool import ConsumerPolicy, ConsumerPool, Each, Together
from penstock.log.producers import Message, ProducerPool
from penstock.log.record import Bounds, Lag, Latency, Offset, Partition, Record
from penstock.log.store import LogSettings, LogStore, Retention
from penstock.log.tailer import Tailer
from penstock.log.transaction import Transaction
from penstock.opening import open_logs, open_queues
from penstock.policy import Batch, Rate, Reject, Retry, Snooze, TryAgain
from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock, Unique
from penstock.queue.handler import Context, Handler
from penstock.queue.queue import Queue
from penstock.queue.reaper import Reaper
from penstock.queue.store import QueueStore
from penstock.queue.unit import UnitOfWork
from penstock.queue.worker import Worker
from penstock.signals import Signal, Signals

__version__ = "0.1.0"

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
    "Handler",
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
    "Offset",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Partition",
    "PartitionNotFound",
    "PartitionTaken",
    "PayloadTooLarge",
    "PenstockError",
    "ProducerFenced",
    "ProducerPool",
    "Queue",
    "QueueStore",
    "Rate",
    "Reaper",
    "Record",
    "RecordCorrupt",
    "Reject",
    "Retention",
    "Retry",
    "SchemaMismatch",
    "Signal",
    "Signals",
    "Snooze",
    "StoreCorrupt",
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
    "UnitOfWork",
    "UnitTooLarge",
    "UnknownScheme",
    "Unsupported",
    "Worker",
    "WrongType",
    "open_logs",
    "open_queues",
]
