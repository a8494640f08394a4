"""Logs, records, groups and their offsets."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from penstock.codec import BYTES
from penstock.errors import BadInput, LogNotFound, Unsupported
from penstock.log.record import Partition
from penstock.log.settings import Retention
from penstock.log.store import LogStore
from penstock.service.access import Admin, Producer, Reader, check_log
from penstock.service.paging import size_of
from penstock.service.problems import responses
from penstock.service.queues import page
from penstock.service.recording import record as record_change
from penstock.service.routing import CheckedRoute
from penstock.service.schemas import (
    Body,
    DurationText,
    Limit,
    Moment,
    Name,
    Records,
    RecordView,
    aware,
    record_view,
    unbase64,
    written,
)
from penstock.tracing import with_trace

router = APIRouter(prefix="/v1", tags=["logs"], route_class=CheckedRoute)

Index = Annotated[
    int | None, Query(ge=0, lt=1 << 20, description="The partition; may be left out if there is only one.")
]


class LogBody(Body):
    """How a log is kept; fixed when it is created."""

    partitions: int = Field(1, ge=1, le=1024)
    retention_age: DurationText | None = Field("4d", description="Records older than this may go; null keeps them.")


class LogView(BaseModel):
    """A log and what its partitions hold."""

    log: str
    partitions: list[PartitionView]


class PartitionView(BaseModel):
    """What a partition holds: records from ``start`` to before ``end``."""

    partition: int
    start: int
    end: int


class Logs(BaseModel):
    """The names of all logs."""

    items: list[str]


class NewRecord(Body):
    """One record. Give ``value`` (any JSON) or ``bytes`` (base64)."""

    value: Any = None
    bytes: str | None = None
    key: str | None = Field(None, max_length=1000)
    headers: dict[str, str] = {}


class NewRecordsBody(Body):
    """Records that are appended in this order: to one partition, or each by its key, or in turn."""

    records: list[NewRecord] = Field(min_length=1, max_length=1000)
    partition: int | None = Field(None, ge=0, lt=1 << 20)


class OffsetView(BaseModel):
    """Where a record was appended."""

    partition: int
    offset: int


class Offsets(BaseModel):
    """Where the records were appended, in their order."""

    items: list[OffsetView]


class GroupPartition(BaseModel):
    """How far a group is in a partition."""

    partition: int
    committed: int | None
    end: int
    lag: int


class GroupView(BaseModel):
    """How far a group is in a log."""

    group: str
    lag: int
    partitions: list[GroupPartition]


class Groups(BaseModel):
    """The groups that have committed in a log."""

    items: list[str]


class Reset(Body):
    """Where a group shall continue: offsets by partition, or a time for all partitions."""

    offsets: dict[int, int] | None = None
    time: Moment | None = None


def logs_of(request: Request) -> LogStore:
    """The log store that is served."""
    store: LogStore | None = request.app.state.logs
    if store is None:
        raise Unsupported("this service serves no logs.", hint="Start it with --logs URL.")
    return store


@router.get("/logs", responses=responses(409))
def list_logs(request: Request, key: Reader) -> Logs:
    """All logs, by name."""
    return Logs(items=[name for name in logs_of(request).names() if key.sees(name)])


@router.put("/logs/{log}", responses=responses(404, 409))
def create_log(request: Request, key: Admin, log: Name, body: LogBody) -> LogView:
    """Create a log; one that is there with as many partitions is left alone."""
    store = logs_of(request)
    check_log(key, log)
    if store.create(log, body.partitions, retention=Retention(age=body.retention_age)):
        record_change(request, key, ("creation of log", log), "", f"{body.partitions} partitions")
    else:
        store.log(log, partitions=body.partitions)
    return _view(store, log)


@router.get("/logs/{log}", responses=responses(404, 409))
def show_log(request: Request, key: Reader, log: Name) -> LogView:
    """What a log holds."""
    return _view(logs_of(request), check_log(key, log))


@router.delete("/logs/{log}", status_code=204, responses=responses(404, 409))
def delete_log(request: Request, key: Admin, log: Name) -> None:
    """Remove a log with its records and every group's offsets in it."""
    store = logs_of(request)
    request.app.state.appenders.close(check_log(key, log))
    records = sum(partition.end - partition.start for partition in store.bounds(log)) if store.exists(log) else 0
    if not store.delete(log):
        raise LogNotFound(f"there is no log {log!r}.", hint="GET /v1/logs lists those there are.")
    record_change(request, key, ("deletion of log", log), f"{records} records", "deleted")


@router.post("/logs/{log}/records", status_code=201, responses=responses(404, 409, 507))
def append(request: Request, key: Producer, log: Name, body: NewRecordsBody) -> Offsets:
    """Append records; when this answers they are as safe as the store's durability says."""
    store = logs_of(request)
    raw = {record.bytes is not None for record in body.records}
    if len(raw) > 1:
        raise BadInput("some records have bytes, others a value.", hint="Send them in two requests.")
    if any(record.bytes is not None and record.value is not None for record in body.records):
        raise BadInput("a record has both value and bytes.", hint="Give one of them.")
    appender = request.app.state.appenders.get(store, check_log(key, log), raw.pop())
    places = appender.append_many(
        [record.value if record.bytes is None else unbase64(record.bytes) for record in body.records],
        keys=[record.key for record in body.records] if body.partition is None else None,
        headers=[with_trace(record.headers, request.headers.items()) or None for record in body.records],
        partition=body.partition,
    )
    return Offsets(items=[OffsetView(partition=offset.partition, offset=offset.value) for offset in places])


