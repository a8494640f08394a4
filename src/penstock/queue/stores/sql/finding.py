"""Searches over live entries, dead letters and history: conditions to SQL, values always bound."""

from __future__ import annotations

from typing import Any

from penstock.clock import Micros
from penstock.errors import BadInput
from penstock.queue.drivers.sql.rows import family_range
from penstock.queue.entry import Counts, Lock
from penstock.queue.store import Find
from penstock.queue.stores.sql.rows import Ended, Row
from penstock.queue.stores.sql.statements import ENDED, ENTRY, Statements

_LIVE_STATES = {"waiting": "e.state <> 1", "leased": "e.state = 1"}


def find_live(db: Any, sql: Statements, where: Find) -> list[Row]:
    """Live entries by sequence."""
    conditions, values = _conditions(sql, where, "e", "e.queue", "e.due")
    if where.states is not None:
        unknown = set(where.states) - _LIVE_STATES.keys()
        if unknown:
            raise BadInput(
                f"a live entry is never {unknown.pop()!r}.", hint="Use 'waiting' or 'leased'; see history()."
            )
        conditions.append(f"({' OR '.join(_LIVE_STATES[state] for state in where.states) or '0'})")
    text = f"SELECT {ENTRY} FROM <s> e {_tail('e', conditions, where)}"
    return [Row(*found) for found in db.execute(sql.fill(text), (*values, where.limit)).fetchall()]


def find_ended(db: Any, sql: Statements, table: str, where: Find) -> list[Ended]:
    """Rows of the history or the dead letters by sequence."""
    conditions, values = _conditions(sql, where, "h", "h.queue", "h.ended")
    if where.states is not None:
        conditions.append("<texts h.state ?>")
        values.append(sql.dialect.listed(where.states))
    text = f"SELECT {ENDED} FROM <s>_{table} h {_tail('h', conditions, where)}"
    return [Ended(*found) for found in db.execute(sql.fill(text), (*values, where.limit)).fetchall()]


# Names are ASCII and begin with a letter or digit: these lie before and behind every character of one.
FIRST, LAST = "!", "~"


def count_queues(db: Any, sql: Statements, now: Micros, queue: str | None, family: str | None) -> list[Counts]:
    """What queues hold: one (also one that nobody has used yet), a family, or all."""
    if queue is not None:
        return _count_between(db, sql, now, (queue, queue + FIRST), {queue})
    between = ("", LAST) if family is None else family_range(family)
    return _count_between(db, sql, now, between, None)


def count_page(db: Any, sql: Statements, now: Micros, *, prefix: str, after: str, limit: int) -> list[Counts]:
    """What the first queues after a name hold; nothing is looked at but those."""
    first, last = family_range(prefix) if prefix else ("", LAST)
    names = [name for (name,) in db.execute(sql.names_page, (after, first, last, limit)).fetchall()]
    if not names:
        return []
    return _count_between(db, sql, now, (names[0], names[-1] + FIRST), set(names))


def _count_between(
    db: Any, sql: Statements, now: Micros, between: tuple[str, str], wanted: set[str] | None
) -> list[Counts]:
    lanes = db.execute(sql.lanes_between, between).fetchall()
    by_lane = {lane: name for name, lane, _ in lanes}
    if wanted is None:
        rows = db.execute(sql.counts, (now,)).fetchall()
    else:
        # These have few lanes; looking at those only makes the cost independent of all others.
        rows = db.execute(sql.counts_of, (now, sql.dialect.listed(list(by_lane)))).fetchall()
    sums: dict[str, list[int]] = {name: [0, 0, 0, 0] for name, _, _ in lanes}
    oldest: dict[str, Micros] = {}
    for lane, *numbers, due in rows:
        name = by_lane.get(lane)
        if name is not None:
            sums[name] = [there + more for there, more in zip(sums[name], numbers, strict=True)]
            if due is not None:
                oldest[name] = min(due, oldest.get(name, due))
    fifo = {name: bool(flag) for name, _, flag in lanes}
    dead = dict(db.execute(sql.dead_between, between).fetchall())
    locks: dict[str, list[Lock]] = {}
    for values in db.execute(sql.locks_between, between).fetchall():
        locks.setdefault(values[0], []).append(Lock(*values))
    names = sorted(sums) if wanted is None else sorted(wanted)
    made = []
    for name in names:
        ready, delayed, retrying, leased = sums.get(name, (0, 0, 0, 0))
        made.append(
            Counts(
                name, ready, delayed, retrying, leased, dead.get(name, 0), oldest.get(name),
                tuple(locks.get(name, ())), fifo.get(name, False),
            )
        )  # fmt: skip
    return made


def _conditions(sql: Statements, where: Find, row: str, queue: str, time: str) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []

    def add(condition: str, *bound: Any) -> None:
        conditions.append(condition)
        values.extend(bound)

    if where.queue is not None:
        add(f"{queue} = ?", where.queue)
    if where.family is not None:
        add(f"{queue} >= ? AND {queue} < ?", *family_range(where.family))
    if where.ids is not None:
        add(f"<texts {row}.id ?>", sql.dialect.listed(where.ids))
    for name, value in where.labels.items():
        add(f"{row}.id IN (SELECT x.id FROM <s>_labels x WHERE x.name = ? AND x.value = ?)", name, value)
        add(f"<label {row}.labels ?> = ?", name, value)
    if where.from_us is not None:
        add(f"{time} >= ?", where.from_us)
    if where.before_us is not None:
        add(f"{time} < ?", where.before_us)
    if where.after:
        add(f"{row}.seq {'<' if where.newest_first else '>'} ?", where.after)
    return conditions, values


def _tail(row: str, conditions: list[str], where: Find) -> str:
    condition = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{condition} ORDER BY {row}.seq {'DESC' if where.newest_first else ''} LIMIT ?"
