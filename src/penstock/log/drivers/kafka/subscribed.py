"""SubscribedSource: partitions that Kafka's own group protocol assigns, over all processes and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer

from penstock.log.driver import LogDriver
from penstock.log.drivers.kafka.cluster import CONSUMING, Cluster
from penstock.log.drivers.kafka.source import KafkaSource
from penstock.log.group import Listener
from penstock.log.protocol import OutOfRange
from penstock.log.record import Partition

SHORTEST_SESSION = 6_000  # milliseconds; brokers refuse shorter ones by default
SESSION = 10_000  # milliseconds after which the brokers give up on a silent member


class SubscribedSource(KafkaSource):
    """Partitions that follow the group's members."""

    def __init__(
        self,
        driver: LogDriver,
        cluster: Cluster,
        logs: Sequence[str],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> None:
        """Subscribe; the source joins the group with its first poll."""
        millis = max(1, int(max_poll.total_seconds() * 1000))
        given = cluster.options(CONSUMING)
        options: dict[str, Any] = {"max_poll_interval_ms": millis}
        if given.get("group.protocol") != "consumer":
            # Brokers refuse short sessions, and the client refuses a session that is longer than max.poll.interval.ms.
            session = int(given.get("session.timeout.ms", min(SESSION, max(millis, SHORTEST_SESSION))))
            options["max_poll_interval_ms"] = max(millis, session)
            options |= {
                "session_timeout_ms": session, "heartbeat_interval_ms": max(1, session // 4),
                "partition_assignment_strategy": "cooperative-sticky",
            }  # fmt: skip
        super().__init__(driver, cluster, group, out_of_range, cluster.consumer(group, **options))
        self._listener: Listener | None = listener
        self._without_start: set[Partition] = set()  # assigned, but the offset to begin at is not known yet
        with cluster.errors():
            self.consumer.subscribe(
                [cluster.topic(log) for log in logs], on_assign=self._assigned, on_revoke=self._revoked,
                on_lost=self._lost,
            )  # fmt: skip

    def _assigned(self, consumer: Consumer, kafka_partitions: Sequence[Any]) -> None:
        partitions = [self._cluster.partition(named.topic, named.partition) for named in kafka_partitions]
        self._reassigned = True
        try:
            starts = self._start_positions(partitions)
            consumer.incremental_assign(self._with_offsets(starts))
        except BaseException as error:  # the client would only print it
            self._without_start.update(partitions)
            self._failure = error
        else:
            self._begin(starts)

    def _with_offsets(self, starts: Mapping[Partition, int]) -> list[Any]:
        return [self._cluster.kafka_partition(partition, offset) for partition, offset in starts.items()]

    def _prepare_poll(self) -> None:
        """Begin with the partitions whose offsets could not be read when they were assigned."""
        if self._without_start:
            starts = self._start_positions(sorted(self._without_start))
            with self._cluster.errors():
                # The client may have assigned them by itself, without an offset.
                wanted = {(self._cluster.topic(partition.log), partition.index) for partition in starts}
                current = self.consumer.assignment()
                assigned = [partition for partition in current if (partition.topic, partition.partition) in wanted]
                if assigned:
                    self.consumer.incremental_unassign(assigned)
                self.consumer.incremental_assign(self._with_offsets(starts))
            self._without_start.clear()
            self._reassigned = True
            self._begin(starts)
            self._raise_failure()

    def _begin(self, starts: Mapping[Partition, int]) -> None:
        self._positions.update(starts)
        try:
            if starts and self._listener is not None and self._listener.on_assigned is not None:
                self._listener.on_assigned(sorted(starts))
        except BaseException as error:
            self._failure = error

    def _revoked(self, consumer: Consumer, kafka_partitions: Sequence[Any]) -> None:
        self._disown(kafka_partitions, None if self._listener is None else self._listener.on_revoked)
        consumer.incremental_unassign(list(kafka_partitions))

    def _lost(self, consumer: Consumer, kafka_partitions: Sequence[Any]) -> None:
        self._disown(kafka_partitions, None if self._listener is None else self._listener.on_lost)
        consumer.incremental_unassign(list(kafka_partitions))

    def _disown(self, kafka_partitions: Sequence[Any], callback: Any) -> None:
        named = [self._cluster.partition(given.topic, given.partition) for given in kafka_partitions]
        partitions = sorted(partition for partition in named if partition in self._positions)
        self._without_start.difference_update(named)
        self._reassigned = True
        self._in_callback = True
        try:
            if partitions and callback is not None:
                callback(partitions)
        except BaseException as error:
            self._failure = error
        finally:
            self._in_callback = False
            for partition in partitions:
                self._positions.pop(partition, None)
                self._seeks.pop(partition, None)
                self._drop_ahead(partition)

    def _leave(self) -> None:
        listener, self._listener = self._listener, None
        owned = sorted(self._positions)
        if owned and listener is not None and listener.on_revoked is not None:
            listener.on_revoked(owned)
