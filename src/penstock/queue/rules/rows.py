"""What the collections hold: bodies, live entries, claims, attempts, dead letters; and the entries users see of them.

No value is ever changed in place: a change is a new value, so that it can be undone and told apart.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from penstock.clock import Micros
from penstock.queue.entry import FINAL, HELD, AttemptState, Entry, HistoryRow, Lease, State

# Queue, claim, and a number that tells the records of one claim in one queue apart.
ClaimKey: TypeAlias = tuple[str, str, int]


class Body(msgspec.Struct, frozen=True, gc=False):
    """What was put and never changes. An update writes another one; attempts that ended keep the one they saw."""

    number: int
    id: str
    queue: str
    payload: bytes
    codec: str
    type: str
    created_us: Micros
    labels: dict[str, str]
    headers: dict[str, str]
    unique: str | None = None
    unique_mode: str = "done"
    period_us: Micros = 0
    stripped: bool = False  # the payload was removed with its dead letter


class Live(msgspec.Struct, frozen=True, gc=False):
    """A live entry: what the ready entries or a claim hold of it."""

    body: Body
    seq: int  # its position: the number of its put, or of its last replay
    priority: int
    due_us: Micros
    first_due_us: Micros
    generation: int = 1
    attempt: int = 0
    fence: int = 0
    suspect: bool = False
    expires_us: Micros | None = None
    node: str | None = None
    error: str | None = None

    @property
    def id(self) -> str:
        """The entry's id."""
        return self.body.id

    @property
    def is_held(self) -> bool:
        """Whether it waits for others."""
        return self.due_us == HELD

    @property
    def queue(self) -> str:
        """The entry's queue."""
        return self.body.queue


class Claim(msgspec.Struct, frozen=True):
    """One claim's entries of one queue: whose they are, until when, and what it holds."""

    id: str
    queue: str
    owner: str
    claimed_us: Micros
    until_us: Micros
    max_attempts: int | None
    held: dict[str, Live]  # by id
    session: str = ""  # where a store has sessions: the claim ends with this one

    def token(self, live: Live) -> str:
        """What the holder of one of its entries has to show."""
        return f"{live.fence}-{self.id}"

    def lease(self, live: Live) -> Lease:
        """The lease on one of its entries."""
        return Lease(live.body.id, self.queue, self.token(live), live.fence, self.owner, self.claimed_us, self.until_us)


class Attempt(msgspec.Struct, frozen=True):
    """A row of the history: an attempt that ended, or the end of an entry that nobody was working on."""

    seq: int
    live: Live  # as the attempt saw it
    state: AttemptState
    attempt: int
    owner: str | None
    started_us: Micros | None
    ended_us: Micros
    error: str | None
    token: str | None  # of the owner who settled it, or None if somebody else ended it

    @property
    def is_last(self) -> bool:
        """Whether the entry ended with it."""
        return self.state in FINAL

    def history(self) -> HistoryRow:
        """The row as users see it."""
        body = self.live.body
        return HistoryRow(
            seq=self.seq, id=body.id, queue=body.queue, generation=self.live.generation, attempt=self.attempt,
            state=self.state, owner=self.owner, created_us=body.created_us, due_us=self.live.due_us,
            started_us=self.started_us, ended_us=self.ended_us, error=self.error, labels=dict(body.labels),
            headers=dict(body.headers), codec=body.codec, type=body.type,
            payload=None if body.stripped else body.payload,
        )  # fmt: skip


class Dead(msgspec.Struct, frozen=True):
    """A dead letter."""

    live: Live
    ended_us: Micros

    def entry(self) -> Entry[Any]:
        """The dead letter as users see it."""
        return entry_of(self.live, "dead", ended_us=self.ended_us)


class Hold(msgspec.Struct, frozen=True):
    """Who holds a unique id, and until when if that is a matter of time."""

    id: str
    until_us: Micros | None = None


class Settlement(msgspec.Struct, frozen=True):
    """What an owner settled that the history does not show, or no longer."""

    outcome: str
    at_us: Micros


def entry_of(live: Live, state: State, lease: Lease | None = None, ended_us: Micros | None = None) -> Entry[Any]:
    """The entry as users and workers see it: a copy, so that nobody changes the store by changing what was read."""
    body, due = live.body, live.due_us
    if due == HELD:
        state, due = "held", live.first_due_us
    return Entry(
        body.id, body.queue, state, body.payload, body.codec, body.type, live.seq, live.priority, body.created_us,
        due, live.first_due_us, live.attempt, live.generation, dict(body.labels), dict(body.headers),
        body.unique, live.expires_us, live.node, live.error, lease, ended_us,
    )  # fmt: skip
