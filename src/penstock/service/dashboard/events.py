"""The stream that keeps open pages fresh: a tick every few seconds, after which a page asks for its live parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from penstock.service.dashboard.frame import Dashboard, PageRoute, Visiting
from penstock.service.dashboard.session import SignInNeeded

router = APIRouter(include_in_schema=False, route_class=PageRoute)

EVERY = 3.0
LOOK = 0.5  # seconds between checks whether the service ends


@router.get("/ui/events")
async def events(request: Request, visiting: Visiting) -> StreamingResponse:
    """Ticks until the page is closed, the session ends or the service does."""
    give_back = request.app.state.streams_by_key.take(visiting.key)
    stream = _ticks(request, request.app.state.ending, give_back)
    return StreamingResponse(stream, media_type="text/event-stream", background=BackgroundTask(give_back))


async def _ticks(request: Request, ending: threading.Event, give_back: Callable[[], None]) -> AsyncIterator[bytes]:
    dashboard: Dashboard = request.app.state.dashboard
    try:
        yield b"retry: 2000\n\n"
        waited = 0.0
        while not ending.is_set():
            await asyncio.sleep(LOOK)
            waited += LOOK
            if waited < EVERY:
                continue
            waited = 0.0
            try:
                await run_in_threadpool(dashboard.sessions.visitor, request)
            except SignInNeeded:
                yield b"event: tick\ndata: ended\n\n"  # the page asks, and gets the reason as text
                return
            yield b"event: tick\ndata: now\n\n"
    finally:
        give_back()
