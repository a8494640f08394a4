"""Put: new entries, changed entries, and ended entries that are put again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from penstock import failpoints
from penstock.clock import Micros, duration_micros
from penstock.queue import refusals
from penstock.queue.drivers.sql import endings
from penstock.queue.drivers.sql.read import live_entry
from penstock.queue.drivers.sql.registry import queue_row
from penstock.queue.drivers.sql.rows import LINKED, Live, QueueRow, unique_mode, write_map
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import HELD, Unique
from penstock.queue.protocol import Changes, Link, NewEntry, PutResult, Scope, Wait, due_at, expires_at


def is_plain(entry: NewEntry) -> bool:
    """Whether one statement can put the entry: nothing has to be looked up first."""
    return entry.unique is None and not entry.labels and not entry.repeat


def put_plain(session: Session, entry: NewEntry) -> PutResult | None:
    """Put one plain entry in one statement. Returns None if that needs a closer look."""
    [(_, number, body, due, _)] = session.rows(
        "put_one", now=session.fixed_now, queue=entry.queue, node=entry.node or "", id=entry.id,
        priority=entry.priority, due=entry.due_us, delay=entry.delay_us,
        headers=write_map(entry.headers) if entry.headers else None, expires=entry.expires_us,
        expires_in=entry.expires_in_us, codec=entry.codec, type=entry.type, payload=entry.payload,
        channel=session.channel,
    )  # fmt: skip
    if number is None or body is None:
        return None
    return PutResult(entry.id, entry.queue, True, due)


def put(
    session: Session,
    entries: Sequence[NewEntry],
    *,
    repeat: bool = False,
    links: Sequence[Link] = (),
    known: set[str] | None = None,
) -> list[PutResult]:
    """Put entries in order; raises at the first that cannot be.

    The ``links`` of the step are made later; here the entries that others wait for are marked. To ``known`` are added
    the ids that were there before.
    """
    rows = [_row_for(session, entry) for entry in entries]
    sources = {link.source for link in links}
    targets = {link.target for link in links}
    for entry, row in zip(entries, rows, strict=True):
        if row.fifo and entry.id in targets:
            raise refusals.held_in_fifo(entry.queue)
    results: list[PutResult] = []
    batch: list[tuple[NewEntry, QueueRow, Micros]] = []
    now = session.now
    for entry, row in zip(entries, rows, strict=True):
        due = due_at(entry, now)
        if entry.unique is None and not entry.repeat and not repeat:
            batch.append((entry, row, due))
            results.append(PutResult(entry.id, entry.queue, True, due))
            continue
        _insert(session, batch, now, sources)
        batch = []
        results.append(_put_checked(session, entry, row, sources, set() if known is None else known))
    _insert(session, batch, now, sources)
    add_labels(session, [(entry.id, entry.labels) for entry in entries])
    failpoints.point("put.inserted")
    session.rings = True
    return results


def _row_for(session: Session, entry: NewEntry) -> QueueRow:
    row = queue_row(session, entry.queue, entry.node or "")
    if row.fifo and (entry.priority or entry.node):
        raise refusals.not_for_fifo(entry.queue)
    return row


def _insert(
    session: Session, batch: Sequence[tuple[NewEntry, QueueRow, Micros]], now: Micros, sources: Collection[str] = ()
) -> None:
    if not batch:
        return
    entries = [entry for entry, _, _ in batch]
    inserted = session.change(
        "put_many", moment=now,
        ids=[entry.id for entry in entries],
        numbers=[row.number for _, row, _ in batch],
        fifos=[row.fifo for _, row, _ in batch],
        priorities=[entry.priority for entry in entries],
        dues=[due for _, _, due in batch],
        labels=[write_map(entry.labels) for entry in entries],
        headers=[write_map(entry.headers) for entry in entries],
        unique_keys=[entry.unique and entry.unique.key for entry in entries],
        unique_modes=[_mode(entry, sources) for entry in entries],
        expires=[expires_at(entry, now) for entry in entries],
        codecs=[entry.codec for entry in entries],
        types=[entry.type for entry in entries],
        payloads=[entry.payload for entry in entries],
    )  # fmt: skip
    if inserted != len(batch):
        # An id was there already: see whether each one is what is meant by it, or another entry.
        for entry in entries:
            _is_known(session, entry)


def _mode(entry: NewEntry, sources: Collection[str]) -> str | None:
    """How the entry holds its unique id, and the mark of one that others wait for."""
    mode = None if entry.unique is None else entry.unique.mode
    return (mode or "") + LINKED if entry.id in sources else mode


def _put_checked(
    session: Session, entry: NewEntry, row: QueueRow, sources: Collection[str], known: set[str]
) -> PutResult:
    """Put an entry that may be there already, or whose unique id may be held."""
    if _is_known(session, entry):
        known.add(entry.id)
        return PutResult(entry.id, entry.queue, True, due_at(entry, session.now))
    if entry.unique is not None:
        until = None if entry.unique.period is None else session.now + duration_micros(entry.unique.period)
        holder = hold(session, entry.queue, entry.unique.key, entry.id, until)
        if holder is not None:
            return _unique_conflict(session, entry, entry.unique, row, holder, sources, known)
    now = session.now  # its unique id may have been waited for
    due = due_at(entry, now)
    _insert(session, [(entry, row, due)], now, sources)
    return PutResult(entry.id, entry.queue, True, due)


def _is_known(session: Session, entry: NewEntry) -> bool:
    known = session.row("known", id=entry.id)
    if known is None:
        return False
    queue, payload, *_ = known
    if queue != entry.queue or (payload is not None and payload != entry.payload):
        raise refusals.id_taken(entry.id, queue)
    return True


def add_labels(session: Session, labelled: Sequence[tuple[str, dict[str, str]]]) -> None:
    """Make entries findable by their labels."""
    added = [(name, value, id_) for id_, labels in labelled for name, value in labels.items()]
    if added:
        names, values, ids = zip(*added, strict=True)
        session.change("add_labels", names=list(names), values=list(values), ids=list(ids))


# --- unique ids ----------------------------------------------------------------------------------------------------


def hold(session: Session, queue: str, key: str, id_: str, until: Micros | None) -> str | None:
    """Take a unique id. Returns None when it was free, or who holds it. Of several who try at once, one gets it."""
    while not session.change("hold_unique", queue=queue, key=key, id=id_, until=until):
        held = session.row("unique_holder", queue=queue, key=key)
        if held is None:  # its holder ended in between, or the caller's transaction reads from an older snapshot
            held = session.row("unique_holder_now", queue=queue, key=key)
        if held is None:
            continue
        holder, held_until = held
        if held_until is None or held_until > session.now:
            return str(holder)
        if session.change("take_unique", queue=queue, key=key, id=id_, until=until, held_until=held_until):
            break
    return None


def _unique_conflict(  # noqa: PLR0917
    session: Session,
    entry: NewEntry,
    unique: Unique,
    row: QueueRow,
    holder: str,
    sources: Collection[str],
    known: set[str],
) -> PutResult:
    """What a put comes to whose unique id another entry holds."""
    if unique.on_conflict == "raise":
        raise refusals.unique_held(entry.queue, unique.key, holder)
    if unique.on_conflict == "keep":
        holder_due = session.row("due_of", id=holder)
        due = due_at(entry, session.now) if holder_due is None else holder_due[0]
        return PutResult(holder, entry.queue, False, due)
    # The entry first, then its unique id: the order in which an ending takes them.
    live = live_entry(session, holder, lock=True)
    still = session.row("unique_holder_now", queue=entry.queue, key=unique.key)
    due = due_at(entry, session.now)
    if still is None or still[0] != holder:
        return _put_checked(session, entry, row, sources, known)
    if live is None:
        return PutResult(holder, entry.queue, False, due)
    if live.claim is not None:
        raise refusals.unique_held(entry.queue, unique.key, holder)
    generation = live.generation + (1 if live.attempt else 0)
    _rewrite(
        session, live, payload=entry.payload, codec=entry.codec, type=entry.type, labels=write_map(entry.labels),
        headers=write_map(entry.headers), priority=entry.priority, due=HELD if live.is_held else due, first_due=due,
        expires=expires_at(entry, session.now), generation=generation, attempt=0, error=None, suspect=False,
    )  # fmt: skip
    add_labels(session, [(holder, entry.labels)])
    return PutResult(holder, entry.queue, False, due)


# --- changes -------------------------------------------------------------------------------------------------------


def update(session: Session, id_: str, changes: Changes, *, force: bool, scope: Scope | None) -> str:
    """Change an entry. Returns its queue's name."""
    live = live_entry(session, id_, lock=True, scope=scope)
    if live is None:
        raise refusals.not_live(id_)
    if live.claim is not None and not force:
        raise refusals.entry_leased(live.id, live.queue, live.owner)
    if changes.priority and live.fifo:
        raise refusals.not_for_fifo(live.queue)
    if live.claim is not None:
        endings.take_away(session, live, error="taken away by an update")
        live = live_entry(session, id_, lock=True) or live
    moved = changes.due_us is not None or changes.delay_us is not None
    due = live.due
    if moved:
        due = changes.due_us if changes.due_us is not None else session.now + (changes.delay_us or 0)
    _rewrite(
        session, live,
        payload=live.payload if changes.payload is None else changes.payload,
        codec=changes.codec or live.codec,
        type=changes.type or live.type,
        labels=live.labels if changes.labels is None else write_map(changes.labels),
        headers=live.headers,
        priority=live.priority if changes.priority is None else changes.priority,
        due=HELD if live.is_held else due,
        first_due=due if moved else live.first_due,
        expires=live.expires, generation=live.generation, attempt=live.attempt, error=live.error, suspect=live.suspect,
    )  # fmt: skip
    add_labels(session, [(id_, changes.labels or {})])
    return live.queue


