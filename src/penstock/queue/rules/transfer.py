"""Transfer: a space's entries, history and settings to and from another store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from penstock.queue.protocol import Definition, Find, KeptResult, Link, Part, TransferRow, Wait
from penstock.queue.protocol import Hold as TransferHold
from penstock.queue.rules.read import attempts, dead_letters, find_live
from penstock.queue.rules.rows import Attempt, Body, Dead, Hold, Live
from penstock.queue.rules.state import State


def definitions(state: State) -> dict[str, Definition]:
    """How each queue behaves, by name."""
    return {
        name: Definition(queue.fifo, queue.rate, queue.label_limit)
        for name, queue in sorted(state.ready_queues.queues.items())
    }


def holds(state: State) -> list[TransferHold]:
    """All unique ids that are held, by queue and key."""
    return [TransferHold(*scope, hold.id, hold.until_us) for scope, hold in sorted(state.unique.items())]


def export(state: State, part: Part, after: int, limit: int) -> list[tuple[TransferRow, Body]]:
    """Waiting entries, dead letters or rows of the history beyond a sequence number, in order, with their bodies."""
    where = Find(after=after, limit=limit)
    if part == "history":
        return [(_export_row(state, row), row.live.body) for row in attempts(state, where)]
    if part == "dead":
        letters = dead_letters(state, where)
        return [
            (TransferRow(part="dead", state="dead", ended_us=letter.ended_us, **_fields(letter.live)), letter.live.body)
            for letter in letters
        ]
    waiting = find_live(state, Find(after=after, limit=limit, states=("waiting",)))
    return [
        (TransferRow(part="live", state="waiting", suspect=live.suspect, **_fields(live)), live.body)
        for live, _ in waiting
    ]


def _export_row(state: State, row: Attempt) -> TransferRow:
    fields = _fields(row.live)
    fields.update(seq=row.seq, payload=state.shown(row).payload, attempt=row.attempt, error=row.error)
    return TransferRow(
        part="history", state=row.state, owner=row.owner, started_us=row.started_us, ended_us=row.ended_us, **fields
    )


def _fields(live: Live) -> dict[str, Any]:
    body = live.body
    return {
        "seq": live.seq, "id": body.id, "queue": body.queue, "payload": body.payload, "codec": body.codec,
        "type": body.type, "created_us": body.created_us, "due_us": live.due_us, "first_due_us": live.first_due_us,
        "attempt": live.attempt, "generation": live.generation, "labels": dict(body.labels),
        "headers": dict(body.headers), "error": live.error, "priority": live.priority, "node": live.node,
        "expires_us": live.expires_us, "unique": body.unique, "mode": body.unique_mode if body.unique else None,
        "fence": live.fence,
    }  # fmt: skip


def load(state: State, rows: Sequence[TransferRow], unique: Sequence[TransferHold]) -> None:
    """Take in what another store exported, all or none, behind what is here."""
    with state.atomic():
        for item in rows:
            _load_one(state, item)
        for hold in unique:
            state.unique[hold.queue, hold.key] = Hold(hold.id, hold.until_us)


def load_links(
    state: State, links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]]
) -> None:
    """Take in who waits for whom and what handlers returned, all or none."""
    with state.atomic():
        for link in links:
            others = tuple(other for other in state.links.get(link.source, ()) if other.target != link.target)
            state.links[link.source] = (*others, link)
        for wait in waits:
            state.waits[wait.id] = wait
        for id_, result in results:
            state.results[id_] = result


def _load_one(state: State, item: TransferRow) -> None:
    live = _live_of(state, item)
    # Rows come oldest first, then dead letters, then live entries: the last one has the current body.
    state.entries[item.id] = live.body
    if item.part == "live":
        state.add_ready(live)
    elif item.part == "dead":
        state.dead[item.id] = Dead(replace(live, seq=next(state.row_seqs)), item.ended_us or 0)
    else:
        seq = next(state.row_seqs)
        state.history[seq] = Attempt(
            seq, live, item.state, item.attempt, item.owner, item.started_us, item.ended_us or 0, item.error, None
        )


def _live_of(state: State, item: TransferRow) -> Live:
    number = next(state.seqs)
    body = Body(
        number, item.id, item.queue, item.payload or b"", item.codec, item.type, item.created_us, dict(item.labels),
        dict(item.headers), item.unique, item.mode or "done", stripped=item.payload is None,
    )  # fmt: skip
    return Live(
        body, number, item.priority, item.due_us, item.first_due_us, item.generation, item.attempt, item.fence,
        item.suspect, item.expires_us, item.node, item.error,
    )  # fmt: skip
