"""What goes to a queue store and what comes back: entries on their way in, steps, claims, searches, findings."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

import msgspec

from penstock.clock import LAST_TIME, Micros, from_micros
from penstock.codec import prepared
from penstock.errors import PenstockError
from penstock.policy import Rate
from penstock.queue.entry import FINAL, AttemptState, Entry, Lease, Unique

if TYPE_CHECKING:
    from penstock.queue.options import PutOptions
    from penstock.queue.queues import QueueStore

Outcome = Literal["done", "retry", "dead", "snooze", "release"]

PAUSED: Micros = LAST_TIME  # stored as the next time of a schedule that is paused


class Capabilities(msgspec.Struct, frozen=True):
    """What a store can do. Only these may be excluded, and an excluded call raises ``Unsupported``."""

    durable: bool = True
    transactional: bool = True  # calls that live and die with the caller's own transaction
    full_history: bool = True
    label_search: bool = True  # indexed
    label_limits: bool = True
    links: bool = True  # entries that wait for others


class NewEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry on its way into a store. A due time of None means now (plus ``delay_us``) by the store's clock."""

    id: str
    queue: str
    payload: bytes
    codec: str
    type: str
    priority: int = 0
    due_us: Micros | None = None
    delay_us: Micros = 0
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    unique: Unique | None = None
    expires_us: Micros | None = None
    expires_in_us: Micros | None = None  # counted from the put, by the store's clock
    node: str | None = None
    repeat: bool = False  # the id may have been sent before: look for it also among the ended ones


On = Literal["done", "ended", "open"]


class Link(msgspec.Struct, frozen=True, gc=False):
    """One entry waits for another: ``target`` is held until ``source`` has ended.

    ``on="done"`` waits for its success, ``on="ended"`` for any end. ``on="open"`` is the link of an entry that stands
    for a batch in the making: its cancellation opens the batch, its expiry cancels it.
    """

    source: str
    target: str
    on: On = "done"


class Wait(msgspec.Struct, frozen=True, gc=False):
    """What an entry still waits for, and how those it has waited for have ended."""

    id: str
    needs: int = 0  # links that are not consumed yet
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def tally(self) -> dict[str, int]:
        """How many ended how."""
        return {"done": self.done, "dead": self.dead, "cancelled": self.cancelled, "expired": self.expired}


class NewEvent(msgspec.Struct, frozen=True):
    """An event on its way to every subscription that wants one of its types; ``template`` lacks only the queue."""

    types: tuple[str, ...]
    template: NewEntry


class Publisher(Protocol):
    """What makes events of values: the bus."""

    store: QueueStore

    def new(self, event: Any, **options: Unpack[PutOptions]) -> NewEvent:
        """Check and encode an event without publishing it."""


class NewResult(msgspec.Struct, frozen=True, gc=False):
    """What a handler returned, encoded, on its way into a store. It is kept for a time."""

    value: bytes
    codec: str
    kept_us: Micros
    generation: int = 1  # of the entry
    queue: str = ""  # where the entry was
    batch: str | None = None  # of which it was a member


class KeptResult(msgspec.Struct, frozen=True, gc=False):
    """A result as a store keeps it: of which generation of the entry, and until when."""

    generation: int
    codec: str
    until_us: Micros
    value: bytes
    queue: str = ""
    batch: str | None = None


