"""Appends to Kafka: through one idempotent producer that appenders share, or in transactions of a named producer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.clock import Micros
from penstock.log.drivers.kafka.cluster import Cluster
from penstock.log.drivers.kafka.producer import KafkaProducer, run_transaction
from penstock.log.drivers.kafka.sequences import SequenceIndex
from penstock.log.drivers.shared.errors import sequence_too_old
from penstock.log.protocol import Sink
from penstock.log.record import NewRecords
from penstock.log.settings import LogSettings

REMEMBERED = 5  # sequences of a producer whose offsets are remembered


class SharedSink(Sink):
    """Appends without a producer name."""

    def __init__(self, kafka: KafkaProducer, settings: LogSettings, now: Callable[[], Micros | None]) -> None:
        """``now`` returns the time of a fake clock."""
        self._kafka = kafka
        self._topic = kafka.cluster.topic(settings.name)
        self._now = now

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append records to partitions."""
        now = self._now()
        return self._kafka.wait([self._kafka.append(self._topic, index, records, now) for index, records in parts])

    def close(self) -> None:
        """The producer is shared."""


class NamedSink(Sink):
    """Appends of a named producer: each is a transaction that also stores its sequence."""

    def __init__(
        self, cluster: Cluster, settings: LogSettings, producer: str, now: Callable[[], Micros | None]
    ) -> None:
        """Fence the producer that had the name before, then read its sequences."""
        self._cluster = cluster
        self._id = f"{cluster.prefix}producer-{producer}-{settings.name}"
        self._kafka = KafkaProducer(cluster, self._id)
        self._index = SequenceIndex(cluster)
        self._log = settings.name
        self._topic = cluster.topic(settings.name)
        self._producer = producer
        self._now = now
        self._lock = threading.Lock()
        self._is_unsure = False  # it is not known whether the last transaction was committed
        self._pending: dict[int, dict[int, Sequence[int]]] = {}  # the sequences if it was
        self._partitions = settings.partitions
        self._sequences = self._stored_sequences()

    def _stored_sequences(self) -> dict[int, dict[int, Sequence[int]]]:
        return {index: self._index.sequences(self._producer, self._log, index) for index in range(self._partitions)}

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append records to partitions, unless this sequence has appended them before."""
        with self._lock:
            self._resolve_last()
            earlier = {index: self._earlier_offsets(index, sequence) for index, _ in parts}
            new = [(index, records) for index, records in parts if earlier[index] is None]
            offsets: dict[int, Sequence[int]] = {index: span for index, span in earlier.items() if span is not None}
            if new:
                try:
                    appended = run_transaction(self._kafka, lambda: self._write(new, sequence))
                except BaseException:
                    self._is_unsure = True
                    raise
                for (index, _), span in zip(new, appended, strict=True):
                    offsets[index] = span
                    if sequence is not None:
                        self._sequences[index] = _with(self._sequences[index], sequence, span)
                partitions = [(self._topic, index) for index, _ in new]
                self._cluster.wait_visible(dict(zip(partitions, appended, strict=True)))
            return [offsets[index] for index, _ in parts]

    def _resolve_last(self) -> None:
        """After a failure: end the open transaction, and find out whether it was committed."""
        if self._is_unsure:
            ended = self._kafka.end_unfinished() if self._kafka.is_unfinished else "aborted"
            if ended == "committed":
                self._sequences.update(self._pending)
                newest = {(self._topic, index): spans[max(spans)] for index, spans in self._pending.items()}
                self._cluster.wait_visible(newest)
            elif ended == "lost":
                self._kafka = KafkaProducer(self._cluster, self._id)
                self._index = SequenceIndex(self._cluster)
                self._sequences = self._stored_sequences()
            self._is_unsure = False

    def _write(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None) -> list[Sequence[int]]:
        now = self._now()
        appended = self._kafka.wait([self._kafka.append(self._topic, index, records, now) for index, records in parts])
        self._pending = {}
        if sequence is not None:
            for (index, _), span in zip(parts, appended, strict=True):
                self._pending[index] = sequences = _with(self._sequences[index], sequence, span)
                self._index.write_sequences(self._kafka.producer, self._producer, self._log, index, sequences)
        return appended

    def _earlier_offsets(self, index: int, sequence: int | None) -> Sequence[int] | None:
        """The offsets of a sequence that was appended before, or None for a new one."""
        sequences = self._sequences[index]
        if sequence is None or not sequences or sequence > max(sequences):
            return None
        if sequence not in sequences:
            raise sequence_too_old(self._producer, sequence, max(sequences))
        return sequences[sequence]

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence in a partition."""
        with self._lock:
            self._resolve_last()
            return max(self._sequences[partition], default=None)

    def close(self) -> None:
        """Close the producer."""
        self._kafka.close()


def _with(sequences: dict[int, Sequence[int]], sequence: int, offsets: Sequence[int]) -> dict[int, Sequence[int]]:
    """A producer's last sequences and their offsets, with a new one."""
    return dict(sorted({**sequences, sequence: offsets}.items())[-REMEMBERED:])
