"""Staging on Kafka: records wait in a topic of ours until one process takes them over in its transaction.

A Kafka transaction belongs to one producer, so what many processes write has to go through the one that commits. They
write it in large chunks to a topic that is kept for a day; the committer reads the chunks and appends their records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from penstock.errors import Conflict, StoreUnavailable
from penstock.ids import new_nonce
from penstock.log.drivers.kafka.cluster import STAGED, Cluster, fetched
from penstock.log.drivers.kafka.sink import Delivery, Outlet
from penstock.log.protocol import LogSettings, Stage, Staged
from penstock.log.record import Headers, NewRecords, Partition, key_bytes

PARTITIONS = 4
KEPT = {"retention.ms": str(24 * 3600 * 1000), "cleanup.policy": "delete"}
CHUNK = 512 * 1024  # bytes of values in one message, unless one record has more


class Chunk(msgspec.Struct, array_like=True):
    """Some records for one partition."""

    partition: int
    values: list[bytes]
    keys: list[bytes | None] | None
    times: list[int] | None
    headers: list[dict[str, Any] | None] | None


class KafkaStage(Stage):
    """Chunks in one partition of the topic, told apart from others' by their key."""

    def __init__(self, outlet: Outlet, settings: LogSettings) -> None:
        """Make the topic if nobody has."""
        self._outlet = outlet
        self._topic = outlet.cluster.topic(STAGED)
        outlet.cluster.make_topic(self._topic, PARTITIONS, KEPT)
        self._log = settings.name
        self._nonce = new_nonce()
        self._partition = int(self._nonce, 16) % PARTITIONS
        self._counts: dict[int, int] = {}
        self._sent: list[Delivery] = []

    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        """Send chunks; they are waited for at the end."""
        for partition, records in parts:
            self._counts[partition] = self._counts.get(partition, 0) + len(records)
            for chunk in _chunks(partition, records):
                delivery = Delivery(1)
                self._outlet._one(
                    self._topic, value=msgspec.msgpack.encode(chunk), key=self._nonce.encode(),
                    partition=self._partition, on_delivery=delivery,
                )  # fmt: skip
                self._sent.append(delivery)

    def close(self) -> Staged:
        """Wait until the brokers have it."""
        offsets = [one[0] for one in self._outlet.wait(self._sent)]
        first, last = (min(offsets), max(offsets)) if offsets else (0, -1)
        path = f"{self._nonce} {self._partition} {first} {last} {len(offsets)}"
        return Staged(path, self._log, self._counts)

    def discard(self) -> None:
        """What nobody commits goes by itself, after a day."""


def staged_records(cluster: Cluster, staged: Staged) -> Iterator[tuple[Partition, NewRecords]]:
    """What a process staged, chunk by chunk, in its order."""
    nonce, place, end, left = _read_path(cluster, staged)
    if not left:
        return
    consumer = cluster.consumer("penstock-reader")
    try:
        with cluster.errors():
            consumer.assign([place])
        deadline = time.monotonic() + cluster.timeout
        while left:
            with cluster.errors():
                messages = fetched(consumer, 100, 0.1)
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        continue
                    if error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise gone(staged)
                    raise cluster.translated(KafkaException(error))
                deadline = time.monotonic() + cluster.timeout
                if message.offset() > end:
                    raise gone(staged)
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
                raise StoreUnavailable(f"{cluster.name}: staged records do not arrive.", hint="Look at the brokers.")
    finally:
        consumer.close()


def take(outlet: Outlet, staged: Staged) -> None:
    """Say that these are taken (or thrown away), so that nobody commits them once more.

    Not needed, and not done, where a producer's sequence says the same: an open transaction in this topic would keep
    all its readers waiting.
    """
    nonce, place, _, _ = _read_path(outlet.cluster, staged)
    delivery = Delivery(1)
    outlet._one(place.topic, value=b"", key=nonce.encode(), partition=place.partition, on_delivery=delivery)
    outlet.wait([delivery])


def check_free(cluster: Cluster, staged: Staged) -> None:
    """Raise if somebody has taken these."""
    nonce, place, end, _ = _read_path(cluster, staged)
    consumer = cluster.consumer("penstock-reader")
    try:
        with cluster.errors():
            consumer.assign([Place(place.topic, place.partition, end + 1)])
            while True:
                for message in fetched(consumer, 500, 0.5):
                    error = message.error()
                    if error is None and (message.key() or b"").decode() == nonce:
                        raise gone(staged)
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        return
    finally:
        consumer.close()


def _read_path(cluster: Cluster, staged: Staged) -> tuple[str, Place, int, int]:
    """The key of its chunks, where the first one is, the offset of the last one, and how many there are."""
    nonce, partition, first, last, count = staged.path.split()
    return nonce, Place(cluster.topic(STAGED), int(partition), int(first)), int(last), int(count)


def gone(staged: Staged) -> Conflict:
    """The error for what is not there to be committed."""
    return Conflict(f"what was staged for {staged.log} is gone.", hint="Was it committed already? Stage it again.")


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
        None if headers is None else [_headers(one) for one in headers[begin:end]],
    )


def _headers(headers: Headers | None) -> dict[str, Any] | None:
    return dict(headers) if headers else None
