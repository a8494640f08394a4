"""A space's cargo to and from the tables: what moves from one store to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.clock import Micros
from penstock.policy import Rate
from penstock.queue.cargo import Cargo, Hold, Part
from penstock.queue.drivers.sql.rows import read_map, write_map
from penstock.queue.store import Definition, Find
from penstock.queue.stores.sql.finding import find_ended, find_live
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.rows import Ended, Row
from penstock.queue.stores.sql.schema import SUSPECT, WAITING
from penstock.queue.stores.sql.statements import Statements

_LIVE = """
    INSERT INTO <s> (id, queue, node, lane, fifo, state, generation, priority, created, due, first_due, attempt, fence,
                     error, labels, headers, unique_key, unique_mode, expires, codec, type, payload, suspect)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_ENDED = """
    INSERT INTO <s>_{0} (id, queue, node, state, started, ended, generation, priority, created, due, first_due, attempt,
                         fence, owner, error, labels, headers, unique_key, unique_mode, expires, codec, type, payload)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def read_definitions(db: Any, sql: Statements) -> dict[str, Definition]:
    """How the queues behave."""
    text = "SELECT queue, fifo, rate_count, rate_period, limit_label, limit_count FROM <s>_lanes WHERE node = ''"
    return {
        queue: Definition(bool(fifo), None if count is None else Rate(count, period), label and (label, most))
        for queue, fifo, count, period, label, most in db.execute(sql.fill(text)).fetchall()
    }


def read_holds(db: Any, sql: Statements) -> list[Hold]:
    """Unique ids and who holds them."""
    text = "SELECT queue, unique_key, id, until FROM <s>_unique ORDER BY queue, unique_key"
    return [Hold(*values) for values in db.execute(sql.fill(text)).fetchall()]


def read_cargo(db: Any, sql: Statements, part: Part, after: int, limit: int) -> list[Cargo]:
    """Entries or rows beyond a sequence number."""
    if part == "live":
        return [_of_live(row) for row in find_live(db, sql, Find(states=("waiting",), after=after, limit=limit))]
    return [_of_ended(part, row) for row in find_ended(db, sql, part, Find(after=after, limit=limit))]


def _of_live(row: Row) -> Cargo:
    return Cargo(part="live", state="waiting", suspect=bool(row.suspect), **_fields(row))


def _of_ended(part: Part, row: Ended) -> Cargo:
    return Cargo(
        part=part, state=row.state, owner=row.owner, started_us=row.started, ended_us=row.ended, **_fields(row)
    )


def _fields(row: Row | Ended) -> dict[str, Any]:
    return {
        "seq": row.seq, "id": row.id, "queue": row.queue, "payload": row.payload, "codec": row.codec, "type": row.type,
        "created_us": row.created, "due_us": row.due, "first_due_us": row.first_due, "attempt": row.attempt,
        "generation": row.generation, "labels": read_map(row.labels), "headers": read_map(row.headers),
        "error": row.error, "priority": row.priority, "node": row.node or None, "expires_us": row.expires,
        "unique": row.unique_key, "mode": row.unique_mode, "fence": row.fence,
    }  # fmt: skip


def load(work: Operations, cargo: Sequence[Cargo], holds: Sequence[Hold]) -> None:
    """Write cargo of another store behind what is there."""
    if work.repeat and cargo and _is_there(work, cargo[0]):
        return
    live = [one for one in cargo if one.part == "live"]
    soonest: dict[int, tuple[Micros, bool]] = {}
    rows = []
    for one in live:
        lane = work.lane(one.queue, one.node or "")
        rows.append(
            (one.id, lane.queue, lane.node, lane.lane, lane.fifo, SUSPECT if one.suspect else WAITING, one.generation,
             one.priority, one.created_us, one.due_us, one.first_due_us, one.attempt, one.fence, one.error,
             write_map(one.labels), write_map(one.headers), one.unique, one.mode, one.expires_us, one.codec, one.type,
             one.payload, int(one.suspect))
        )  # fmt: skip
        due = min(one.due_us, soonest.get(lane.lane, (one.due_us, False))[0])
        soonest[lane.lane] = (due, bool(lane.fifo))
    if rows:
        work.db.executemany(work.sql.fill(_LIVE), rows)
    for table in ("history", "dead"):
        ended = [_ended_row(one) for one in cargo if one.part == table]
        if ended:
            work.db.executemany(work.sql.fill(_ENDED.format(table)), ended)
    for one in cargo:
        work.add_labels(one.id, one.labels)
    for lane_id, (due, fifo) in soonest.items():
        work.sooner(lane_id, due, fifo=fifo)
    for hold in holds:
        work.hold(hold.queue, hold.key, hold.id, hold.until_us)


def _is_there(work: Operations, one: Cargo) -> bool:
    """Whether a load whose reply was lost has happened; it was all of it or nothing."""
    if one.part == "live":
        return work.row(work.sql.by_id, one.id) is not None
    text = f"SELECT 1 FROM <s>_{one.part} WHERE id = ? AND generation = ? AND attempt = ? AND ended = ?"
    key = (one.id, one.generation, one.attempt, one.ended_us)
    return work.db.execute(work.sql.fill(text), key).fetchone() is not None


def _ended_row(one: Cargo) -> tuple[Any, ...]:
    return (
        one.id, one.queue, one.node or "", one.state, one.started_us, one.ended_us, one.generation, one.priority,
        one.created_us, one.due_us, one.first_due_us, one.attempt, one.fence, one.owner, one.error,
        write_map(one.labels), write_map(one.headers), one.unique, one.mode, one.expires_us, one.codec, one.type,
        one.payload,
    )  # fmt: skip
