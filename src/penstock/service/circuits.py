"""Circuits of the breaker and its configuration, in our own words."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from penstock.breaker.breaker import Breaker
from penstock.breaker.circuit import CircuitView
from penstock.breaker.settings import BreakerSettings
from penstock.clock import from_micros
from penstock.errors import BadInput
from penstock.service.access import Admin, Reader
from penstock.service.problems import responses
from penstock.service.shapes import Body, LockView, lock_view

router = APIRouter(prefix="/v1", tags=["circuits"])

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
    locked: list[LockView]
    transitions: list[TransitionView]


class Circuits(BaseModel):
    """All circuits."""

    items: list[CircuitBody]


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
def list_circuits(request: Request, key: Reader) -> Circuits:
    """All circuits with the queues they lock."""
    breaker = breaker_of(request)
    locked = breaker.locked_queues()
    return Circuits(items=[_view(one, locked.get(one.hash, [])) for one in breaker.circuits()])


@router.get("/circuits/{circuit:path}", responses=responses(404))
def show_circuit(request: Request, key: Reader, circuit: str) -> CircuitBody:
    """One circuit, by its hash or by what it stands for."""
    breaker = breaker_of(request)
    found = breaker.circuit(circuit)
    return _view(found, breaker.locked_queues().get(found.hash, []))


@router.put("/circuits/{circuit:path}/state", responses=responses(404, 409))
def set_state(request: Request, key: Admin, circuit: str, body: StateBody) -> CircuitBody:
    """Open or close a circuit by hand."""
    breaker = breaker_of(request)
    move = {"open": breaker.open, "half_open": breaker.half_open, "close": breaker.close}[body.state]
    return _view(move(circuit, by=key.name, why=body.why or "by hand"), [])


@router.get("/breaker/config", responses=responses())
def show_config(request: Request, key: Reader) -> dict[str, Any]:
    """The nine properties of the configuration."""
    return breaker_of(request).config.resource()


@router.put("/breaker/config", responses=responses())
def set_config(request: Request, key: Admin, config: dict[str, Any]) -> dict[str, Any]:
    """Set all nine; from then on they hold on every node."""
    breaker_of(request).configure(config, by=key.name)
    return breaker_of(request).config.resource()


@router.delete("/breaker/config", responses=responses())
def reset_config(request: Request, key: Admin) -> dict[str, Any]:
    """Back to the defaults, on every node."""
    breaker_of(request).reset(by=key.name)
    return breaker_of(request).config.resource()


@router.get("/breaker/settings", responses=responses())
def show_settings(request: Request, key: Reader) -> dict[str, Any]:
    """Our own settings: ramp-up, probes, overrides per circuit."""
    found: dict[str, Any] = msgspec.to_builtins(breaker_of(request).settings)
    return found


@router.put("/breaker/settings", responses=responses())
def set_settings(request: Request, key: Admin, settings: dict[str, Any]) -> dict[str, Any]:
    """Set our own settings; from then on they hold on every node."""
    try:
        wanted = msgspec.convert(settings, BreakerSettings)
    except msgspec.ValidationError as cause:
        raise BadInput(f"the settings cannot be read: {cause}.", hint="GET them to see their form.") from cause
    breaker_of(request).adjust(wanted, by=key.name)
    return show_settings(request, key)


@router.get("/breaker/changes", responses=responses())
def changes(request: Request, key: Reader) -> Changes:
    """Who changed the configuration, and how."""
    return Changes(
        items=[
            ChangeView(at=from_micros(one.at_us), by=one.by, what=one.what, before=one.before, after=one.after)
            for one in breaker_of(request).changes()
        ]
    )


def _view(circuit: CircuitView, locks: list[Any]) -> CircuitBody:
    return CircuitBody(
        hash=circuit.hash, circuit=circuit.circuit, state=circuit.state, since=circuit.since, ratio=circuit.ratio,
        successes=circuit.successes, failures=circuit.failures, locked=[lock_view(one) for one in locks],
        transitions=[
            TransitionView(at=one.at, state=one.state, why=one.why, by=one.by, ratio=one.ratio)
            for one in circuit.transitions
        ],
    )  # fmt: skip
