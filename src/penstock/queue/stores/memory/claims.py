"""Leases on a memory store: claiming, extending, and reaping what ran out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from msgspec.structs import replace

from penstock.clock import Micros
from penstock.queue.entry import Lease, no_attempts_left
from penstock.queue.store import Claimed, ClaimRequest, Reaped, Source
from penstock.queue.stores.memory.lanes import Item
from penstock.queue.stores.memory.state import MemoryState, handed_out
from penstock.queue.stores.memory.steps import held


def claim(state: MemoryState, request: ClaimRequest, now: Micros) -> Claimed:
    """Take leases: a suspect by itself, or else what is due, in fair turns over the queues."""
    if now < state.latest:
        state.lineup.clock_went_back()
    state.latest = now
    if request.repeat and (again := _given_before(state, request)):
        return Claimed([handed_out(item) for item in again], now, suspect=any(item.suspect for item in again))
    room = {source: source.limit for source in request.sources}
    taken: list[Item] = []
    dead: list[str] = []
    with closing(_candidates(state, request, room, dead, now, suspects=True)) as candidates:
        suspect = next(candidates, None) if request.limit > 0 else None
        if suspect is not None and request.alone:
            taken.append(_lease(state, *suspect, request, now))
    if suspect is None:
        with closing(_candidates(state, request, room, dead, now, suspects=False)) as candidates:
            for item, source in candidates:
                room[source] -= 1
                taken.append(_lease(state, item, source, request, now))
                if len(taken) >= request.limit:
                    break
    suspect_waits = suspect is not None and not request.alone
    return Claimed(
        entries=[handed_out(item) for item in taken],
        # Time alone brings nothing to a worker that must first finish what it holds.
        next_us=None if suspect_waits else state.lineup.next_us(request, now),
        suspect_waits=suspect_waits,
        suspect=suspect is not None and request.alone,
        dead=tuple(dead),
    )


def _given_before(state: MemoryState, request: ClaimRequest) -> list[Item]:
    leased = [state.live[id_] for id_ in state.lineup.leases]
    mine = [
        item
        for item in leased
        if item.lease and item.lease.owner == request.owner and item.lease.token == _token(item.fence, request.id)
    ]
    return sorted(mine, key=lambda item: item.seq)


def _candidates(
    state: MemoryState,
    request: ClaimRequest,
    room: dict[Source, int],
    dead: list[str],
    now: Micros,
    *,
    suspects: bool,
) -> Generator[tuple[Item, Source], None, None]:
    """What may be handed out; the expired and those without attempts left end here instead."""
    with closing(state.lineup.offers(request, room, suspects, now)) as offers:
        for item, source in offers:
            if item.expires_us is not None and item.expires_us <= now:
                with state.atomic():
                    state.finish(item, "expired", now)
            elif source.attempts is not None and item.attempt >= source.attempts:
                with state.atomic():
                    state.finish(item, "dead", now, error=no_attempts_left(item.error))
                dead.append(item.id)
            else:
                yield item, source


def _lease(state: MemoryState, item: Item, source: Source, request: ClaimRequest, now: Micros) -> Item:
    fence = item.fence + 1
    lease = Lease(item.id, item.queue, _token(fence, request.id), fence, request.owner, now, now + request.lease_us)
    taken = replace(item, state="leased", lease=lease, attempt=item.attempt + 1, fence=fence, attempts=source.attempts)
    state.lineup.start(item.queue, now)
    with state.atomic():
        state.live[item.id] = taken
        if item.mode == "started":
            state.let_go(item)
    return taken


def _token(fence: int, claim_id: str) -> str:
    return f"{fence}-{claim_id}"


def extend(state: MemoryState, leases: Sequence[Lease], until_us: Micros) -> list[Micros | None]:
    """Prolong leases; None for each that is lost."""
    ends: list[Micros | None] = []
    with state.atomic():
        for lease in leases:
            item = held(state, lease)
            if item is None or item.lease is None:
                ends.append(None)
                continue
            ends.append(until_us)
            # A heartbeat must not shorten what a handler asked for.
            if until_us > item.lease.until_us:
                state.live[item.id] = replace(item, lease=replace(item.lease, until_us=until_us))
    return ends


def reap(state: MemoryState, node: str, sticky_after_us: Micros, limit: int, now: Micros) -> Reaped:
    """One round of the reaper; ``limit`` holds for each kind of find."""
    found = Reaped()
    with state.atomic():
        for id_ in state.lineup.leases.until(now, limit):
            take_back(state, state.live[id_], now, found)
    with state.atomic():
        for id_ in state.lineup.expiries.until(now, limit):
            item = state.live[id_]
            state.finish(item, "expired", now)
            found.expired.append((id_, item.queue))
    with state.atomic():
        for home in list(state.lineup.sticky):
            heard = state.nodes.get(home)
            if home != node and heard is not None and now - heard < sticky_after_us:
                continue
            for id_ in state.lineup.sticky[home].until(now - sticky_after_us, limit):
                item = state.live[id_]
                if home != node:
                    state.wait(item, node=None)
                (found.late if home == node else found.freed).append((id_, item.queue))
    with state.atomic():
        for scope in state.period_ends.until(now, limit):
            del state.holds[scope]
    return found


def take_back(state: MemoryState, item: Item, now: Micros, found: Reaped) -> None:
    """Take an entry back from an owner who is gone."""
    error = "lease ran out"
    if item.attempts is not None and item.attempt >= item.attempts:
        state.finish(item, "dead", now, error=error)
        found.dead.append((item.id, item.queue))
    else:
        state.record(item, "reaped", now, error=error)
        state.wait(item, due_us=now, error=error, suspect=True)
        found.reaped.append((item.id, item.queue))
