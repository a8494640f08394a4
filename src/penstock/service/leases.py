"""Claims and outcomes over HTTP, so that workers can be written in any language."""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
from functools import partial
from typing import Annotated, Literal

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from penstock.clock import duration, duration_micros
from penstock.errors import BadInput, LeaseLost, PenstockError
from penstock.ids import new_nonce
from penstock.queue.entry import Lease, check_lease
from penstock.queue.handler import DEFAULT_RETRY, storable
from penstock.queue.store import ClaimRequest, Ending, Find, QueueStore, Source, Step
from penstock.service.access import Consumer, check_queue
from penstock.service.keys import ApiKey
from penstock.service.problems import kind_of, responses
from penstock.service.queues import store_of
from penstock.service.shapes import Body, DurationText, LeasedView, Name, leased_view

router = APIRouter(prefix="/v1", tags=["leases"])

LONGEST_WAIT = 20.0
# Waiting claims have threads of their own: they must not keep other requests from theirs.
WAITING = 100


class ClaimBody(Body):
    """A wish for work."""

    limit: int = Field(1, ge=1, le=1000)
    lease: DurationText = "60s"
    attempts: int | None = Field(DEFAULT_RETRY.attempts, ge=1, description="Starts before an entry is a dead letter.")
    owner: str = Field("http", min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")


class OutcomeBody(Body):
    """How an attempt ended: done, try again (after ``delay``), dead, or given back as if it had never been taken."""

    id: str = Field(min_length=1, max_length=64)
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

    id: str = Field(min_length=1, max_length=64)
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


@router.post("/queues/{queue}/claims", responses=responses(404))
async def claim(
    request: Request,
    key: Consumer,
    queue: Name,
    wish: ClaimBody,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for work.")] = 0.0,
) -> ClaimedView:
    """Take leases on due entries, if need be after waiting for them."""
    check_queue(key, queue)
    limiter: anyio.CapacityLimiter = request.app.state.waiting
    if wait and limiter.borrowed_tokens >= limiter.total_tokens:
        raise BadInput(f"{WAITING} claims are waiting already.", hint="Ask again without wait, or later.")
    gone = threading.Event()
    watching = asyncio.ensure_future(_watch(request, gone))
    work = partial(_claim, store_of(request), key, queue, wish, wait, gone)
    try:
        return await anyio.to_thread.run_sync(work, limiter=limiter if wait else None, abandon_on_cancel=False)
    finally:
        watching.cancel()


async def _watch(request: Request, gone: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


def _claim(
    store: QueueStore, key: ApiKey, queue: str, wish: ClaimBody, wait: float, gone: threading.Event
) -> ClaimedView:
    deadline = time.monotonic() + wait
    owner = f"{store.node}/{key.name}/{wish.owner}"[:120]
    while not gone.is_set():
        seen = store.bell()
        sources = (Source(queue, wish.limit, wish.attempts),)
        request = ClaimRequest(new_nonce(), sources, wish.limit, owner, store.node, check_lease(wish.lease))
        claimed = store.claim(request)
        left = deadline - time.monotonic()
        if claimed.entries and gone.is_set():
            store.settle([Step((Ending(entry.lease, "release"),)) for entry in claimed.entries if entry.lease])
            break
        if claimed.entries or left <= 0:
            return ClaimedView(items=[leased_view(entry) for entry in claimed.entries])
        if claimed.next_us is not None:
            left = min(left, max(0.001, (claimed.next_us - store.now()) / 1e6))
        until = time.monotonic() + left
        # In short steps: who has hung up must be given nothing, and needs no thread.
        while not gone.is_set() and (left := until - time.monotonic()) > 0 and not store.wait(seen, min(left, 0.5)):
            continue
    return ClaimedView(items=[])


@router.post("/queues/{queue}/outcomes", responses=responses(404))
def settle(request: Request, key: Consumer, queue: Name, ended: Outcomes) -> EndedViews:
    """Say how attempts ended."""
    store = store_of(request)
    held = _held(store, check_queue(key, queue), {one.id: one.token for one in ended.outcomes})
    steps, order = [], []
    for one in ended.outcomes:
        lease = held.pop(one.id, None)
        if lease is not None:
            delay = duration_micros(one.delay, name="delay")
            error = None if one.error is None else storable(one.error)
            steps.append(Step((Ending(lease, one.outcome, delay_us=delay, error=error, started_us=lease.claimed_us),)))
            order.append(one.id)
    results = dict(zip(order, store.settle(steps).results if steps else [], strict=True))
    return EndedViews(items=[_ended(one.id, results.get(one.id)) for one in ended.outcomes])


@router.post("/queues/{queue}/extend", responses=responses(404))
def extend(request: Request, key: Consumer, queue: Name, body: ExtendBody) -> EndedViews:
    """Keep entries for longer."""
    store = store_of(request)
    held = _held(store, check_queue(key, queue), {one.id: one.token for one in body.leases})
    duration(body.lease, name="lease")
    ends = store.extend(list(held.values()), check_lease(body.lease)) if held else []
    good = {id_ for id_, end in zip(held, ends, strict=True) if end is not None}
    return EndedViews(items=[_ended(one.id, True if one.id in good else None) for one in body.leases])


def _held(store: QueueStore, queue: str, tokens: dict[str, str]) -> dict[str, Lease]:
    """The store's own leases for these tokens: nothing that a client sends but the token is trusted."""
    found = {}
    for entry in store.find(Find(queue=queue, ids=tuple(tokens), limit=len(tokens))):
        lease = entry.lease
        if lease is not None and hmac.compare_digest(lease.token.encode(), tokens[entry.id].encode()):
            found[entry.id] = lease
    return found


def _ended(id_: str, result: object) -> EndedView:
    if result is None:
        result = LeaseLost(f"entry {id_} is not held with this token.", hint="Its lease ran out, or it has ended.")
    if isinstance(result, PenstockError):
        return EndedView(id=id_, ok=False, problem=kind_of(result), detail=str(result))
    return EndedView(id=id_, ok=True)


ExtendBody.model_rebuild()
