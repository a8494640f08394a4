"""Where Spark calls in: errands come as rows, what was done goes back as rows.

Arrow is imported by who needs it: Spark loads this module in a process at the start of every query, and in the daemon
that forks its workers, where nothing may start threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle, ValueState

from penstock.spark.running.buckets import Buckets, Kept
from penstock.spark.running.sending import Load, unpack_load
from penstock.spark.running.tickets import errand_of, pack
from penstock.spark.running.turn import Turn

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = "done BINARY NOT NULL"
MOST = 2_000_000  # entries of state that a worker keeps in memory between turns

_turns: OrderedDict[tuple[str, str, int], Turn] = OrderedDict()


def perform(load: Load, row: bytes, kept: Kept | None) -> bytes:
    """Do one errand."""
    errand = errand_of(row)
    task = errand.job.task
    place = (load.url, load.name, task)
    turn = _turns.pop(place, None)
    if turn is not None and not _is_same(turn, load, kept):
        turn.abandon()
        turn = None
    if turn is None:
        turn = Turn(load, task)
    done = turn.run(errand, kept)
    if done.error is None:
        _turns[place] = turn
        _make_room()
    return pack(done)


def _is_same(turn: Turn, load: Load, kept: Kept | None) -> bool:
    """Whether a kept task is as the state store has it."""
    if turn.load.id != load.id or not turn.tasks:
        return False
    return kept is None or (turn.buckets is not None and turn.buckets.mark == Buckets.mark_of(kept))


def _make_room() -> None:
    total = sum(len(one.buckets) for one in _turns.values() if one.buckets is not None)
    while total > MOST and len(_turns) > 1:
        _, gone = _turns.popitem(last=False)
        total -= 0 if gone.buckets is None else len(gone.buckets)
        gone.abandon()


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
