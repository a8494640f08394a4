"""A space's entries, dead letters and rows to and from another store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.policy import Rate
from penstock.queue.drivers.redis.bodies import exact, read_body, read_item
from penstock.queue.drivers.redis.serialization import row_payload, write_result
from penstock.queue.protocol import Definition, Hold, KeptResult, Link, TransferRow, Wait


def read_live(hit: Any) -> TransferRow:
    """A waiting entry as the search gave it."""
    text, content, node, error, *_ = hit
    return TransferRow(part="live", state="waiting", error=_text(error), **_fields(text, content, node))


def read_dead(hit: Any) -> TransferRow:
    """A dead letter as the search gave it."""
    text, content, node, error, ended, number = hit
    fields = {**_fields(text, content, node), "seq": number, "suspect": False}
    return TransferRow(part="dead", state="dead", error=_text(error), ended_us=ended, **fields)


def read_row(hit: Any) -> TransferRow:
    """A row of the history as the search gave it."""
    number, text, content, started, state, owner, error, node, ended = hit
    fields = {**_fields(text, content, node), "seq": number, "suspect": False}
    fields["payload"] = row_payload(read_body(content))
    return TransferRow(
        part="history", state=state.decode(), error=_text(error), owner=_text(owner), started_us=started or None,
        ended_us=ended, **fields,
    )  # fmt: skip


READERS = {"live": read_live, "dead": read_dead, "history": read_row}


def _fields(text: bytes, content: bytes, node: bytes) -> dict[str, Any]:
    item, body = read_item(text), read_body(content)
    meta = body.meta
    return {
        "seq": item.seq, "id": meta.id, "queue": meta.queue, "payload": body.payload, "codec": meta.codec,
        "type": meta.type, "created_us": body.created, "due_us": item.due, "first_due_us": body.first_due,
        "attempt": item.attempt, "generation": item.generation, "labels": body.labels, "headers": body.headers,
        "priority": item.priority, "node": node.decode() or None, "expires_us": body.expires,
        "unique": meta.unique or None, "mode": meta.mode or None, "fence": item.fence, "suspect": item.suspect,
    }  # fmt: skip


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def write_piece(row: TransferRow) -> tuple[Any, ...]:
    """A piece as the function takes it in, in the names of ``lua/lib/entries.lua``."""
    entry = {
        "id": row.id, "queue": row.queue, "node": row.node or "", "priority": row.priority,
        "created": row.created_us, "due": exact(row.due_us), "first_due": exact(row.first_due_us),
        "expires": exact(row.expires_us) or False, "attempt": row.attempt, "generation": row.generation,
        "fence": row.fence, "suspect": row.suspect, "labels": row.labels or False,
        "headers": row.headers or False, "unique": row.unique or False, "mode": row.mode or False,
        "error": False if row.error is None else row.error, "codec": row.codec, "type": row.type,
        "stripped": row.payload is None,
    }  # fmt: skip
    ending: Any = False
    if row.part != "live":
        ending = (
            row.state, row.started_us or False, row.ended_us or 0, False if row.error is None else row.error,
            row.owner or False,
        )  # fmt: skip
    return row.part, entry, ending, row.is_last


def read_definition(record: dict[str, Any]) -> Definition:
    """How a queue behaves, from its record."""
    rate, limit = record.get("rate"), record.get("limit")
    return Definition(bool(record.get("fifo")), Rate(*rate) if rate else None, (limit[0], limit[1]) if limit else None)


def read_definitions(flat: list[bytes]) -> dict[str, Definition]:
    """Names and packed records in turn, as definitions by name."""
    texts = sorted(zip(flat[::2], flat[1::2], strict=True))
    return {name.decode(): read_definition(msgspec.msgpack.decode(text)) for name, text in texts}


def read_holds(flat: list[bytes]) -> list[Hold]:
    """Scopes and texts in turn, as unique ids that are held, by queue and key."""
    holds = []
    for scope, text in zip(flat[::2], flat[1::2], strict=True):
        queue, _, key = scope.decode().partition(":")
        ends, _, id_ = text.decode().partition(" ")
        holds.append(Hold(queue, key, id_, int(ends) or None))
    return sorted(holds, key=lambda hold: (hold.queue, hold.key))


def write_rows(rows: Sequence[TransferRow], holds: Sequence[Hold]) -> tuple[dict[str, Any], list[bytes]]:
    """A request to load rows, and their payloads."""
    request = {
        "pieces": [write_piece(piece) for piece in rows],
        "holds": [(hold.queue, hold.key, hold.id, hold.until_us or 0) for hold in holds],
    }
    return request, [piece.payload or b"" for piece in rows]


def write_links(
    links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]]
) -> tuple[dict[str, Any], list[bytes]]:
    """A request to load links and results, and the texts of the results."""
    request = {
        "pieces": [], "holds": [], "links": [(link.source, link.target, link.on) for link in links],
        "waits": [msgspec.structs.astuple(wait) for wait in waits],
        "results": [(id_, result.until_us, result.batch or False) for id_, result in results],
    }  # fmt: skip
    return request, [write_result(result) for _, result in results]
