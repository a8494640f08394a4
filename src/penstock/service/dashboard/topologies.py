"""Topologies: the drawn graph of computations and streams, with lag, watermarks and dead letters."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from penstock.log.store import LogStore
from penstock.service.dashboard.frame import PageRoute, Visiting
from penstock.service.dashboard.logs import LogName
from penstock.service.logs import logs_of
from penstock.stream.progress import Progress, progress_of
from penstock.stream.topology import Topology

router = APIRouter(include_in_schema=False, route_class=PageRoute)

NODE_WIDTH, STREAM_WIDTH, COLUMN, ROW = 172, 148, 212, 114
HEIGHT = {"node": 93, "stream": 70}
LONGEST = {"node": 18, "stream": 14}  # characters of a name that fit into a box


class Box(msgspec.Struct, frozen=True):
    """A computation or a stream, with its position."""

    name: str
    kind: str  # node or stream
    x: int
    y: int
    width: int
    height: int
    lag: int = 0
    records: int = 0
    dead: int = 0
    rate: float | None = (
        None  # records per second: written to a stream, read by a computation, or None before it is known
    )

    @property
    def short(self) -> str:
        """The name, cut to the width of the box."""
        longest = LONGEST[self.kind]
        return self.name if len(self.name) <= longest else f"{self.name[: longest - 1]}…"


class Edge(msgspec.Struct, frozen=True):
    """From one box to another."""

    path: str
    tip: str


@router.get("/ui/topologies")
def list_topologies(request: Request, visiting: Visiting) -> Response:
    """The topologies that this service was started with."""
    _whole(visiting)
    return visiting.page(
        "topologies.html",
        "topologies",
        topologies=sorted(request.app.state.topologies.values(), key=lambda topology: topology.name),
    )


@router.get("/ui/topologies/{name}")
def show_topology(request: Request, visiting: Visiting, name: LogName) -> Response:
    """One topology."""
    _whole(visiting)
    topology: Topology | None = request.app.state.topologies.get(name)
    if topology is None:
        raise HTTPException(404, f"There is no topology {name!r}; start the service with --topology MODULE:NAME.")
    store = logs_of(request)
    progress = {row.computation: row for row in progress_of(store, topology)}
    rates = visiting.reading.rates.per_second(topology.name, _positions(topology, store))
    boxes, edges = drawn(topology, store, progress, rates)
    chosen = visiting.given("node")
    node = topology.nodes.get(chosen) or next(iter(topology.order()), None)
    partitions = [] if node is None else _partitions(store, node)
    return visiting.page(
        "topology.html",
        "topologies",
        live="#graph,#computations,#panel",
        topology=topology,
        boxes=boxes,
        edges=edges,
        progress=progress,
        node=node,
        partitions=partitions,
        dead={box.name: box.dead for box in boxes},
        rates={box.name: box.rate for box in boxes},
        width=max((box.x + box.width for box in boxes), default=0) + 12,
        height=max((box.y + box.height for box in boxes), default=0) + 12,
        most=max((lag.lag for _, _, lag in partitions), default=0),
    )


def _whole(visiting: Any) -> None:
    if visiting.key.prefix:
        raise HTTPException(
            403,
            f"The API key {visiting.key.name!r} is for {visiting.key.prefix!r} only; topologies are about all logs.",
        )


def _partitions(store: LogStore, node: Any) -> list[tuple[str, int, Any]]:
    return [
        (stream, index, lag)
        for stream in node.inputs.values()
        if store.exists(stream)
        for index, lag in enumerate(store.lags(stream, node.name))
    ]


def _positions(topology: Topology, store: LogStore) -> dict[str, int]:
    """How much was ever written to each stream, and read by each computation."""
    ends = {
        name: sum(partition.end for partition in store.bounds(name)) for name in topology.streams if store.exists(name)
    }
    read = {
        node.name: sum(
            lag.lower for stream in node.inputs.values() if stream in ends for lag in store.lags(stream, node.name)
        )
        for node in topology.nodes.values()
    }
    return {
        **{f"stream {name}": end for name, end in ends.items()},
        **{f"node {name}": at for name, at in read.items()},
    }


def drawn(
    topology: Topology, store: LogStore, progress: dict[str, Progress], rates: dict[str, float]
) -> tuple[list[Box], list[Edge]]:
    """Boxes in columns from left to right, each to the right of all its inputs, and the lines between them."""
    depth = _depths(topology)
    rows: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for name in sorted(depth, key=lambda node: (depth[node], node)):
        column = depth[name]
        row = rows.get(column, 0)
        rows[column] = row + 1
        kind = "node" if name in topology.nodes else "stream"
        records = dead = 0
        if kind == "stream" and store.exists(name):
            records = sum(partition.end - partition.start for partition in store.bounds(name))
        if kind == "node" and store.exists(f"{name}.dead"):
            dead = sum(partition.end - partition.start for partition in store.bounds(f"{name}.dead"))
        boxes[name] = Box(
            name,
            kind,
            8 + column * COLUMN,
            8 + row * ROW,
            NODE_WIDTH if kind == "node" else STREAM_WIDTH,
            HEIGHT[kind],
            lag=progress[name].lag if name in progress else 0,
            records=records,
            dead=dead,
            rate=rates.get(f"{kind} {name}"),
        )
    edges = [
        _edge(boxes[stream], boxes[node.name]) for node in topology.nodes.values() for stream in node.inputs.values()
    ] + [_edge(boxes[node.name], boxes[stream]) for node in topology.nodes.values() for stream in node.outputs.values()]
    return list(boxes.values()), edges


def _depths(topology: Topology) -> dict[str, int]:
    depth: dict[str, int] = {name: 0 for name in topology.streams if not topology.writers(name)}
    for node in topology.order():
        depth[node.name] = 1 + max((depth.get(stream, 0) for stream in node.inputs.values()), default=-1)
        for stream in node.outputs.values():
            depth[stream] = max(depth.get(stream, 0), depth[node.name] + 1)
    for name in topology.streams:
        depth.setdefault(name, 0)
    return depth


def _edge(left: Box, right: Box) -> Edge:
    x1, y1 = left.x + left.width, left.y + left.height / 2
    x2, y2 = right.x - 7, right.y + right.height / 2
    middle = (x1 + x2) / 2
    return Edge(f"M{x1} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2} {y2:g}", f"M{x2 - 1} {y2 - 5:g}l8 5l-8 5z")
