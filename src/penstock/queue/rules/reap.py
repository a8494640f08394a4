"""Reap: take back what vanished workers held, end what is out of time, free what vanished nodes kept; prune."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice, takewhile

from msgspec.structs import replace

from penstock.clock import Micros
from penstock.queue.forgetting import NODE_REMEMBERED, REMEMBERED
from penstock.queue.linking import PURGED
from penstock.queue.protocol import Find, Reaped
from penstock.queue.rules.endings import Endings, consume
from penstock.queue.rules.read import dead_letters
from penstock.queue.rules.rows import Attempt, Body, ClaimKey
from penstock.queue.rules.state import State

RAN_OUT = "lease ran out"


def reap(
    state: State, node: str, sticky_after_us: Micros, limit: int, now: Micros, *, without: Collection[str] = ()
) -> Reaped:
    """One round of the reaper; ``limit`` holds for each kind. Entries ``without`` which it goes on stay as they are."""
    reaped = Reaped([], [], [], [], [])
    with state.atomic():
        _take_back_run_out(state, now, limit, reaped, without)
        _expire(state, now, limit, reaped, without)
        for home in _silent_nodes(state, node, now - sticky_after_us):
            _free_sticky(state, home, node, state.ready_queues.sticky[home].until(now - sticky_after_us, limit), reaped)
        _sweep(state, now, limit)
        for name in silent_nodes(state.nodes, sticky_after_us, now):
            del state.nodes[name]
    return reaped


def silent_nodes(heard: Mapping[str, Micros], sticky_after_us: Micros, now: Micros) -> list[str]:
    """The nodes to be forgotten: those that no reaper waits for any more."""
    before = now - max(NODE_REMEMBERED, sticky_after_us)
    return [name for name, at in heard.items() if at <= before]


def _take_back_run_out(state: State, now: Micros, limit: int, reaped: Reaped, without: Collection[str]) -> None:
    left = limit
    for key in state.ready_queues.claim_ends.until(now, limit + len(without)):
        if left <= 0:
            break
        ids = [id_ for id_ in state.claims[key].held if id_ not in without][:left]
        take_back(state, key, ids, now, reaped)
        left -= len(ids)


def take_back(state: State, key: ClaimKey, ids: list[str], now: Micros, reaped: Reaped) -> None:
    """Take entries back from an owner who is gone: suspects now, or dead letters if that was their last attempt."""
    claim = state.claims[key]
    endings = Endings(state, now)
    for id_ in ids:
        live = claim.held[id_]
        if claim.max_attempts is not None and live.attempt >= claim.max_attempts:
            endings.end(live, "dead", key=key, error=RAN_OUT)
            reaped.dead.append((id_, live.queue))
        else:
            endings.record(live, "reaped", key=key, error=RAN_OUT)
            endings.give_back(live, now, key=key, attempt=live.attempt, error=RAN_OUT, suspect=True)
            reaped.reaped.append((id_, live.queue))
    endings.apply()


def _expire(state: State, now: Micros, limit: int, reaped: Reaped, without: Collection[str]) -> None:
    """Entries that nobody claimed in time."""
    endings = Endings(state, now)
    overdue = state.ready_queues.expiries.until(now, limit + len(without))
    for id_ in [id_ for id_ in overdue if id_ not in without][:limit]:
        live = state.ready[id_]
        endings.end(live, "expired")
        reaped.expired.append((id_, live.queue))
    endings.apply()


def _silent_nodes(state: State, node: str, before: Micros) -> list[str]:
    """This node, and those that nobody has heard of since."""
    heard = state.nodes
    return [home for home in state.ready_queues.sticky if home == node or home not in heard or heard[home] <= before]


def _free_sticky(state: State, home: str, node: str, overdue: list[str], reaped: Reaped) -> None:
    """Overdue sticky entries: those of nodes that are gone may go anywhere, a node's own are only reported."""
    for id_ in overdue:
        live = state.ready[id_]
        if home == node:
            reaped.late.append((id_, live.queue))
        else:
            state.ready[id_] = replace(live, node=None)
            reaped.freed.append((id_, live.queue))


def _sweep(state: State, now: Micros, limit: int) -> None:
    """Unique ids whose period is over, and settlements that no repeat asks for any more."""
    for scope in state.period_ends.until(now, limit):
        id_ = state.unique[scope].id
        del state.unique[scope]
        state.drop_unused(id_)
    for id_ in [id_ for id_, result in state.results.items() if result.until_us <= now][:limit]:
        del state.results[id_]
    old = takewhile(lambda item: item[1].at_us < now - REMEMBERED, state.settled.items())
    for key, _ in list(old):
        del state.settled[key]


def prune(state: State, older_than_us: Micros, limit: int, now: Micros) -> int:
    """Remove history rows, and with the last row of an entry that nothing else refers to its body."""
    before = now - older_than_us
    with state.atomic():
        # Rows are in the order in which they were written, unless a draft was undone.
        rows = sorted(state.history.values(), key=_seq) if state.drafting else state.history.values()
        old = list(islice(takewhile(lambda row: row.ended_us < before, rows), limit))
        for row in old:
            del state.history[row.seq]
        for id_ in {row.live.body.id for row in old}:
            state.drop_unused(id_)
    return len(old)


def _seq(row: Attempt) -> int:
    return row.seq


def purge_dead(state: State, where: Find, now: Micros) -> list[tuple[str, str]]:
    """Remove dead letters for good, with the payloads of their attempts."""
    with state.atomic():
        letters = dead_letters(state, where)
        # Nobody can replay them any more: to what waits for them that is the same as cancelled.
        consume(state, now, {letter.live.id: PURGED for letter in letters})
        for letter in letters:
            del state.dead[letter.live.id]
            state.drop_unused(letter.live.id)
            if not state.keeps_purged:
                _strip(state, letter.live.id)
    return [(letter.live.id, letter.live.queue) for letter in letters]


def _strip(state: State, id_: str) -> None:
    """Remove the payloads that the rows of an entry's attempts show."""
    for seq in state.rows_of.get(id_, ()):
        row = state.history[seq]
        state.history[seq] = replace(row, live=replace(row.live, body=_without_payload(row.live.body)))
    if id_ in state.entries:
        state.entries[id_] = _without_payload(state.entries[id_])


def _without_payload(body: Body) -> Body:
    return replace(body, payload=b"", stripped=True)
