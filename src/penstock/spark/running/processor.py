"""Where Spark calls in: errands come as rows, what was done goes back as rows.

Arrow is imported by who needs it: Spark loads this module in a process at the start of every query, and in the daemon
that forks its workers, where nothing may start threads.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle, ValueState

from penstock.errors import Conflict
from penstock.log.record import Partition
from penstock.spark.running.buckets import Buckets, Kept
from penstock.spark.running.folding import Folder, folder_for
from penstock.spark.running.sending import Load, unpack_load
from penstock.spark.running.tickets import Done, Job, errand_of, pack
from penstock.spark.running.turn import Turn
from penstock.spark.stores import logs_at

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

COLUMNS = "done BINARY NOT NULL"
MOST = 2_000_000  # entries of state that a worker keeps in memory between turns

_turns: OrderedDict[tuple[str, str, int], Turn | Folder] = OrderedDict()


def perform(load: Load, row: bytes, kept: Kept | None) -> bytes:
    """Do one errand, with what is left here of the task's last turn if that is what the state store has."""
    errand = errand_of(row)
    task = errand.job.task
    if kept is not None:
        _go_on(load, errand.job, Buckets.offsets_of(kept))
    place = (load.url, load.name, task)
    found = _turns.pop(place, None)
    if found is not None and (found.load.id != load.id or not found.is_current(kept)):
        found.abandon()
        found = None
    folds = folder_for(load.topology.nodes[load.name].computation)
    if folds is not None and errand.job.again is None and not isinstance(found, Turn):
        folder = found or folds(load, task)
        try:
            return _keep(place, folder, folder.run(errand, kept))
        except Exception:
            # Something is wrong with a record: record by record it comes to light, and to its policy.
            logger.debug("%s is not folded in turn %s", load.name, errand.turn, exc_info=True)
            folder.abandon()
    turn = found if isinstance(found, Turn) else Turn(load, task)
    done = turn.run(errand, kept)
    if done.error is None and (done.failures or folds is None):
        return _keep(place, turn, done)
    turn.abandon()  # the next turn is folded again, if it can be
    return pack(done)


def _go_on(load: Load, job: Job, seen: Mapping[str, int]) -> None:
    """Leave out what the state has seen: a group may be behind it that was forgotten (Kafka does so) or set back."""
    for log, (start, stop) in job.ranges.items():
        at = seen.get(log, 0)
        if start < at:
            place = Partition(log, job.task)
            end = logs_at(load.url).bounds_of(place).end
            if end < at:
                raise Conflict(
                    f"the state of {load.name} has seen {place} up to {at}, and it ends at {end}: it was made anew.",
                    hint=f"Begin anew with reset({load.name!r}).",
                )
            job.ranges[log] = (at, max(at, stop))


def _keep(place: tuple[str, str, int], turn: Turn | Folder, done: Done) -> bytes:
    """Leave a task here for its next turn; those that were not used for longest make room."""
    _turns[place] = turn
    total = sum(map(len, _turns.values()))
    while total > MOST and len(_turns) > 1:
        _, gone = _turns.popitem(last=False)
        total -= len(gone)
        gone.abandon()
    return pack(done)


class StateStore:
    """Spark's state store, for one task."""

    def __init__(self, head: ValueState, buckets: MapState) -> None:
        """The variables of the processor."""
        self._head = head
        self._buckets = buckets

    def head(self) -> bytes | None:
        """What is known of the task itself."""
        found = self._head.get()
        return None if found is None else bytes(found[0])

    def put_head(self, blob: bytes) -> None:
        """Keep it."""
        self._head.update((blob,))

    def bucket(self, number: int) -> bytes | None:
        """One bucket."""
        found = self._buckets.getValue((number,))
        return None if found is None else bytes(found[0])

    def put_bucket(self, number: int, blob: bytes) -> None:
        """Keep it."""
        self._buckets.updateValue((number,), (blob,))


class Keeping(StatefulProcessor):
    """Errands of tasks that keep something; a group is a task."""

    def __init__(self, load: bytes) -> None:
        """What is sent to the workers."""
        self._load = load

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare what is kept."""
        self._state = StateStore(
            handle.getValueState("head", "blob BINARY"), handle.getMapState("buckets", "bucket INT", "blob BINARY")
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """The errand of a task."""
        for row in rows:
            yield Row(done=perform(unpack_load(self._load), bytes(row.errand), self._state))

    def close(self) -> None:
        """The tasks stay, for their next turns."""


class Passing:
    """Errands of tasks that keep nothing; for ``mapInArrow``."""

    def __init__(self, load: bytes) -> None:
        """What is sent to the workers."""
        self._load = load

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The errands of a Spark task."""
        import pyarrow as pa

        columns = pa.schema([pa.field("done", pa.binary(), nullable=False)])
        for batch in batches:
            for row in batch.column("errand").to_pylist():
                done = pa.array([perform(unpack_load(self._load), row, None)], pa.binary())
                yield pa.RecordBatch.from_arrays([done], schema=columns)
