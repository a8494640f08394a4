"""What the service answers, as types. A test holds them against its OpenAPI."""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from penstock.errors import Undecodable

T = TypeVar("T")
N = TypeVar("N", bound=int | str | None)


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """A payload: ``value`` where it is JSON, ``raw`` where it is not."""

    value: Any = None
    base64: str | None = msgspec.field(default=None, name="bytes")

    @property
    def raw(self) -> bytes | None:
        """The payload of a queue or log of bytes, or None if it is JSON."""
        return None if self.base64 is None else b64decode(self.base64)

    def read(self, type: type[T]) -> T:
        """The value as a type: a msgspec struct, a dataclass, a plain type."""
        try:
            return msgspec.convert(self.value, type)
        except msgspec.ValidationError as cause:
            raise Undecodable(
                f"a value is no {getattr(type, '__name__', type)}: {cause}.", hint="Read it as what was put."
            ) from cause


class Put(msgspec.Struct, frozen=True):
    """What became of a put: ``created`` is false when the id or its unique id was there already."""

    id: str
    queue: str
    created: bool


class Progress(msgspec.Struct, frozen=True):
    """How far the handler of an entry has come, as it said last."""

    done: int
    total: int | None
    text: str
    at: datetime


class Result(msgspec.Struct, frozen=True):
    """What has become of an entry; ``available``: what its handler returned is still there, as ``value``."""

    id: str
    state: str
    error: str | None
    available: bool
    value: Any = None


class Batch(msgspec.Struct, frozen=True):
    """What has become of a batch: its entry, what that still needs, and its members by state."""

    id: str
    queue: str
    state: str
    needs: int
    tally: dict[str, int]
    members: dict[str, int]


class Entry(_Content, frozen=True, kw_only=True):
    """An entry of a queue, live or a dead letter."""

    id: str
    queue: str
    state: str
    type: str
    seq: int
    priority: int
    created: datetime
    due: datetime
    attempt: int
    generation: int
    labels: dict[str, str]
    headers: dict[str, str]
    unique: str | None
    expires: datetime | None
    error: str | None
    owner: str | None
    ended: datetime | None
    traceback: str | None = None
    waits_for: list[str] = []
    progress: Progress | None = None


class Leased(Entry, frozen=True, kw_only=True):
    """An entry that this client holds until a time; the token is needed to end it."""

    token: str
    fence: int
    until: datetime


class Ended(msgspec.Struct, frozen=True):
    """What became of one outcome: ``ok``, or why it changed nothing."""

    id: str
    ok: bool
    problem: str | None = None
    detail: str | None = None


class HistoryRow(_Content, frozen=True, kw_only=True):
    """One ended attempt."""

    seq: int
    id: str
    queue: str
    generation: int
    attempt: int
    state: str
    owner: str | None
    due: datetime
    started: datetime | None
    ended: datetime
    error: str | None
    labels: dict[str, str]
    traceback: str | None = None
    gap: str | None = None  # why there is no payload


class Lock(msgspec.Struct, frozen=True):
    """One holder's lock on a queue."""

    queue: str
    holder: str
    reason: str
    since: datetime


class QueueCounts(msgspec.Struct, frozen=True):
    """What a queue holds right now."""

    queue: str
    ready: int
    delayed: int
    retrying: int
    leased: int
    dead: int
    fifo: bool
    oldest_ready: datetime | None
    locks: list[Lock]
    held: int = 0


class Page(msgspec.Struct, Generic[T, N], frozen=True):
    """A page of a list; ``next`` is the ``after`` of the next page, None at the end."""

    items: list[T]
    next: N


class Items(msgspec.Struct, Generic[T], frozen=True):
    """A list that comes as a whole."""

    items: list[T]


class Number(msgspec.Struct, frozen=True):
    """How many entries were changed."""

    count: int


class Partition(msgspec.Struct, frozen=True):
    """What a partition holds: records from ``start`` to before ``end``."""

    partition: int
    start: int
    end: int


