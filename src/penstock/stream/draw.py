"""A topology as a picture: Mermaid for documents, PlantUML, and plain text for terminals."""

from __future__ import annotations

import re

from penstock.errors import BadInput
from penstock.stream.topology import Form, Node, Topology


def draw(topology: Topology, form: Form = "mermaid") -> str:
    """The picture, ending with a newline."""
    drawers = {"mermaid": _mermaid, "plantuml": _plantuml, "text": _text}
    if form not in drawers:
        raise BadInput(f"a topology cannot be drawn as {form!r}.", hint=f"Use {', '.join(drawers)}.")
    return "\n".join(drawers[form](topology)) + "\n"


def _ids(topology: Topology) -> dict[str, str]:
    """Ids that every format accepts, by name; a stream and a computation may have the same name."""
    ids: dict[str, str] = {}
    for prefix, names in (("c", topology.nodes), ("s", topology.streams)):
        for number, name in enumerate(names):
            ids[f"{prefix}:{name}"] = f"{prefix}{number}_{re.sub(r'[^A-Za-z0-9]', '_', name)}"
    return ids


def _label(node: Node) -> str:
    return node.name if node.concurrency == 1 else f"{node.name} x{node.concurrency}"


def _mermaid(topology: Topology) -> list[str]:
    ids = _ids(topology)
    lines = ["flowchart LR"]
    for node in topology.nodes.values():
        lines.append(f'    {ids["c:" + node.name]}["{_label(node)}"]')
    for name in topology.streams:
        lines.append(f'    {ids["s:" + name]}[("{name}")]')
    for source, target in _edges(topology):
        lines.append(f"    {ids[source]} --> {ids[target]}")
    return lines


def _plantuml(topology: Topology) -> list[str]:
    ids = _ids(topology)
    lines = ["@startuml"]
    for node in topology.nodes.values():
        lines.append(f'node "{node.name}" as {ids["c:" + node.name]}')
        if node.concurrency > 0:
            lines.append(f"note right: x{node.concurrency}")
    for name in topology.streams:
        lines.append(f'database "{name}" as {ids["s:" + name]}')
    for source, target in _edges(topology):
        lines.append(f"{ids[source]}==>{ids[target]}")
    return [*lines, "@enduml"]


def _text(topology: Topology) -> list[str]:
    lines = [f"topology {topology.name}"]
    for node in topology.order():
        reads = ", ".join(node.inputs.values()) or "(source)"
        writes = ", ".join(node.outputs.values()) or "(sink)"
        lines.append(f"  {reads} → [{_label(node)}] → {writes}")
        for state in node.computation.states:
            lines.append(f"      keeps {state.name}: {state.shape}")
    return lines


def _edges(topology: Topology) -> list[tuple[str, str]]:
    edges = []
    for node in topology.nodes.values():
        edges += [(f"s:{stream}", f"c:{node.name}") for stream in node.inputs.values()]
        edges += [(f"c:{node.name}", f"s:{stream}") for stream in node.outputs.values()]
    return edges