@router.get("/logs/{log}/records", response_model=Records, responses=responses(404, 409, 416))
def read(
    request: Request,
    key: Reader,
    log: Name,
    partition: Index = None,
    start: Annotated[
        int | None, Query(ge=0, lt=1 << 62, description="The first offset; by default the oldest.")
    ] = None,
    since: Annotated[Moment | None, Query(description="Instead of start: the first record at or after it.")] = None,
    limit: Limit = None,
) -> Response:
    """Records of one partition, in order."""
    store = logs_of(request)
    settings = store.settings(check_log(key, log))
    if partition is None and settings.partitions > 1:
        raise BadInput(
            f"log {log!r} has {settings.partitions} partitions, and none was named.",
            hint=f"Read one after the other: ?partition=0 to ?partition={settings.partitions - 1}.",
        )
    place = Partition(log, partition or 0)
    bounds = store.bounds_of(place)
    if since is not None:
        if start is not None:
            raise BadInput("both start and since are given.", hint="Give one of them.")
        start = store.offset_at(place, aware(since) or since).value
    first = bounds.start if start is None else start
    items: list[RecordView] = []
    following, most = first, page(request, limit)
    size, page_bytes = 0, request.app.state.settings.page_bytes
    for batch in store.batches(place, first, None):
        for record in batch.records():
            size += size_of(record)
            if items and size > page_bytes:
                return written(Records(items=items, next=following, end=bounds.end))
            items.append(record_view(record, settings.codec))
            following = record.offset + 1
            if len(items) == most:
                return written(Records(items=items, next=following, end=bounds.end))
        following = max(following, batch.next_offset)
    return written(Records(items=items, next=following, end=max(bounds.end, following)))


@router.get("/logs/{log}/groups", responses=responses(404, 409))
def list_groups(request: Request, key: Reader, log: Name) -> Groups:
    """The groups that have committed in a log."""
    return Groups(items=logs_of(request).groups(check_log(key, log)))


@router.get("/logs/{log}/groups/{group}", responses=responses(404, 409))
def show_group(request: Request, key: Reader, log: Name, group: Name) -> GroupView:
    """How far a group is."""
    store = logs_of(request)
    if group not in store.groups(check_log(key, log)):
        raise LogNotFound(f"log {log!r} has no group {group!r}.", hint="GET /v1/logs/LOG/groups lists them.")
    return _group(store, log, group)


@router.put("/logs/{log}/groups/{group}", responses=responses(404, 409, 416))
def reset_group(request: Request, key: Admin, log: Name, group: Name, to: Reset) -> GroupView:
    """Set a group's offsets, by partition or by time; refused while a tailer of the group reads them."""
    store = logs_of(request)
    places = store.partitions(check_log(key, log))
    if (to.offsets is None) == (to.time is None):
        raise BadInput("offsets or a time are needed.", hint="Give exactly one of them.")
    before = store.committed(log, group)
    if to.time is not None:
        moment = aware(to.time) or to.time
        store.reset(group, {place: store.offset_at(place, moment) for place in places})
    else:
        store.reset(group, {Partition(log, index): offset for index, offset in (to.offsets or {}).items()})
    after = store.committed(log, group)
    record_change(request, key, ("reset of group", log), f"{group} at {before}", f"{group} at {after}")
    return _group(store, log, group)


@router.delete("/logs/{log}/groups/{group}", status_code=204, responses=responses(404, 409))
def forget_group(request: Request, key: Admin, log: Name, group: Name) -> None:
    """Remove a group's offsets in a log."""
    store = logs_of(request)
    before = store.committed(check_log(key, log), group) if store.exists(log) else []
    if not store.forget(group, log):
        raise LogNotFound(f"log {log!r} has no group {group!r}.", hint="GET /v1/logs/LOG/groups lists them.")
    record_change(request, key, ("forgetting of group", log), f"{group} at {before}", "forgotten")


def _view(store: LogStore, log: str) -> LogView:
    bounds = store.bounds(log)
    return LogView(
        log=log,
        partitions=[
            PartitionView(partition=partition.partition, start=partition.start, end=partition.end)
            for partition in bounds
        ],
    )


def _group(store: LogStore, log: str, group: str) -> GroupView:
    committed = store.committed(log, group)
    lags = store.lags(log, group)
    parts = [
        GroupPartition(partition=index, committed=committed[index], end=lag.upper, lag=lag.lag)
        for index, lag in enumerate(lags)
    ]
    return GroupView(group=group, lag=sum(part.lag for part in parts), partitions=parts)


LogView.model_rebuild()


class Appenders:
    """One open appender per log and kind of value, shared by all requests."""

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[tuple[str, bool], Any] = {}

    def get(self, store: LogStore, log: str, raw: bool) -> Any:
        """The appender of a log; a re-created log gets a new one."""
        appender = self._open.get((log, raw))
        if appender is None or appender.closed:
            codec: Any = bytes if raw else Any
            if (wanted := store.settings(log).codec) not in (None, BYTES if raw else "json"):
                raise BadInput(f"log {log!r} holds {wanted}.", hint="Send bytes for bytes, value for JSON.")
            appender = store.appender(log, codec)
            self._open[log, raw] = appender
        return appender

    def close(self, log: str | None = None) -> None:
        """Close those of a log, or all."""
        for key in [key for key in self._open if log is None or key[0] == log]:
            self._open.pop(key).close()
