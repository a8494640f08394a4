"""Reap: take back what vanished workers held, end what is out of time, free what vanished nodes kept; prune."""

from __future__ import annotations

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.endings import Endings, consume
from penstock.queue.drivers.sql.read import find_ended
from penstock.queue.drivers.sql.registry import queue_row
from penstock.queue.drivers.sql.repeats import forgettable_answers
from penstock.queue.drivers.sql.rows import Live, is_linked
from penstock.queue.drivers.sql.session import Session
from penstock.queue.forgetting import NODE_REMEMBERED, REMEMBERED
from penstock.queue.linking import PURGED
from penstock.queue.protocol import Find, Reaped

RAN_OUT = "lease ran out"


def reap(session: Session, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
    """One round of the reaper."""
    reaped = Reaped([], [], [], [], [])
    _take_back(session, reaped, limit)
    _expire(session, reaped, limit)
    _free_sticky(session, reaped, node, sticky_after_us, limit)
    first, last = forgettable_answers(session.now)
    session.change("sweep_results", moment=session.now)
    session.change("sweep", moment=session.now, cutoff=session.now - REMEMBERED, first=first, last=last)
    _forget_nodes(session, sticky_after_us)
    return reaped


def _take_back(session: Session, reaped: Reaped, limit: int) -> None:
    """Entries of claims that have run out: suspects now, or dead letters if that was their last attempt."""
    claims = session.rows("run_out", moment=session.now, limit=limit)
    if not claims:
        return
    rows = session.rows(
        "held_by_record", claims=[claim for _, claim in claims], records=[record for record, _ in claims]
    )
    endings = Endings(session)
    for live in (Live(*row) for row in rows[:limit]):
        if live.max_attempts is not None and live.attempt >= live.max_attempts:
            endings.end(live, "dead", error=RAN_OUT)
            reaped.dead.append((live.id, live.queue))
        else:
            endings.record(live, "reaped", error=RAN_OUT)
            endings.give_back(live, session.now, attempt=live.attempt, error=RAN_OUT, suspect=True)
            reaped.reaped.append((live.id, live.queue))
    failpoints.point("reap.recorded")
    endings.apply()


def _expire(session: Session, reaped: Reaped, limit: int) -> None:
    """Entries that nobody claimed in time."""
    endings = Endings(session)
    for (seq,) in session.rows("expired", moment=session.now, limit=limit):
        row = session.row("live_by_seq", seq=seq)
        if row is not None:
            live = Live(*row)
            endings.end(live, "expired", ran=False)
            reaped.expired.append((live.id, live.queue))
    endings.apply()


def _free_sticky(session: Session, reaped: Reaped, node: str, sticky_after_us: Micros, limit: int) -> None:
    """Overdue sticky entries: those of nodes that are gone may go anywhere, a node's own are only told."""
    overdue = session.rows("overdue_sticky", cutoff=session.now - sticky_after_us, node=node, limit=limit)
    for id_, queue, owner, seq, _ in overdue:
        if owner == node:
            reaped.late.append((id_, queue))
        else:
            session.change("move_to_queue", number=queue_row(session, queue).number, seq=seq)
            session.rings = True
            reaped.freed.append((id_, queue))


def _forget_nodes(session: Session, sticky_after_us: Micros) -> None:
    """Forget nodes that were silent for long. Reading them locks nothing, so no other node's heartbeat waits."""
    cutoff = session.now - max(NODE_REMEMBERED, sticky_after_us)
    for node, seen in session.rows("nodes"):
        if seen <= cutoff:
            session.change("forget_node", node=node, cutoff=cutoff)


def prune(session: Session, older_than_us: Micros, limit: int) -> int:
    """Remove history rows, and with the last row of an entry that nothing else refers to its body."""
    cutoff = session.now - max(older_than_us, REMEMBERED)
    old = []
    for seq, body, ended in session.rows("oldest_history", limit=limit):
        if ended >= cutoff:
            break
        old.append((seq, body))
    if not old:
        return 0
    session.change("delete_history", seqs=[seq for seq, _ in old])
    failpoints.point("prune.row")
    _delete_unused(session, [body for _, body in old])
    return len(old)


def purge_dead(session: Session, where: Find) -> list[tuple[str, str]]:
    """Remove dead letters for good, with the payloads of their attempts."""
    rows = find_ended(session, "dead", where)
    if rows:
        bodies = [body for (body,) in session.rows("bodies_of_dead", seqs=[row.seq for row in rows])]
        session.change("delete_dead", seqs=[row.seq for row in rows])
        # Nobody can replay them any more: to what waits for them that is the same as cancelled.
        linked = {row.id: PURGED for row in rows if is_linked(row.unique_mode)}
        if linked:
            consume(session, linked)
        _delete_unused(session, bodies)
        session.change("remove_payloads", ids=[row.id for row in rows])
    return [(row.id, row.queue) for row in rows]


def _delete_unused(session: Session, bodies: list[int]) -> None:
    unique = sorted(set(bodies))
    session.rows("lock_bodies", bodies=unique)
    ids = [id_ for (id_,) in session.rows("delete_unused", bodies=unique)]
    if ids:
        session.change("drop_labels", ids=ids)
    session.change("drop_waits")
