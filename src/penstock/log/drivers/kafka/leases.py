"""Leases: which tailer of this process reads which partition for a group. Kafka itself does not check that."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

from penstock.log.drivers.kafka.cluster import Cluster
from penstock.log.drivers.shared.errors import read_by_another
from penstock.log.record import Partition


class Leases:
    """The leases of one process."""

    def __init__(self) -> None:
        """None are held."""
        self._lock = threading.Lock()
        self._held: dict[tuple[Any, ...], tuple[int, float, float]] = {}  # owner, last heartbeat, max_poll
        self._ids = itertools.count(1)

    def take(self, keys: Sequence[tuple[Any, ...]], max_poll: float) -> int:
        """Take all of them. Returns the owner's number. Raises ``PartitionTaken`` if a live tailer holds one."""
        now = time.monotonic()
        with self._lock:
            for key in keys:
                if self.is_held(key):
                    raise read_by_another(key[-1], key[-2])
            owner = next(self._ids)
            self._held.update(dict.fromkeys(keys, (owner, now, max_poll)))
            return owner

    def beat(self, keys: Sequence[tuple[Any, ...]], owner: int) -> bool:
        """Record a heartbeat of the owner. Returns False if another tailer has taken over."""
        now = time.monotonic()
        with self._lock:
            for key in keys:
                if self._held.get(key, (0, 0, 0))[0] != owner:
                    return False
            for key in keys:
                self._held[key] = (owner, now, self._held[key][2])
            return True

    def is_held(self, key: tuple[Any, ...]) -> bool:
        """Whether a live tailer reads it."""
        held = self._held.get(key)
        return held is not None and time.monotonic() - held[1] <= held[2]

    def has_reader(self, *group: str) -> bool:
        """Whether a group has a live tailer; ``group`` is a key without the partition."""
        return any(key[:-1] == group and self.is_held(key) for key in list(self._held))

    def release(self, keys: Sequence[tuple[Any, ...]], owner: int) -> None:
        """Release the owner's leases."""
        with self._lock:
            for key in keys:
                if self._held.get(key, (0, 0, 0))[0] == owner:
                    del self._held[key]


LEASES = Leases()


def lease_key(cluster: Cluster, group: str, partition: Partition) -> tuple[Any, ...]:
    """The key of a lease."""
    return (cluster.servers, cluster.prefix, group, partition)
