"""TransactionalProducers: a pool of producers, one for each transaction that is under way.

A transaction without a producer name takes any free one, so that threads do not wait for each other; a stale reader is
fenced by its consumer group, not by the producer. A transaction with a name always takes the same producer, one
transaction at a time, and Kafka fences the process that used the name before.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from penstock.errors import Closed
from penstock.ids import new_nonce
from penstock.log.drivers.kafka.cluster import Cluster
from penstock.log.drivers.kafka.producer import KafkaProducer
from penstock.log.drivers.kafka.sequences import SequenceIndex


class TransactionalProducers:
    """The free producers, and those with names."""

    def __init__(self, cluster: Cluster) -> None:
        """Empty; producers are opened when they are needed, and stay open."""
        self._cluster = cluster
        self._lock = threading.Lock()
        self._free: list[KafkaProducer] = []
        self._named: dict[str, tuple[KafkaProducer, SequenceIndex]] = {}
        self._name_locks: dict[str, threading.Lock] = {}
        self._closed = False

    @contextlib.contextmanager
    def any(self) -> Iterator[KafkaProducer]:
        """A free producer for one transaction. After a failure its state is not known, so it is not used again."""
        with self._lock:
            self._check_open()
            producer = self._free.pop() if self._free else None
        if producer is None:
            producer = self._open(new_nonce())
        yield producer
        with self._lock:
            if not self._closed:
                self._free.append(producer)
                return
        producer.close()

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[tuple[KafkaProducer, SequenceIndex]]:
        """The producer of a name, and its sequences. After a failure, the next transaction opens a new one."""
        with self._lock_of(name):
            with self._lock:
                self._check_open()
                known = self._named.get(name)
            if known is None:
                known = self._named[name] = (self._open(name), SequenceIndex(self._cluster))
            try:
                yield known
            except BaseException:
                self._named.pop(name, None)
                raise

    def close(self) -> None:
        """Close the producers; one that is in use is closed after its transaction."""
        with self._lock:
            self._closed = True
            producers = [*self._free, *(producer for producer, _ in self._named.values())]
            self._free = []
        for producer in producers:
            producer.close()

    def _open(self, name: str) -> KafkaProducer:
        return KafkaProducer(self._cluster, f"{self._cluster.prefix}transaction-{name}")

    def _lock_of(self, name: str) -> threading.Lock:
        with self._lock:
            return self._name_locks.setdefault(name, threading.Lock())

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._cluster.name} was closed.", hint="Open it again.")
