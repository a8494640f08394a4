"""Whether the service is live and ready, and its figures for Prometheus."""

from __future__ import annotations

import functools
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from penstock.errors import PenstockError
from penstock.log.store import LogStore
from penstock.queue.queues import QueueStore
from penstock.service.access import Reader, caller
from penstock.service.gauges import add_gauges
from penstock.service.prefix import PREFIX
from penstock.service.problems import problem, responses
from penstock.telemetry.snapshot import CONTENT_TYPE, Snapshot

router = APIRouter(tags=["health"])

READY_SECONDS = 5.0


class Health(BaseModel):
    """All is well."""

    status: str


@router.get("/live")
async def live() -> Health:
    """The process runs; says nothing of the stores."""
    return Health(status="ok")


@router.get("/ready", response_model=Health, responses={503: responses()[503]})
async def ready(request: Request) -> Any:
    """The stores answer."""
    state = request.app.state
    try:
        with anyio.fail_after(READY_SECONDS):
            await anyio.to_thread.run_sync(functools.partial(_ask, state.queues, state.logs), abandon_on_cancel=True)
    except (PenstockError, TimeoutError):
        return problem(503, "A store does not answer.", hint="`penstock doctor URL` says more.")
    return Health(status="ok")


def _ask(queues: QueueStore, logs: LogStore | None) -> None:
    queues.locks("none")
    if logs is not None:
        logs.exists("none")


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> Response:
    """What the service offers, for tools."""
    settings = request.app.state.settings
    if not settings.openapi:
        raise HTTPException(404, "This service does not show its OpenAPI.")
    if settings.openapi_key:
        caller(request)
    prefix = request.scope.get(PREFIX)
    servers = {"servers": [{"url": prefix}]} if prefix else {}
    return JSONResponse({**request.app.openapi(), **servers})


@router.get("/metrics", responses=responses(404), response_class=Response)
def metrics(request: Request, key: Reader) -> Response:
    """Figures in the form that Prometheus reads; a key with a prefix sees those of its queues and logs."""
    if not request.app.state.settings.metrics:
        raise HTTPException(404, "This service shows no figures.")
    state = request.app.state
    # A key with a prefix learns nothing about the process, which works for others too.
    snapshot = Snapshot() if state.metrics is None or key.prefix else state.metrics.snapshot()
    add_gauges(snapshot, state.queues, state.logs, state.breaker, key)
    return Response(snapshot.text(), media_type=CONTENT_TYPE)
