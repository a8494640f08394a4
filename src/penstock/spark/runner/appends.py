"""What a task has to append: small parts go with its result, large ones are written aside."""

from __future__ import annotations

from penstock.log.protocol import Stage, Staged
from penstock.log.record import NewRecords, Partition, key_bytes
from penstock.log.store import LogStore
from penstock.spark.runner.micro_batch import Part
from penstock.stream.engine.checkpoint import Appends

SMALL = 256 * 1024  # bytes of values that go with a result


class TaskAppends:
    """Collects what the checkpoints of one task append in one batch; all of it is committed with the batch, or none."""

    def __init__(self, store: LogStore) -> None:
        """Start with nothing to append."""
        self._store = store
        self._held: Appends = []
        self._size = 0
        self._stages: dict[str, Stage] = {}

    def add(self, appends: Appends) -> None:
        """Add the appends of a checkpoint."""
        self._held += appends
        self._size += sum(sum(map(len, records.values)) for _, records in appends)
        if self._size > SMALL:
            held, self._held = self._held, []
            for partition, records in held:
                self._stage(partition, records)

    def _stage(self, partition: Partition, records: NewRecords) -> None:
        stage = self._stages.get(partition.log)
        if stage is None:
            stage = self._stages[partition.log] = self._store.stage(partition.log)
        stage.append([(partition.index, records)])

    def close(self) -> tuple[list[Part], list[Staged]]:
        """Close. Returns the parts that go with the result, and those that were staged."""
        parts = [_part(partition, records) for partition, records in self._held]
        return parts, [stage.close() for stage in self._stages.values()]

    def discard(self) -> None:
        """Discard everything that was staged."""
        for stage in self._stages.values():
            stage.discard()


def _part(partition: Partition, records: NewRecords) -> Part:
    keys = records.keys
    return Part(
        partition.log, partition.index, list(records.values),
        None if keys is None else [None if key is None else key_bytes(key) for key in keys],
        None if records.times is None else list(records.times),
        None if records.headers is None else [dict(headers) if headers else None for headers in records.headers],
    )  # fmt: skip


def records_of(part: Part) -> NewRecords:
    """The records of a part, as a store takes them."""
    return NewRecords(part.values, part.keys, part.times, part.headers)
