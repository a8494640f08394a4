"""Durable queues, logs and stream computations for Python.

Done once: a :class:`Queue`, opened with :func:`open_queues`, worked on by a :class:`Worker`.
"""

from penstock.bus import Bus
from penstock.clock import FakeClock, FileClock, SystemClock
from penstock.errors import (
    BadInput,
    CannotOpen,
    Conflict,
    EntryLeased,
    EntryNotFound,
    LeaseLost,
    MissingExtra,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
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
from penstock.opening import open_queues
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
    "BadInput",
    "Batch",
    "Bus",
    "CannotOpen",
    "Conflict",
    "Context",
    "Counts",
    "Entry",
    "EntryLeased",
    "EntryNotFound",
    "FakeClock",
    "FileClock",
    "Handler",
    "HistoryRow",
    "Lease",
    "LeaseLost",
    "Lock",
    "MissingExtra",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PenstockError",
    "Queue",
    "QueueStore",
    "Rate",
    "Reaper",
    "Reject",
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
    "open_queues",
]
