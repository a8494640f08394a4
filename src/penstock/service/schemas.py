"""What is sent and answered, as types: the OpenAPI is made from them."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path, Query, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from penstock.clock import from_micros
from penstock.codec import BYTES, MOST_DEPTH, depth_of
from penstock.errors import BadInput
from penstock.gateway.item import masked_payload
from penstock.log.record import Record
from penstock.queue.entry import AttemptState, Counts, Entry, HistoryRow, Lock, Unique, with_traceback
from penstock.queue.protocol import Schedule

NAME = r"^[A-Za-z0-9][A-Za-z0-9._%-]{0,127}$"
Name = Annotated[str, Path(pattern=NAME, description="A name: letters, digits, `.`, `_`, `-`.")]
ID = r"^[ -~]+$"
MOST_NAMES = 10_000  # of labels, headers, offsets and the like in one request
# An id may hold slashes: its routes take the rest of the path.
EntryId = Annotated[str, Path(min_length=1, max_length=64, pattern=ID)]
IdText = Annotated[str, Field(min_length=1, max_length=64, pattern=ID)]
After = Annotated[int, Query(ge=0, lt=1 << 62, description="Read on after this `seq`, as `next` of a page says.")]
Limit = Annotated[int | None, Query(ge=1, le=1000, description="How many at most.")]
Labels = Annotated[list[str] | None, Query(alias="label", description="`name=value`; may be repeated.")]
DurationText = Annotated[
    str, Field(max_length=64, description='A length of time such as "30s" or "2h".', examples=["30s"])
]


def _text_of_a_time(given: Any) -> Any:
    """Refuse a bare number: it may mean seconds or milliseconds, and the epoch is unknown."""
    if isinstance(given, int | float) or (isinstance(given, str) and _NUMBER.fullmatch(given)):
        raise PydanticCustomError("datetime_type", 'a number is not a time; write it as "2030-01-31T12:00:00Z"')
    return given


# No part gives anything back: the text may be long, and would be looked at again and again.
_NUMBER = re.compile(r"\s*+[-+]?[0-9_]*+(?:\.[0-9_]*+)?(?:[eE][-+]?[0-9]++)?\s*+")
Moment = Annotated[datetime, BeforeValidator(_text_of_a_time)]


class Body(BaseModel):
    """What a request holds: unknown fields are refused, a slip must not be silent."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_fields(cls, given: Any) -> Any:
        """Report unknown fields as one error, and so many names as no field needs: not a million, one by one."""
        if isinstance(given, dict):
            unknown = next((name for name in given if name not in cls.model_fields), None)
            if unknown is not None:
                raise PydanticCustomError(
                    "extra_forbidden", "there is no field {name}", {"name": repr(str(unknown)[:100])}
                )
            for name, value in given.items():
                if name != "value" and isinstance(value, dict) and len(value) > MOST_NAMES:
                    raise PydanticCustomError(
                        "too_long", "{name} has more than {most} names", {"name": name, "most": MOST_NAMES}
                    )
        return given


class ProgressView(BaseModel):
    """How far a handler has come, as it said last."""

    done: int
    total: int | None
    text: str
    at: datetime


class BatchView(BaseModel):
    """What has become of a batch."""

    id: str
    queue: str
    state: str
    needs: int
    tally: dict[str, int]
    members: dict[str, int]


class ResultView(BaseModel):
    """What has become of an entry; ``available``: what its handler returned is still there, as ``value``."""

    id: str
    state: str
    error: str | None
    available: bool
    value: Any = None


class NewEntryBody(Body):
    """One entry to be put. Give ``value`` (any JSON) or ``bytes`` (base64)."""

    value: Any = None
    bytes: str | None = Field(None, description="Raw bytes in base64, for queues of bytes.")
    due: Moment | None = None
    delay: DurationText | None = None
    priority: int = Field(0, ge=-100, le=100)
    unique: str | None = Field(None, min_length=1, max_length=255)
    unique_period: DurationText | None = None
    on_conflict: Literal["keep", "replace", "raise"] = "keep"
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    expires: DurationText | None = None
    id: IdText | None = Field(None, description="An id of your own makes a put repeatable.")
    after: list[IdText] = Field([], max_length=100, description="Entries it waits for; until then it is held.")
    on: Literal["done", "ended"] = Field("done", description="What it waits for: that they are done, or have ended.")
    batch: IdText | None = Field(None, description="A batch that is held, which it becomes a member of.")

    def payload(self) -> Any:
        """What to put: the JSON value, or bytes."""
        if self.bytes is None:
            return self.value
        if self.value is not None:
            raise BadInput("an entry has both value and bytes.", hint="Give one of them.")
        return unbase64(self.bytes)

    def options(self) -> dict[str, Any]:
        """The options of ``Queue.new``."""
        unique = None
        if self.unique is not None:
            unique = Unique(self.unique, period=self.unique_period, on_conflict=self.on_conflict)
        return {
            "due": self.due, "delay": self.delay, "priority": self.priority, "unique": unique, "labels": self.labels,
            "headers": self.headers, "expires": self.expires,
        }  # fmt: skip


