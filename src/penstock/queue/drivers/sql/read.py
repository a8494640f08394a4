"""Read: one entry, searches over live entries, dead letters and history, counts, ranges for bulk readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.clock import SECOND, Micros
from penstock.errors import BadInput
from penstock.queue.drivers.sql.registry import FIRST, LAST
from penstock.queue.drivers.sql.rows import Ended, Live, family_range
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.statements import Dialect
from penstock.queue.entry import HELD, Counts, Lock
from penstock.queue.protocol import EndedCount, Find, KeptResult, Link, Part, Scope, Wait

MOST_COUNTED = 500_000  # rows that are counted at a time: about a second
OUT_OF_ORDER: Micros = 60 * SECOND  # by which a row may have ended before one with a lower number
BEHIND_IDS = "\x7f"  # ids are printable ASCII
LOOKS = 5  # for an entry that moves between its claim and the ready entries while it is looked for
_LIVE_STATES = {
    "waiting": "e.claim IS NULL", "held": f"(e.claim IS NULL AND e.due = {HELD})", "leased": "e.claim IS NOT NULL",
}  # fmt: skip
_FIND = {"dead": "find_dead", "history": "find_history"}
_LAST = {"live": "last_live", "dead": "last_dead", "history": "last_history"}


def live_entry(session: Session, id_: str, *, lock: bool = False, scope: Scope | None = None) -> Live | None:
    """The live entry with this id, locked where asked for, or None if there is none, or not within the scope."""
    for _ in range(LOOKS):
        known = session.row("known", id=id_)
        if known is None:
            return None
        seq = known[3]
        read = "live_by_seq"
        if lock and session.rows("lock_waiting", seq=seq):
            read = session.current("live_waiting", read)
        elif lock and session.rows("lock_claimed", seq=seq):
            read = session.current("live_claimed", read)
        elif lock:
            # Ended, or on its way from one to the other just now.
            if not session.rows("is_live", seq=seq)[0][0]:
                return None
            continue
        row = session.row(read, seq=seq)
        live = None if row is None else Live(*row)
        return live if live is None or scope is None or scope.covers(live.queue) else None
    return None


# --- searches ------------------------------------------------------------------------------------------------------


def find_live(session: Session, where: Find) -> list[Live]:
    """Live entries by sequence."""
    conditions, values = _live_conditions(session.dialect, where)
    if where.ids is not None:
        # One index probe each, also among many claims.
        return _find_by_ids(session, where, conditions, values)
    conditions += session.dialect.guide(session, where, values)
    return [Live(*row) for row in session.search("find_live", _tail("e", conditions, where), values)]


def _find_by_ids(session: Session, where: Find, conditions: list[str], values: dict[str, Any]) -> list[Live]:
    places = session.rows("places_of", ids=list(where.ids or ()))
    rows = []
    for (seq,) in places:
        seek = [*conditions, "e.seq = %(seq)s AND e.low <= %(seq)s AND e.high >= %(seq)s"]
        rows += session.search("find_live", _tail("e", seek, where), {**values, "seq": seq})
    entries = sorted((Live(*row) for row in rows), key=lambda live: live.seq, reverse=where.newest_first)
    return entries[: where.limit]


def find_ended(session: Session, part: Part, where: Find) -> list[Ended]:
    """Rows of the history or the dead letters by sequence."""
    conditions, values = _ended_conditions(session.dialect, part, where)
    return [Ended(*row) for row in session.search(_FIND[part], _tail("h", conditions, where), values)]


def ids_like(session: Session, part: str, at_end: bool, limit: int) -> list[str]:
    """Ids of entries, live or ended, that begin or end with a part."""
    if at_end:
        rows = session.rows("ids_ending", part=part, size=len(part), limit=limit)
    else:
        rows = session.rows("ids_beginning", first=part, last=part + BEHIND_IDS, limit=limit)
    return [id_ for (id_,) in rows]


def _live_conditions(dialect: Dialect, where: Find) -> tuple[list[str], dict[str, Any]]:
    conditions, values = _conditions(dialect, where, "e", queue="e.queue", time="e.due", labels="e.labels")
    if where.states is not None:
        unknown = set(where.states) - _LIVE_STATES.keys()
        if unknown:
            raise BadInput(
                f"a live entry is never {unknown.pop()!r}.", hint="Use 'waiting', 'held' or 'leased'; see history()."
            )
        conditions.append(f"({' OR '.join(_LIVE_STATES[state] for state in where.states) or 'false'})")
    return conditions, values


def _ended_conditions(dialect: Dialect, part: Part, where: Find) -> tuple[list[str], dict[str, Any]]:
    conditions, values = _conditions(dialect, where, "h", queue="q.queue", time="h.ended", labels="b.labels")
    if where.ids is not None:
        conditions.append(dialect.among("b.id", "ids"))
    if where.labels:
        conditions += dialect.candidates("b.id", len(where.labels))
    if where.states is not None:
        conditions.append(dialect.among("h.state" if part == "history" else "'dead'", "states"))
        values["states"] = list(where.states)
    return conditions, values


def _conditions(
    dialect: Dialect, where: Find, row: str, *, queue: str, time: str, labels: str
) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    values: dict[str, Any] = {"limit": where.limit}
    if where.queue is not None:
        conditions.append(f"{queue} = %(queue)s")
        values["queue"] = where.queue
    if where.family is not None:
        conditions.append(f"{queue} >= %(first)s AND {queue} < %(last)s")
        values["first"], values["last"] = family_range(where.family)
    if where.ids is not None:
        values["ids"] = list(where.ids)
    for number, (name, value) in enumerate(where.labels.items()):
        conditions.append(f"{dialect.label(labels, f'name{number}')} = %(value{number})s")
        values[f"name{number}"], values[f"value{number}"] = name, value
    if where.from_us is not None:
        conditions.append(f"{time} >= %(from)s")
        values["from"] = where.from_us
    if where.before_us is not None:
        conditions.append(f"{time} < %(before)s")
        values["before"] = where.before_us
    if where.after:
        conditions.append(f"{row}.seq {'<' if where.newest_first else '>'} %(after)s")
        values["after"] = where.after
    return conditions, values


def _tail(row: str, conditions: list[str], where: Find) -> str:
    condition = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{condition} ORDER BY {row}.seq {'DESC' if where.newest_first else ''} LIMIT %(limit)s"


# --- what has ended ------------------------------------------------------------------------------------------------


def count_ended(session: Session, since_us: Micros) -> list[EndedCount] | None:
    """Ended attempts by queue and outcome, or None if there are too many to count."""
    first = session.row("ended_after", seq=0)
    if first is None:
        return []
    end = last(session, "history")
    low, high = (
        first[0] - 1,
        end,
    )  # rows end nearly in the order of their numbers, so the first one is sought by halving
    while high - low > 1:
        middle = (low + high) // 2
        row = session.row("ended_after", seq=middle)
        if row is None or row[1] >= since_us - OUT_OF_ORDER:
            high = middle
        else:
            low = row[0]
    if end - low > MOST_COUNTED:
        return None
    return [EndedCount(*row) for row in session.rows("count_ended", after=low, since=since_us)]


# --- ranges --------------------------------------------------------------------------------------------------------


def read_rows(session: Session, part: Part, where: Find, until: int) -> list[tuple[Any, ...]]:
    """Rows of a range as plain columns, in order."""
    if part == "live":
        conditions, values = _live_conditions(session.dialect, where)
        conditions += ["e.seq <= %(until)s", "e.high > %(from_seq)s AND e.low <= %(until)s"]
        values |= {"until": until, "from_seq": where.after}
        return [_plain_live(Live(*row)) for row in session.search("find_live", _tail("e", conditions, where), values)]
    conditions, values = _ended_conditions(session.dialect, part, where)
    conditions.append("h.seq <= %(until)s")
    values["until"] = until
    return [
        _plain_ended(part, Ended(*row)) for row in session.search(_FIND[part], _tail("h", conditions, where), values)
    ]


def _plain_live(live: Live) -> tuple[Any, ...]:
    """A live entry in the order of ``protocol.ROW``."""
    due = live.first_due if live.is_held else live.due
    return (
        live.seq, live.id, live.queue, live.state, live.generation, live.attempt, live.owner, live.created, due,
        live.claimed, None, live.error, live.labels, live.headers, live.codec, live.type, live.payload,
    )  # fmt: skip


def _plain_ended(part: Part, row: Ended) -> tuple[Any, ...]:
    owner, started = (row.owner, row.started) if part == "history" else (None, None)
    return (
        row.seq, row.id, row.queue, row.state, row.generation, row.attempt, owner, row.created, row.due, started,
        row.ended, row.error, row.labels, row.headers, row.codec, row.type, row.payload,
    )  # fmt: skip


def last(session: Session, part: Part) -> int:
    """The highest sequence number that is committed."""
    [(number,)] = session.rows(_LAST[part])
    return int(number)


# --- counts --------------------------------------------------------------------------------------------------------


def count_queues(session: Session, now: Micros, queue: str | None, family: str | None) -> list[Counts]:
    """What queues hold: one (also one that nobody has used yet), a family, or all."""
    if queue is not None:
        return _count_between(session, now, (queue, queue + FIRST), {queue})
    return _count_between(session, now, ("", LAST) if family is None else family_range(family), None)


def count_page(session: Session, now: Micros, *, prefix: str, after: str, limit: int) -> list[Counts]:
    """What the first queues after a name hold; nothing is looked at but those."""
    first, last_name = family_range(prefix) if prefix else ("", LAST)
    names = [name for (name,) in session.rows("queue_names", after=after, first=first, last=last_name, limit=limit)]
    if not names:
        return []
    return _count_between(session, now, (names[0], names[-1] + FIRST), set(names))


def _count_between(session: Session, now: Micros, between: tuple[str, str], wanted: set[str] | None) -> list[Counts]:
    first, last_name = between
    rows = session.rows("queue_rows_between", first=first, last=last_name)
    name_of = {number: name for name, number, _ in rows}
    fifo = {name: bool(flag) for name, _, flag in rows}
    sums: dict[str, list[int]] = {name: [0, 0, 0, 0, 0, 0] for name, _, _ in rows}
    oldest: dict[str, Micros] = {}
    for number, *counted in session.rows("count", moment=now, held=HELD, numbers=list(name_of)):
        ready, delayed, retrying, due, leased, dead, held = counted
        name = name_of[number]
        sums[name] = [a + b for a, b in zip(sums[name], (ready, delayed, retrying, leased, dead, held), strict=True)]
        if due is not None:
            oldest[name] = min(due, oldest.get(name, due))
    locks: dict[str, list[Lock]] = {}
    for lock in (Lock(*values) for values in session.rows("locks", first=first, last=last_name)):
        locks.setdefault(lock.queue, []).append(lock)
    counts = []
    for name in sorted(sums) if wanted is None else sorted(wanted):
        ready, delayed, retrying, leased, dead, held = sums.get(name, (0, 0, 0, 0, 0, 0))
        counts.append(
            Counts(
                queue=name, ready=ready, delayed=delayed, retrying=retrying, leased=leased, dead=dead, held=held,
                oldest_ready_us=oldest.get(name), locks=tuple(locks.get(name, ())), fifo=fifo.get(name, False),
            )
        )  # fmt: skip
    return counts


# --- who waits for whom, and what came of it ------------------------------------------------------------------------


def waits(session: Session, ids: Sequence[str] | None, after: str, limit: int) -> list[Wait]:
    """What entries that wait need and have counted, by id."""
    if ids is None:
        return [Wait(*row) for row in session.rows("waits", after=after, limit=limit)]
    return [Wait(*row) for row in session.rows("waits_of", ids=list(ids))] if ids else []


def links(session: Session, target: str | None, after: tuple[str, str], limit: int) -> list[Link]:
    """Links that are not consumed, by source and target."""
    if target is not None:
        return [Link(*row) for row in session.rows("links_to", target=target, source=after[0], limit=limit)]
    return [Link(*row) for row in session.rows("links", source=after[0], after=after[1], limit=limit)]


def result(session: Session, id_: str) -> KeptResult | None:
    """What a handler returned for an entry."""
    row = session.row("result", id=id_)
    return None if row is None else KeptResult(*row)


def results(session: Session, batch: str | None, after: str, limit: int) -> list[tuple[str, KeptResult]]:
    """What handlers returned, by the ids of the entries."""
    if batch is None:
        rows = session.rows("results", after=after, limit=limit)
    else:
        rows = session.rows("results_of_batch", batch=batch, after=after, limit=limit)
    return [(id_, KeptResult(*columns)) for id_, *columns in rows]
