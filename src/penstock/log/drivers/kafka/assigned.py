"""AssignedSource: fixed partitions; one open tailer per group and partition within this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from penstock.log.driver import LogDriver
from penstock.log.drivers.kafka.cluster import Cluster
from penstock.log.drivers.kafka.leases import LEASES, lease_key
from penstock.log.drivers.kafka.source import KafkaSource
from penstock.log.drivers.shared.errors import fenced, fenced_while_silent
from penstock.log.protocol import OutOfRange
from penstock.log.record import Partition


class AssignedSource(KafkaSource):
    """Exactly these partitions."""

    def __init__(
        self,
        driver: LogDriver,
        cluster: Cluster,
        partitions: Sequence[Partition],
        group: str,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> None:
        """Take all of them, or raise ``PartitionTaken``."""
        self._keys = [lease_key(cluster, group, partition) for partition in partitions]
        owner = self._owner = LEASES.take(self._keys, max_poll.total_seconds())
        try:
            super().__init__(driver, cluster, group, out_of_range, cluster.consumer(group))
            self._positions = self._start_positions(partitions)
            with cluster.errors():
                self.consumer.assign(
                    [cluster.kafka_partition(partition, offset) for partition, offset in self._positions.items()]
                )
        except BaseException:
            LEASES.release(self._keys, owner)
            raise

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store the offsets, unless another tailer took over while this one was silent."""
        self.check_owned(offsets)
        super().commit(offsets)

    def check_owned(self, offsets: Mapping[Partition, int]) -> None:
        """Raise ``Fenced`` if another tailer took over."""
        super().check_owned(offsets)
        if not LEASES.beat(self._keys, self._owner):
            raise fenced(next(iter(offsets)), self.group)

    def _prepare_poll(self) -> None:
        if not LEASES.beat(self._keys, self._owner):
            raise fenced_while_silent("partitions", self.group)

    def _leave(self) -> None:
        LEASES.release(self._keys, self._owner)
