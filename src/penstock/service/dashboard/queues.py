"""The list of queues, one queue, and dead letters of all queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from penstock.queue.entry import Counts
from penstock.queue.protocol import Find
from penstock.service.access import check_queue
from penstock.service.dashboard.formatting import preview
from penstock.service.dashboard.frame import PageRoute, Visit, Visiting
from penstock.service.dashboard.overview import RANGES, begin_of, chosen_range, queue_rows, rate_charts
from penstock.service.dashboard.paged import paged
from penstock.service.dashboard.reading import Slice, errors_of
from penstock.service.schemas import NAME, read_labels

router = APIRouter(include_in_schema=False, route_class=PageRoute)

QueueName = Annotated[str, Path(pattern=NAME)]
TABS = (
    ("ready", "Ready", "ready"),
    ("delayed", "Delayed", "delayed"),
    ("retrying", "Retrying", "retry"),
    ("held", "Held", "lock"),
    ("leased", "Leased", "leased"),
    ("dead", "Dead", "dead"),
    ("history", "History", "done"),
)
TAB_NAMES = frozenset(name for name, _, _ in TABS)
SORTS: dict[str, Callable[[Counts], Any]] = {
    "name": lambda queue: queue.queue,
    "ready": lambda queue: -queue.ready,
    "delayed": lambda queue: -queue.delayed - queue.retrying,
    "leased": lambda queue: -queue.leased,
    "dead": lambda queue: -queue.dead,
    "oldest": lambda queue: queue.oldest_ready_us or 1 << 62,
}


@router.get("/ui/queues")
def list_queues(visiting: Visiting) -> Response:
    """All queues by name, or by what they hold most of; a page at a time."""
    reading = visiting.reading
    prefix, sort = visiting.given("prefix"), visiting.given("sort", "name")
    order = SORTS.get(sort, SORTS["name"])
    only = visiting.given("only")
    chosen = [
        queue
        for queue in reading.counts(visiting.key)
        if prefix.lower() in queue.queue.lower() and _is_meant(queue, only)
    ]
    chosen.sort(key=lambda queue: (order(queue), queue.queue))
    page = paged(chosen, visiting.given("page"))
    return visiting.page(
        "queues.html",
        "queues",
        live="#queue-table",
        rows=queue_rows(page.rows, reading.last_hour(visiting.key, reading.now()), reading.now()),
        prefix=prefix,
        sort=sort if sort in SORTS else "name",
        only=only,
        page=page,
    )


def _is_meant(queue: Counts, only: str) -> bool:
    return {"dead": queue.dead > 0, "locked": bool(queue.locks), "waiting": queue.live > 0}.get(only, True)


@router.get("/ui/queues/{queue}")
def show_queue(visiting: Visiting, queue: QueueName) -> Response:
    """One queue: what it holds, how it runs, and its entries by state."""
    reading = visiting.reading
    counts, now = reading.counts_of(visiting.key, check_queue(visiting.key, queue)), reading.now()
    tab = visiting.given("tab")
    if tab not in TAB_NAMES:
        tab = _telling_tab(counts)
    minutes = chosen_range(visiting.given("range"))
    tallies = reading.figures(minutes).of_queue(queue, begin_of(minutes, now))
    served = [
        (worker, serving)
        for worker in reading.workers(visiting.key)
        for serving in worker.record.serving
        if worker.state != "lost"
        and (serving.queue == queue or (serving.is_family and queue.startswith(serving.queue)))
    ]
    return visiting.page(
        "queue.html",
        "queues",
        live="#locks,#queue-figures,#charts,#ended,#entries",
        name=queue,
        counts=counts,
        tab=tab,
        tabs=TABS,
        minutes=minutes,
        ranges=RANGES,
        definition=reading.queues.driver.definitions().get(queue),
        served=served,
        busy=sum(serving.busy for _, serving in served),
        slots=sum(serving.slots for _, serving in served),
        ended=reading.ended(visiting.key, minutes, queue),
        nodes=sorted({worker.record.node for worker, _ in served}),
        family=next((tally.queue for tally in tallies if tally.is_family), ""),
        oldest=None if counts.oldest_ready_us is None else max(0, now - counts.oldest_ready_us),
        **listed(visiting, queue, tab, is_empty=tab != "history" and not getattr(counts, tab, 1)),
        **rate_charts(tallies, minutes, now),
    )


def _telling_tab(counts: Counts) -> str:
    for tab in ("dead", "ready", "leased", "retrying", "delayed", "held"):
        if getattr(counts, tab):
            return tab
    return "history"


def listed(visiting: Visit, queue: str, tab: str, *, is_empty: bool) -> dict[str, Any]:
    """The entries of a tab, as its filters say; and the filters, so that the page can show them."""
    reading, now = visiting.reading, visiting.reading.now()
    label, text, cursor = visiting.given("label"), visiting.given("error"), visiting.given("after")
    labels = read_labels([label]) if label else {}
    if is_empty:
        part = Slice((), None)
    elif tab == "dead":
        part = reading.dead(Find(queue=queue, labels=labels), text, cursor)
    elif tab == "history":
        part = reading.history(Find(queue=queue, labels=labels), text, cursor)
    else:
        part = reading.waiting(reading.queues.queue(queue), tab, labels, text, cursor, now)
    errors = errors_of(part.rows) if tab == "dead" else []
    return {
        "part": part,
        "label": label,
        "error": text,
        "cursor": cursor,
        "errors": errors[:5],
        "previews": {row.id: preview(row.payload, row.codec, row.type) for row in part.rows if row.payload is not None},
    }


@router.get("/ui/dead")
def all_dead(visiting: Visiting) -> Response:
    """Dead letters of all queues, the newest first, and which queues have them."""
    reading, key = visiting.reading, visiting.key
    label, text, cursor = visiting.given("label"), visiting.given("error"), visiting.given("after")
    labels = read_labels([label]) if label else {}
    part = reading.dead(Find(family=key.prefix or None, labels=labels), text, cursor)
    by_queue = sorted((queue for queue in reading.counts(key) if queue.dead), key=lambda queue: -queue.dead)
    return visiting.page(
        "dead.html",
        "dead",
        live="#dead-queues,#dead-letters",
        part=part,
        label=label,
        error=text,
        cursor=cursor,
        by_queue=by_queue[:20],
        queue_count=len(by_queue),
        dead=sum(queue.dead for queue in by_queue),
        errors=errors_of(part.rows)[:8],
        previews={row.id: preview(row.payload, row.codec, row.type) for row in part.rows},
    )
