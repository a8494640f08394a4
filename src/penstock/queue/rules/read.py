"""Read: searches over live entries, dead letters and history, and counts."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from penstock.clock import Micros
from penstock.errors import BadInput
from penstock.queue.entry import LIVE, Counts, Entry, HistoryRow
from penstock.queue.protocol import Find, KeptResult, Link, Wait
from penstock.queue.rules.queue_order import LiveQueue
from penstock.queue.rules.rows import Attempt, Claim, Dead, Live, entry_of
from penstock.queue.rules.state import State

T = TypeVar("T")


# --- searches ------------------------------------------------------------------------------------------


def find(state: State, where: Find) -> list[Entry[Any]]:
    """Live entries by position."""
    return [
        entry_of(live, "waiting") if claim is None else entry_of(live, "leased", claim.lease(live))
        for live, claim in find_live(state, where)
    ]


def find_live(state: State, where: Find) -> list[tuple[Live, Claim | None]]:
    """Live entries by position, with the claims that hold them."""
    if unknown := set(where.states or ()).difference(LIVE):
        raise BadInput(
            f"a live entry is never {unknown.pop()!r}.", hint="Use 'waiting', 'held' or 'leased'; see history()."
        )
    wanted = set(LIVE if where.states is None else where.states)
    fitting = []
    for live, claim in _live_candidates(state, where):
        states = ("leased",) if claim is not None else ("waiting", "held") if live.is_held else ("waiting",)
        if not wanted.isdisjoint(states) and _fits(where, live, live.seq, live.due_us):
            fitting.append((live.seq, live, claim))
    return [(live, claim) for _, live, claim in _cut(fitting, where)]


def _live_candidates(state: State, where: Find) -> Iterable[tuple[Live, Claim | None]]:
    """What a search has to look at: by id or label where it names one, else a queue, else everything."""
    ids = _named_ids(state, where)
    if ids is not None:
        return [known for id_ in ids if (known := state.live(id_)) is not None]
    if where.queue is not None:
        queue = state.ready_queues.queues.get(where.queue)
        return [] if queue is None else _live_in(queue.waiting.values(), queue.claims.values())
    return _live_in(state.ready.values(), state.claims.values())


def _live_in(waiting: Iterable[Live], claims: Iterable[Claim]) -> list[tuple[Live, Claim | None]]:
    held: list[tuple[Live, Claim | None]] = [(live, claim) for claim in claims for live in claim.held.values()]
    return held + [(live, None) for live in waiting]


def _named_ids(state: State, where: Find) -> Iterable[str] | None:
    if where.ids is not None:
        return dict.fromkeys(where.ids)
    if where.labels:
        return set.intersection(*(state.labelled.get(label, set()) for label in where.labels.items()))
    return None


def dead_letters(state: State, where: Find) -> list[Dead]:
    """Dead letters, in the order of death."""
    if where.states is not None and "dead" not in where.states:
        return []
    ids = _named_ids(state, where)
    letters = state.dead.values() if ids is None else [state.dead[id_] for id_ in ids if id_ in state.dead]
    fitting = [
        (letter.live.seq, letter) for letter in letters if _fits(where, letter.live, letter.live.seq, letter.ended_us)
    ]
    return [letter for _, letter in _cut(fitting, where)]


def attempts(state: State, where: Find) -> list[Attempt]:
    """Rows of the history, in order."""
    rows: Iterable[Attempt] = state.history.values()
    if where.ids is not None:
        rows = [state.history[seq] for id_ in set(where.ids) for seq in state.rows_of.get(id_, ())]
    fitting = [
        (row.seq, row)
        for row in rows
        if (where.states is None or row.state in where.states) and _fits(where, row.live, row.seq, row.ended_us)
    ]
    return [row for _, row in _cut(fitting, where)]


def history(state: State, where: Find) -> list[HistoryRow]:
    """Ended attempts, in order."""
    return [state.shown(row) for row in attempts(state, where)]


def ids_like(state: State, part: str, at_end: bool, limit: int) -> list[str]:
    """Ids of entries, live or ended, that begin or end with a part."""
    matches = str.endswith if at_end else str.startswith
    return heapq.nsmallest(limit, (id_ for id_ in state.entries if matches(id_, part)))


def _fits(where: Find, live: Live, seq: int, at: Micros) -> bool:
    body = live.body
    return (
        (not where.after or (seq < where.after if where.newest_first else seq > where.after))
        and where.queue in (None, body.queue)
        and (where.family is None or body.queue.startswith(where.family))
        and (where.from_us is None or at >= where.from_us)
        and (where.before_us is None or at < where.before_us)
        and where.labels.items() <= body.labels.items()
    )


def _cut(fitting: list[T], where: Find) -> list[T]:
    """In order and no more than asked for; the first of each is its sequence number."""
    pick = heapq.nlargest if where.newest_first else heapq.nsmallest
    return pick(where.limit, fitting, key=_first)


def _first(row: Any) -> int:
    return int(row[0])


# --- counts --------------------------------------------------------------------------------------------


def counts(state: State, now: Micros, queue: str | None, family: str | None) -> list[Counts]:
    """What queues hold: one (also one that nobody has used yet), a family, or all."""
    queues = state.ready_queues.queues
    names = sorted(queues) if queue is None else [queue]
    return [
        _count(queues.get(name) or LiveQueue(name), now) for name in names if family is None or name.startswith(family)
    ]


def page(state: State, now: Micros, *, prefix: str, after: str, limit: int) -> list[Counts]:
    """What the first queues after a name hold."""
    queues = state.ready_queues.queues
    names = (name for name in queues if name > after and name.startswith(prefix))
    return [_count(queues[name], now) for name in heapq.nsmallest(limit, names)]


def _count(queue: LiveQueue, now: Micros) -> Counts:
    waiting = queue.waiting.values()
    due = [live.due_us for live in waiting if live.due_us <= now]
    held = sum(live.is_held for live in waiting)
    retrying = sum(live.due_us > now and live.attempt > 0 and not live.is_held for live in waiting)
    return Counts(
        queue=queue.name,
        ready=len(due),
        delayed=len(waiting) - len(due) - retrying - held,
        retrying=retrying,
        leased=queue.leased,
        dead=queue.dead,
        held=held,
        oldest_ready_us=min(due, default=None),
        locks=tuple(sorted(queue.locks.values(), key=lambda lock: lock.holder)),
        fifo=queue.fifo,
    )


# --- who waits for whom --------------------------------------------------------------------------------


def waits(state: State, ids: Sequence[str] | None, after: str, limit: int) -> list[Wait]:
    """What entries that wait need and have counted, by id."""
    chosen = state.waits if ids is None else [id_ for id_ in set(ids) if id_ in state.waits]
    return [state.waits[id_] for id_ in heapq.nsmallest(limit, (id_ for id_ in chosen if id_ > after))]


def links(state: State, target: str | None, after: tuple[str, str], limit: int) -> list[Link]:
    """Links that are not consumed, by source and target."""
    matching = (
        link
        for of_source in state.links.values()
        for link in of_source
        if target in (None, link.target) and (link.source, link.target) > after
    )
    return heapq.nsmallest(limit, matching, key=lambda link: (link.source, link.target))


def results(state: State, batch: str | None, after: str, limit: int) -> list[tuple[str, KeptResult]]:
    """What handlers returned, by the ids of the entries."""
    matching = (item for item in state.results.items() if item[0] > after and batch in (None, item[1].batch))
    return heapq.nsmallest(limit, matching, key=lambda item: item[0])
