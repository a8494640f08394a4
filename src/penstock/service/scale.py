"""How much work there is, as one number: what an autoscaler such as KEDA asks for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from penstock.clock import SECOND
from penstock.queue.entry import Counts
from penstock.service.access import Reader, check_queue
from penstock.service.keys import ApiKey
from penstock.service.problems import responses
from penstock.service.queues import store_of
from penstock.service.schemas import NAME

router = APIRouter(prefix="/v1", tags=["workers"])

MOST_NAMES = 100

Names = Annotated[
    list[Annotated[str, Query(pattern=NAME)]] | None, Query(description="May be repeated.", max_length=MOST_NAMES)
]


class ScaleView(BaseModel):
    """What there is to do, and what is being done: a queue in which the last entries are still running is not empty."""

    backlog: int = Field(description="Ready entries that may be claimed, and those that are being worked on.")
    ready: int = Field(description="Due entries; those of locked queues included.")
    leased: int = Field(description="Entries that are being worked on.")
    locked: int = Field(description="Ready entries of locked queues: more workers would not help them.")
    wait_seconds: float = Field(description="For how long the oldest entry that may be claimed has waited.")


@router.get("/scale", responses=responses(404))
def scale(request: Request, key: Reader, queue: Names = None, family: Names = None) -> ScaleView:
    """The work of some queues and families, or of all that the key sees. A queue that is not there has none.

    What a circuit that is open holds back counts as locked.
    """
    queues = _counts(request, key, queue or [], family or [])
    now = store_of(request).now()
    free = [counts for counts in queues if not counts.locks]
    oldest = min((counts.oldest_ready_us for counts in free if counts.oldest_ready_us is not None), default=now)
    ready, leased = sum(counts.ready for counts in queues), sum(counts.leased for counts in queues)
    locked = ready - sum(counts.ready for counts in free)
    return ScaleView(
        backlog=ready - locked + leased, ready=ready, leased=leased, locked=locked,
        wait_seconds=max(0, now - oldest) / SECOND,
    )  # fmt: skip


def _counts(request: Request, key: ApiKey, queues: list[str], families: list[str]) -> list[Counts]:
    """The counts of every queue once, even if it is both named and in a family."""
    store = store_of(request)
    if not queues and not families:
        families = [key.prefix] if key.prefix else []
        if not families:
            return store.counts()
    counted = {counts.queue: counts for name in queues for counts in store.counts(queue=check_queue(key, name))}
    for prefix in families:
        for counts in store.counts(family=prefix):
            if key.sees(counts.queue):
                counted[counts.queue] = counts
    return list(counted.values())
