"""Guidance: conditions that change nothing but the way a search takes, for planners that would read far too much.

A search asks for the first few live entries of a queue. The databases would put all of them together first, bodies
included, and sort them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class Narrow(NamedTuple):
    """Where a database has the numbers of live entries without their bodies, and how it is asked for some of them."""

    waiting: tuple[str, ...]  # the kinds of waiting entries, each with its index; {queues} is a list of numbers
    claimed: str
    among: str  # the condition; {page} is a query


POSTGRES = Narrow(
    waiting=("NOT w.suspect AND w.number IN {queues}", "w.suspect AND w.number IN {queues}"),
    claimed="{space}_claims w CROSS JOIN LATERAL unnest(w.seqs, w.dues) u (seq, due)",
    among="e.seq = ANY(ARRAY({page}))",
)
# Suspects and entries of FIFO queues stand in lines of their own.
MYSQL = Narrow(
    waiting=("w.line IN {queues}", "w.line IN (0, -1) AND w.number IN {queues}"),
    claimed="{space}_held u JOIN {space}_claims w ON w.record = u.record",
    among="e.seq IN (SELECT s.seq FROM ({page}) s)",
)


def by_page(narrow: Narrow, session: Session, where: Find) -> list[str]:
    """PostgreSQL and MariaDB: find the page in the narrow tables first, then the bodies of its entries alone."""
    queues = _queues(session, where)
    states = set(where.states or ("waiting", "leased"))
    parts = []
    if states & {"waiting", "held"}:
        held = [] if "waiting" in states else [f"w.due = {HELD}"]
        kinds = [[kind.replace("{queues}", queues)] for kind in narrow.waiting] if queues else [[]]
        parts += [_part("w.seq", "{space}_ready w", [*kind, *held, *_bounds("w", where)], where) for kind in kinds]
    if "leased" in states:
        within = [f"w.number IN {queues}"] if queues else []
        parts.append(_part("u.seq", narrow.claimed, [*within, *_bounds("u", where)], where))
    page = _part("p.seq", f"({' UNION ALL '.join(parts)}) p", [], where)
    return [narrow.among.replace("{page}", page)]


def by_label(where: Find) -> list[str]:
    """PostgreSQL: begin with the entries that have the label; it may have changed since, so all are looked at."""
    if not where.labels:
        return []
    return [
        "e.seq = ANY(ARRAY(SELECT b.seq FROM {space} b WHERE b.version = 0 AND b.id IN"
        f" ({labelled(len(where.labels))})))"
    ]


def each_label(id_: str, count: int) -> list[str]:
    """SQLite and MariaDB: a list of ids for each label."""
    return [
        f"{id_} IN (SELECT x.id FROM {{space}}_labels x"
        f" WHERE x.name = %(name{number})s AND x.value = %(value{number})s)"
        for number in range(count)
    ]


def labelled(count: int) -> str:
    """PostgreSQL: ids by the index of labels; the first is looked up, and each of the others is asked of each id.

    A planner that may join them compares each with each as long as it has not counted them: minutes for some thousand.
    """
    others = "".join(
        f" AND (SELECT true FROM {{space}}_labels y WHERE y.id = x.id AND y.name = %(name{number})s"
        f" AND y.value = %(value{number})s)"
        for number in range(1, count)
    )
    return f"SELECT x.id FROM {{space}}_labels x WHERE x.name = %(name0)s AND x.value = %(value0)s{others}"


def _queues(session: Session, where: Find) -> str:
    """The numbers of the queues, as a list: the planner knows how much waits under each. Nothing for all queues."""
    if where.queue is None and where.family is None:
        return ""
    first, last = (where.queue, f"{where.queue}\x01") if where.queue is not None else family_range(where.family or "")
    rows = session.rows("queue_rows_between", first=first, last=last)
    numbers = [str(number) for queue, number, _ in rows if where.queue in (None, queue)]
    if len(numbers) > MOST_NUMBERS:
        return "(SELECT n.number FROM {space}_queues n WHERE n.queue >= %(first)s AND n.queue < %(last)s)"
    return f"({','.join(numbers) or 'NULL'})"


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
