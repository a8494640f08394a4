"""Explaining a topology: what each computation reads and writes, in how many tasks, on which path, and why."""

from __future__ import annotations

from collections.abc import Callable

from penstock.stream.columns import Columns
from penstock.stream.computation import Computation
from penstock.stream.engine.changelog import state_log
from penstock.stream.engine.folding import can_fold
from penstock.stream.validate import ResolvedTopology

PathOf = Callable[[Computation], tuple[str, str]]  # fold or code, and the reason


def explain(resolved: ResolvedTopology, path_of: PathOf, commit: str) -> str:
    """The computations in the order in which they read each other; ``commit`` says who commits."""
    lines = []
    for node in resolved.order:
        path, reason = path_of(node.computation)
        reads, writes = ", ".join(node.inputs.values()) or "nothing", ", ".join(node.outputs.values()) or "nothing"
        lines.append(f"{node.name}: {reads} -> {writes}")
        lines.append(f"  tasks  {resolved.tasks[node.name]}, one for each partition")
        lines.append(f"  path   {path}: {reason}")
        lines.append(f"  state  {state_log(node.name) if node.computation.keeps else 'none'}")
    return "\n".join([*lines, commit])


def path_in_engine(computation: Computation) -> tuple[str, str]:
    """The path that a computation takes in the engine, and why."""
    if isinstance(computation.batch, Columns):
        return "code", "its own code gets all records as Arrow columns"
    aggregate = can_fold(computation)
    if aggregate is None:
        return "code", "its own code sees every record"
    if aggregate == "count":
        return "fold", "counted between two checkpoints, before the state of a key is touched"
    return "fold", f"{aggregate} between two checkpoints if all are whole numbers, else record by record"
