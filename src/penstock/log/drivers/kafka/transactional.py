"""The transactional producers of a store: each transaction has one to itself while it runs.

Without a producer's name any free one will do, so that transactions of several threads do not wait for each other; what
shuts out a stale reader is its consumer group, not the producer. With a name it is always the same one, and its
transactions come one after the other: Kafka shuts out whoever had the name before.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from penstock.errors import Closed
from penstock.ids import new_nonce
from penstock.log.drivers.kafka.cluster import Cluster
from penstock.log.drivers.kafka.sequences import Marks
from penstock.log.drivers.kafka.sink import Outlet


class Outlets:
    """Those that are free, and those that have names."""

    def __init__(self, cluster: Cluster) -> None:
        """None yet: they are made when they are needed, and stay."""
        self._cluster = cluster
        self._lock = threading.Lock()
        self._free: list[Outlet] = []
        self._named: dict[str, tuple[Outlet, Marks]] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._closed = False

    @contextlib.contextmanager
    def any(self) -> Iterator[Outlet]:
        """A free one, for one transaction; after a failure its state is not known, and it is not used again."""
        with self._lock:
            self._check_open()
            outlet = self._free.pop() if self._free else None
        if outlet is None:
            outlet = self._make(new_nonce())
        yield outlet
        with self._lock:
            if not self._closed:
                self._free.append(outlet)
                return
        outlet.close()

    @contextlib.contextmanager
    def named(self, producer: str) -> Iterator[tuple[Outlet, Marks]]:
        """That of a producer, with what it has done before; after a failure the next one begins afresh."""
        with self._turn(producer):
            with self._lock:
                self._check_open()
                known = self._named.get(producer)
            if known is None:
                known = self._named[producer] = (self._make(producer), Marks(self._cluster))
            try:
                yield known
            except BaseException:
                self._named.pop(producer, None)
                raise

    def close(self) -> None:
        """Send what is left; those at work are closed when they are done."""
        with self._lock:
            self._closed = True
            outlets = [*self._free, *(outlet for outlet, _ in self._named.values())]
            self._free = []
        for outlet in outlets:
            outlet.close()

    def _make(self, name: str) -> Outlet:
        return Outlet(self._cluster, f"{self._cluster.prefix}transaction-{name}")

    def _turn(self, producer: str) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(producer, threading.Lock())

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._cluster.name} was closed.", hint="Open it again.")
