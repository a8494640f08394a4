"""The first page: what is wrong, the current figures, their history, and the lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Response

from penstock.clock import SECOND, Micros, from_micros
from penstock.queue.entry import Counts
from penstock.queue.protocol import Find
from penstock.queue.worker.figures import MINUTE, Tally, total
from penstock.queue.worker.presence import KnownWorker
from penstock.service.dashboard.charts import bar_chart, line_chart, spark
from penstock.service.dashboard.formatting import number, plural, span
from penstock.service.dashboard.frame import PageRoute, Visit, Visiting, address
from penstock.service.dashboard.reading import LOOK_BACK, errors_of

router = APIRouter(include_in_schema=False, route_class=PageRoute)

RANGES = (("1 h", 60), ("6 h", 360), ("24 h", 1440), ("7 d", 7 * 1440), ("30 d", 30 * 1440))
MOST_POINTS = 120
MOST_QUEUES = 12
MOST_FINDINGS = 8
LATE: Micros = 120 * SECOND
RECENT = 5  # minutes over which "now" is averaged
WRITTEN: Micros = 10 * SECOND  # after the end of a minute, until all workers have written its figures


class Attention(msgspec.Struct, frozen=True):
    """One problem that needs attention."""

    level: str  # bad or warn
    icon: str
    what: str
    why: str
    since: str
    link: str
    link_text: str


@router.get("/")
def overview(visiting: Visiting) -> Response:
    """Everything in this space, one page."""
    reading, key = visiting.reading, visiting.key
    minutes = chosen_range(visiting.given("range"))
    now = reading.now()
    counts = reading.counts(key)
    tallies = reading.last_hour(key, now)
    workers = reading.workers(key)
    lags = sorted(reading.lags(key), key=lambda row: -row[2].lag)
    schedules = sorted(reading.schedules(key), key=lambda schedule: schedule.next_us)
    return visiting.page(
        "overview.html",
        "overview",
        live="#attention,#figures,#charts,#queues,#workers,#lags,#schedules",
        findings=_attention(visiting, counts, workers, now)[:MOST_FINDINGS],
        minutes=minutes,
        ranges=RANGES,
        ended=reading.ended(key, minutes),
        figures=_figures(counts, tallies, workers, now),
        queue_rows=queue_rows(_telling(counts, tallies)[:MOST_QUEUES], tallies, now),
        queue_count=len(counts),
        log_count=len({row[0] for row in lags}),
        nodes=by_node(workers),
        workers=workers,
        lags=lags[:6],
        schedules=[(schedule, schedule.is_paused) for schedule in schedules[:6]],
        **rate_charts(reading.figures(minutes).by_minute(begin_of(minutes, now), key.prefix), minutes, now),
    )


def begin_of(minutes: int, now: Micros) -> int:
    """The first minute that the charts of a range may show, in whole hours if the range is long."""
    first = whole_minutes(now) - minutes
    return first if minutes <= LOOK_BACK else first // 60 * 60


def chosen_range(given: str) -> int:
    """The minutes that a page looks back."""
    return int(given) if given in {str(minutes) for _, minutes in RANGES} else 60


def rate_charts(tallies: list[Tally], minutes: int, now: Micros) -> dict[str, Any]:
    """Done and failed per minute, and run times, over a range up to the last minute or hour that is complete.

    The totals are up to now.
    """
    is_long = minutes > LOOK_BACK
    step = -(-minutes // MOST_POINTS)
    last = whole_minutes(now)
    if is_long:  # the tallies are of whole hours
        step, last = -(-step // 60) * 60, last // 60 * 60
    by_block: dict[int, list[Tally]] = {}
    for tally in tallies:
        if last - minutes <= tally.minute < last:
            by_block.setdefault((tally.minute - last + minutes) // step, []).append(tally)
    blocks = [total(by_block.get(place, ())) for place in range(minutes // step)]
    done = [block.done / step for block in blocks]
    failed = [block.failed / step for block in blocks]
    all_of_it = total(tally for tally in tallies if tally.minute >= last - minutes)
    times = [[block.quantile(share) for block in blocks] for share in (0.5, 0.95, 0.99)]
    words = f"{minutes // 1440} days" if is_long else "hour" if minutes == 60 else f"{minutes // 60} hours"
    return {
        "done_chart": line_chart(
            [done],
            height=200,
            label=f"Done per minute over the last {words}",
            description=_described(all_of_it.done, "succeeded", done),
        ),
        "failed_chart": bar_chart(
            failed,
            height=84,
            label=f"Failed attempts per minute over the last {words}",
            description=_described(all_of_it.failed, "failed", failed),
        ),
        "time_chart": line_chart(
            times,
            height=140,
            label=f"Run time of one attempt over the last {words}",
            is_time=True,
            description="Half of the attempts, 95 and 99 in a hundred took no longer than the three lines.",
        ),
        "quantiles": [all_of_it.quantile(share) for share in (0.5, 0.95, 0.99)],
        "range_total": all_of_it,
        "range_words": "1 hour" if minutes == 60 else words,
        "axis": [_axis_text((last - minutes + minutes * place // 4) * MINUTE, is_long) for place in range(5)],
    }


def whole_minutes(now: Micros) -> int:
    """The first incomplete minute: drawn before all workers have written it, it would look like a drop."""
    return (now - WRITTEN) // MINUTE


def _axis_text(moment: Micros, is_long: bool) -> str:
    return f"{from_micros(moment):%d %b}" if is_long else f"{from_micros(moment):%H:%M}"


def _described(count: int, word: str, per_minute: list[float]) -> str:
    return f"{number(count)} attempts {word}; at most {number(round(max(per_minute, default=0), 1))} per minute."


def queue_rows(counts: Sequence[Counts], tallies: list[Tally], now: Micros) -> list[dict[str, Any]]:
    """Queues as a table shows them, with a line of what was done in the last hour."""
    last = whole_minutes(now)
    by_handler: dict[tuple[str, bool], dict[int, Tally]] = {}
    for tally in tallies:
        if tally.minute >= last - 60:
            by_handler.setdefault((tally.queue, tally.is_family), {})[tally.minute] = tally
    rows = []
    for queue in counts:
        own = by_handler.get((queue.queue, False))
        values = [float(own[minute].done) if own and minute in own else 0.0 for minute in range(last - 60, last)]
        doubled = [values[place] + values[place + 1] for place in range(0, len(values), 2)]
        path, area = spark(doubled)
        rows.append(
            {
                "counts": queue,
                "path": path,
                "area": area,
                "has_figures": own is not None,
                "per_minute": sum(values[-RECENT:]) / RECENT,
                "oldest": None if queue.oldest_ready_us is None else max(0, now - queue.oldest_ready_us),
            }
        )
    return rows


def by_node(workers: list[KnownWorker]) -> list[dict[str, Any]]:
    """The workers of each node, added up."""
    nodes: dict[str, list[KnownWorker]] = {}
    for worker in workers:
        nodes.setdefault(worker.record.node, []).append(worker)
    return [
        {
            "node": node,
            "alive": sum(worker.state != "lost" for worker in some),
            "lost": sum(worker.state == "lost" for worker in some),
            "busy": sum(worker.busy for worker in some if worker.state != "lost"),
            "slots": sum(worker.slots for worker in some if worker.state != "lost"),
            "since": min(worker.record.started_us for worker in some),
            "seen": max(worker.seen_us for worker in some),
        }
        for node, some in sorted(nodes.items())
    ]


def _telling(counts: list[Counts], tallies: list[Tally]) -> list[Counts]:
    """Queues by importance: trouble first, then full ones, then busy ones."""
    busy = Counter[str]()
    for tally in tallies:
        busy[tally.queue] += tally.done + tally.failed
    return sorted(
        counts,
        key=lambda queue: (
            -min(queue.dead, 1),
            -min(len(queue.locks), 1),
            -queue.ready - queue.leased,
            -busy[queue.queue],
        ),
    )


def _figures(counts: list[Counts], tallies: list[Tally], workers: list[KnownWorker], now: Micros) -> dict[str, Any]:
    last = whole_minutes(now)
    recent = total(tally for tally in tallies if last - RECENT <= tally.minute < last)
    hour = total(tally for tally in tallies if tally.minute >= last - 60)
    waiting = min(
        (queue for queue in counts if queue.oldest_ready_us is not None),
        key=lambda queue: queue.oldest_ready_us or 0,
        default=None,
    )
    live = [worker for worker in workers if worker.state != "lost"]
    return {
        "recent": RECENT,
        "done": recent.done / RECENT,
        "hour_done": hour.done,
        "hour_dead": hour.dead,
        "failed": 100 * hour.failed / (hour.done + hour.failed) if hour.failed else 0,
        "hour_failed": hour.failed,
        "ready": sum(queue.ready for queue in counts),
        "delayed": sum(queue.delayed + queue.retrying for queue in counts),
        "leased": sum(queue.leased for queue in counts),
        "busy": sum(worker.busy for worker in live),
        "slots": sum(worker.slots for worker in live),
        "dead": sum(queue.dead for queue in counts),
        "workers": len(live),
        "oldest": None if waiting is None else max(0, now - (waiting.oldest_ready_us or now)),
        "oldest_queue": None if waiting is None else waiting.queue,
    }


# --- what needs attention ----------------------------------------------------------------------------


def _attention(visiting: Visit, counts: list[Counts], workers: list[KnownWorker], now: Micros) -> list[Attention]:
    """What needs attention, the worst first."""
    findings = [
        *_open_circuits(visiting, now),
        *_nobody_works(counts, workers),
        *_dead_letters(visiting, counts),
        *_lost_workers(workers, now),
        *_locked(counts),
        *_skipped(visiting),
        *_overdue(visiting, now),
    ]
    return sorted(findings, key=lambda finding: finding.level != "bad")


def _open_circuits(visiting: Visit, now: Micros) -> Iterator[Attention]:
    for circuit in visiting.reading.circuits(visiting.key):
        if circuit.state != "closed":
            word = "open" if circuit.state == "open" else "half open"
            yield Attention(
                "bad" if circuit.state == "open" else "warn",
                "stop" if circuit.state == "open" else "half",
                f"Circuit {circuit.circuit} is {word}.",
                f"{circuit.ratio} % of {number(circuit.successes + circuit.failures)} requests failed; "
                f"{plural(circuit.locked, 'queue')} locked.",
                f"for {span(now - circuit.since_us)}",
                "/ui/circuits",
                "Look at the circuit",
            )


def _nobody_works(counts: list[Counts], workers: list[KnownWorker]) -> Iterator[Attention]:
    live = [worker for worker in workers if worker.state != "lost"]
    served = [serving for worker in live for serving in worker.record.serving]
    names = {serving.queue for serving in served if not serving.is_family}
    families = tuple(serving.queue for serving in served if serving.is_family)

    def is_served(queue: str) -> bool:
        return queue in names or (bool(families) and queue.startswith(families))

    alone = [queue for queue in counts if queue.ready and not queue.locks and not is_served(queue.queue)]
    if not alone:
        return
    ready = sum(queue.ready for queue in alone)
    if not live:
        yield Attention(
            "bad",
            "gone",
            "No worker runs.",
            f"{plural(ready, 'entry is', 'entries are')} ready in {plural(len(alone), 'queue')}; nobody takes them.",
            "",
            "/ui/workers",
            "Look at workers",
        )
        return
    worst = max(alone, key=lambda queue: queue.ready)
    more = f" and {plural(len(alone) - 1, 'other queue')}" if len(alone) > 1 else ""
    yield Attention(
        "warn",
        "gone",
        f"No worker serves {worst.queue}{more}.",
        f"{plural(ready, 'entry is', 'entries are')} ready there.",
        "",
        address(f"/ui/queues/{worst.queue}"),
        "Look at the queue",
    )


def _dead_letters(visiting: Visit, counts: list[Counts]) -> Iterator[Attention]:
    with_dead = sorted((queue for queue in counts if queue.dead), key=lambda queue: -queue.dead)
    for queue in with_dead[:3]:
        sample = visiting.reading.dead(Find(queue=queue.queue), "", "").rows
        errors = errors_of(sample)
        why = "" if not errors else f"{'All' if len(errors) == 1 else 'Most'} with {errors[0][0]}"
        yield Attention(
            "bad",
            "dead",
            f"{queue.queue} has {plural(queue.dead, 'dead letter')}.",
            why,
            "",
            address(f"/ui/queues/{queue.queue}", tab="dead"),
            "Look at dead letters",
        )
    if len(with_dead) > 3:
        rest = sum(queue.dead for queue in with_dead[3:])
        yield Attention(
            "bad",
            "dead",
            f"{plural(len(with_dead) - 3, 'more queue has', 'more queues have')} dead letters.",
            f"{plural(rest, 'entry', 'entries')} in all.",
            "",
            "/ui/dead",
            "All dead letters",
        )


def _lost_workers(workers: list[KnownWorker], now: Micros) -> Iterator[Attention]:
    lost = [worker for worker in workers if worker.state == "lost"]
    if lost:
        last = max(lost, key=lambda worker: worker.seen_us)
        what = f"Worker {last.record.node}, process {last.record.pid}, has gone silent."
        yield Attention(
            "warn",
            "gone",
            what if len(lost) == 1 else f"{len(lost)} workers have gone silent.",
            "What they were at comes back when the leases run out.",
            f"for {span(now - last.seen_us)}",
            "/ui/workers",
            "Look at workers",
        )


def _locked(counts: list[Counts]) -> Iterator[Attention]:
    locked = [queue for queue in counts if queue.locks and queue.ready]
    if locked:
        worst = max(locked, key=lambda queue: queue.ready)
        more = f" and {plural(len(locked) - 1, 'other queue')}" if len(locked) > 1 else ""
        lock = worst.locks[0]
        why = f"by {lock.holder}" + (f": {lock.reason}" if lock.reason else "")
        yield Attention(
            "warn",
            "lock",
            f"{worst.queue}{more} {'are' if more else 'is'} locked while entries wait.",
            f"{plural(sum(queue.ready for queue in locked), 'entry', 'entries')} ready; {why}.",
            "",
            address(f"/ui/queues/{worst.queue}"),
            "Look at the queue",
        )


def _skipped(visiting: Visit) -> Iterator[Attention]:
    for log, group, lag in visiting.reading.lags(visiting.key):
        if lag.skipped:
            yield Attention(
                "bad",
                "log",
                f"Group {group} of {log} has missed records.",
                f"{number(lag.skipped)} were removed by retention before it read them.",
                "",
                address(f"/ui/logs/{log}"),
                "Look at the log",
            )


def _overdue(visiting: Visit, now: Micros) -> Iterator[Attention]:
    overdue = [schedule for schedule in visiting.reading.schedules(visiting.key) if schedule.next_us < now - LATE]
    if overdue:
        latest = min(overdue, key=lambda schedule: schedule.next_us)
        yield Attention(
            "warn",
            "schedule",
            f"Schedule {latest.name} is overdue.",
            "Workers and the service fire schedules; none has since.",
            f"since {span(now - latest.next_us)}",
            "/ui/schedules",
            "Look at schedules",
        )
