"""Who changed what by hand, over HTTP: what the dashboard's page of changes shows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from penstock.clock import from_micros
from penstock.queue.changes import Change, recent_changes
from penstock.service.access import Reader
from penstock.service.problems import responses
from penstock.service.queues import store_of

router = APIRouter(prefix="/v1", tags=["changes"])


class ChangeView(BaseModel):
    """What somebody did, and the state before and after it, in words."""

    at: datetime
    by: str = Field(description="The key, or user and host of a command line.")
    did: str
    target: str = Field(description="The queue, log, schedule or circuit.")
    before: str
    after: str
    why: str


class Changes(BaseModel):
    """Changes of the last 30 days, the newest first."""

    items: list[ChangeView]


@router.get("/changes", responses=responses())
def list_changes(
    request: Request,
    key: Reader,
    target: Annotated[str | None, Query(max_length=255, description="Only those of this queue, log, …")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Changes:
    """Who changed what, through the service, the dashboard or the command line; a key with a prefix sees its own."""
    seen = [change for change in recent_changes(store_of(request), target) if key.sees(change.target)]
    return Changes(items=[_view(change) for change in seen[:limit]])


def _view(change: Change) -> ChangeView:
    return ChangeView(
        at=from_micros(change.at_us), by=change.by, did=change.did, target=change.target, before=change.before,
        after=change.after, why=change.why,
    )  # fmt: skip
