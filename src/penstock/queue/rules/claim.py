"""Claim: find due entries and lease them; the cost is per ready queue and entry taken, never per queue or backlog."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

from penstock.clock import Micros
from penstock.queue.entry import Entry, no_attempts_left
from penstock.queue.protocol import Claimed, ClaimRequest, Source
from penstock.queue.rules.endings import Endings, with_held
from penstock.queue.rules.rows import Claim, ClaimKey, Live, entry_of
from penstock.queue.rules.settle import free_key
from penstock.queue.rules.state import State


def claim(state: State, request: ClaimRequest, now: Micros) -> Claimed:
    """Take leases: a suspect by itself, or else what is due, in turn over the queues."""
    if now < state.latest:
        state.ready_queues.clock_went_back()
    state.latest = now
    if request.repeat:
        before = _given_before(state, request)
        if before:
            return Claimed([entry for entry, _ in before], now, suspect=any(suspect for _, suspect in before))
    with state.atomic():
        return _Claiming(state, request, now).run()


def _given_before(state: State, request: ClaimRequest) -> list[tuple[Entry[Any], bool]]:
    """What this very claim took, as far as it still holds it."""
    held = [
        (entry_of(live, "leased", record.lease(live)), live.suspect)
        for key, record in state.claims.items()
        if key[1] == request.id and record.owner == request.owner
        for live in record.held.values()
    ]
    return sorted(held, key=lambda pair: pair[0].seq)


class _Claiming:
    """One claim."""

    def __init__(self, state: State, request: ClaimRequest, now: Micros) -> None:
        self._state = state
        self._request = request
        self._now = now
        self._room = {source: source.limit for source in request.sources}
        self._taken: list[tuple[Live, tuple[str, int | None]]] = []
        self._unwritten: dict[tuple[str, int | None], dict[str, Live]] = {}  # by queue and attempts
        self._records: dict[tuple[str, int | None], ClaimKey] = {}
        self._dead: list[str] = []

    def run(self) -> Claimed:
        """Claim what is due."""
        request, state = self._request, self._state
        # 1. A suspect is handed out by itself, to a worker that has nothing else in hand.
        with closing(self._candidates(suspects=True)) as candidates:
            suspect = next(candidates, None) if request.limit > 0 else None
            if suspect is not None and request.alone:
                self._take(*suspect)
        # 2. Otherwise every ready queue gives one in turn until the worker has all it wants.
        if suspect is None:
            with closing(self._candidates(suspects=False)) as candidates:
                for live, source in candidates:
                    self._room[source] -= 1
                    self._take(live, source)
                    if len(self._taken) >= request.limit:
                        break
        # 3. One record per queue for what was taken.
        self._write()
        suspect_waits = suspect is not None and not request.alone
        return Claimed(
            entries=self._entries(),
            # Time alone brings nothing to a worker that must first finish what it holds.
            next_us=None if suspect_waits else state.ready_queues.next_us(request, self._now),
            suspect_waits=suspect_waits,
            suspect=suspect is not None and request.alone,
            dead=tuple(self._dead),
        )

    def _candidates(self, *, suspects: bool) -> Generator[tuple[Live, Source], None, None]:
        """What may be handed out; the expired and those without attempts left end here instead."""
        offers = self._state.ready_queues.offers(self._request, self._room, suspects, self._now)
        with closing(offers):
            for live, source in offers:
                if live.expires_us is not None and live.expires_us <= self._now:
                    self._end(live, "expired", None)
                elif source.attempts is not None and live.attempt >= source.attempts:
                    self._end(live, "dead", no_attempts_left(live.error))
                    self._dead.append(live.body.id)
                else:
                    yield live, source

    def _end(self, live: Live, state: Any, error: str | None) -> None:
        endings = Endings(self._state, self._now)
        endings.end(live, state, error=error)
        endings.apply()

    def _take(self, live: Live, source: Source) -> None:
        state, body = self._state, live.body
        queue = state.ready_queues.queues[body.queue]
        state.ready_queues.start(body.queue, self._now)
        del state.ready[body.id]
        held = Live(
            body, live.seq, live.priority, live.due_us, live.first_due_us, live.generation, live.attempt + 1,
            live.fence + 1, live.suspect, live.expires_us, live.node, live.error,
        )  # fmt: skip
        group = (body.queue, source.attempts)
        unwritten = self._unwritten.get(group)
        if unwritten is None:
            unwritten = self._unwritten[group] = {}
        unwritten[body.id] = held
        self._taken.append((held, group))
        if body.unique_mode == "started":
            state.release_unique(body)
        if queue.narrow:
            # What is in flight decides whether the next one may be taken.
            self._write()

    def _write(self) -> None:
        """Write down what was taken since the last time."""
        state, request = self._state, self._request
        for group, held in self._unwritten.items():
            key = self._records.get(group)
            if key is None:
                key = self._records[group] = free_key(state, group[0], request.id)
                record = Claim(
                    request.id, group[0], request.owner, self._now, self._now + request.lease_us, group[1], held,
                    state.session,
                )  # fmt: skip
            else:
                record = with_held(state.claims[key], state.claims[key].held | held)
            state.claims[key] = record
        self._unwritten = {}

    def _entries(self) -> list[Entry[Any]]:
        records = {group: self._state.claims[key] for group, key in self._records.items()}
        return [entry_of(live, "leased", records[group].lease(live)) for live, group in self._taken]