class Ending(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a leased entry. ``due_us`` or else ``delay_us`` (from now) says when it comes back."""

    lease: Lease
    outcome: Outcome
    delay_us: Micros = 0
    due_us: Micros | None = None
    error: str | None = None
    started_us: Micros | None = None
    result: NewResult | None = None  # of a success


class Step(msgspec.Struct, frozen=True, gc=False):
    """Endings, puts, events and links that happen together or not at all.

    Every link has an end among the puts: a new entry waits for others, or others wait for it.
    """

    endings: tuple[Ending, ...] = ()
    puts: tuple[NewEntry, ...] = ()
    events: tuple[NewEvent, ...] = ()
    repeat: bool = False
    links: tuple[Link, ...] = ()


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """The id now standing for what was put, and whether this put created it."""

    id: str
    queue: str
    created: bool
    due_us: Micros

    @property
    def due(self) -> datetime:
        """When it may be claimed."""
        return from_micros(self.due_us)


@prepared
class StepDone(msgspec.Struct, frozen=True, gc=False):
    """A step that happened: what its puts gave, and for each event the entries its subscriptions got."""

    puts: tuple[PutResult, ...] = ()
    published: tuple[tuple[PutResult, ...], ...] = ()


class Scope(msgspec.Struct, frozen=True):
    """One queue, or with ``family=True`` every queue whose name starts with ``name``."""

    name: str
    family: bool = False

    def covers(self, queue: str) -> bool:
        """Whether this queue is meant."""
        return queue.startswith(self.name) if self.family else queue == self.name


class Source(msgspec.Struct, frozen=True):
    """Where a worker takes from: how many at most, and how often an entry may be started before it is a dead letter."""

    name: str
    limit: int
    attempts: int | None = 5
    family: bool = False

    def covers(self, queue: str) -> bool:
        """Whether entries of this queue come from this source."""
        return Scope(self.name, self.family).covers(queue)


class ClaimRequest(msgspec.Struct, frozen=True):
    """A worker's request for work. ``alone`` says that it has nothing else in hand (see ``Claimed.suspect_waits``)."""

    id: str
    sources: tuple[Source, ...]
    limit: int
    owner: str
    node: str
    lease_us: Micros
    alone: bool = True
    repeat: bool = False


class Claimed(msgspec.Struct):
    """What a claim gave.

    ``next_us`` is the earliest time at which more may be claimable, None when only a change can bring more.
    ``suspect_waits`` asks the worker to finish what it holds and come back ``alone``: an entry whose last worker
    vanished is handed out by itself, so that, if it kills the worker, it kills no other attempt.
    ``suspect`` says that the one entry given is such an entry: claim nothing else until it has ended.
    ``dead`` are entries found to have no attempt left.
    """

    entries: list[Entry[Any]] = []
    next_us: Micros | None = None
    suspect_waits: bool = False
    suspect: bool = False
    dead: tuple[str, ...] = ()


class Document(msgspec.Struct, frozen=True):
    """A small value that a store keeps by name for those who share it. Every write raises its version."""

    name: str
    value: bytes
    version: int
    changed_us: Micros


class DocumentWrite(msgspec.Struct, frozen=True, gc=False):
    """A document on its way into a store. A value of None removes it.

    With a ``version`` it is written only if the document is at that version; 0 means that the document must not exist.
    A write that finds its own value at the next version counts as a repeat of itself, so values should name their
    writers.
    """

    name: str
    value: bytes | None
    version: int | None = None


class Settled(msgspec.Struct):
    """The reply to :meth:`Driver.settle`: one result per step, what was claimed, which documents were written."""

    results: list[StepDone | PenstockError]
    claimed: Claimed
    now_us: Micros
    written: list[bool] = []


class Changes(msgspec.Struct, frozen=True):
    """What to change in an entry. None leaves a field as it is."""

    payload: bytes | None = None
    codec: str | None = None
    type: str | None = None
    labels: dict[str, str] | None = None
    priority: int | None = None
    due_us: Micros | None = None
    delay_us: Micros | None = None


class Find(msgspec.Struct, frozen=True):
    """Which entries or history rows to look for. All given conditions must hold."""

    queue: str | None = None
    family: str | None = None
    ids: tuple[str, ...] | None = None
    labels: dict[str, str] = {}
    states: tuple[str, ...] | None = None
    from_us: Micros | None = None  # due (entries) or ended (history) at or after
    before_us: Micros | None = None  # ... and strictly before
    after: int = 0  # only rows with a higher seq: for reading on
    limit: int = 1000
    newest_first: bool = False


class Definition(msgspec.Struct, frozen=True):
    """How a queue behaves for everybody, as stored. None leaves a setting as it is, a count of 0 removes it."""

    fifo: bool | None = None
    rate: Rate | None = None
    label_limit: tuple[str, int] | None = None  # at most N in flight per value of this label

    @property
    def empty(self) -> bool:
        """Nothing to define."""
        return self.fifo is None and self.rate is None and self.label_limit is None

    @property
    def is_limited(self) -> bool:
        """Whether a rate or a limit per label holds."""
        return bool((self.rate and self.rate.count) or (self.label_limit and self.label_limit[1]))


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as stored: when it fires next and what it puts then."""

    name: str
    queue: str
    spec: str
    zone: str
    version: int
    next_us: Micros
    payload: bytes
    codec: str
    type: str
    catch_up: str = "one"
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    priority: int = 0

    @property
    def is_paused(self) -> bool:
        """Whether it fires no more until somebody resumes it."""
        return self.next_us >= PAUSED

    @property
    def next(self) -> datetime | None:
        """When it fires next, or None while it is paused."""
        return None if self.is_paused else from_micros(self.next_us)

    def __repr__(self) -> str:
        """What a person wants to know: when it fires next as a time, or that it is paused."""
        following = "paused" if self.next is None else self.next.isoformat()
        return (
            f"Schedule(name={self.name!r}, queue={self.queue!r}, spec={self.spec!r}, zone={self.zone!r}, "
            f"version={self.version}, next={following}, catch_up={self.catch_up!r}, payload={self.payload!r})"
        )


class Subscription(msgspec.Struct, frozen=True):
    """A durable wish for events of some types, served from its own queue."""

    name: str
    queue: str
    types: tuple[str, ...]


class Reaped(msgspec.Struct):
    """What one round of the reaper found: ids by what became of them, with their queues."""

    reaped: list[tuple[str, str]] = []
    dead: list[tuple[str, str]] = []
    expired: list[tuple[str, str]] = []
    freed: list[tuple[str, str]] = []
    late: list[tuple[str, str]] = []


class EndedCount(msgspec.Struct, frozen=True):
    """How many attempts of a queue ended in one way."""

    queue: str
    state: AttemptState
    count: int


class Finding(msgspec.Struct, frozen=True):
    """One line of ``doctor``: how good it is, what was looked at, what it means."""

    level: Literal["good", "unknown", "warning", "bad"]
    what: str
    detail: str


def due_at(entry: NewEntry, now: Micros) -> Micros:
    """When a new entry is due, by the store's clock."""
    return (now if entry.due_us is None else entry.due_us) + entry.delay_us


def expires_at(entry: NewEntry, now: Micros) -> Micros | None:
    """When a new entry expires, by the store's clock."""
    if entry.expires_in_us is not None:
        return now + entry.expires_in_us
    return entry.expires_us


# --- what a space holds, as it moves from one store to another, and as bulk readers get it ----------------------------

Part = Literal["live", "dead", "history"]
PARTS: tuple[Part, ...] = ("history", "dead", "live")


class TransferRow(msgspec.Struct, kw_only=True):
    """A waiting entry, a dead letter or a row of the history, with all that its store knows of it.

    A store that keeps less about the rows of earlier attempts leaves those fields as they are here.
    """

    part: Part
    seq: int  # the sequence number where it comes from: its order, and where to continue
    id: str
    queue: str
    state: Any
    payload: bytes | None
    codec: str
    type: str
    created_us: Micros
    due_us: Micros
    first_due_us: Micros
    attempt: int
    generation: int
    labels: dict[str, str]
    headers: dict[str, str]
    error: str | None = None
    priority: int = 0
    node: str | None = None
    expires_us: Micros | None = None
    unique: str | None = None
    mode: str | None = None  # of the unique id
    fence: int = 0
    suspect: bool = False  # waits to be handed out alone
    owner: str | None = None  # history: who worked on it
    started_us: Micros | None = None
    ended_us: Micros | None = None

    @property
    def is_last(self) -> bool:
        """Whether it is the row of an entry's end, not of an attempt that was followed by another."""
        return self.part == "history" and self.state in FINAL

    def essence(self) -> bytes:
        """What must be the same on both sides: everything for an entry, for a row what every store keeps."""
        if self.part == "history":
            same: tuple[Any, ...] = (
                self.id, self.queue, self.generation, self.attempt, self.state, self.owner, self.created_us,
                self.due_us, self.started_us, self.ended_us, self.error, self.labels, self.headers, self.codec,
                self.type, self.payload,
            )  # fmt: skip
            return msgspec.msgpack.encode(same, order="deterministic")
        return msgspec.msgpack.encode(
            msgspec.structs.replace(self, seq=0, owner=None, started_us=None), order="deterministic"
        )


class Hold(msgspec.Struct, frozen=True):
    """A unique id and the entry that holds it; ``until_us`` for one that holds it for a time."""

    queue: str
    key: str
    id: str
    until_us: Micros | None = None


# The columns of a row as bulk readers get it, in this order. Labels and headers are JSON, or None without any; times
# are microseconds. Of a live entry that is leased, ``owner`` and ``started`` are its lease's.
ROW = (
    "seq", "id", "queue", "state", "generation", "attempt", "owner", "created", "due", "started", "ended", "error",
    "labels", "headers", "codec", "type", "payload",
)  # fmt: skip
