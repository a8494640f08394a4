"""Workers that live or were lost, and what all of them did minute by minute."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from msgspec.structs import replace
from pydantic import BaseModel

from penstock.clock import from_micros
from penstock.queue.queues import QueueStore
from penstock.queue.worker.figure_history import handler_of
from penstock.queue.worker.figures import BOUNDS, MINUTE, Tally, read_figures
from penstock.queue.worker.presence import KnownWorker, Serving, known_workers
from penstock.service.access import Reader
from penstock.service.keys import ApiKey
from penstock.service.problems import responses
from penstock.service.queues import store_of
from penstock.service.schemas import NAME

router = APIRouter(prefix="/v1", tags=["workers"])


class ServingView(BaseModel):
    """One handler of a worker: its queue or family, how many entries it runs and how many it may."""

    queue: str
    family: bool
    busy: int
    slots: int


class WorkerView(BaseModel):
    """A worker: where it runs, since when, and what it is doing. One that was not heard of for 30 s is lost."""

    owner: str
    node: str
    pid: int
    version: str
    state: Literal["alive", "stopping", "lost"]
    started: datetime
    seen: datetime
    busy: int
    slots: int
    serving: list[ServingView]


class Workers(BaseModel):
    """All workers, by node."""

    items: list[WorkerView]


class MinuteView(BaseModel):
    """What the handlers of one queue or family did in one minute; failed attempts include those that died."""

    minute: datetime
    queue: str
    family: bool
    done: int
    failed: int
    dead: int
    seconds: float
    durations: list[int]


class FiguresView(BaseModel):
    """Ended attempts per minute. ``bounds`` are the upper ends of the classes of ``durations``, in seconds."""

    bounds: list[float]
    items: list[MinuteView]


@router.get("/workers", responses=responses())
def list_workers(request: Request, key: Reader) -> Workers:
    """The workers that live, and those that were lost within a day; a key with a prefix sees who serves its queues."""
    return Workers(items=[_view(worker) for worker in within(known_workers(store_of(request)), key)])


@router.get("/figures", responses=responses())
def figures(
    request: Request,
    key: Reader,
    minutes: Annotated[int, Query(ge=1, le=1440, description="How far to look back.")] = 60,
    queue: Annotated[str | None, Query(pattern=NAME, description="Only of this queue, or its family.")] = None,
) -> FiguresView:
    """What workers did, minute by minute: for charts. Exact totals are in the history."""
    tallies = seen_figures(store_of(request), key, minutes)
    if queue is not None:
        tallies = of_queue(tallies, queue)
    return FiguresView(bounds=list(BOUNDS), items=[_minute(tally) for tally in tallies])


def within(workers: list[KnownWorker], key: ApiKey) -> list[KnownWorker]:
    """The workers that serve queues within the key's reach, reduced to these queues."""
    if not key.prefix:
        return workers
    return [worker for worker in (_narrowed(worker, key) for worker in workers) if worker.record.serving]


def seen_figures(store: QueueStore, key: ApiKey, minutes: int) -> list[Tally]:
    """The work within the key's reach in the last minutes, the current one included."""
    tallies = read_figures(store, since_us=store.now() - (minutes - 1) * MINUTE)
    return [tally for tally in tallies if key.sees(tally.queue)]


def of_queue(tallies: list[Tally], queue: str) -> list[Tally]:
    """The figures of one queue: of its own handler, or else of the longest family it belongs to."""
    handler = handler_of(queue, {(tally.queue, tally.is_family) for tally in tallies})
    return [tally for tally in tallies if (tally.queue, tally.is_family) == handler]


def _narrowed(worker: KnownWorker, key: ApiKey) -> KnownWorker:
    serving = tuple(serving for serving in worker.record.serving if key.sees(serving.queue))
    return replace(worker, record=replace(worker.record, serving=serving))


def _view(worker: KnownWorker) -> WorkerView:
    record = worker.record
    return WorkerView(
        owner=record.owner, node=record.node, pid=record.pid, version=record.version, state=worker.state,
        started=from_micros(record.started_us), seen=from_micros(worker.seen_us), busy=worker.busy,
        slots=worker.slots, serving=[_serving(serving) for serving in record.serving],
    )  # fmt: skip


def _serving(serving: Serving) -> ServingView:
    return ServingView(queue=serving.queue, family=serving.is_family, busy=serving.busy, slots=serving.slots)


def _minute(tally: Tally) -> MinuteView:
    return MinuteView(
        minute=from_micros(tally.minute * MINUTE), queue=tally.queue, family=tally.is_family, done=tally.done,
        failed=tally.failed, dead=tally.dead, seconds=tally.seconds, durations=tally.durations,
    )  # fmt: skip
