"""The records an engine was fed and has not processed yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.clock import duration
from penstock.log.record import Partition
from penstock.policy import Batching
from penstock.stream.engine.checkpoint import InputBatch


class InputQueue:
    """Batches that wait, in order; for a computation that takes batches, those that wait for more records too."""

    def __init__(self, batch: Batching | None) -> None:
        """``batch`` is how a computation wants its records together."""
        self.waiting: deque[InputBatch] = deque()
        self.linger = 0.0 if batch is None else duration(batch.linger).total_seconds()
        self._size = None if batch is None else batch.size
        self.filling: dict[tuple[int, str], tuple[float, InputBatch]] = {}  # since when they wait

    def fill(self, batch: InputBatch) -> None:
        """Add records to the batch that waits for more."""
        place = (batch.task.index, batch.stream)
        since, filling = self.filling.get(place, (time.monotonic(), batch))
        if filling is not batch:
            filling.extend(batch)
        self.filling[place] = (since, filling)

    def take_filled(self, *, hurried: bool) -> None:
        """Move batches that are full, or have waited long enough, to those that wait to be processed."""
        if self._size is None or not self.filling:
            return
        size = self._size
        now = time.monotonic()
        for place, (begun, batch) in list(self.filling.items()):
            del self.filling[place]
            whole = len(batch.records) // size * size
            self.waiting.extend(batch.cut(start, start + size) for start in range(0, whole, size))
            rest, since = batch.cut(whole), now if whole else begun
            if rest.records and (hurried or now - since >= self.linger):
                self.waiting.append(rest)
            elif rest.records:
                self.filling[place] = (since, rest)

    def put_back(self, batches: Sequence[InputBatch]) -> None:
        """Put batches back at the front."""
        self.waiting.extendleft(batch for batch in reversed(batches) if batch.records)

    def drop(self, tasks: Collection[int]) -> None:
        """Forget what belongs to these tasks."""
        self.waiting = deque(batch for batch in self.waiting if batch.task.index not in tasks)
        self.filling = {place: filling for place, filling in self.filling.items() if place[0] not in tasks}

    def clear(self) -> None:
        """Forget everything."""
        self.waiting.clear()
        self.filling.clear()

    def first_offsets(self, read_to: Mapping[Partition, int]) -> dict[Partition, int]:
        """For each partition, the offset of the first waiting record, or the next offset to read."""
        offsets = dict(read_to)
        batches: Iterable[InputBatch] = self.waiting
        if self.filling:  # they come after those that wait
            batches = (*self.waiting, *(batch for _, batch in self.filling.values()))
        seen: set[Partition] = set()
        for batch in batches:
            if batch.partition not in seen and batch.partition in offsets:
                seen.add(batch.partition)
                offsets[batch.partition] = batch.records[0].offset
        return offsets
