"""Rows of the tables as entries, leases and history, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.ids import derived_id
from penstock.queue.entry import HELD, Entry, HistoryRow, Lease, State
from penstock.queue.protocol import NewEntry, NewEvent, Subscription


class QueueRow(msgspec.Struct):
    """A queue's row: the queue itself, or with a node the part of it that only this node may claim from."""

    number: int
    queue: str
    node: str
    fifo: bool
    in_flight: int | None
    rate_count: int | None
    rate_period: Micros | None
    rate_next: Micros | None
    limit_label: str | None
    limit_count: int | None

    @property
    def exclusive(self) -> bool:
        """Whether one claim at a time may take from it."""
        return self.fifo or self.rate_count is not None or self.limit_label is not None


LINKED = "+"  # at the end of the mode of an entry that others wait for


def is_linked(mode: str | None) -> bool:
    """Whether others wait for the entry, so that its end needs a look."""
    return mode is not None and mode.endswith(LINKED)


def unique_mode(mode: str | None) -> str | None:
    """How an entry holds its unique id, without the mark of links."""
    return None if mode is None else mode.removesuffix(LINKED) or None


class Ref(msgspec.Struct, frozen=True, gc=False):
    """Where a lease's entry is. A plain one has nothing to look after in its queue: no unique id, order or limit."""

    seq: int
    body: int
    claim: str
    fence: int
    plain: bool
    linked: bool = False  # others wait for it


def is_genuine(lease: Lease) -> bool:
    """Whether the token is the one that was given with this lease."""
    ref: Ref = lease.ref
    return lease.token == f"{ref.fence}-{ref.claim}"


class Live(msgspec.Struct, gc=False):
    """A row of the view of live entries."""

    seq: int
    body: int
    id: str
    queue: str
    node: str
    number: int
    fifo: bool
    generation: int
    priority: int
    created: Micros
    due: Micros
    first_due: Micros
    attempt: int
    fence: int
    suspect: bool
    error: str | None
    labels: str | None
    headers: str | None
    unique_key: str | None
    unique_mode: str | None
    expires: Micros | None
    codec: str
    type: str
    payload: bytes
    record: int | None = None
    claim: str | None = None
    owner: str | None = None
    claimed: Micros | None = None
    until: Micros | None = None
    max_attempts: int | None = None
    low: int = 0
    high: int = 0
    limited: bool = False  # the queue has a limit per label value

    @property
    def is_held(self) -> bool:
        """Whether it waits for others."""
        return self.due == HELD

    @property
    def state(self) -> State:
        """The state as users see it."""
        if self.claim is not None:
            return "leased"
        return "held" if self.is_held else "waiting"

    def entry(self) -> Entry[Any]:
        """The entry as users and workers see it."""
        lease = None
        if self.claim is not None:
            plain = self.unique_key is None and not self.fifo and not self.limited
            lease = Lease(
                entry=self.id, queue=self.queue, token=f"{self.fence}-{self.claim}", fence=self.fence,
                owner=self.owner or "", claimed_us=self.claimed or 0, until_us=self.until or 0,
                ref=Ref(self.seq, self.body, self.claim, self.fence, plain, is_linked(self.unique_mode)),
            )  # fmt: skip
        return Entry(
            id=self.id, queue=self.queue, state=self.state, payload=self.payload,
            codec=self.codec, type=self.type, seq=self.seq, priority=self.priority, created_us=self.created,
            due_us=self.first_due if self.is_held else self.due, first_due_us=self.first_due, attempt=self.attempt,
            generation=self.generation, labels=read_map(self.labels), headers=read_map(self.headers),
            unique=self.unique_key, expires_us=self.expires, node=self.node or None, error=self.error, lease=lease,
        )  # fmt: skip


class Ended(msgspec.Struct):
    """A row of the history or of the dead letters, with the body that the attempt saw."""

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
            seq=self.seq, id=self.id, queue=self.queue, generation=self.generation, attempt=self.attempt,
            state=self.state, owner=self.owner, created_us=self.created, due_us=self.due, started_us=self.started,
            ended_us=self.ended, error=self.error, labels=read_map(self.labels), headers=read_map(self.headers),
            codec=self.codec, type=self.type, payload=self.payload,
        )  # fmt: skip

    def dead_letter(self) -> Entry[Any]:
        """The dead letter as users see it."""
        return Entry(
            id=self.id, queue=self.queue, state="dead", payload=self.payload or b"", codec=self.codec, type=self.type,
            seq=self.seq, priority=self.priority, created_us=self.created, due_us=self.due,
            first_due_us=self.first_due, attempt=self.attempt, generation=self.generation,
            labels=read_map(self.labels), headers=read_map(self.headers), unique=self.unique_key,
            expires_us=self.expires, node=self.node or None, error=self.error, ended_us=self.ended,
        )  # fmt: skip


_decode_map = msgspec.json.Decoder(dict[str, str]).decode  # made once: members of batches have labels, by the thousand


def read_map(text: str | None) -> dict[str, str]:
    """Labels or headers as stored; nothing is stored for none."""
    return _decode_map(text) if text else {}


def write_map(values: dict[str, str]) -> str | None:
    """Labels or headers for the store."""
    return msgspec.json.encode(values).decode() if values else None


def numbers(values: Iterable[int | None]) -> str:
    """A list of numbers as PostgreSQL writes an array: quicker than the driver's own way, and these lists are hot."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def byte_strings(values: Iterable[bytes]) -> str:
    """The same for byte strings."""
    items = [f'"\\\\x{value.hex()}"' for value in values]
    return f"{{{','.join(items)}}}"


def texts(values: Iterable[str]) -> str:
    """The same for texts."""
    escaped = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


def family_range(prefix: str) -> tuple[str, str]:
    """Names are ASCII, so all that start with the prefix lie between it and its successor."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def puts_for(event: NewEvent, subscriptions: list[Subscription]) -> list[NewEntry]:
    """One put per subscription that wants any of the event's types, with an id that a repeat gives again."""
    template = event.template
    return [
        msgspec.structs.replace(template, id=derived_id(template.id, subscription.name), queue=subscription.queue)
        for subscription in subscriptions
        if not set(event.types).isdisjoint(subscription.types)
    ]
