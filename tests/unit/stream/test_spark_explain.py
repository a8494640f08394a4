"""What ``SparkRunner.explain()`` tells: what is read and written, in how many tasks, on which path, and why."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from tests.spark.in_process import InProcess

from penstock import open_logs
from penstock.spark import SparkRunner
from penstock.stream import Topology, Tumbling, map_values, running_fold, windowed_count, windowed_sum


def longest(held: str, value: str) -> str:
    return max(held, value, key=len)


def test_every_computation_with_its_path_and_the_reason(tmp_path: Path) -> None:
    topology = Topology("shop", partitions=3)
    for name in ("clicks", "upper", "counts", "sums", "longest"):
        topology.stream(name)
    topology.add(map_values("shout", str.upper, "clicks", "upper"))
    topology.add(windowed_count("count", "clicks", "counts", Tumbling("1m")))
    topology.add(windowed_sum("sum", "clicks", "sums", Tumbling("1m")))
    topology.add(running_fold("longest-of-all", "clicks", "longest", initial="", fold=longest))
    spark: Any = InProcess()
    with open_logs(f"file://{tmp_path}/logs?durability=fast") as store:
        text = SparkRunner(topology, store, spark).explain()
    lines = text.splitlines()
    for head, path in (
        ("shout: clicks -> upper", "code: its own code sees every record"),
        ("count: clicks -> counts", "fold: counted in columns"),
        ("sum: clicks -> sums", "fold: sum in columns if all are whole numbers, else record by record"),
        ("longest-of-all: clicks -> longest", "fold: its own function is called for every record"),
    ):
        at = lines.index(head)
        assert lines[at + 1].split() == ["tasks", "3,", "one", "for", "each", "partition"]
        assert lines[at + 2].strip().removeprefix("path").strip().startswith(path)
    assert "count.state" in text
    assert lines[-1].startswith(
        "commit by the driver; of what tasks write aside, files of 1 MiB and more become segments"
    )
