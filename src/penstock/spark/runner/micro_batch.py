"""What driver and tasks send each other: a micro-batch with a plan for each task, and the results."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.log.protocol import Staged
from penstock.log.record import Partition
from penstock.stream.engine.watermark import LOWEST, Promise, Reach, SilentInput


class PostponedRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record that failed and will be tried again, after a pause that the driver waits for."""

    log: str
    offset: int
    attempts: int
    error: str
    pause_us: Micros = 0


class TaskTime(msgspec.Struct):
    """How far event time is in a task, as its last batch left it."""

    low: Micros
    highs: dict[str, Micros]  # by the computation's own names of its inputs
    heard: dict[str, Micros]  # when each input had a record last


class StateVersion(msgspec.Struct, array_like=True, frozen=True):
    """The state of a task after a committed batch: the result it comes from, and the end of the state log then."""

    result: str
    end: int


@prepared
class TaskPlan(msgspec.Struct):
    """One task's part of a micro-batch."""

    index: int
    ranges: dict[str, tuple[int, int]] = {}  # by log: from, to before
    positions: dict[str, int] = {}  # where all its inputs are before the batch
    retry: PostponedRecord | None = None
    time: TaskTime | None = None  # None: not known yet, the state log says it
    reached: Micros = LOWEST  # how far the task was by its reports, before the driver began
    firm: Micros = LOWEST  # what was promised before
    # By the computation's own names of its inputs: how far the writers had come, before the range and at its end.
    reaches: dict[str, tuple[Reach, Reach]] = {}
    silent: dict[str, SilentInput] = {}  # inputs that are read to their ends, where nothing comes
    versions: list[StateVersion] = []  # of the state, as far as the driver remembers; the last one is current

    @property
    def position(self) -> tuple[Partition, int] | None:
        """Where it begins: in the first input with records."""
        starts = [(Partition(log, self.index), start) for log, (start, _) in self.ranges.items()]
        starts += [(Partition(log, self.index), start) for log, start in self.positions.items()]
        return starts[0] if starts else None


@prepared
class MicroBatch(msgspec.Struct):
    """One batch of a computation, as it is written down before it runs. Everything a repetition needs is in it."""

    epoch: int = 0  # of the driver
    sequence: int = 0
    now: Micros = 0
    tasks: list[TaskPlan] = []
    finish: bool | None = None  # the input has ended: True also for event time
    skipped: int = 0  # failures passed over so far
    inputs: dict[str, str] = {}  # which logs the ranges are of: their identities


class Part(msgspec.Struct, array_like=True):
    """Records for one partition, small enough to come with the result."""

    log: str
    partition: int
    values: list[bytes]
    keys: list[bytes | None] | None = None
    times: list[Micros] | None = None
    headers: list[dict[str, Any] | None] | None = None


@prepared
class TaskResult(msgspec.Struct):
    """The result of a task's part."""

    index: int
    id: str  # unique, even if the same task runs twice
    path: str  # how it was computed: fold or code
    positions: dict[str, int] = {}
    parts: list[Part] = []
    staged: list[Staged] = []
    records: int = 0
    produced: int = 0
    timers: int = 0
    failures: int = 0
    skipped: int = 0
    low: Micros = LOWEST
    highs: dict[str, Micros] = {}
    heard: dict[str, Micros] = {}
    firm: Micros = LOWEST
    promise: Promise = Promise()
    next_event: Micros | None = None
    next_processing: Micros | None = None
    state_needed_from: int | None = None  # everything before it in the state log can be deleted
    retry: PostponedRecord | None = None
    error: str | None = None
    finished: bool = False  # with the end of the input


_BATCH = msgspec.msgpack.Decoder(MicroBatch)
_RESULT = msgspec.msgpack.Decoder(TaskResult)


def encoded(message: MicroBatch | TaskResult) -> bytes:
    """Encode it, for the log or for Spark."""
    return msgspec.msgpack.encode(message)


def decoded_batch(payload: bytes) -> MicroBatch:
    """Decode a batch."""
    return _BATCH.decode(payload)


def decoded_result(payload: bytes) -> TaskResult:
    """Decode a result."""
    return _RESULT.decode(payload)
