"""Circuits of the breaker and its configuration, in our own words."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from penstock.breaker.breaker import Breaker
from penstock.breaker.circuit import CircuitView
from penstock.breaker.settings import BreakerSettings
from penstock.clock import from_micros
from penstock.errors import BadInput, Conflict
from penstock.service.access import WholeAdmin, WholeReader
from penstock.service.keys import ApiKey
from penstock.service.problems import responses
from penstock.service.queues import page
from penstock.service.recording import as_text, record
from penstock.service.routing import CheckedRoute
from penstock.service.schemas import Body, Limit, LockView, lock_view

router = APIRouter(prefix="/v1", tags=["circuits"], route_class=CheckedRoute)

MOST_LOCKS = 100
CONFIG_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
Order = Literal["open", "half_open", "close"]


class TransitionView(BaseModel):
    """A change of a circuit's state: when, to what, why and by whom."""

    at: datetime
    state: str
    why: str
    by: str
    ratio: float | None = None


class CircuitBody(BaseModel):
    """A circuit: what it stands for, its state and what it is based on."""

    hash: str
    circuit: str
    state: str
    since: datetime
    ratio: float
    successes: int
    failures: int
    locked: list[LockView] = Field(description="The first hundred; `GET /v1/locks` has them all.")
    locked_count: int
    transitions: list[TransitionView]


class Circuits(BaseModel):
    """A page of circuits, by name; ``next`` is the ``after`` of the next page."""

    items: list[CircuitBody]
    next: str | None


class StateBody(Body):
    """What to do with a circuit, and why."""

    state: Order
    why: str = Field("", max_length=500)


class ChangeView(BaseModel):
    """A change of the configuration; secrets are masked."""

    at: datetime
    by: str
    what: str
    before: Any
    after: Any


class Changes(BaseModel):
    """The last changes of the configuration, oldest first."""

    items: list[ChangeView]


def breaker_of(request: Request) -> Breaker:
    """The breaker that is served."""
    breaker: Breaker = request.app.state.breaker
    return breaker


@router.get("/circuits", responses=responses())
def list_circuits(
    request: Request,
    key: WholeReader,
    after: Annotated[str, Query(max_length=4000, description="Read on after this circuit.")] = "",
    limit: Limit = None,
) -> Circuits:
    """The circuits by name, with the queues they lock."""
    breaker = breaker_of(request)
    most = page(request, limit)
    locked = breaker.locked_queues()
    circuits = [circuit for circuit in breaker.circuits() if circuit.circuit > after][:most]
    return Circuits(
        items=[_view(circuit, locked.get(circuit.hash, [])) for circuit in circuits],
        next=circuits[-1].circuit if len(circuits) == most else None,
    )


@router.get("/circuits/{circuit:path}", responses=responses(404))
def show_circuit(request: Request, key: WholeReader, circuit: str) -> CircuitBody:
    """One circuit, by its hash or by what it stands for."""
    breaker = breaker_of(request)
    view = breaker.circuit(circuit)
    return _view(view, breaker.locked_queues().get(view.hash, []))


@router.put("/circuits/{circuit:path}/state", responses=responses(404, 409))
def set_state(request: Request, key: WholeAdmin, circuit: str, body: StateBody) -> CircuitBody:
    """Open or close a circuit by hand: one that was used, or that of a route."""
    breaker, gateway = breaker_of(request), request.app.state.gateway
    if body.state == "open":
        if gateway is None or circuit.strip() not in gateway.routes.patterns:
            breaker.circuit(circuit)  # a typo in its name must not create another one
        if not breaker.config.circuit_check_enabled:
            raise Conflict(
                "the breaker is off: an open circuit would keep nothing back.",
                hint="PUT /v1/breaker/config with circuitCheckEnabled first, or lock the queues.",
            )
    move = {"open": breaker.open, "half_open": breaker.half_open, "close": breaker.close}[body.state]
    before = next((known.state for known in breaker.circuits() if circuit in (known.circuit, known.hash)), "not known")
    moved = move(circuit, by=key.name, why=body.why or "by hand")
    record(request, key, ("state of circuit", moved.circuit), before, moved.state, why=body.why or "")
    return _view(moved, breaker.locked_queues().get(moved.hash, []))


