"""Entry, its states and its lease: what a queue holds and what a worker holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from penstock.clock import Duration, Micros, duration, duration_micros, from_micros
from penstock.codec import Codec
from penstock.errors import BadInput, Undecodable
from penstock.names import text_bytes

T = TypeVar("T")
R = TypeVar("R", "Entry[Any]", "HistoryRow")

State = Literal["waiting", "held", "leased", "done", "dead", "cancelled", "expired"]
LIVE: tuple[State, ...] = ("waiting", "held", "leased")
FINAL: tuple[State, ...] = ("done", "dead", "cancelled", "expired")

# The due time under which stores keep an entry that waits for others: later than any that a user can give, so no claim
# ever finds it due. It is replaced by the entry's own due time, or now, when the last of the others has ended.
HELD: Micros = 1 << 58

REMOVED = "removed"  # why a row of the history has no payload

# What one attempt ended as, in the history: a final state, or one of the two after which the entry lives on.
AttemptState = Literal["done", "dead", "cancelled", "expired", "retried", "reaped"]


class Unique(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most one entry of a queue holds this id at a time.

    ``until="done"`` holds it to any final state, ``until="started"`` to the first claim, ``period`` for a time
    counted from the put whatever happens to the entry. ``on_conflict`` says what a second put does: ``keep`` the
    first, ``replace`` its content and due time while it waits, or ``raise``.
    """

    key: str
    until: Literal["done", "started"] = "done"
    period: Duration | None = None
    on_conflict: Literal["keep", "replace", "raise"] = "keep"

    def __post_init__(self) -> None:
        """Refuse what no store could honour."""
        if not 1 <= text_bytes(self.key) <= 255 or "\0" in self.key:
            raise BadInput(f"unique id {self.key!r} is not allowed.", hint="Use 1 to 255 bytes of text without NUL.")
        if self.until not in ("done", "started"):
            raise BadInput(f"Unique(until={self.until!r}) is unknown.", hint="Use 'done', 'started' or period=.")
        if self.on_conflict not in ("keep", "replace", "raise"):
            raise BadInput(
                f"Unique(on_conflict={self.on_conflict!r}) is unknown.", hint="Use 'keep', 'replace' or 'raise'."
            )
        if self.period is not None:
            duration(self.period, name="Unique(period)")

    @property
    def mode(self) -> str:
        """How stores keep it: done, started or period."""
        return "period" if self.period is not None else self.until


# Shorter ones run out between two heartbeats of a busy process.
SHORTEST_LEASE: Micros = 50_000


def check_lease(lease: Duration) -> Micros:
    """How long an entry is held without a heartbeat, in microseconds."""
    micros = duration_micros(lease, name="lease")
    if micros < SHORTEST_LEASE:
        raise BadInput(f"a lease of {lease} is too short to work in.", hint="Use 60s, or at least 50ms in a test.")
    return micros


class Lease(msgspec.Struct, frozen=True, gc=False):
    """An entry held by one worker until a time. The store compares the token. The fence is for use downstream."""

    entry: str
    queue: str
    token: str
    fence: int
    owner: str
    claimed_us: Micros
    until_us: Micros
    ref: Any = None  # where the store finds the entry again; means nothing outside it

    @property
    def claimed(self) -> datetime:
        """When it was claimed, in store time."""
        return from_micros(self.claimed_us)

    @property
    def until(self) -> datetime:
        """When it runs out unless extended, in store time."""
        return from_micros(self.until_us)


class Entry(msgspec.Struct, Generic[T], gc=False):
    """One item in a queue. A live one is waiting, held or leased; due and attempt tell ready, delayed and retrying."""

    id: str
    queue: str
    state: State
    payload: bytes
    codec: str
    type: str
    seq: int
    priority: int
    created_us: Micros
    due_us: Micros
    first_due_us: Micros
    attempt: int  # handler starts so far, the running one included
    generation: int
    labels: dict[str, str]
    headers: dict[str, str]
    unique: str | None = None
    expires_us: Micros | None = None
    node: str | None = None  # sticky: only workers of this node
    error: str | None = None  # of the last failed attempt
    lease: Lease | None = None
    ended_us: Micros | None = None  # dead letters: when it died
    reader: Codec[Any] | None = None
    traceback: str | None = None  # of the last failed attempt, its end; stores keep it behind the error

    def __repr__(self) -> str:
        """What a person wants to know: the value, and times as times."""
        owner = None if self.lease is None else self.lease.owner
        return _shown(
            "Entry", id=self.id, queue=self.queue, state=self.state, **_content(self), created=self.created,
            due=self.due, attempt=self.attempt, generation=self.generation, priority=self.priority or None,
            labels=self.labels or None, headers=self.headers or None, unique=self.unique, expires=self.expires,
            node=self.node, owner=owner, error=self.error, ended=self.ended,
        )  # fmt: skip

    @property
    def value(self) -> T:
        """The payload as the queue's type; raises ``Undecodable`` when it does not fit."""
        if self.reader is None:
            raise Undecodable(
                f"entry {self.id} of queue {self.queue} was read without a type.",
                hint="Read it through a typed queue, or use its payload.",
            )
        if self.reader.name != self.codec:
            raise Undecodable(
                f"entry {self.id} of queue {self.queue} was stored with codec {self.codec!r}, "
                f"but this queue reads {self.reader.name!r}.",
                hint="Open the queue with the type it was filled with.",
            )
        return cast(T, self.reader.decode(self.payload))

    @property
    def created(self) -> datetime:
        """When it was put, in store time."""
        return from_micros(self.created_us)

    @property
    def due(self) -> datetime:
        """When it may next be claimed."""
        return from_micros(self.due_us)

    @property
    def first_due(self) -> datetime:
        """When it was first due, before any retry or snooze."""
        return from_micros(self.first_due_us)

    @property
    def expires(self) -> datetime | None:
        """When it is given up if nobody has claimed it."""
        return None if self.expires_us is None else from_micros(self.expires_us)

    @property
    def ended(self) -> datetime | None:
        """When it died, for a dead letter."""
        return None if self.ended_us is None else from_micros(self.ended_us)


