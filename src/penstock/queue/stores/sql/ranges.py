"""Reading by ranges of sequence numbers, as plain columns: for bulk readers that share a table out among them."""

from __future__ import annotations

from typing import Any

from penstock.queue.cargo import Part
from penstock.queue.stores.sql.schema import LEASED
from penstock.queue.stores.sql.statements import Statements

_SAME = "e.labels, e.headers, e.codec, e.type, e.payload"
_COLUMNS = {
    "live": (
        f"e.seq, e.id, e.queue, CASE e.state WHEN {LEASED} THEN 'leased' ELSE 'waiting' END, e.generation, e.attempt, "
        f"CASE e.state WHEN {LEASED} THEN e.owner END, e.created, e.due, "
        f"CASE e.state WHEN {LEASED} THEN e.claimed END, NULL, e.error, {_SAME}"
    ),
    "dead": (
        "e.seq, e.id, e.queue, e.state, e.generation, e.attempt, NULL, e.created, e.due, NULL, e.ended, e.error, "
        f"{_SAME}"
    ),
    "history": (
        "e.seq, e.id, e.queue, e.state, e.generation, e.attempt, e.owner, e.created, e.due, e.started, e.ended, "
        f"e.error, {_SAME}"
    ),
}


def table(part: Part) -> str:
    """The table of a part, for a template."""
    return "<s>" if part == "live" else f"<s>_{part}"


def read_rows(
    db: Any, sql: Statements, part: Part, *, after: int, until: int, queue: str | None, limit: int
) -> list[tuple[Any, ...]]:
    """Rows of a range, in order."""
    condition, values = ("AND e.queue = ?", (queue,)) if queue is not None else ("", ())
    text = (
        f"SELECT {_COLUMNS[part]} FROM {table(part)} e WHERE e.seq > ? AND e.seq <= ? {condition} "
        "ORDER BY e.seq LIMIT ?"
    )
    found: list[tuple[Any, ...]] = list(db.execute(sql.fill(text), (after, until, *values, limit)).fetchall())
    return found


def last(db: Any, sql: Statements, part: Part) -> int:
    """The highest sequence number that is committed."""
    (found,) = db.execute(sql.fill(f"SELECT coalesce(max(seq), 0) FROM {table(part)}")).fetchone()
    return int(found)


def count(db: Any, sql: Statements, part: Part, after: int, until: int) -> int:
    """How many rows a range has, as this transaction sees it."""
    text = f"SELECT count(*) FROM {table(part)} e WHERE e.seq > ? AND e.seq <= ?"
    (found,) = db.execute(sql.fill(text), (after, until)).fetchone()
    return int(found)
