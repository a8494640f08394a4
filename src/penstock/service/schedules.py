"""Schedules: cron lines and intervals that put an entry, once per cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from penstock.clock import duration
from penstock.errors import BadInput, Conflict, EntryNotFound
from penstock.queue.protocol import Schedule
from penstock.queue.schedule import pause_schedule, resume_schedule, run_schedule_now
from penstock.service.access import Admin, Reader, check_queue, note
from penstock.service.keys import ApiKey
from penstock.service.problems import responses
from penstock.service.queues import store_of
from penstock.service.recording import record
from penstock.service.routing import CheckedRoute
from penstock.service.schemas import Body, DurationText, Name, PutView, ScheduleView, schedule_view, written

SHORTEST = timedelta(milliseconds=100)  # one key must not fill the store

router = APIRouter(prefix="/v1", tags=["schedules"], route_class=CheckedRoute)


class ScheduleBody(Body):
    """A schedule; the highest version of a name wins. Give ``cron`` or ``every``."""

    queue: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._%-]{0,127}$")
    value: Any = None
    cron: str | None = Field(None, max_length=200)
    every: DurationText | None = None
    zone: str = Field("UTC", max_length=64)
    version: int = Field(1, ge=1, lt=1 << 31)
    catch_up: Literal["one", "all", "none"] = "one"
    labels: dict[str, str] = {}
    priority: int = Field(0, ge=-100, le=100)


class Schedules(BaseModel):
    """All schedules, by name."""

    items: list[ScheduleView]


@router.get("/schedules", response_model=Schedules, responses=responses())
def list_schedules(request: Request, key: Reader) -> Response:
    """All schedules, by name."""
    schedules = [schedule for schedule in store_of(request).schedules() if _is_seen(key, schedule)]
    return written(Schedules(items=[schedule_view(schedule) for schedule in schedules]))


@router.put("/schedules/{name}", response_model=ScheduleView, responses=responses(404, 409))
def set_schedule(request: Request, key: Admin, name: Name, body: ScheduleBody) -> Response:
    """Set a schedule; another definition under the same version is a conflict."""
    store = store_of(request)
    if not key.sees(name):  # whether or not it exists, so that the answer does not reveal others' schedules
        raise BadInput(
            f"the API key {key.name!r} may not use the schedule name {name!r}.",
            hint=f"Choose a name that begins with {key.prefix!r}.",
        )
    if body.every is not None and duration(body.every, name="every") < SHORTEST:
        raise BadInput(f"every={body.every!r} is too often.", hint="Use 100ms or more.")
    if any(schedule.name == name and not _is_seen(key, schedule) for schedule in store.schedules()):
        raise Conflict(f"the name {name!r} is taken.", hint="Choose another name for the schedule.")
    before = next((_text(schedule) for schedule in store.schedules() if schedule.name == name), "")
    note(key, f"schedule {name}", check_queue(key, body.queue), body.model_dump(exclude={"value"}, exclude_unset=True))
    store.queue(body.queue).schedule(
        name, body.value, cron=body.cron, every=body.every, zone=body.zone, version=body.version,
        catch_up=body.catch_up, labels=body.labels, priority=body.priority, on_conflict="raise",
    )  # fmt: skip
    schedule = next((known for known in store.schedules() if known.name == name), None)
    if schedule is None:
        raise Conflict(f"schedule {name!r} was removed as soon as it was set.", hint="Somebody else removed it.")
    record(request, key, ("setting of schedule", name), before, _text(schedule))
    return written(schedule_view(schedule))


@router.post("/schedules/{name}/pause", response_model=ScheduleView, responses=responses(404))
def pause(request: Request, key: Admin, name: Name) -> Response:
    """Let a schedule put nothing until it is resumed; what it misses is not caught up."""
    before = _seen(request, key, name)
    after = pause_schedule(store_of(request), name)
    record(request, key, ("pausing of schedule", name), _text(before), _text(after))
    return written(schedule_view(after))


@router.post("/schedules/{name}/resume", response_model=ScheduleView, responses=responses(404))
def resume(request: Request, key: Admin, name: Name) -> Response:
    """Resume a paused schedule, from its next time on."""
    before = _seen(request, key, name)
    after = resume_schedule(store_of(request), name)
    record(request, key, ("resuming of schedule", name), _text(before), _text(after))
    return written(schedule_view(after))


@router.post("/schedules/{name}/run", status_code=201, responses=responses(404))
def run(request: Request, key: Admin, name: Name) -> PutView:
    """Put the entry of a schedule now, whether or not it is paused; its times stay as they are."""
    schedule = _seen(request, key, name)
    id_ = run_schedule_now(store_of(request), name)
    record(request, key, ("running of schedule", name), "", f"entry {id_} in {schedule.queue}")
    return PutView(id=id_, queue=schedule.queue, created=True)


@router.delete("/schedules/{name}", status_code=204, responses=responses(404))
def remove_schedule(request: Request, key: Admin, name: Name) -> None:
    """Forget a schedule."""
    before = _seen(request, key, name)
    if not store_of(request).remove_schedule(name):
        raise _not_there(name)
    record(request, key, ("removal of schedule", name), _text(before), "removed")


def _seen(request: Request, key: ApiKey, name: str) -> Schedule:
    for schedule in store_of(request).schedules():
        if schedule.name == name and _is_seen(key, schedule):
            return schedule
    raise _not_there(name)


def _not_there(name: str) -> EntryNotFound:
    return EntryNotFound(f"there is no schedule {name!r}.", hint="GET /v1/schedules lists those there are.")


def _text(schedule: Schedule) -> str:
    following = "paused" if schedule.next is None else f"next {schedule.next.isoformat()}"
    return f"version {schedule.version}, {schedule.spec} ({schedule.zone}) into {schedule.queue}, {following}"


def _is_seen(key: ApiKey, schedule: Schedule) -> bool:
    """Whether a schedule is within the key's reach: both its name and the queue that it puts into."""
    return key.sees(schedule.name) and key.sees(schedule.queue)
