"""Short ways to ask a log store, for the tests of this suite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from penstock.clock import Clock, FakeClock
from penstock.log.record import Partition, Record
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer

PATIENCE = 20.0  # seconds to wait for another thread before a test gives up


class OpenLogs(Protocol):
    """Opens another handle on the same underlying store: what a store author provides as the fixture ``open_logs``."""

    def __call__(self, *, clock: Clock | None = None) -> LogStore:
        """The clock is the fixture ``clock`` unless given."""


class LogContract:
    """What every test class of the suite has: the fixture ``store``; ``open_logs`` and ``clock`` are the author's."""

    @pytest.fixture
    def store(self, open_logs: OpenLogs, clock: FakeClock) -> LogStore:
        """The store under test."""
        return open_logs()


def needs(store: LogStore, capability: str) -> None:
    """Skip what a store declares not to offer; that it refuses is tested elsewhere."""
    if not getattr(store.capabilities, capability):
        pytest.skip(f"{store.name} declares {capability}=False")


def filled(store: LogStore, name: str = "log", partitions: int = 1, count: int = 10) -> str:
    """A log with the numbers 0.. dealt out over its partitions."""
    store.create(name, partitions=partitions)
    with store.appender(name) as out:
        for number in range(count):
            out.append(number, partition=number % partitions)
    return name


def values(records: list[Record[Any]]) -> list[Any]:
    """The values of records."""
    return [record.value for record in records]


def read_all(tailer: Tailer[Any], count: int | None = None, *, limit: int = 1000) -> list[Record[Any]]:
    """Read until there is nothing more, or until ``count`` records came; fails if they do not come in time."""
    found: list[Record[Any]] = []
    deadline = time.monotonic() + PATIENCE
    while count is None or len(found) < count:
        got = tailer.read(limit, timeout="200ms" if count is None else "1s")
        found += got
        if count is None and not got:
            break
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came in time"
    return found


def stored(store: LogStore, name: str = "log", partition: int = 0) -> list[Any]:
    """What a partition holds, without a group."""
    return [record.value for record in store.log(name).records(partition)]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    """Wait for another thread's doing."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        never.wait(0.002)


def parts(name: str, *numbers: int) -> list[Partition]:
    """Partitions of a log."""
    return [Partition(name, number) for number in numbers]
