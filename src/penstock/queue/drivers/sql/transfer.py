"""Transfer: a space's entries, history and settings to and from another store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.policy import Rate
from penstock.queue.drivers.sql.endings import Links
from penstock.queue.drivers.sql.put import add_labels, hold
from penstock.queue.drivers.sql.read import find_ended, find_live
from penstock.queue.drivers.sql.registry import queue_row
from penstock.queue.drivers.sql.rows import Ended, Live, read_map, unique_mode, write_map
from penstock.queue.drivers.sql.session import Session
from penstock.queue.protocol import Definition, Find, Hold, KeptResult, Link, Part, TransferRow, Wait


def definitions(session: Session) -> dict[str, Definition]:
    """How the queues behave."""
    return {
        queue: Definition(bool(fifo), None if count is None else Rate(count, period), label and (label, most))
        for queue, fifo, count, period, label, most in session.rows("definitions")
    }


def holds(session: Session) -> list[Hold]:
    """Unique ids and who holds them."""
    return [Hold(*values) for values in session.rows("holds")]


def export(session: Session, part: Part, after: int, limit: int) -> list[TransferRow]:
    """Waiting entries, dead letters or rows of the history beyond a sequence number."""
    if part == "live":
        waiting = find_live(session, Find(states=("waiting",), after=after, limit=limit))
        return [
            TransferRow(part="live", state="waiting", suspect=bool(live.suspect), **_fields(live)) for live in waiting
        ]
    return [
        TransferRow(
            part=part, state=row.state, owner=row.owner, started_us=row.started, ended_us=row.ended, **_fields(row)
        )
        for row in find_ended(session, part, Find(after=after, limit=limit))
    ]  # fmt: skip


def _fields(row: Live | Ended) -> dict[str, Any]:
    return {
        "seq": row.seq, "id": row.id, "queue": row.queue, "payload": row.payload, "codec": row.codec, "type": row.type,
        "created_us": row.created, "due_us": row.due, "first_due_us": row.first_due, "attempt": row.attempt,
        "generation": row.generation, "labels": read_map(row.labels), "headers": read_map(row.headers),
        "error": row.error, "priority": row.priority, "node": row.node or None, "expires_us": row.expires,
        "unique": row.unique_key, "mode": unique_mode(row.unique_mode), "fence": row.fence,
    }  # fmt: skip


def load(session: Session, rows: Sequence[TransferRow], unique: Sequence[Hold]) -> None:
    """Take in what another store exported, behind what is here."""
    if session.repeat and rows and _is_loaded(session, rows[0]):
        return
    for item in rows:
        row = queue_row(session, item.queue, item.node or "")
        body = _body_for(session, item, row.number)
        if item.part == "live":
            session.change(
                "load_waiting", body=body, number=row.number, due=item.due_us, generation=item.generation,
                attempt=item.attempt, fence=item.fence, suspect=item.suspect, fifo=row.fifo, error=item.error,
            )  # fmt: skip
            continue
        ended = {
            "body": body, "number": row.number, "generation": item.generation, "attempt": item.attempt,
            "due": item.due_us, "started": item.started_us, "ended": item.ended_us, "fence": item.fence,
            "owner": item.owner, "error": item.error,
        }  # fmt: skip
        if item.part == "dead":
            session.change("load_dead", **ended)
        else:
            session.change("load_history", state=item.state, **ended)
    add_labels(session, [(item.id, item.labels) for item in rows])
    session.rings = True
    for held in unique:
        hold(session, held.queue, held.key, held.id, held.until_us)


def load_links(
    session: Session, links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]]
) -> None:
    """Take in who waits for whom and what handlers returned; loading it again changes nothing."""
    if links:
        Links(session).add_links(links)
        session.change("mark_loaded", ids=list({link.source for link in links}))
    for wait in waits:
        session.change("load_wait", **msgspec.structs.asdict(wait))
    if results:
        session.change(
            "keep_results",
            ids=[id_ for id_, _ in results],
            generations=[result.generation for _, result in results],
            codecs=[result.codec for _, result in results],
            untils=[result.until_us for _, result in results],
            values=[result.value for _, result in results],
            queues=[result.queue for _, result in results],
            batches=[result.batch for _, result in results],
        )


def _is_loaded(session: Session, item: TransferRow) -> bool:
    """Whether a load whose reply was lost has happened; it was all of it or nothing."""
    row = session.row(
        "is_loaded", part=item.part, id=item.id, generation=item.generation, attempt=item.attempt, ended=item.ended_us
    )
    return row is not None


def _body_for(session: Session, item: TransferRow, number: int) -> int:
    """The body of an exported row. Rows come oldest first: another body than the last becomes the current one."""
    labels, headers = write_map(item.labels), write_map(item.headers)
    rest = {
        "priority": item.priority, "first_due": item.first_due_us, "expires": item.expires_us,
        "unique_key": item.unique, "unique_mode": item.mode,
    }  # fmt: skip
    current = session.row("current_body", id=item.id)
    if current is not None:
        body, *content = current
        if content == [labels, headers, item.codec, item.type, item.payload]:
            session.change("complete_body", body=body, **rest)
            return int(body)
        session.change("next_version", id=item.id, body=body)
    [(new_body,)] = session.rows(
        "load_body", id=item.id, version=0, number=number, created=item.created_us, labels=labels, headers=headers,
        codec=item.codec, type=item.type, payload=item.payload, **rest,
    )  # fmt: skip
    return int(new_body)
