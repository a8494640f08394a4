"""What producers and transactions have done, in a compacted topic, so that a repeat after a restart is recognised.

A mark is written in the same transaction as the records it speaks of: both are there, or neither.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as Place

from penstock.errors import StoreUnavailable
from penstock.log.drivers.kafka.cluster import MARKS, Cluster, fetched, packed

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


def read_topic(cluster: Cluster, topic: str) -> dict[str, bytes]:
    """The last value of every key of a small compacted topic."""
    place = Place(topic, 0, 0)
    [end], [start] = cluster.ends([place]), cluster.ends([place], start=True)
    found: dict[str, bytes] = {}
    if end <= start:
        return found
    consumer = cluster.consumer("penstock-reader")
    try:
        with cluster.errors():
            consumer.assign([Place(topic, 0, start)])
            deadline = time.monotonic() + cluster.timeout * 3
            while True:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"{cluster.name}: {topic} does not answer.", hint="Look at the brokers.")
                for message in fetched(consumer, 500, 0.5):
                    error = message.error()
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            return found
                        continue
                    if message.value() is None:
                        found.pop(message.key().decode(), None)
                    else:
                        found[message.key().decode()] = message.value()
    finally:
        consumer.close()


class Marks:
    """The book of what was done."""

    def __init__(self, cluster: Cluster) -> None:
        """Make the topic if it is not there, and read it."""
        self._topic = cluster.topic(MARKS)
        cluster.make_topic(self._topic, 1, COMPACTED)
        self._found = read_topic(cluster, self._topic)

    def sequences(self, producer: str, log: str, partition: int) -> dict[int, Sequence[int]]:
        """A producer's last sequences in a partition, and the offsets they went to."""
        data = self._found.get(f"append {producer} {log} {partition}")
        return {} if data is None else msgspec.json.decode(data, type=dict[int, list[int]])

    def write_sequences(
        self, producer: Any, name: str, log: str, partition: int, sequences: dict[int, Sequence[int]]
    ) -> None:
        """DocumentWrite them, in the transaction under way."""
        self._write(producer, f"append {name} {log} {partition}", sequences)

    def transaction(self, name: str) -> int | None:
        """The highest sequence of a producer's transactions."""
        data = self._found.get(f"transaction {name}")
        return None if data is None else msgspec.json.decode(data, type=int)

    def write_transaction(self, producer: Any, name: str, sequence: int) -> None:
        """DocumentWrite it, in the transaction under way."""
        self._write(producer, f"transaction {name}", sequence)
        self._found[f"transaction {name}"] = packed(sequence)

    def _write(self, producer: Any, key: str, value: Any) -> None:
        producer.produce(self._topic, value=packed(value), key=key.encode(), partition=0)
