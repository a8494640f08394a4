"""Appending to logs in memory, and staging records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import AppenderTaken
from penstock.ids import new_nonce
from penstock.log.drivers.memory.state import MemoryPartition, MemoryState
from penstock.log.drivers.shared.errors import producer_fenced, sequence_too_old
from penstock.log.protocol import Sink, Stage, Staged
from penstock.log.record import NewRecords
from penstock.log.settings import LogSettings

if TYPE_CHECKING:
    from penstock.log.drivers.memory.driver import MemoryDriver

REMEMBERED = 5  # sequences of a producer whose offsets are remembered


class MemorySink(Sink):
    """Appends under the driver's lock."""

    def __init__(self, driver: MemoryDriver, settings: LogSettings, exclusive: bool, producer: str | None) -> None:
        """Count as an open appender of the log."""
        self._driver = driver
        self._settings = settings
        self._exclusive = exclusive
        self._producer = producer
        self._epoch = 0
        with driver.locked() as state:
            log = state.logs[settings.name]
            if log.exclusive is not None or (exclusive and log.appenders):
                raise AppenderTaken(
                    f"log {settings.name} has another appender.", hint="Close it, or do without exclusive=True."
                )
            log.appenders += 1
            log.exclusive = driver if exclusive else None
            if producer is not None:
                self._epoch = state.producers[producer] = state.producers.get(producer, 0) + 1

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append records to partitions."""
        driver = self._driver
        with driver.locked() as state:
            if self._producer is not None and state.producers[self._producer] != self._epoch:
                raise producer_fenced(self._producer)
            log = state.logs[self._settings.name]
            now = driver.now()
            spans: list[Sequence[int]] = []
            for index, records in parts:
                partition = log.partitions[index]
                span = self._earlier_offsets(partition, sequence)
                if span is None:
                    span = partition.add(records, now)
                    if sequence is not None and self._producer is not None:
                        sequences = partition.producers.setdefault(self._producer, [])
                        sequences.append((sequence, span))
                        del sequences[:-REMEMBERED]
                spans.append(span)
            state.ring()
            return spans

    def _earlier_offsets(self, partition: MemoryPartition, sequence: int | None) -> range | None:
        """The offsets of a sequence that was appended before, or None for a new one."""
        if sequence is None or self._producer is None:
            return None
        sequences = partition.producers.get(self._producer, [])
        if not sequences or sequence > sequences[-1][0]:
            return None
        for earlier, span in sequences:
            if earlier == sequence:
                return span
        raise sequence_too_old(self._producer, sequence, sequences[-1][0])

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence of this producer in a partition."""
        if self._producer is None:
            return super().last_sequence(partition)
        with self._driver.locked() as state:
            sequences = state.logs[self._settings.name].partitions[partition].producers.get(self._producer)
            return sequences[-1][0] if sequences else None

    def close(self) -> None:
        """Stop counting as an open appender."""
        with self._driver.state.bell:
            log = self._driver.state.logs.get(self._settings.name)
            if log is not None:
                log.appenders -= 1
                if self._exclusive:
                    log.exclusive = None


class MemoryStage(Stage):
    """Staged records in a list."""

    def __init__(self, state: MemoryState, settings: LogSettings) -> None:
        """With nothing in it."""
        self._state = state
        self._log = settings.name
        self._parts: list[tuple[int, NewRecords]] = []

    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        """Add records."""
        self._parts += parts

    def close(self) -> Staged:
        """Hand the records to the state under a new name."""
        path = new_nonce()
        with self._state.bell:
            self._state.staged[path] = self._parts
        counts: dict[int, int] = {}
        for index, records in self._parts:
            counts[index] = counts.get(index, 0) + len(records)
        return Staged(path, self._log, counts)

    def discard(self) -> None:
        """Drop the records."""
        self._parts = []