def _rewrite(session: Session, live: Live, *, expires: Micros | None, priority: int, **fields: Any) -> None:
    """Give a waiting entry another body; ended attempts keep the one they saw."""
    row = session.row("keep_version", id=live.id, body=live.body)
    body = live.body if row is None else row[0]
    ready = {name: fields.pop(name) for name in ("due", "generation", "attempt", "error", "suspect")}
    session.change("change_body", body=body, expires=expires, priority=priority, **fields)
    special = expires is not None or unique_mode(live.unique_mode) == "started"
    session.change(
        "change_waiting", seq=live.seq, body=body, priority=priority, expires=expires, special=special, **ready
    )  # fmt: skip
    session.rings = True


def replay(session: Session, ids: Sequence[str], *, scope: Scope | None) -> list[tuple[str, str]]:
    """Put ended entries back as a new generation, all or none."""
    replayed = []
    for id_ in ids:
        if live_entry(session, id_) is not None:
            continue
        queue = _replay_one(session, id_, scope)
        if queue is not None:
            replayed.append((id_, queue))
    return replayed


def _replay_one(session: Session, id_: str, scope: Scope | None) -> str | None:
    """Put one back. Returns its queue's name, or None if somebody else has just done so."""
    dead = session.row("dead_by_id", id=id_)
    if session.knows("lock_body") and session.rows("lock_body", id=id_) and live_entry(session, id_) is not None:
        return None
    ended = dead or session.row("last_end", id=id_)
    # A purged entry is gone for good, although the history still shows it.
    if ended is None or (dead is None and ended[1] == "dead"):
        raise refusals.not_ended(id_)
    number, _, generation, fence, body, _, unique_key, mode, _ = ended[:9]
    [(queue, node)] = session.rows("queue_of_number", number=number)
    if scope is not None and not scope.covers(queue):
        raise refusals.not_ended(id_)
    if dead is not None:
        session.change("delete_dead", seqs=[dead[9]])
    failpoints.point("replay.taken")
    if unique_key is not None and unique_mode(mode) != "period":
        holder = hold(session, queue, unique_key, id_, None)
        if holder is not None:
            raise refusals.unique_held(queue, unique_key, holder)
    row = queue_row(session, queue, node)
    replayed = session.change(
        "replay", body=body, number=row.number, due=session.now, generation=generation + 1, fence=fence, fifo=row.fifo
    )
    if not replayed:  # pruned meanwhile
        raise refusals.not_ended(id_)
    session.change("forget_result", id=id_)  # the generation before returned it, not the one to come
    links = endings.Links(session)
    if links.count_one(Wait(id_)).needs:  # those it waited for have not all ended
        if row.fifo:
            raise refusals.held_in_fifo(queue)
        links.hold([id_])
    session.rings = True
    return str(queue)