class ManyEntries(Body):
    """Entries that are put as one unit: all or none."""

    entries: list[NewEntryBody] = Field(min_length=1, max_length=1000)


class PutView(BaseModel):
    """What became of a put: ``created`` is false when the id or its unique id was there already."""

    id: str
    queue: str
    created: bool


class PutsView(BaseModel):
    """What became of several puts, in their order."""

    items: list[PutView]


class EntryView(BaseModel):
    """An entry; ``value`` for JSON, ``bytes`` in base64 for what is not."""

    id: str
    queue: str
    state: str
    value: Any = None
    bytes: str | None = None
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
    traceback: str | None = None
    owner: str | None
    ended: datetime | None
    waits_for: list[str] = Field([], description="Why it is held, one line each; of a single entry only.")
    progress: ProgressView | None = Field(None, description="What its handler said last; of a single entry only.")


class LeasedView(EntryView):
    """An entry that the caller now holds until a time; the token is needed to end it."""

    token: str
    fence: int
    until: datetime


class HistoryView(BaseModel):
    """One ended attempt, with the payload it saw."""

    seq: int
    id: str
    queue: str
    generation: int
    attempt: int
    state: AttemptState
    owner: str | None
    due: datetime
    started: datetime | None
    ended: datetime
    error: str | None
    traceback: str | None = None
    labels: dict[str, str]
    value: Any = None
    bytes: str | None = None
    gap: str | None = Field(None, description="Why there is no payload: it was removed with its dead letter.")


class LockView(BaseModel):
    """One holder's lock on a queue."""

    queue: str
    holder: str
    reason: str
    since: datetime


class QueueView(BaseModel):
    """What a queue holds right now."""

    queue: str
    ready: int
    delayed: int
    retrying: int
    leased: int
    dead: int
    fifo: bool
    oldest_ready: datetime | None
    locks: list[LockView]
    held: int = Field(0, description="Waiting for other entries.")


class Queues(BaseModel):
    """A page of queues, by name; ``next`` is the ``after`` of the next page."""

    items: list[QueueView]
    next: str | None


class Entries(BaseModel):
    """A page of entries, in the order they were put."""

    items: list[EntryView]
    next: int | None


class History(BaseModel):
    """A page of ended attempts."""

    items: list[HistoryView]
    next: int | None


class Locks(BaseModel):
    """A page of locks, by queue and holder; ``next`` is the ``after`` of the next page."""

    items: list[LockView]
    next: str | None


class Number(BaseModel):
    """How many entries were changed."""

    count: int


class ScheduleView(BaseModel):
    """A schedule: when it fires next and what it puts then."""

    name: str
    queue: str
    spec: str
    zone: str
    version: int
    next: datetime | None = Field(description="When it fires next; null while it is paused.")
    paused: bool
    catch_up: str
    value: Any = None
    bytes: str | None = None
    labels: dict[str, str]
    priority: int


class RecordView(BaseModel):
    """One record of a log."""

    partition: int
    offset: int
    time: datetime
    key: str | None
    value: Any = None
    bytes: str | None = None
    headers: dict[str, str]


class Records(BaseModel):
    """Records of one partition; ``next`` is the ``start`` of the next page, ``end`` where the partition ends now."""

    items: list[RecordView]
    next: int
    end: int


def written(view: BaseModel) -> Response:
    """An answer with values, written as they were stored, because pydantic fails on deep nesting."""
    return Response(msgspec.json.encode(view, enc_hook=vars), media_type="application/json")


