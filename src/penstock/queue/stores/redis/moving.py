"""A space's cargo to and from the server: what moves from one store to another."""

from __future__ import annotations

from typing import Any

from penstock.policy import Rate
from penstock.queue.cargo import Cargo, Part
from penstock.queue.store import Definition
from penstock.queue.stores.redis.records import Head, Kept, exact, read_ended, read_kept, read_map, write_map


def read_cargo(part: Part, seq: bytes, text: bytes, payload: bytes | None) -> Cargo:
    """An entry, a dead letter or a row as the search gave it."""
    head, kept, owner = (None, *read_kept(text)) if part == "live" else read_ended(text)
    attempt = kept.attempt
    state = "waiting" if head is None else head.state
    if head is not None and part == "history":
        attempt = head.attempt
        payload = payload if state in ("done", "cancelled", "expired") else None
    number = int(seq) if part == "history" else kept.seq
    return Cargo(
        part=part, seq=number, id=kept.id, queue=kept.queue, state=state, payload=payload, codec=kept.codec,
        type=kept.type, created_us=kept.created, due_us=kept.due, first_due_us=kept.first_due, attempt=attempt,
        generation=kept.generation, labels=read_map(kept.labels), headers=read_map(kept.headers),
        error=_absent(kept.error if head is None else head.error), priority=kept.priority, node=_absent(kept.node),
        expires_us=_absent(kept.expires), unique=_absent(kept.unique), mode=_absent(kept.mode), fence=kept.fence,
        suspect=kept.suspect and head is None, owner=owner or None,
        started_us=None if head is None else _absent(head.started), ended_us=None if head is None else head.ended,
    )  # fmt: skip


def write_cargo(cargo: Cargo) -> tuple[Any, ...]:
    """A piece of cargo as the script takes it in."""
    attempt = cargo.attempt
    kept = Kept(
        cargo.id, cargo.queue, cargo.node or False, 0, cargo.priority, cargo.created_us, exact(cargo.due_us) or 0,
        exact(cargo.first_due_us) or 0, exact(cargo.expires_us) or False, attempt, cargo.generation, cargo.fence,
        cargo.suspect, False, write_map(cargo.labels) or False, write_map(cargo.headers) or False,
        cargo.unique or False, cargo.mode or False, _kept(cargo.error), cargo.codec, cargo.type, False, False,
        cargo.owner or False, False, False,
    )  # fmt: skip
    head = None
    if cargo.part != "live":
        head = Head(cargo.state, _kept(cargo.started_us), cargo.ended_us or 0, _kept(cargo.error), attempt, False)
    return cargo.part, kept, head, cargo.payload is not None, cargo.is_last


def read_definition(kept: dict[str, Any]) -> Definition:
    """How a queue behaves, from its record."""
    rate, limit = kept.get("rate"), kept.get("limit")
    return Definition(bool(kept.get("fifo")), Rate(*rate) if rate else None, (limit[0], limit[1]) if limit else None)


def _absent(value: Any) -> Any:
    return None if value is False else value


def _kept(value: Any) -> Any:
    return False if value is None else value
