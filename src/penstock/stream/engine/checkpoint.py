"""What the engine is fed and what it gives: batches of records, and checkpoints to be committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.clock import Micros
from penstock.errors import PayloadTooLarge, Undecodable, WrongType
from penstock.log.limits import check_records
from penstock.log.record import NewRecords, Partition, Record
from penstock.stream.engine.retry import Failure, WrongState
from penstock.stream.engine.watermark import LOWEST

if TYPE_CHECKING:
    from penstock.stream.engine.task import Task

Appends = list[tuple[Partition, NewRecords]]


class InputBatch(msgspec.Struct, eq=False):
    """Records of one partition, in order: waiting, or processed since the last checkpoint."""

    task: Task
    stream: str  # the computation's own name for it
    partition: Partition
    records: list[Record[Any]]
    keys: list[Any]
    times: list[Micros]
    has_headers: bool = False
    failure: Failure | None = None  # of its only record, at the last attempt
    is_alone: bool = False  # one record of a batch that failed as a whole: wrong values are found when they are set

    def cut(self, start: int, stop: int | None = None) -> InputBatch:
        """A part of it."""
        return InputBatch(
            self.task, self.stream, self.partition, self.records[start:stop], self.keys[start:stop],
            self.times[start:stop], self.has_headers,
        )  # fmt: skip

    def extend(self, other: InputBatch) -> None:
        """Add the records that come after these."""
        self.records += other.records
        self.keys += other.keys
        self.times += other.times
        self.has_headers = self.has_headers or other.has_headers

    def isolated(self, rank: int, failure: Failure) -> list[InputBatch]:
        """The batch in three: what comes before a record, the record with its failure, and what comes after it."""
        failed = self.cut(rank, rank + 1)
        failed.failure = failure
        return [self.cut(0, rank), failed, self.cut(rank + 1)]

    def singles(self) -> list[InputBatch]:
        """Each record as a batch of its own."""
        return [self.cut(rank, rank + 1) for rank in range(len(self.records))]


class Processed(msgspec.Struct):
    """What was processed since the last checkpoint."""

    batches: list[InputBatch] = []
    records: int = 0
    since: float = 0.0  # by time.monotonic(); 0: nothing was begun


class Folded(NamedTuple):
    """Records of one input that were folded at once."""

    records: int
    stream: str  # the computation's own name for it
    newest: Micros | None  # of their event times


class Checkpoint(msgspec.Struct):
    """What has come of the work since the last checkpoint: to be committed as one transaction, all of it or nothing."""

    outputs: Appends  # to the computation's output streams
    state: Appends  # to its state log
    extras: Appends  # to its logs of dead letters and of watermark reports
    offsets: dict[Partition, int]  # of each input partition, the first record that is not processed
    watermark: Micros = LOWEST  # the least of the tasks that have one
    records: int = 0  # processed
    produced: int = 0
    ending: int | None = None  # the task whose input has ended with it
    is_empty: bool = False  # nothing to append, and no offset is another than at the last checkpoint

    def appends(self) -> Appends:
        """Everything to append, one part per partition: several tasks may write to one."""
        parts: dict[Partition, list[NewRecords]] = {}
        for partition, records in (*self.outputs, *self.state, *self.extras):
            parts.setdefault(partition, []).append(records)
        return [
            (partition, parts[partition][0] if len(parts[partition]) == 1 else concatenated(parts[partition]))
            for partition in sorted(parts)
        ]


class Counts(msgspec.Struct, kw_only=True):
    """What an instance of a computation has done so far."""

    records: int = 0
    produced: int = 0
    timers: int = 0
    checkpoints: int = 0
    failures: int = 0
    skipped: int = 0


def gathered(tasks: Iterable[Task], positions: Mapping[Partition, int], now: Micros) -> tuple[Appends, Appends]:
    """What tasks have to append since the last checkpoint: to their output streams, and to the state log."""
    outputs: Appends = []
    state: Appends = []
    for task in tasks:
        for output in task.outputs.values():
            outputs += output.take()
        if task.keeps:
            offsets = {place.log: offset for place, offset in positions.items() if place.index == task.index}
            try:
                state += task.state_records(now, offsets)
            except (WrongType, Undecodable) as error:
                raise WrongState(error) from error
    return outputs, state


def check_sizes(appends: Appends, record_limit: int) -> None:
    """Raise :class:`WrongState` for a record that is too large, such as a state that has grown."""
    try:
        for partition, records in appends:
            check_records(partition.log, records, record_limit)
    except PayloadTooLarge as error:
        raise WrongState(error) from error


def concatenated(parts: list[NewRecords]) -> NewRecords:
    """Several parts of one partition as one."""
    values: list[bytes] = []
    keys: list[Any] = []
    times: list[Micros] = []
    headers: list[Any] = []
    for part in parts:
        count = len(part)
        values += part.values
        keys += part.keys or [None] * count
        times += part.times or ()
        headers += part.headers or [None] * count
    return NewRecords(
        values,
        keys if any(key is not None for key in keys) else None,
        times or None,
        headers if any(headers) else None,
    )
