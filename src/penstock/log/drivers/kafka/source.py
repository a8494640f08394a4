"""KafkaSource: reading from Kafka for a group; what fixed and subscribed partitions share."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from penstock.errors import PenstockError
from penstock.log.driver import LogDriver
from penstock.log.drivers.kafka.batch import KafkaBatch
from penstock.log.drivers.kafka.cluster import Cluster, poll_messages
from penstock.log.drivers.shared.errors import fenced
from penstock.log.protocol import OutOfRange, Source
from penstock.log.record import Bounds, Partition, RecordBatch

READ_AHEAD = 1000  # messages taken from the client in advance, so that partitions take turns
POLL_SECONDS = 0.05  # one wait for the client, after which the source checks whether it was woken
GRACE = 5.0  # seconds to wait for records that are on the broker, even if the caller does not wait

_REBALANCING = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION)


def is_rebalancing(error: BaseException | None) -> bool:
    """Whether offsets were refused only because members come or go; the group still knows the one that sent them."""
    first = error.args[0] if isinstance(error, KafkaException) else None
    return isinstance(first, KafkaError) and first.code() in _REBALANCING


class KafkaSource(Source):
    """Positions, polling, seeking and committing. How partitions are owned is up to the subclasses."""

    def __init__(
        self, driver: LogDriver, cluster: Cluster, group: str, out_of_range: OutOfRange, consumer: Consumer
    ) -> None:
        """Own nothing yet."""
        self.driver = driver
        self.group = group
        self.consumer = consumer
        self._cluster = cluster
        self._out_of_range = out_of_range
        self._positions: dict[Partition, int] = {}
        self._seeks: dict[Partition, int] = {}
        self._ahead: dict[Partition, list[Any]] = {}  # messages that were received and not returned yet
        self._ends: dict[Partition, int] = {}  # where the client reported the end of a partition
        self._first = 0  # which partition comes first in the next poll
        self._woken = threading.Event()
        self._closed = False
        self._in_callback = False  # the client is reporting a change of the assignment
        self._failure: BaseException | None = None  # raised by the next poll that has no records to return first
        self._reassigned = False  # the assignment changed since messages were last received

    # --- the contract ------------------------------------------------------------------------------

    def assignment(self) -> list[Partition]:
        """The partitions it owns now."""
        return sorted(self._positions)

    def poll(self, limit: int, seconds: float) -> list[RecordBatch]:
        """Return what was received; wait for the first record if there is none."""
        deadline = time.monotonic() + seconds
        grace_ends: float | None = None
        while True:
            self._prepare_poll()
            self._apply_seeks()
            left = deadline - time.monotonic()
            batches = self._fetch(limit, min(max(left, 0.0 if grace_ends is None else POLL_SECONDS), POLL_SECONDS))
            if batches or self._woken.is_set():
                return batches
            now = time.monotonic()
            if now >= deadline:
                # The client fetches in the background; records that are on the broker must be returned.
                if grace_ends is None:
                    grace_ends = now + GRACE
                if now >= grace_ends or not self._is_behind():
                    return []

    def position(self, partition: Partition) -> int:
        """The next offset to read."""
        return self._positions[partition]

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue there with the next poll."""
        if partition in self._positions:
            self._positions[partition] = offset
            self._seeks[partition] = offset
            self._drop_ahead(partition)

    def _drop_ahead(self, partition: Partition) -> None:
        self._ahead.pop(partition, None)
        self._ends.pop(partition, None)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store the offsets for the group."""
        kafka_offsets = [self._cluster.kafka_partition(partition, offset) for partition, offset in offsets.items()]
        deadline = time.monotonic() + GRACE
        while kafka_offsets:
            self.check_owned(offsets)
            error = self._commit_once(kafka_offsets)
            if error is None:
                return
            # The group is rebalancing. Afterwards, the partitions that are still ours can be committed.
            if error.code() not in _REBALANCING or time.monotonic() > deadline or self._in_callback:
                raise self._cluster.translated(KafkaException(error))
            self._receive(poll_messages(self.consumer, 1, POLL_SECONDS))

    def _commit_once(self, kafka_offsets: list[Any]) -> KafkaError | None:
        """Commit. Returns the error, if any."""
        try:
            results = self.consumer.commit(offsets=kafka_offsets, asynchronous=False)
        except KafkaException as error:
            return error.args[0]
        return next((result.error for result in results or () if result.error is not None), None)

    def check_owned(self, offsets: Mapping[Partition, int]) -> None:
        """Raise ``Fenced`` for a partition that this source no longer owns."""
        for partition in offsets:
            if partition not in self._positions:
                raise fenced(partition, self.group)

    def wake(self) -> None:
        """End a poll."""
        self._woken.set()

    def close(self) -> None:
        """Give the partitions back."""
        if not self._closed:
            self._closed = True
            try:
                self._leave()
            finally:
                self._positions.clear()
                self.consumer.close()

    # --- inside ------------------------------------------------------------------------------------

    @abstractmethod
    def _prepare_poll(self) -> None:
        """Check or complete the assignment before messages are received."""

    @abstractmethod
    def _leave(self) -> None:
        """Give the partitions back before the consumer is closed."""

    def _start_positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The group's committed offsets, or the first records.

        The consumer asks for them, as its connections are known to work when partitions are assigned.
        """
        if not partitions:
            return {}
        kafka_partitions = [self._cluster.kafka_partition(partition) for partition in partitions]
        seconds = self._cluster.timeout * 2
        starts: dict[Partition, int] = {}

        def ask() -> bool:
            """Return False while a transaction with offsets of the group is being ended."""
            for answer in self.consumer.committed(kafka_partitions, seconds):
                if answer.error is not None:
                    if answer.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
                        return False
                    raise KafkaException(answer.error)
                offset = answer.offset
                if offset < 0:
                    offset = self.consumer.get_watermark_offsets(answer, seconds)[0]
                starts[self._cluster.partition(answer.topic, answer.partition)] = offset
            return True

        self._cluster.until(ask, f"a transaction holds offsets of group {self.group}")
        return starts

    def _apply_seeks(self) -> None:
        deadline = time.monotonic() + GRACE
        while self._seeks:
            partition, offset = next(iter(self._seeks.items()))
            try:
                self.consumer.seek(self._cluster.kafka_partition(partition, offset))
            except KafkaException as error:
                # The client cannot seek yet in a partition that was assigned a moment ago.
                if time.monotonic() > deadline:
                    raise self._cluster.translated(error) from error
                self._receive(poll_messages(self.consumer, 1, 0.01))
            else:
                self._seeks.pop(partition, None)

    def _fetch(self, limit: int, seconds: float) -> list[RecordBatch]:
        """Receive messages and return some of each partition; the client would return one partition after the other."""
        self._raise_failure()
        waiting = sum(map(len, self._ahead.values()))
        with self._cluster.errors():
            # Poll even if enough messages are waiting, as the client reports changes of the group in a poll.
            messages = poll_messages(self.consumer, max(1, READ_AHEAD - waiting), 0.0 if waiting else seconds)
        # The client returns a message only once, so those that came with an error are returned before it is raised.
        self._receive(messages)
        batches = self._next_batches(limit)
        if not batches:
            self._raise_failure()
        return batches

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _receive(self, messages: Sequence[Any]) -> None:
        """Sort messages by partition."""
        reassigned, self._reassigned = self._reassigned, False
        if len(self._positions) == 1 and not self._seeks and not reassigned:
            [only] = self._positions
            good = [message for message in messages if message.error() is None]
            if good:
                self._ahead.setdefault(only, []).extend(good)
            if len(good) == len(messages):
                return
            messages = [message for message in messages if message.error() is not None]
        for message in messages:
            error = message.error()
            if error is not None:
                try:
                    self._handle_error(message, error)
                except PenstockError as failure:
                    self._failure = self._failure or failure
                continue
            partition = self._cluster.partition(message.topic(), message.partition())
            if partition in self._positions and partition not in self._seeks:
                self._ahead.setdefault(partition, []).append(message)

    def _next_batches(self, limit: int) -> list[RecordBatch]:
        ready = sorted(self._ahead)
        if not ready:
            self._skip_markers()
            return []
        self._first += 1
        first = self._first % len(ready)
        ready = ready[first:] + ready[:first]
        share = max(1, limit // len(ready))
        batches: list[RecordBatch] = []
        for amount in (share, limit):
            for partition in ready:
                waiting = self._ahead.get(partition)
                count = min(amount, limit, len(waiting or ()))
                if not waiting or count < 1:
                    continue
                fresh, self._ahead[partition] = waiting[:count], waiting[count:]
                if not self._ahead[partition]:
                    del self._ahead[partition]
                if fresh[0].offset() < self._positions[partition]:
                    fresh = [message for message in fresh if message.offset() >= self._positions[partition]]
                if fresh:
                    self._positions[partition] = fresh[-1].offset() + 1
                    batches.append(KafkaBatch(partition, fresh))
                    limit -= len(fresh)
        self._skip_markers()
        return batches

    def _skip_markers(self) -> None:
        """Move past transaction markers after the last record of a partition; they have offsets too."""
        for partition, end in list(self._ends.items()):
            if partition not in self._ahead and partition not in self._seeks and partition in self._positions:
                self._positions[partition] = max(self._positions[partition], end)
                del self._ends[partition]

    def _handle_error(self, message: Any, error: KafkaError) -> None:
        """Note the end of a partition, or raise."""
        if error.code() in (KafkaError._MAX_POLL_EXCEEDED, KafkaError._ALL_BROKERS_DOWN):
            return  # the client also reports the loss of the partitions; and brokers may come back
        if message.topic() is None:
            raise self._cluster.translated(KafkaException(error))
        partition = self._cluster.partition(message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            if partition in self._positions and partition not in self._seeks:
                self._ends[partition] = message.offset()
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._handle_out_of_range(partition)
        else:
            raise self._cluster.translated(KafkaException(error))

    def _handle_out_of_range(self, partition: Partition) -> None:
        position = self._positions.get(partition)
        if position is None:
            return
        kafka_partition = self._cluster.kafka_partition(partition)
        [start], [end] = self._cluster.ends([kafka_partition], start=True), self._cluster.ends([kafka_partition])
        if start <= position <= end:
            self._seeks[partition] = position
            return
        if self._out_of_range == "error":
            self._seeks[partition] = position  # so that the next poll raises again
            raise self.driver.out_of_range(partition, position, Bounds(partition.index, start, end))
        target = start if self._out_of_range == "earliest" else end
        self.driver.signals.tell(
            "skipped", partition.log, (), self.driver.now(), group=self.group, partition=partition.index,
            offset=target, records=max(0, target - position),
        )  # fmt: skip
        self._positions[partition] = self._seeks[partition] = target

    def _is_behind(self) -> bool:
        """Whether a partition has records that were not received yet."""
        partitions = list(self._positions)
        if not partitions:
            return False
        ends = self._cluster.ends([self._cluster.kafka_partition(partition) for partition in partitions])
        return any(self._positions.get(partition, end) < end for partition, end in zip(partitions, ends, strict=True))
