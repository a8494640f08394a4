"""Rows of the tables as entries, leases and history rows, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.queue.drivers.sql.rows import read_map
from penstock.queue.entry import Entry, HistoryRow, Lease
from penstock.queue.stores.sql.schema import LEASED


class Ref(msgspec.Struct, frozen=True, gc=False):
    """Where a lease's entry is, and what ending it has to look after besides."""

    seq: int
    lane: int
    fifo: bool
    plain: bool  # no unique id to release and no label limit to reopen


class Row(msgspec.Struct, gc=False):
    """A row of the live table with its lane's queue and node."""

    seq: int
    id: str
    queue: str
    node: str
    lane: int
    fifo: int
    state: int
    generation: int
    priority: int
    created: Micros
    due: Micros
    first_due: Micros
    attempt: int
    fence: int
    token: str | None
    owner: str | None
    error: str | None
    labels: str | None
    headers: str | None
    unique_key: str | None
    unique_mode: str | None
    expires: Micros | None
    codec: str
    type: str
    payload: bytes
    claimed: Micros | None
    until: Micros | None
    max_attempts: int | None
    settled: str | None
    suspect: int

    def entry(self, *, limited: bool = False) -> Entry[Any]:
        """The entry as users and workers see it."""
        lease = None
        if self.state == LEASED and self.token is not None:
            ref = Ref(self.seq, self.lane, bool(self.fifo), self.unique_key is None and not limited)
            lease = Lease(
                self.id, self.queue, self.token, self.fence, self.owner or "", self.claimed or 0, self.until or 0, ref
            )
        return Entry(
            self.id, self.queue, "leased" if self.state == LEASED else "waiting", self.payload, self.codec, self.type,
            self.seq, self.priority, self.created, self.due, self.first_due, self.attempt, self.generation,
            read_map(self.labels), read_map(self.headers), self.unique_key, self.expires, self.node or None,
            self.error, lease,
        )  # fmt: skip


class Ended(msgspec.Struct):
    """A row of the history or of the dead letters."""

    seq: int
    id: str
    queue: str
    node: str
    state: Any
    started: Micros | None
    ended: Micros
    generation: int
    priority: int
    created: Micros
    due: Micros
    first_due: Micros
    attempt: int
    fence: int
    token: str | None
    owner: str | None
    error: str | None
    labels: str | None
    headers: str | None
    unique_key: str | None
    unique_mode: str | None
    expires: Micros | None
    codec: str
    type: str
    payload: bytes | None

    def history(self) -> HistoryRow:
        """The row as users see it."""
        return HistoryRow(
            self.seq, self.id, self.queue, self.generation, self.attempt, self.state, self.owner, self.created,
            self.due, self.started, self.ended, self.error, read_map(self.labels), read_map(self.headers),
            self.codec, self.type, self.payload,
        )  # fmt: skip

    def dead_letter(self) -> Entry[Any]:
        """The dead letter as users see it."""
        return Entry(
            self.id, self.queue, "dead", self.payload or b"", self.codec, self.type, self.seq, self.priority,
            self.created, self.due, self.first_due, self.attempt, self.generation, read_map(self.labels),
            read_map(self.headers), self.unique_key, self.expires, self.node or None, self.error, None, self.ended,
        )  # fmt: skip
