"""What ``explain()`` of a local runner tells: streams, tasks, path and why, state."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.ids import new_id
from penstock.stream import (
    LocalRunner,
    Session,
    Sliding,
    Topology,
    Tumbling,
    map_values,
    running_fold,
    running_sum,
    windowed_count,
    windowed_max,
)

COUNTED = "fold: counted between two checkpoints, before the state of a key is touched"
CODE = "code: its own code sees every record"


def folded(aggregate: str) -> str:
    return f"fold: {aggregate} between two checkpoints if all are whole numbers, else record by record"


@pytest.mark.parametrize(
    ("piece", "path", "state"),
    [
        (map_values("it", str, "in", "out"), CODE, "none"),
        (windowed_count("it", "in", "out", Tumbling("1m")), COUNTED, "it.state"),
        (windowed_count("it", "in", "out", Sliding("1m", "7s")), CODE, "it.state"),
        (windowed_count("it", "in", "out", Tumbling("1m"), allowed_lateness="1m"), CODE, "it.state"),
        (windowed_max("it", "in", "out", Session("1m")), folded("max"), "it.state"),
        (running_sum("it", "in", "out"), folded("sum"), "it.state"),
        (running_fold("it", "in", "out", initial=0, fold=max), CODE, "it.state"),
    ],
)
def test_each_computation(piece: Any, path: str, state: str) -> None:
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        topology = Topology("t", partitions=3).stream("in").stream("out").add(piece)
        assert LocalRunner(topology, logs).explain().splitlines() == [
            "it: in -> out",
            "  tasks  3, one for each partition",
            f"  path   {path}",
            f"  state  {state}",
            "commit by each instance",
        ]
