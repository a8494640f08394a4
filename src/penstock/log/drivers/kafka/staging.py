"""Staging on Kafka: records wait in a topic until one process commits them in its transaction.

A Kafka transaction belongs to one producer, so the records of many processes must go through the one that commits. They
write large chunks to a topic with a retention of a day; the committer reads the chunks and appends their records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.errors import StoreUnavailable
from penstock.ids import new_nonce
from penstock.log.drivers.kafka.cluster import STAGED, Cluster, poll_messages
from penstock.log.drivers.kafka.producer import Delivery, KafkaProducer
from penstock.log.drivers.shared.errors import staged_gone
from penstock.log.protocol import Stage, Staged
from penstock.log.record import Headers, NewRecords, Partition, key_bytes
from penstock.log.settings import LogSettings

PARTITIONS = 4
TOPIC_CONFIG = {"retention.ms": str(24 * 3600 * 1000), "cleanup.policy": "delete"}
CHUNK = 512 * 1024  # bytes of values in one message, unless one record has more


class Chunk(msgspec.Struct, array_like=True):
    """Records for one partition."""

    partition: int
    values: list[bytes]
    keys: list[bytes | None] | None
    times: list[int] | None
    headers: list[dict[str, Any] | None] | None


class KafkaStage(Stage):
    """Chunks in one partition of the topic, with a key of their own."""

    def __init__(self, producer: KafkaProducer, settings: LogSettings) -> None:
        """Create the topic if needed."""
        self._producer = producer
        self._topic = producer.cluster.topic(STAGED)
        producer.cluster.create_topic(self._topic, PARTITIONS, TOPIC_CONFIG)
        self._log = settings.name
        self._nonce = new_nonce()
        self._partition = int(self._nonce, 16) % PARTITIONS
        self._counts: dict[int, int] = {}
        self._sent: list[Delivery] = []

    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        """Send chunks; :meth:`close` waits for them."""
        for partition, records in parts:
            self._counts[partition] = self._counts.get(partition, 0) + len(records)
            for chunk in _chunks(partition, records):
                delivery = Delivery(1)
                self._producer.send(
                    self._topic, value=msgspec.msgpack.encode(chunk), key=self._nonce.encode(),
                    partition=self._partition, on_delivery=delivery,
                )  # fmt: skip
                self._sent.append(delivery)

    def close(self) -> Staged:
        """Wait until the brokers have it."""
        offsets = [span[0] for span in self._producer.wait(self._sent)]
        first, last = (min(offsets), max(offsets)) if offsets else (0, -1)
        path = f"{self._nonce} {self._partition} {first} {last} {len(offsets)}"
        return Staged(path, self._log, self._counts)

    def discard(self) -> None:
        """The topic's retention removes what is not committed, after a day."""


def staged_records(cluster: Cluster, staged: Staged) -> Iterator[tuple[Partition, NewRecords]]:
    """The staged records, chunk by chunk, in order."""
    nonce, start, end, left = _read_path(cluster, staged)
    if not left:
        return
    consumer = cluster.consumer("penstock-reader")
    try:
        with cluster.errors():
            consumer.assign([start])
        deadline = time.monotonic() + cluster.timeout
        while left:
            with cluster.errors():
                messages = poll_messages(consumer, 100, 0.1)
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        continue
                    if error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise staged_gone(staged.log)
                    raise cluster.translated(KafkaException(error))
                deadline = time.monotonic() + cluster.timeout
                if message.offset() > end:
                    raise staged_gone(staged.log)
                if (message.key() or b"").decode() == nonce:
                    chunk = msgspec.msgpack.decode(message.value(), type=Chunk)
                    left -= 1
                    yield (
                        Partition(staged.log, chunk.partition),
                        NewRecords(chunk.values, chunk.keys, chunk.times, chunk.headers),
                    )
                    if not left:
                        return
            if left and time.monotonic() > deadline:
                raise StoreUnavailable(f"{cluster.name}: staged records do not arrive.", hint="Check the brokers.")
    finally:
        consumer.close()


def mark_committed(producer: KafkaProducer, staged: Staged) -> None:
    """Mark staged records, so that nobody commits them again.

    Not needed, and not done, if a producer's sequence prevents that: an open transaction in this topic would keep all
    its readers waiting.
    """
    nonce, start, _, _ = _read_path(producer.cluster, staged)
    delivery = Delivery(1)
    producer.send(start.topic, value=b"", key=nonce.encode(), partition=start.partition, on_delivery=delivery)
    producer.wait([delivery])


def check_not_committed(cluster: Cluster, staged: Staged) -> None:
    """Raise ``Conflict`` if these records were committed before."""
    nonce, start, end, _ = _read_path(cluster, staged)
    consumer = cluster.consumer("penstock-reader")
    try:
        with cluster.errors():
            consumer.assign([TopicPartition(start.topic, start.partition, end + 1)])
            while True:
                for message in poll_messages(consumer, 500, 0.5):
                    error = message.error()
                    if error is None and (message.key() or b"").decode() == nonce:
                        raise staged_gone(staged.log)
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        return
    finally:
        consumer.close()


def _read_path(cluster: Cluster, staged: Staged) -> tuple[str, TopicPartition, int, int]:
    """The key of the chunks, the place of the first, the offset of the last, and their number."""
    nonce, partition, first, last, count = staged.path.split()
    return nonce, TopicPartition(cluster.topic(STAGED), int(partition), int(first)), int(last), int(count)


def _chunks(partition: int, records: NewRecords) -> Iterator[Chunk]:
    begin = size = 0
    for rank, value in enumerate(records.values):
        if size and size + len(value) > CHUNK:
            yield _chunk(partition, records, begin, rank)
            begin, size = rank, 0
        size += len(value) + 32
    if begin < len(records):
        yield _chunk(partition, records, begin, len(records))


def _chunk(partition: int, records: NewRecords, begin: int, end: int) -> Chunk:
    keys, times, headers = records.keys, records.times, records.headers
    return Chunk(
        partition,
        list(records.values[begin:end]),
        None if keys is None else [None if key is None else key_bytes(key) for key in keys[begin:end]],
        None if times is None else list(times[begin:end]),
        None if headers is None else [_headers(own) for own in headers[begin:end]],
    )


def _headers(headers: Headers | None) -> dict[str, Any] | None:
    return dict(headers) if headers else None
