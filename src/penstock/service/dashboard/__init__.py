"""The dashboard: pages for people, at ``/`` and below ``/ui``, rendered on the server, with no request to other hosts.

============== ==================================================================================
module         what it is for
============== ==================================================================================
frame          the frame of every page; problems as pages
session        who asks: sessions, and the token that proves that a form is ours
signing        sign in, sign out
reading        what the pages read from the stores: the one place that asks
formatting     numbers, times, ids and values for people
paged          long lists, a page at a time
charts         charts as plain SVG
static         style sheet and scripts
events         the stream that keeps open pages fresh
overview       the first page
queues         the list of queues, one queue, dead letters of all
entry          one entry: its life as a timeline
logs           logs, their groups and records
topologies     the drawn graph
rates          how fast counters have grown recently
things         schedules, bus, circuits, workers, changes, report, settings, search
actions        what can be done by hand: planned, confirmed, recorded
queue_actions  with queues and entries
other_actions  with schedules, circuits and groups
acting         the pages on which actions are confirmed and done
============== ==================================================================================
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from penstock.service.dashboard import (
    acting,
    entry,
    events,
    logs,
    overview,
    queues,
    signing,
    static,
    things,
    topologies,
)
from penstock.service.dashboard.frame import Dashboard, PageRoute, problem_page

rest = APIRouter(include_in_schema=False, route_class=PageRoute)


@rest.get("/ui")
@rest.get("/ui/")
def first_page() -> Response:
    """Lead to the first page."""
    return RedirectResponse("/", 303)


@rest.get("/ui/{path:path}")
def nothing(request: Request, path: str) -> Response:
    """Answer 404 for all other paths below /ui."""
    raise HTTPException(404, f"There is no page /ui/{path}.")


def install(app: FastAPI) -> None:
    """Add the pages to a service."""
    app.state.dashboard = Dashboard(app)
    for part in (overview, queues, entry, logs, topologies, things, acting, signing, events, static):
        app.include_router(part.router)
    app.include_router(rest)


__all__ = ["install", "problem_page"]
