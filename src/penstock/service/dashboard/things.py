"""Pages with lists: schedules, the bus, circuits, workers, changes, the report, settings, the search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from penstock.clock import SECOND, Micros
from penstock.queue.entry import Entry
from penstock.queue.protocol import Schedule
from penstock.service.dashboard.formatting import preview, span
from penstock.service.dashboard.frame import PageRoute, Visiting, address, entry_address
from penstock.service.dashboard.overview import RANGES, begin_of, by_node, chosen_range, rate_charts
from penstock.service.dashboard.paged import paged
from penstock.service.dashboard.reading import MOST_IN_HAND

router = APIRouter(include_in_schema=False, route_class=PageRoute)

LANE: Micros = 6 * 60 * 60 * SECOND  # how far back the picture of the circuits goes
LONGEST_SEARCH = 300


@router.get("/ui/schedules")
def schedules(visiting: Visiting) -> Response:
    """Schedules, and when they fire next."""
    known = sorted(
        visiting.reading.schedules(visiting.key),
        key=lambda schedule: (schedule.is_paused, schedule.next_us, schedule.name),
    )
    page = paged(known, visiting.given("page"))
    rows = [
        {
            "schedule": schedule,
            "times": times_text(schedule),
            "is_paused": schedule.is_paused,
            "preview": preview(schedule.payload, schedule.codec, schedule.type),
        }
        for schedule in page.rows
    ]
    return visiting.page("schedules.html", "schedules", live="#schedule-table", rows=rows, page=page)


def times_text(schedule: Schedule) -> str:
    """When a schedule fires, in words."""
    kind, _, rest = schedule.spec.partition(":")
    return f"every {span(int(rest))}" if kind == "every" else f"{rest} ({schedule.zone})"


@router.get("/ui/bus")
def bus(visiting: Visiting) -> Response:
    """Subscriptions: which events they want, and what their queues hold."""
    held = {queue.queue: queue for queue in visiting.reading.counts(visiting.key)}
    page = paged(visiting.reading.subscriptions(visiting.key), visiting.given("page"))
    rows = [(subscription, held.get(subscription.queue)) for subscription in page.rows]
    return visiting.page("bus.html", "bus", live="#bus-table", rows=rows, page=page)


@router.get("/ui/circuits")
def circuits(request: Request, visiting: Visiting) -> Response:
    """Circuits: their states now and over the last hours, and the queues they lock."""
    reading, now = visiting.reading, visiting.reading.now()
    known = reading.circuits(visiting.key)
    chosen = next(
        (circuit for circuit in known if circuit.hash == visiting.given("circuit")), known[0] if known else None
    )
    locked = [] if chosen is None else request.app.state.breaker.locked_queues().get(chosen.hash, [])
    return visiting.page(
        "circuits.html",
        "circuits",
        live="#circuit-table,#circuit-lanes,#circuit-one",
        page=paged(known, visiting.given("page")),
        chosen=chosen,
        locked=locked[:20],
        locked_count=len(locked),
        lanes=[(circuit, _lane(circuit.transitions, circuit.state, now)) for circuit in known[:20]],
        config=request.app.state.breaker.config,
        is_whole=not visiting.key.prefix,
    )


def _lane(transitions: tuple[Any, ...], state: str, now: Micros) -> list[tuple[str, float, float]]:
    """The states of a circuit over the last hours: what, from and width in percent."""
    begin = now - LANE
    turns = [(max(transition.at_us, begin), transition.state) for transition in transitions if transition.at_us > begin]
    before = [transition.state for transition in transitions if transition.at_us <= begin]
    known = [(begin, before[-1] if before else "closed"), *turns]
    ends = [at for at, _ in known[1:]] + [now]
    return [
        (kind, round(100 * (at - begin) / LANE, 2), round(max(0.3, 100 * (end - at) / LANE), 2))
        for (at, kind), end in zip(known, ends, strict=True)
    ]


@router.get("/ui/workers")
def workers(visiting: Visiting) -> Response:
    """Live workers: what they run, since when, what they have in hand; and those that were lost within a day."""
    leased = visiting.reading.in_hand(visiting.key)
    known = sorted(visiting.reading.workers(visiting.key), key=lambda worker: worker.state == "lost")
    held = by_owner(leased or [])
    owners = {worker.record.owner for worker in known}
    return visiting.page(
        "workers.html",
        "workers",
        live="#worker-nodes,#worker-table,#other-hands",
        workers=known,
        page=paged(known, visiting.given("page")),
        nodes=by_node(known),
        held=held,
        others={owner: some for owner, some in held.items() if owner not in owners},
        is_read=leased is not None,
        is_cut=leased is not None and len(leased) >= MOST_IN_HAND,
    )


def by_owner(leased: Iterable[Entry[Any]]) -> dict[str, list[Entry[Any]]]:
    """The entries that each owner holds, the longest held first."""
    held: dict[str, list[Entry[Any]]] = {}
    for entry in sorted(leased, key=lambda each: each.lease.claimed_us if each.lease else 0):
        if entry.lease is not None:
            held.setdefault(entry.lease.owner, []).append(entry)
    return held


@router.get("/ui/changes")
def changes(visiting: Visiting) -> Response:
    """Who changed what by hand in the last 30 days."""
    target = visiting.given("target")
    known = [change for change in visiting.reading.changes(visiting.key) if not target or change.target == target]
    return visiting.page(
        "changes.html", "changes", live="#change-table", page=paged(known, visiting.given("page")), target=target
    )


@router.get("/ui/report")
def report(visiting: Visiting) -> Response:
    """What was done, queue by queue, over the last hours: totals, failures and run times."""
    minutes = chosen_range(visiting.given("range", "1440"))
    now, prefix = visiting.reading.now(), visiting.key.prefix
    series, first = visiting.reading.figures(minutes), begin_of(minutes, now)
    rows: list[dict[str, Any]] = [
        {
            "queue": summed.queue,
            "is_family": summed.is_family,
            "total": summed,
            "p50": summed.quantile(0.5),
            "p95": summed.quantile(0.95),
            "mean": summed.seconds / max(1, sum(summed.durations)),
        }
        for summed in series.by_handler(first, prefix)
    ]
    rows.sort(key=lambda row: -row["total"].done - row["total"].failed)
    return visiting.page(
        "report.html",
        "report",
        live="#report-figures,#charts,#report-table",
        page=paged(rows, visiting.given("page")),
        minutes=minutes,
        ranges=RANGES,
        **rate_charts(series.by_minute(first, prefix), minutes, now),
    )


@router.get("/ui/settings")
def settings(request: Request, visiting: Visiting) -> Response:
    """What this service serves, what its stores can do, and what doctor says of them."""
    if visiting.key.prefix or not visiting.visitor.may("admin"):
        raise HTTPException(403, "Settings are for keys with the scope 'admin' and without a prefix.")
    state = request.app.state
    shown = {
        name: _setting(value)
        for name, value in msgspec.structs.asdict(state.settings).items()
        if name not in ("queues", "logs")
    }
    flags = msgspec.structs.asdict(state.queues.capabilities)
    return visiting.page(
        "settings.html",
        "settings",
        live="#doctor",
        settings=shown,
        queues=state.queues.name,
        logs=None if state.logs is None else state.logs.name,
        flags=flags,
        findings=visiting.reading.findings(),
        nodes=sorted(visiting.reading.queues.driver.nodes().items()),
    )


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


@router.get("/ui/more")
def more(visiting: Visiting) -> Response:
    """All pages, for screens without room for the side bar."""
    return visiting.page("more.html", "more")


@router.get("/ui/find")
def find(visiting: Visiting) -> Response:
    """A queue, an entry by its id, a part of it or its unique id, or entries with a label."""
    text = visiting.given("q")[:LONGEST_SEARCH]
    reading, key = visiting.reading, visiting.key
    names = [queue.queue for queue in reading.counts(key)]
    if text in names:
        return RedirectResponse(address(f"/ui/queues/{text}"), 303)
    hits = reading.search(key, text) if text else []
    if len(hits) == 1 and hits[0].by in ("id", "unique id"):
        return RedirectResponse(entry_address(hits[0].queue, hits[0].id), 303)
    queues = [name for name in names if text and text.lower() in name.lower()]
    return visiting.page("find.html", "", text=text, hits=hits, queues=queues[:50], queue_count=len(queues))
