"""Guidance: conditions that change nothing but the way a search takes, for planners that would read far too much.

A search asks for the first few live entries of a queue. Both databases would first put all of them together, bodies
included, and sort them.
"""

from __future__ import annotations

from typing import Any

from penstock.queue.drivers.sql.rows import family_range
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import HELD
from penstock.queue.protocol import Find

FEW = 20_000  # waiting entries that are looked up one by one rather than found by reading all of a space
MOST_NUMBERS = 100  # queues that are named in a statement; more are left to the planner

# SQLite: by the two indexes of what waits: in order, and the few that are handed out alone.
WAITING_SEQS = (
    "SELECT w.seq FROM {space}_ready w WHERE w.record IS NULL AND w.suspect = 0"
    " AND w.number IN (SELECT n.number FROM {space}_queues n WHERE n.queue = %(queue)s)"
    " AND w.due >= %(from)s AND w.due < %(before)s"
    " UNION ALL SELECT w.seq FROM {space}_ready w WHERE w.suspect = 1"
)


def by_lookups(session: Session, where: Find, values: dict[str, Any]) -> list[str]:
    """SQLite, whose planner knows nothing of how many rows a condition leaves: name the entries if they are few."""
    if where.states == ("leased",):
        return ["e.seq IN (SELECT j.value FROM {space}_claims k, json_each(k.seqs) j)"]
    if where.queue is None or where.states != ("waiting",) or where.labels:
        return []
    values["from"], values["before"] = where.from_us or 0, HELD + 1 if where.before_us is None else where.before_us
    bounds = {"queue": where.queue, "from": values["from"], "before": values["before"]}
    [(number,)] = session.rows("count_waiting", **bounds, limit=FEW + 1)
    if number > FEW:
        return []  # so many that the first ones are soon met in the order of the space
    return [f"e.seq IN ({WAITING_SEQS})"]


def by_page(session: Session, where: Find, values: dict[str, Any]) -> list[str]:
    """PostgreSQL: find the numbers of the page in the narrow tables first, then the bodies of these alone."""
    if where.labels:
        # Labels of an entry may have changed since, so all that had one are looked at.
        return [
            "e.seq = ANY(ARRAY(SELECT b.seq FROM {space} b WHERE b.version = 0 AND b.id IN"
            " (SELECT x.id FROM {space}_labels x WHERE x.name = %(name0)s AND x.value = %(value0)s)))"
        ]
    states = set(where.states or ("waiting", "leased"))
    queues = _queues(session, where)
    parts = []
    if states & {"waiting", "held"}:
        held = [] if "waiting" in states else [f"w.due = {HELD}"]
        # Each kind has its index.
        parts += [
            _part("w.seq", "{space}_ready w", [kind, *queues, *held, *_bounds("w", where)], where)
            for kind in ("NOT w.suspect", "w.suspect")
        ]
    if "leased" in states:
        claimed = "{space}_claims w CROSS JOIN LATERAL unnest(w.seqs, w.dues) u (seq, due)"
        parts.append(_part("u.seq", claimed, [*queues, *_bounds("u", where)], where))
    page = _part("p.seq", f"({' UNION ALL '.join(parts)}) p", [], where)
    return [f"e.seq = ANY(ARRAY{page})"]


def _queues(session: Session, where: Find) -> list[str]:
    """The numbers themselves: the planner knows how much waits under each."""
    if where.queue is None and where.family is None:
        return []
    first, last = (where.queue, f"{where.queue}\x01") if where.queue is not None else family_range(where.family or "")
    rows = session.rows("queue_rows_between", first=first, last=last)
    numbers = [str(number) for queue, number, _ in rows if where.queue in (None, queue)]
    if len(numbers) > MOST_NUMBERS:
        return ["w.number IN (SELECT n.number FROM {space}_queues n WHERE n.queue >= %(first)s AND n.queue < %(last)s)"]
    return [f"w.number = ANY('{{{','.join(numbers)}}}'::int[])"]


def _bounds(row: str, where: Find) -> list[str]:
    bounds = []
    if where.from_us is not None:
        bounds.append(f"{row}.due >= %(from)s")
    if where.before_us is not None:
        bounds.append(f"{row}.due < %(before)s")
    if where.after:
        bounds.append(f"{row}.seq {'<' if where.newest_first else '>'} %(after)s")
    return bounds


def _part(column: str, source: str, conditions: list[str], where: Find) -> str:
    only = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = " DESC" if where.newest_first else ""
    return f"(SELECT {column} FROM {source}{only} ORDER BY {column}{order} LIMIT %(limit)s)"