class Log(msgspec.Struct, frozen=True):
    """A log and what its partitions hold."""

    log: str
    partitions: list[Partition]


class Place(msgspec.Struct, frozen=True):
    """Where a record was appended."""

    partition: int
    offset: int


class Record(_Content, frozen=True, kw_only=True):
    """One record of a log."""

    partition: int
    offset: int
    time: datetime
    key: str | None
    headers: dict[str, str]


class RecordPage(msgspec.Struct, frozen=True):
    """Records of one partition; ``next`` is the ``start`` of the next page, ``end`` where the partition ends now."""

    items: list[Record]
    next: int
    end: int


class GroupPartition(msgspec.Struct, frozen=True):
    """How far a group is in a partition."""

    partition: int
    committed: int | None
    end: int
    lag: int


class GroupLag(msgspec.Struct, frozen=True):
    """How far a group is in a log."""

    group: str
    lag: int
    partitions: list[GroupPartition]


class Transition(msgspec.Struct, frozen=True):
    """A change of a circuit's state."""

    at: datetime
    state: str
    why: str
    by: str
    ratio: float | None = None


class Circuit(msgspec.Struct, frozen=True):
    """A circuit of the breaker."""

    hash: str
    circuit: str
    state: str
    since: datetime
    ratio: float
    successes: int
    failures: int
    locked: list[Lock]
    locked_count: int
    transitions: list[Transition]


class Schedule(_Content, frozen=True, kw_only=True):
    """A schedule: when it fires next and what it puts then; ``next`` is None while it is paused."""

    name: str
    queue: str
    spec: str
    zone: str
    version: int
    next: datetime | None
    paused: bool
    catch_up: str
    labels: dict[str, str]
    priority: int


class Serving(msgspec.Struct, frozen=True):
    """One handler of a worker: its queue or family, how many entries it runs and how many it may."""

    queue: str
    family: bool
    busy: int
    slots: int


class Change(msgspec.Struct, frozen=True):
    """What somebody did by hand, and the state before and after it, in words."""

    at: datetime
    by: str
    did: str
    target: str
    before: str
    after: str
    why: str


class Worker(msgspec.Struct, frozen=True):
    """A worker: where it runs, since when, and what it is doing."""

    owner: str
    node: str
    pid: int
    version: str
    state: str
    started: datetime
    seen: datetime
    busy: int
    slots: int
    serving: list[Serving]


class Scale(msgspec.Struct, frozen=True):
    """What there is to do, and what is being done."""

    backlog: int
    ready: int
    leased: int
    locked: int
    wait_seconds: float


class Minute(msgspec.Struct, frozen=True):
    """What the handlers of one queue or family did in one minute."""

    minute: datetime
    queue: str
    family: bool
    done: int
    failed: int
    dead: int
    seconds: float
    durations: list[int]


class Figures(msgspec.Struct, frozen=True):
    """Ended attempts per minute; ``bounds`` are the upper ends of the classes of ``durations``, in seconds."""

    bounds: list[float]
    items: list[Minute]


class BreakerChange(msgspec.Struct, frozen=True):
    """A change of the breaker's configuration."""

    at: datetime
    by: str
    what: str
    before: Any
    after: Any


class Input(msgspec.Struct, frozen=True):
    """How far a computation is behind in one of its inputs."""

    stream: str
    lag: int


class Computation(msgspec.Struct, frozen=True):
    """A computation: what it reads and writes."""

    name: str
    concurrency: int
    inputs: list[Input]
    outputs: list[str]


class Topology(msgspec.Struct, frozen=True):
    """A topology and how far it is."""

    name: str
    computations: list[Computation]


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened through the service; ``missed`` says how many came too fast for this reader."""

    kind: str
    queue: str | None = None
    ids: list[str] | None = None
    at: datetime | None = None
    data: dict[str, Any] = {}
