"""Topologies that the service was started with: their parts, their pictures, and how far each computation is behind."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from penstock.errors import EntryNotFound
from penstock.service.access import WholeReader
from penstock.service.logs import logs_of
from penstock.service.problems import responses
from penstock.service.schemas import Name
from penstock.stream.topology import Topology

router = APIRouter(prefix="/v1", tags=["topologies"])


class InputView(BaseModel):
    """How far a computation is behind in one of its inputs."""

    stream: str
    lag: int


class ComputationView(BaseModel):
    """A computation: what it reads and writes."""

    name: str
    concurrency: int
    inputs: list[InputView]
    outputs: list[str]


class TopologyView(BaseModel):
    """A topology and how far it is."""

    name: str
    computations: list[ComputationView]


class Topologies(BaseModel):
    """The names of all topologies."""

    items: list[str]


@router.get("/topologies", responses=responses())
def list_topologies(request: Request, _: WholeReader) -> Topologies:
    """The topologies that this service knows."""
    return Topologies(items=sorted(request.app.state.topologies))


@router.get("/topologies/{name}", responses=responses(404, 409))
def show_topology(request: Request, _: WholeReader, name: Name) -> TopologyView:
    """The computations of a topology in their order, and how far each is behind."""
    store = logs_of(request)
    parts = [
        ComputationView(
            name=node.name,
            concurrency=node.concurrency,
            inputs=[
                InputView(stream=stream, lag=store.lag(stream, node.name).lag if store.exists(stream) else 0)
                for stream in node.inputs.values()
            ],
            outputs=sorted(node.outputs.values()),
        )
        for node in _known(request, name).order()
    ]
    return TopologyView(name=name, computations=parts)


@router.get("/topologies/{name}/picture", responses=responses(404), response_class=PlainTextResponse)
def picture(
    request: Request, _: WholeReader, name: Name, form: Literal["mermaid", "plantuml", "text"] = "mermaid"
) -> PlainTextResponse:
    """A picture of a topology, as text."""
    return PlainTextResponse(_known(request, name).draw(form))


def _known(request: Request, name: str) -> Topology:
    topology: Topology | None = request.app.state.topologies.get(name)
    if topology is None:
        raise EntryNotFound(f"there is no topology {name!r}.", hint="Start the service with --topology MODULE:NAME.")
    return topology
