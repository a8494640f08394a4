"""A plain put and a worker's round trip on one plain queue, with the fewest statements: two, and six."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.round_trip import MOST_ATTEMPTS, Trip, plain_entries
from penstock.queue.drivers.sql.rows import write_map
from penstock.queue.drivers.sql.session import Session
from penstock.queue.protocol import Claimed, ClaimRequest, Ending, NewEntry, PutResult, Step, due_at, expires_at

ABOVE_ALL = 2**31  # above every priority
COLUMNS = 20  # of an entry; what follows is the queue's number and whether the entry is special


def put_plain(session: Session, entry: NewEntry) -> PutResult | None:
    """Put an entry whose queue is there and whose id is not; None, and nothing changed, otherwise."""
    now = session.now
    due = due_at(entry, now)
    written = session.change(
        "put_entry", moment=now, queue=entry.queue, node=entry.node or "", id=entry.id, priority=entry.priority,
        due=due, headers=write_map(entry.headers), expires=expires_at(entry, now), codec=entry.codec,
        type=entry.type, payload=entry.payload,
    )  # fmt: skip
    if not written:
        return None
    session.change("put_waiting")
    failpoints.point("put.inserted")
    return PutResult(entry.id, entry.queue, True, due)


def round_trip(session: Session, steps: Sequence[Step], claim: ClaimRequest) -> Trip:
    """End plain successes and claim from one queue."""
    # 1. and 2. Successes go to the history, and leave their claims.
    settled = end_plain(session, steps)
    # 3. Due entries in their order, if nothing about them or their queue needs a closer look.
    [source] = claim.sources
    limit = min(claim.limit, source.limit)
    most = MOST_ATTEMPTS if source.attempts is None else source.attempts
    rows, next_due, plain = _due(session, claim, limit)
    if not plain or any(row[21] or row[8] >= most for row in rows):
        return Trip(settled, None, session.now)
    # 4. One record for all of them.
    if rows:
        _lease(session, claim, rows)
    failpoints.point("claim.leased")
    entries = plain_entries([row[:COLUMNS] for row in rows], source.name, claim, session.now)
    return Trip(settled, Claimed(entries, session.now if len(entries) == limit else next_due), session.now)


def end_plain(session: Session, steps: Sequence[Step]) -> set[int] | None:
    """End plain successes. Returns the bodies of those that were still held, or None if all were."""
    by_claim: dict[str, list[Ending]] = {}
    for step in steps:
        [ending] = step.endings
        by_claim.setdefault(ending.lease.ref.claim, []).append(ending)
    parts = [_end_of_claim(session, claim, ended) for claim, ended in by_claim.items()]
    if all(bodies is None for bodies in parts):
        return None
    settled: set[int] = set()
    for bodies, ended in zip(parts, by_claim.values(), strict=True):
        settled |= {ending.lease.ref.body for ending in ended} if bodies is None else bodies
    return settled


def _end_of_claim(session: Session, claim: str, endings: Sequence[Ending]) -> set[int] | None:
    seqs = [ending.lease.ref.seq for ending in endings]
    if len(seqs) == 1:
        [ending] = endings
        recorded = session.change(
            "end_one_done", seq=seqs[0], claim=claim, started=ending.started_us, moment=session.now
        )
    else:
        started = b"".join([b"%20d" % (ending.started_us or 0) for ending in endings])
        recorded = session.change("end_done", seqs=seqs, claim=claim, started=started, moment=session.now)
    failpoints.point("end.recorded")
    if recorded == len(seqs):
        _leave(session, seqs)
        return None
    held = session.rows("held_of", seqs=seqs, claim=claim)
    session.change("let_go", seqs=[seq for seq, _ in held])
    return {body for _, body in held}


def _leave(session: Session, seqs: list[int]) -> None:
    """Take entries of one claim out of it."""
    if len(seqs) == 1:
        session.change("drop_claim_of_one", seq=seqs[0], seqs=seqs)
        session.change("leave_one", seq=seqs[0])
    elif session.change("drop_claim", seq=seqs[0], seqs=sorted(seqs)):  # most often they are all that it held
        session.change("leave", seqs=seqs)
    else:
        session.change("let_go", seqs=seqs)


def _lease(session: Session, claim: ClaimRequest, rows: Sequence[tuple[Any, ...]]) -> None:
    # Sorted, so that it can be compared with what is settled later, in whatever order that ends.
    seqs = sorted([row[0] for row in rows])
    session.change(
        "add_claim", claim=claim.id, number=rows[0][20], owner=claim.owner, claimed=session.now,
        until=session.now + claim.lease_us, max_attempts=claim.sources[0].attempts, seqs=seqs,
    )  # fmt: skip
    if len(seqs) == 1:
        session.change("hold_one", seq=seqs[0])
    else:
        session.change("hold", seqs=seqs)


def _due(session: Session, claim: ClaimRequest, limit: int) -> tuple[list[tuple[Any, ...]], Micros | None, bool]:
    """Due entries of one queue, when the next one is due if they are too few, and whether the queue is plain."""
    [source] = claim.sources
    wanted = {"queue": source.name, "node": claim.node, "moment": session.now}
    rows = session.rows("plain_due", below=ABOVE_ALL, limit=limit, **wanted)
    if len(rows) == limit:
        return rows, None, True
    heads = session.rows("plain_queue", **wanted)
    if not heads:
        return [], None, False
    priorities = sorted((priority for _, priority, _ in heads if priority is not None), reverse=True)
    for priority in priorities[1:]:
        if len(rows) < limit:
            rows += session.rows("plain_due", below=priority + 1, limit=limit - len(rows), **wanted)
    upcoming = [due for _, _, due in heads if due is not None]
    suspect = session.row("next_suspect", moment=session.now)
    return rows, min([*upcoming, *(suspect or ())], default=None), True
