"""What a space keeps besides entries: its queues' settings, locks, schedules, subscriptions, nodes, documents."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.queue.drivers.sql.rows import QueueRow, family_range
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import Lock
from penstock.queue.protocol import Definition, Document, DocumentWrite, Schedule, Subscription
from penstock.queue.refusals import fifo_fixed

# Names are ASCII and begin with a letter or digit: these lie before and behind every character of one.
FIRST, LAST = "!", "~"


def queue_row(session: Session, queue: str, node: str = "", *, fresh: bool = False) -> QueueRow:
    """The row of a queue, made when missing; that of a node follows its queue's settings."""
    key = (queue, node)
    known = session.queue_rows.get(key)
    if known is not None and not fresh:
        return known
    columns = session.row("queue_row", queue=queue, node=node)
    if columns is None:
        _add_queue(session, queue, node)
        # What another one has just made is not in the snapshot that a caller's transaction may read from.
        columns = session.row("queue_row_now", queue=queue, node=node)
    row = session.queue_rows[key] = QueueRow(*columns)  # type: ignore[misc]
    return row


def _add_queue(session: Session, queue: str, node: str) -> None:
    settings: dict[str, Any] = {
        "fifo": False, "rate_count": None, "rate_period": None, "limit_label": None, "limit_count": None
    }  # fmt: skip
    if node:
        base = queue_row(session, queue)
        settings = {name: getattr(base, name) for name in settings}
    session.change("add_queue", queue=queue, node=node, **settings)


def define(session: Session, queue: str, definition: Definition) -> None:
    """Keep how a queue behaves."""
    row = queue_row(session, queue)
    numbers = [number for (number,) in session.rows("lock_queue_rows", queue=queue)]
    row = queue_row(session, queue, fresh=True)
    fifo = row.fifo if definition.fifo is None else definition.fifo
    if fifo != row.fifo and session.row("queue_holds_any", queue=queue):
        raise fifo_fixed(queue)
    rate: tuple[int | None, Micros | None] = (row.rate_count, row.rate_period)
    if definition.rate is not None:
        rate = (definition.rate.count, definition.rate.period) if definition.rate.count else (None, None)
    limit: tuple[str | None, int | None] = (row.limit_label, row.limit_count)
    if definition.label_limit is not None:
        limit = definition.label_limit if definition.label_limit[1] else (None, None)
    wanted = (fifo, *rate, *limit)
    if wanted == (row.fifo, row.rate_count, row.rate_period, row.limit_label, row.limit_count):
        return
    session.change(
        "define_queue", queue=queue, fifo=fifo, rate_count=rate[0], rate_period=rate[1], limit_label=limit[0],
        limit_count=limit[1],
    )  # fmt: skip
    if limit[0] != row.limit_label:
        session.change("count_in_flight_by", numbers=numbers, label=limit[0])
    session.rings = True


# --- locks ---------------------------------------------------------------------------------------------------------


def lock(session: Session, queue: str, holder: str, reason: str) -> None:
    """Stop claims from a queue on behalf of one holder."""
    queue_row(session, queue)
    session.rows("lock_queue_rows", queue=queue)  # who counts the locks must see all of them
    session.change("set_lock", queue=queue, holder=holder, reason=reason, since=session.now)
    session.change("mark_locked", queue=queue)


def unlock(session: Session, queue: str, holder: str) -> bool:
    """Take one holder's lock away."""
    session.rows("lock_queue_rows", queue=queue)
    held = session.change("drop_lock", queue=queue, holder=holder) > 0
    session.change("mark_locked", queue=queue)
    session.rings = held
    return held


def locks(session: Session, queue: str | None) -> list[Lock]:
    """Locks on one queue, or all."""
    first, last = ("", LAST) if queue is None else (queue, queue + FIRST)
    return [Lock(*columns) for columns in session.rows("locks", first=first, last=last)]


# --- schedules and subscriptions -----------------------------------------------------------------------------------


def set_schedule(session: Session, schedule: Schedule) -> bool:
    """Keep a schedule unless a higher version is there."""
    known = session.row("schedule", name=schedule.name)
    if known is not None:
        stored = _read_schedule(known[1], known[2])
        if stored.version > schedule.version:
            return False
        if msgspec.structs.replace(schedule, next_us=stored.next_us) == stored:
            return True
        if stored.is_paused:  # a new version changes what it does, not that it is paused
            schedule = msgspec.structs.replace(schedule, next_us=stored.next_us)
    session.rings = True
    session.change(
        "set_schedule", name=schedule.name, version=schedule.version, next_fire=schedule.next_us,
        definition=msgspec.json.encode(schedule),
    )  # fmt: skip
    return True


def remove_schedule(session: Session, name: str) -> bool:
    """Forget a schedule."""
    session.rings = session.change("drop_schedule", name=name) > 0
    return session.rings


def move_schedule(session: Session, schedule: Schedule, next_us: Micros) -> bool:
    """Move a schedule on, if nobody else has."""
    return session.change(
        "move_schedule", name=schedule.name, version=schedule.version, was=schedule.next_us, next_fire=next_us
    ) > 0  # fmt: skip


def schedules(session: Session) -> list[Schedule]:
    """All schedules, by name."""
    return [_read_schedule(next_us, definition) for next_us, definition in session.rows("schedules")]


def _read_schedule(next_us: Micros, definition: bytes) -> Schedule:
    return msgspec.structs.replace(msgspec.json.decode(definition, type=Schedule), next_us=next_us)


def subscriptions(session: Session) -> list[Subscription]:
    """All subscriptions, by name."""
    return [
        Subscription(name, queue, tuple(msgspec.json.decode(types)))
        for name, queue, types in session.rows("subscriptions")
    ]


def subscribe(session: Session, subscription: Subscription) -> None:
    """Keep a subscription."""
    types = msgspec.json.encode(subscription.types).decode()
    session.change("subscribe", name=subscription.name, queue=subscription.queue, types=types)


# --- documents -----------------------------------------------------------------------------------------------------


def documents(session: Session, prefix: str, since: Micros) -> list[Document]:
    """Documents by name."""
    first, last = family_range(prefix) if prefix else ("", LAST)
    rows = session.rows("documents", first=first, last=last, since=since)
    return [Document(name, bytes(value), version, changed) for name, value, version, changed in rows]


def write_document(session: Session, write: DocumentWrite) -> bool:
    """Write a document if its version is the one given. Returns whether it was."""
    name, value, version = write.name, write.value, write.version
    if value is None:
        if version is None:
            session.change("drop_document", name=name)
            return True
        gone = session.change("drop_document_at", name=name, version=version)
        return gone > 0 or session.row("document", name=name) is None
    if version is None:
        session.change("write_document", name=name, moment=session.now, value=value)
        return True
    if version == 0:
        written = session.change("new_document", name=name, moment=session.now, value=value)
    else:
        written = session.change("change_document", name=name, moment=session.now, value=value, version=version)
    if written:
        return True
    stored = session.row("document", name=name)
    # Its own value, one version on, is what this very write has left before.
    return stored is not None and stored[0] == version + 1 and bytes(stored[1]) == value
