"""Claims and outcomes over HTTP, so that workers can be written in any language."""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from penstock.clock import Micros, duration, duration_micros
from penstock.errors import LeaseLost, PenstockError
from penstock.ids import new_nonce
from penstock.queue.entry import Entry, Lease, check_lease
from penstock.queue.handling.handler import DEFAULT_RETRY
from penstock.queue.handling.outcomes import storable
from penstock.queue.protocol import ClaimRequest, Ending, Find, Source, Step
from penstock.queue.queues import QueueStore
from penstock.service.access import Consumer, check_queue, too_many
from penstock.service.ids import own_id
from penstock.service.keys import ApiKey, Keys
from penstock.service.paging import FIRST_STEP, next_step, size_of
from penstock.service.problems import kind_of, responses
from penstock.service.queues import store_of
from penstock.service.routing import CheckedRoute
from penstock.service.schemas import Body, DurationText, IdText, LeasedView, Name, leased_view, written

router = APIRouter(prefix="/v1", tags=["leases"], route_class=CheckedRoute)

LONGEST_WAIT = 20.0
LOOK = 0.5  # seconds after which a waiting claim checks whether it is still wanted
MOST_ATTEMPTS = (1 << 31) - 1


class ClaimBody(Body):
    """A wish for work."""

    limit: int = Field(1, ge=1, le=1000)
    lease: DurationText = "60s"
    attempts: int | None = Field(
        DEFAULT_RETRY.attempts, ge=1, le=MOST_ATTEMPTS, description="Starts before an entry is a dead letter."
    )
    owner: str = Field("http", min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")


class OutcomeBody(Body):
    """How an attempt ended: done, try again (after ``delay``), dead, or given back as if it had never been taken."""

    id: IdText
    token: str = Field(min_length=1, max_length=200)
    outcome: Literal["done", "retry", "dead", "release"]
    delay: DurationText = "0s"
    error: str | None = Field(None, max_length=4000)


class Outcomes(Body):
    """Several outcomes; each counts for itself."""

    outcomes: list[OutcomeBody] = Field(min_length=1, max_length=1000)


class ExtendBody(Body):
    """Leases to be prolonged."""

    leases: list[Held] = Field(min_length=1, max_length=1000)
    lease: DurationText = "60s"


class Held(Body):
    """A lease that the caller holds."""

    id: IdText
    token: str = Field(min_length=1, max_length=200)


class ClaimedView(BaseModel):
    """What was claimed."""

    items: list[LeasedView]


class EndedView(BaseModel):
    """What became of one outcome or lease: ``ok``, or the problem's type and detail."""

    id: str
    ok: bool
    problem: str | None = None
    detail: str | None = None


class EndedViews(BaseModel):
    """In the order they were sent."""

    items: list[EndedView]


@router.post("/queues/{queue}/claims", response_model=ClaimedView, responses=responses(404, 429))
async def claim(
    request: Request,
    key: Consumer,
    queue: Name,
    wish: ClaimBody,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for work.")] = 0.0,
) -> Response:
    """Take leases on due entries, if need be after waiting for them."""
    check_queue(key, queue)
    claiming = Claiming(request, key, queue, wish)
    if not wait:
        return await anyio.to_thread.run_sync(claiming.claim)
    limiter: anyio.CapacityLimiter = request.app.state.waiting
    if limiter.borrowed_tokens >= limiter.total_tokens:
        raise too_many(f"{limiter.total_tokens:g} claims are waiting already.")
    give_back = request.app.state.waiting_by_key.take(key)
    watching = asyncio.ensure_future(claiming.watch(request))
    try:
        return await anyio.to_thread.run_sync(claiming.wait, wait, limiter=limiter, abandon_on_cancel=False)
    finally:
        give_back()
        watching.cancel()


class Claiming:
    """A claim under way, as long as its client is connected and its key is valid."""

    def __init__(self, request: Request, key: ApiKey, queue: str, wish: ClaimBody) -> None:
        """Nothing is claimed yet."""
        self._store = store_of(request)
        self._keys: Keys | None = request.app.state.keys
        self._page_bytes: int = request.app.state.settings.page_bytes
        self._key = key
        self._queue = queue
        self._wish = wish
        self._gone = threading.Event()
        self._next_us: Micros | None = None

    async def watch(self, request: Request) -> None:
        """Notice when the client hangs up."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    def claim(self) -> Response:
        """Claim what is due now."""
        return _claimed(self._claim())

    def wait(self, seconds: float) -> Response:
        """Claim what is due now, or else what is due first within this time."""
        deadline = time.monotonic() + seconds
        while self._is_wanted():
            seen = self._store.driver.bell()
            entries = self._claim()
            if entries and not self._is_wanted():
                self._release(entries)
                break
            left = deadline - time.monotonic()
            if entries or left <= 0:
                return _claimed(entries)
            if self._next_us is not None:
                left = min(left, max(0.001, (self._next_us - self._store.now()) / 1e6))
            self._wait_for_bell(seen, left)
        return _claimed([])

    def _is_wanted(self) -> bool:
        """Whether the client is still connected and its key still valid; otherwise it must get nothing."""
        return not self._gone.is_set() and (self._keys is None or self._keys.holds(self._key))

    def _wait_for_bell(self, seen: Any, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._is_wanted() and (left := until - time.monotonic()) > 0:
            if self._store.driver.wait(seen, min(left, LOOK)):
                return

    def _claim(self) -> list[Entry[Any]]:
        """Claim in steps, so that the payloads of all of them together stay within a page."""
        entries: list[Entry[Any]] = []
        step = min(self._wish.limit, FIRST_STEP)
        while True:
            try:
                claimed = self._claim_some(step)
            except PenstockError:
                if not entries:
                    raise
                return entries  # they are held already; the next call reports the trouble
            entries += claimed
            size = sum(map(size_of, entries))
            if len(claimed) < step or len(entries) >= self._wish.limit or size >= self._page_bytes:
                return entries
            step = next_step(size, len(entries), self._page_bytes, self._wish.limit)

    def _claim_some(self, limit: int) -> Sequence[Entry[Any]]:
        owner = f"{self._store.node}/{self._key.name}/{self._wish.owner}"[:120]
        sources = (Source(self._queue, limit, self._wish.attempts),)
        lease = check_lease(self._wish.lease)
        claimed = self._store.driver.claim(ClaimRequest(new_nonce(), sources, limit, owner, self._store.node, lease))
        self._next_us = claimed.next_us
        return claimed.entries

    def _release(self, entries: list[Entry[Any]]) -> None:
        self._store.driver.settle([Step((Ending(entry.lease, "release"),)) for entry in entries if entry.lease])


def _claimed(entries: list[Entry[Any]]) -> Response:
    return written(ClaimedView(items=[leased_view(entry) for entry in entries]))


@router.post("/queues/{queue}/outcomes", responses=responses(404))
def settle(request: Request, key: Consumer, queue: Name, ended: Outcomes) -> EndedViews:
    """Say how attempts ended."""
    store = store_of(request)
    held = _held(store, key, check_queue(key, queue), {outcome.id: outcome.token for outcome in ended.outcomes})
    steps, order = [], []
    for outcome in ended.outcomes:
        lease = held.pop(outcome.id, None)
        if lease is not None:
            delay = duration_micros(outcome.delay, name="delay")
            error = None if outcome.error is None else storable(outcome.error)
            steps.append(
                Step((Ending(lease, outcome.outcome, delay_us=delay, error=error, started_us=lease.claimed_us),))
            )
            order.append(outcome.id)
    results = dict(zip(order, store.driver.settle(steps).results if steps else [], strict=True))
    return EndedViews(items=[_ended(outcome.id, results.get(outcome.id)) for outcome in ended.outcomes])


@router.post("/queues/{queue}/extend", responses=responses(404))
def extend(request: Request, key: Consumer, queue: Name, body: ExtendBody) -> EndedViews:
    """Keep entries for longer."""
    store = store_of(request)
    held = _held(store, key, check_queue(key, queue), {lease.id: lease.token for lease in body.leases})
    duration(body.lease, name="lease")
    ends = store.driver.extend(list(held.values()), check_lease(body.lease)) if held else []
    good = {id_ for id_, end in zip(held, ends, strict=True) if end is not None}
    return EndedViews(items=[_ended(lease.id, True if lease.id in good else None) for lease in body.leases])


def _held(store: QueueStore, key: ApiKey, queue: str, tokens: dict[str, str]) -> dict[str, Lease]:
    """The store's own leases for these tokens, by the ids given: nothing a client sends but the token is trusted."""
    forms = {given: dict.fromkeys((own_id(key, given), given)) for given in tokens}
    ids = tuple({id_ for both in forms.values() for id_ in both})
    leases = {entry.id: entry.lease for entry in store.driver.find(Find(queue=queue, ids=ids, limit=len(ids)))}
    held = {}
    for given, token in tokens.items():
        # The token decides if both forms are ids of entries of this queue.
        for lease in map(leases.get, forms[given]):
            if lease is not None and hmac.compare_digest(lease.token.encode(), token.encode()):
                held[given] = lease
    return held


def _ended(id_: str, result: object) -> EndedView:
    if result is None:
        result = LeaseLost(f"entry {id_} is not held with this token.", hint="Its lease ran out, or it has ended.")
    if isinstance(result, PenstockError):
        return EndedView(id=id_, ok=False, problem=kind_of(result), detail=str(result))
    return EndedView(id=id_, ok=True)


ExtendBody.model_rebuild()
