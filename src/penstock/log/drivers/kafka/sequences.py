"""SequenceIndex: the last sequences of producers and transactions, in a compacted topic, to recognise repeats.

A sequence is written in the same transaction as its records: both are there, or neither.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError, TopicPartition

from penstock.errors import StoreUnavailable
from penstock.log.drivers.kafka.cluster import SEQUENCES, Cluster, encoded, poll_messages

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


def read_topic(cluster: Cluster, topic: str) -> dict[str, bytes]:
    """The last value of every key of a small compacted topic."""
    partition = TopicPartition(topic, 0, 0)
    [end], [start] = cluster.ends([partition]), cluster.ends([partition], start=True)
    values: dict[str, bytes] = {}
    if end <= start:
        return values
    consumer = cluster.consumer("penstock-reader")
    try:
        with cluster.errors():
            consumer.assign([TopicPartition(topic, 0, start)])
            deadline = time.monotonic() + cluster.timeout * 3
            while True:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"{cluster.name}: {topic} does not answer.", hint="Check the brokers.")
                for message in poll_messages(consumer, 500, 0.5):
                    error = message.error()
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            return values
                        continue
                    if message.value() is None:
                        values.pop(message.key().decode(), None)
                    else:
                        values[message.key().decode()] = message.value()
    finally:
        consumer.close()


class SequenceIndex:
    """The sequences that were stored when the index was opened."""

    def __init__(self, cluster: Cluster) -> None:
        """Create the topic if needed, and read it."""
        self._topic = cluster.topic(SEQUENCES)
        cluster.create_topic(self._topic, 1, COMPACTED)
        self._values = read_topic(cluster, self._topic)

    def sequences(self, producer: str, log: str, partition: int) -> dict[int, Sequence[int]]:
        """A producer's last sequences in a partition, and their offsets."""
        data = self._values.get(f"append {producer} {log} {partition}")
        return {} if data is None else msgspec.json.decode(data, type=dict[int, list[int]])

    def write_sequences(
        self, producer: Any, name: str, log: str, partition: int, sequences: dict[int, Sequence[int]]
    ) -> None:
        """Store them, in the transaction under way."""
        self._write(producer, f"append {name} {log} {partition}", sequences)

    def transaction(self, name: str) -> int | None:
        """The highest sequence of a producer's transactions."""
        data = self._values.get(f"transaction {name}")
        return None if data is None else msgspec.json.decode(data, type=int)

    def write_transaction(self, producer: Any, name: str, sequence: int) -> None:
        """Store it, in the transaction under way."""
        self._write(producer, f"transaction {name}", sequence)
        self._values[f"transaction {name}"] = encoded(sequence)

    def _write(self, producer: Any, key: str, value: Any) -> None:
        producer.produce(self._topic, value=encoded(value), key=key.encode(), partition=0)
