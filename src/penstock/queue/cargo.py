"""Cargo: what a space holds, in the form in which it moves from one store to another."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.clock import Micros
from penstock.queue.entry import FINAL, Entry, HistoryRow

Part = Literal["live", "dead", "history"]
PARTS: tuple[Part, ...] = ("history", "dead", "live")


class Cargo(msgspec.Struct, kw_only=True):
    """A waiting entry, a dead letter or a row of the history, with all that its store knows of it.

    A store that keeps less about the rows of earlier attempts leaves those fields as they are here.
    """

    part: Part
    seq: int  # the sequence number where it comes from: its order, and where to go on
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


def row_of(one: Entry[Any] | HistoryRow) -> tuple[Any, ...]:
    """An entry, a dead letter or a row of the history, as bulk readers get it."""
    if isinstance(one, HistoryRow):
        owner, started = one.owner, one.started_us
    else:
        owner, started = (None, None) if one.lease is None else (one.lease.owner, one.lease.claimed_us)
    return (
        one.seq, one.id, one.queue, one.state, one.generation, one.attempt, owner, one.created_us, one.due_us, started,
        one.ended_us, one.error, _json(one.labels), _json(one.headers), one.codec, one.type, one.payload,
    )  # fmt: skip


def _json(texts: dict[str, str]) -> str | None:
    return msgspec.json.encode(texts).decode() if texts else None