class HistoryRow(msgspec.Struct):
    """One ended attempt, or the end of an entry that was not being worked on (then ``started_us`` is None)."""

    seq: int
    id: str
    queue: str
    generation: int
    attempt: int
    state: AttemptState
    owner: str | None
    created_us: Micros
    due_us: Micros
    started_us: Micros | None
    ended_us: Micros
    error: str | None
    labels: dict[str, str]
    headers: dict[str, str]
    codec: str
    type: str
    payload: bytes | None = None  # what the attempt saw; ``gap`` says why it is None
    reader: Codec[Any] | None = None
    traceback: str | None = None  # of a failed attempt, its end; stores keep it behind the error

    def __repr__(self) -> str:
        """For people: the value if it is kept, and readable times."""
        return _shown(
            "HistoryRow", id=self.id, queue=self.queue, state=self.state, attempt=self.attempt,
            generation=self.generation, started=self.started, ended=self.ended, owner=self.owner, error=self.error,
            labels=self.labels or None, **_content(self),
        )  # fmt: skip

    @property
    def value(self) -> Any:
        """The payload as the queue's type; raises ``Undecodable`` where it is not kept or does not fit."""
        if self.payload is None or self.reader is None:
            raise Undecodable(
                f"the payload of attempt {self.attempt} of entry {self.id} cannot be read: {self.gap or 'no type'}.",
                hint="A purge of a dead letter removes its payloads; read others through a typed queue.",
            )
        return self.reader.decode(self.payload)

    @property
    def gap(self) -> str | None:
        """Why there is no payload: it was removed with its dead letter. None where there is one."""
        return REMOVED if self.payload is None else None

    @property
    def started(self) -> datetime | None:
        """When the handler started, in store time."""
        return None if self.started_us is None else from_micros(self.started_us)

    @property
    def ended(self) -> datetime:
        """When the attempt ended, in store time."""
        return from_micros(self.ended_us)


class Lock(msgspec.Struct, frozen=True):
    """One holder's lock on a queue. While any holder is left, nothing is claimed from it."""

    queue: str
    holder: str
    reason: str
    since_us: Micros

    @property
    def since(self) -> datetime:
        """When it was taken, in store time."""
        return from_micros(self.since_us)


class Counts(msgspec.Struct, frozen=True):
    """What a queue holds right now."""

    queue: str
    ready: int = 0
    delayed: int = 0
    retrying: int = 0
    leased: int = 0
    dead: int = 0
    held: int = 0  # waiting for other entries
    oldest_ready_us: Micros | None = None
    locks: tuple[Lock, ...] = ()
    fifo: bool = False

    def __repr__(self) -> str:
        """The counts that are not empty."""
        return _shown(
            "Counts", queue=self.queue, ready=self.ready, delayed=self.delayed, retrying=self.retrying,
            leased=self.leased, held=self.held or None, dead=self.dead, oldest_ready=self.oldest_ready,
            fifo=self.fifo or None, locks=self.locks or None,
        )  # fmt: skip

    @property
    def oldest_ready(self) -> datetime | None:
        """When the entry that has been ready for longest became so."""
        return None if self.oldest_ready_us is None else from_micros(self.oldest_ready_us)

    @property
    def live(self) -> int:
        """Everything that has not ended."""
        return self.ready + self.delayed + self.retrying + self.held + self.leased


def family_counts(name: str, queues: Sequence[Counts]) -> Counts:
    """What several queues hold together, under the name of their family."""
    oldest = [counts.oldest_ready_us for counts in queues if counts.oldest_ready_us is not None]
    return Counts(
        name,
        ready=sum(counts.ready for counts in queues),
        delayed=sum(counts.delayed for counts in queues),
        retrying=sum(counts.retrying for counts in queues),
        leased=sum(counts.leased for counts in queues),
        dead=sum(counts.dead for counts in queues),
        oldest_ready_us=min(oldest, default=None),
        locks=tuple(lock for counts in queues for lock in counts.locks),
    )


TRACEBACK = "Traceback (most recent call last):\n"


def error_alone(text: str | None) -> str | None:
    """The error of a stored text, without the traceback behind it."""
    return None if text is None else text.partition(f"\n{TRACEBACK}")[0]


def with_traceback(row: R) -> R:
    """An entry or a row of the history as users see it: the error, and beside it the traceback stored with it."""
    if row.error is None or f"\n{TRACEBACK}" not in row.error:
        return row
    error, _, frames = row.error.partition(f"\n{TRACEBACK}")
    return msgspec.structs.replace(row, error=error, traceback=TRACEBACK + frames)


def no_attempts_left(last: str | None) -> str:
    """The error of an entry that a claim finds without an attempt left; ``last`` is what its last one said."""
    return f"no attempts left; last: {last}" if last else "no attempts left"


def _content(of: Entry[Any] | HistoryRow) -> dict[str, Any]:
    """The value where it can be read, else the bytes."""
    if of.payload is None:
        return {}
    try:
        return {"value": of.value}
    except Undecodable:
        return {"payload": of.payload}


def _shown(kind: str, **fields: Any) -> str:
    parts = []
    for name, value in fields.items():
        if value is not None:
            parts.append(f"{name}={value.isoformat() if isinstance(value, datetime) else repr(value)}")
    return f"{kind}({', '.join(parts)})"