def entry_view(entry: Entry[Any]) -> EntryView:
    """The view of an entry in lists, without the credentials of a queued request."""
    return EntryView(**_entry_fields(entry, content(entry.codec, masked_payload(entry.payload, entry.type))))


def leased_view(entry: Entry[Any]) -> LeasedView:
    """The view of a claimed entry."""
    lease = entry.lease
    assert lease is not None  # noqa: S101 - it was just claimed
    fields = _entry_fields(entry, content(entry.codec, entry.payload))
    return LeasedView(**fields, token=lease.token, fence=lease.fence, until=lease.until)


def _entry_fields(entry: Entry[Any], shown: dict[str, Any]) -> dict[str, Any]:
    entry = with_traceback(entry)
    return {
        "id": entry.id, "queue": entry.queue, "state": entry.state, **shown,
        "type": entry.type, "seq": entry.seq, "priority": entry.priority, "created": entry.created, "due": entry.due,
        "attempt": entry.attempt, "generation": entry.generation, "labels": entry.labels, "headers": entry.headers,
        "unique": entry.unique, "expires": entry.expires, "error": entry.error, "traceback": entry.traceback,
        "owner": None if entry.lease is None else entry.lease.owner, "ended": entry.ended,
    }  # fmt: skip


def history_view(row: HistoryRow) -> HistoryView:
    """The view of an ended attempt."""
    row = with_traceback(row)
    shown = {} if row.payload is None else content(row.codec, masked_payload(row.payload, row.type))
    return HistoryView(
        seq=row.seq, id=row.id, queue=row.queue, generation=row.generation, attempt=row.attempt, state=row.state,
        owner=row.owner, due=from_micros(row.due_us), started=row.started, ended=row.ended, error=row.error,
        traceback=row.traceback, labels=row.labels, gap=row.gap, **shown,
    )  # fmt: skip


def lock_view(lock: Lock) -> LockView:
    """The view of a lock."""
    return LockView(queue=lock.queue, holder=lock.holder, reason=lock.reason, since=lock.since)


def queue_view(counts: Counts) -> QueueView:
    """The view of a queue."""
    return QueueView(
        queue=counts.queue, ready=counts.ready, delayed=counts.delayed, retrying=counts.retrying, leased=counts.leased,
        dead=counts.dead, held=counts.held, fifo=counts.fifo, oldest_ready=counts.oldest_ready,
        locks=[lock_view(lock) for lock in counts.locks],
    )  # fmt: skip


def schedule_view(schedule: Schedule) -> ScheduleView:
    """The view of a schedule."""
    return ScheduleView(
        name=schedule.name, queue=schedule.queue, spec=schedule.spec, zone=schedule.zone, version=schedule.version,
        next=schedule.next, paused=schedule.is_paused, catch_up=schedule.catch_up, labels=schedule.labels,
        priority=schedule.priority,
        **content(schedule.codec, schedule.payload),
    )  # fmt: skip


def record_view(record: Record[Any], codec: str | None) -> RecordView:
    """The view of a record; in a log without a codec, text that is JSON is shown as JSON."""
    return RecordView(
        partition=record.partition, offset=record.offset, time=record.time, key=record.key,
        headers={name: _text(value) for name, value in record.headers.items()},
        **content(codec or "json", record.payload),
    )  # fmt: skip


def content(codec: str, payload: bytes) -> dict[str, Any]:
    """A payload as JSON where it is JSON that can be written back, in base64 where it is not."""
    if codec != BYTES and depth_of(payload) <= MOST_DEPTH:
        try:
            return {"value": msgspec.json.decode(payload)}
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    return {"bytes": base64.b64encode(payload).decode()}


def unbase64(text: str) -> bytes:
    """Decode bytes from base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as cause:
        raise BadInput(f"bytes {text[:40]!r} are not base64: {cause}.", hint="Use the standard alphabet.") from cause


def read_labels(given: list[str] | None) -> dict[str, str]:
    """``label=customer=ann`` parameters as labels."""
    labels = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"label {text!r} has no value.", hint="Write it as label=name=value.")
        labels[name] = value
    return labels


def aware(moment: datetime | None) -> datetime | None:
    """Refuse a time without a zone, which is ambiguous."""
    if moment is not None and moment.tzinfo is None:
        raise BadInput(f"{moment.isoformat()} has no time zone.", hint="Add Z, or an offset such as +02:00.")
    return moment


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
