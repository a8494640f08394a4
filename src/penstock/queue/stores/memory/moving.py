"""A space's cargo to and from the tables in memory: what moves from one store to another."""

from __future__ import annotations

from typing import Any

from penstock.queue.cargo import Cargo
from penstock.queue.entry import Entry, HistoryRow
from penstock.queue.stores.memory.lanes import Item
from penstock.queue.stores.memory.state import MemoryState


def of_entry(entry: Entry[Any], item: Item) -> Cargo:
    """A waiting entry or a dead letter; ``item`` is what the store knows of it besides."""
    return Cargo(
        part="dead" if entry.state == "dead" else "live", seq=entry.seq, id=entry.id, queue=entry.queue,
        state=entry.state, payload=entry.payload, codec=entry.codec, type=entry.type, created_us=entry.created_us,
        due_us=entry.due_us, first_due_us=entry.first_due_us, attempt=entry.attempt, generation=entry.generation,
        labels=entry.labels, headers=entry.headers, error=entry.error, priority=entry.priority, node=entry.node,
        expires_us=entry.expires_us, unique=entry.unique, mode=item.mode if entry.unique else None, fence=item.fence,
        suspect=item.suspect, ended_us=entry.ended_us,
    )  # fmt: skip


def of_row(row: HistoryRow, last: Item | None) -> Cargo:
    """A row of the history; ``last`` is how its entry ended in the end, if that is known."""
    cargo = Cargo(
        part="history", seq=row.seq, id=row.id, queue=row.queue, state=row.state, payload=row.payload, codec=row.codec,
        type=row.type, created_us=row.created_us, due_us=row.due_us, first_due_us=row.due_us, attempt=row.attempt,
        generation=row.generation, labels=row.labels, headers=row.headers, error=row.error, owner=row.owner,
        started_us=row.started_us, ended_us=row.ended_us,
    )  # fmt: skip
    if last is not None and last.generation == row.generation and cargo.is_last:
        cargo.priority, cargo.node, cargo.expires_us = last.priority, last.node, last.expires_us
        cargo.unique, cargo.mode = last.unique, last.mode if last.unique else None
        cargo.fence, cargo.first_due_us = last.fence, last.first_due_us
    return cargo


def load(state: MemoryState, cargo: Cargo) -> None:
    """Take cargo in, behind what is there; inside atomic()."""
    if cargo.part == "history":
        state.add_row(
            HistoryRow(
                0, cargo.id, cargo.queue, cargo.generation, cargo.attempt, cargo.state, cargo.owner, cargo.created_us,
                cargo.due_us, cargo.started_us, cargo.ended_us or 0, cargo.error, dict(cargo.labels),
                dict(cargo.headers), cargo.codec, cargo.type, cargo.payload,
            )
        )  # fmt: skip
        if cargo.is_last:
            state.ended[cargo.id] = _item(state, cargo)
    elif cargo.part == "dead":
        state.dead[cargo.id] = _item(state, cargo)
    else:
        state.live[cargo.id] = _item(state, cargo)


def _item(state: MemoryState, cargo: Cargo) -> Item:
    return Item(
        cargo.id, cargo.queue, cargo.state, cargo.payload or b"", cargo.codec, cargo.type, next(state.seqs),
        cargo.priority, cargo.created_us, cargo.due_us, cargo.first_due_us, cargo.attempt, cargo.generation,
        dict(cargo.labels), dict(cargo.headers), cargo.unique, cargo.expires_us, cargo.node, cargo.error,
        ended_us=cargo.ended_us, mode=cargo.mode or "done", fence=cargo.fence, suspect=cargo.suspect,
    )  # fmt: skip