@router.delete("/circuits/{circuit:path}", status_code=204, responses=responses(404))
def remove_circuit(request: Request, key: WholeAdmin, circuit: str) -> None:
    """Close a circuit and forget it, as when what it stands for is gone; its queues are unlocked one by one."""
    before = breaker_of(request).circuit(circuit)
    breaker_of(request).remove(circuit, by=key.name)
    record(request, key, ("removal of circuit", before.circuit), before.state, "removed")


@router.get("/breaker/config", responses=responses())
def show_config(request: Request, key: WholeReader) -> dict[str, Any]:
    """The nine properties of the configuration."""
    return breaker_of(request).config.resource()


@router.put("/breaker/config", responses=responses(), openapi_extra=CONFIG_BODY)
async def set_config(request: Request, key: WholeAdmin) -> dict[str, Any]:
    """Set all nine; from then on they hold on every node."""
    # Read here: as in gateleen, a body that is not JSON is an unusable configuration (400).
    body = await request.body()
    return await run_in_threadpool(_configured, request, key, body)


def _configured(request: Request, key: ApiKey, body: bytes) -> dict[str, Any]:
    breaker = breaker_of(request)
    before = as_text(breaker.config.resource())
    breaker.configure(body, by=key.name)
    record(request, key, ("configuration of breaker", "breaker"), before, as_text(breaker.config.resource()))
    return breaker.config.resource()


@router.delete("/breaker/config", responses=responses())
def reset_config(request: Request, key: WholeAdmin) -> dict[str, Any]:
    """Back to the defaults, on every node."""
    before = as_text(breaker_of(request).config.resource())
    breaker_of(request).reset(by=key.name)
    after = as_text(breaker_of(request).config.resource())
    record(request, key, ("configuration of breaker", "breaker"), before, after)
    return breaker_of(request).config.resource()


@router.get("/breaker/settings", responses=responses())
def show_settings(request: Request, key: WholeReader) -> dict[str, Any]:
    """Our own settings: ramp-up, probes, overrides per circuit."""
    settings: dict[str, Any] = msgspec.to_builtins(breaker_of(request).settings)
    return settings


@router.put("/breaker/settings", responses=responses())
def set_settings(request: Request, key: WholeAdmin, settings: dict[str, Any]) -> dict[str, Any]:
    """Set our own settings; from then on they hold on every node."""
    try:
        wanted = msgspec.convert(settings, BreakerSettings)
        msgspec.json.encode(wanted)
    except (msgspec.ValidationError, UnicodeEncodeError) as cause:
        raise BadInput(f"the settings cannot be read: {cause}.", hint="GET them to see their form.") from cause
    before = as_text(breaker_of(request).settings)
    breaker_of(request).adjust(wanted, by=key.name)
    record(request, key, ("settings of breaker", "breaker"), before, as_text(wanted))
    return show_settings(request, key)


@router.get("/breaker/changes", responses=responses())
def changes(request: Request, key: WholeReader) -> Changes:
    """Who changed the configuration, and how."""
    return Changes(
        items=[
            ChangeView(
                at=from_micros(change.at_us), by=change.by, what=change.what, before=change.before, after=change.after
            )
            for change in breaker_of(request).changes()
        ]
    )


def _view(circuit: CircuitView, locks: list[Any]) -> CircuitBody:
    return CircuitBody(
        hash=circuit.hash, circuit=circuit.circuit, state=circuit.state, since=circuit.since, ratio=circuit.ratio,
        successes=circuit.successes, failures=circuit.failures, locked_count=len(locks),
        locked=[lock_view(lock) for lock in locks[:MOST_LOCKS]],
        transitions=[
            TransitionView(
                at=transition.at, state=transition.state, why=transition.why, by=transition.by, ratio=transition.ratio
            )
            for transition in circuit.transitions
        ],
    )  # fmt: skip
