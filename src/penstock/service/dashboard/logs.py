"""Logs: their partitions and groups, and their records by offset, time or key. Reading here does not move a group."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from penstock.clock import to_micros
from penstock.errors import BadInput
from penstock.log.partitioner import partitioner
from penstock.log.record import Bounds, Lag, Partition, Record
from penstock.log.store import LogStore
from penstock.service.access import check_log
from penstock.service.dashboard.formatting import preview, value_pieces, whole_number
from penstock.service.dashboard.frame import PageRoute, Visit, Visiting
from penstock.service.dashboard.paged import paged
from penstock.service.logs import logs_of
from penstock.service.schemas import NAME

router = APIRouter(include_in_schema=False, route_class=PageRoute)

ON_A_PAGE = 50
MOST_SCANNED = 10_000  # records that are searched for a key
LogName = Annotated[str, Path(pattern=NAME)]


@router.get("/ui/logs")
def list_logs(request: Request, visiting: Visiting) -> Response:
    """All logs with what they hold, and the groups that read them."""
    if visiting.reading.logs is None:
        return visiting.page("logs.html", "logs", rows=None)
    store = logs_of(request)
    by_log: dict[str, list[tuple[str, Lag]]] = {}
    for log, group, lag in visiting.reading.lags(visiting.key):
        by_log.setdefault(log, []).append((group, lag))
    page = paged(list(filter(visiting.key.sees, store.names())), visiting.given("page"))
    rows = []
    for name in page.rows:
        bounds = store.bounds(name)
        rows.append(
            {
                "name": name,
                "partitions": len(bounds),
                "records": sum(partition.end - partition.start for partition in bounds),
                "groups": by_log.get(name, []),
                "lag": max((lag.lag for _, lag in by_log.get(name, [])), default=0),
            }
        )
    return visiting.page("logs.html", "logs", live="#log-table", rows=rows, page=page)


@router.get("/ui/logs/{log}")
def show_log(request: Request, visiting: Visiting, log: LogName) -> Response:
    """One log."""
    store = logs_of(request)
    check_log(visiting.key, log)
    settings, bounds = store.settings(log), store.bounds(log)
    groups = [{"name": group, "lags": lags, "total": Lag.total(lags)} for group, lags in _lags(store, log)]
    most = max((partition.end - partition.start for partition in bounds), default=0)
    return visiting.page(
        "log.html",
        "logs",
        live="#partitions,#groups",
        name=log,
        settings=settings,
        bounds=bounds,
        most=most,
        groups=sorted(groups, key=lambda group: -group["total"].lag),
        **_browse(visiting, store, log, bounds, settings.codec or "json"),
    )


def _lags(store: LogStore, log: str) -> list[tuple[str, list[Lag]]]:
    return [(group, store.lags(log, group)) for group in store.groups(log)]


def _browse(visiting: Visit, store: LogStore, log: str, bounds: list[Bounds], codec: str) -> dict[str, Any]:
    """The records that the address asks for: from an offset, a time or the end, of one partition, or with one key."""
    key, since = visiting.given("key"), visiting.given("since")
    index = number_in(visiting.given("partition"), len(bounds) - 1)
    if key:
        index = partitioner(store.settings(log).partitioner)(key, len(bounds))
    place, bound = Partition(log, index), bounds[index]
    given = visiting.given("offset")
    if since:
        start = store.offset_at(place, moment_in(since)).value
    elif given:
        start = number_in(given, bound.end)
    else:
        start = bound.end - ON_A_PAGE if not key else bound.end - MOST_SCANNED
    start = max(bound.start, start)
    records, following, is_cut = _records(store, place, start, key)
    chosen = visiting.given("record")
    record = next((each for each in records if str(each.offset) == chosen), records[-1] if records else None)
    return {
        "index": index,
        "key": key,
        "since": since,
        "offset": given,
        "start": start,
        "bound": bound,
        "records": [(each, preview(each.payload, codec, "")) for each in records],
        "following": following,
        "is_cut": is_cut,
        "record": record,
        "is_chosen": record is not None and str(record.offset) == chosen,
        "pieces": None if record is None else value_pieces(record.payload, codec, ""),
        "older": max(bound.start, start - ON_A_PAGE) if start > bound.start else None,
        "moment": to_micros,
    }


def _records(store: LogStore, place: Partition, start: int, key: str) -> tuple[list[Record[Any]], int, bool]:
    """Records from an offset on, where the next page begins, and whether the search for a key gave up."""
    records: list[Record[Any]] = []
    following = start
    for batch in store.batches(place, start, None):
        for record in batch.records():
            following = record.offset + 1
            if not key or record.key == key:
                records.append(record)
            if len(records) == ON_A_PAGE or following - start >= MOST_SCANNED:
                return records, following, len(records) < ON_A_PAGE
        following = max(following, batch.next_offset)
    return records, following, False


def number_in(given: str, most: int) -> int:
    """A number that a person typed, at most so large."""
    digits = given.replace(",", "").replace("_", "")
    if not digits:
        return 0
    number = whole_number(digits)
    if number is None:
        raise BadInput(f"{given!r} is not an offset.", hint="Give a whole number, such as 1200.")
    return max(0, min(number, most))


def moment_in(given: str) -> datetime:
    """A time that a person typed or picked, in UTC."""
    text = given.strip().replace(" ", "T").removesuffix("UTC").removesuffix("T")
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except ValueError as cause:
        raise BadInput(f"{given!r} is not a time.", hint='Write it as "2026-11-16 14:20", in UTC.') from cause
