"""Topologies on Spark under fire: whatever dies, the result is that of a run in which nothing did."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import auctions
from tests.contract.stream.shorthand import fill, numbers, rows
from tests.faults.spark_able import able
from tests.faults.spark_cluster import standalone
from tests.faults.spark_topology import topology

import penstock
from penstock.stream import LocalRunner

__all__ = ["able"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
STREAMS = ("doubled", "counts", "sums")
POINTS = [
    ("stream.checkpoint.before", 4),
    ("log.transaction.written", 3),
    ("log.transaction.committed", 5),
    ("stream.checkpoint.after", 2),
    ("stream.checkpoint.after", 7),
    ("spark.batch.planned", 3),
    ("spark.batch.computed", 4),
]


def drive(folder: Path, point: str = "none", times: int = 1, master: str = "local[2]", *what: str) -> int:
    """Run a driver to its end, whatever that is; driver and JVM are a process group of their own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.faults.spark_topology", f"file://{folder}/logs", f"{folder}/spark-mark"]
    with (folder / "errors").open("ab") as errors:
        child = subprocess.Popen(
            [*command, master, point, str(times), *what],
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            stderr=errors,
        )
        try:
            return child.wait(300)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # its JVM too
                child.wait(10)


def expected() -> dict[str, list[object]]:
    """The same on a local runner."""
    with penstock.open_logs("memory://") as store:
        fill(store, "in", numbers(300), partitions=2)
        assert LocalRunner(topology(), store).start().drain("30s", final=True)
        return {stream: list(rows(store, stream)) for stream in STREAMS}


def check(folder: Path) -> None:
    with penstock.open_logs(f"file://{folder}/logs") as store:
        assert {stream: rows(store, stream) for stream in STREAMS} == expected()
        assert all(store.lag(log, group).lag == 0 for log, group in [("in", "double"), ("doubled", "counts")])


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with penstock.open_logs(f"file://{tmp_path}/logs") as store:
        fill(store, "in", numbers(300), partitions=2)
    return tmp_path


@pytest.mark.parametrize(("point", "times"), POINTS)
def test_a_driver_killed_in_the_middle_of_a_drain(filled: Path, point: str, times: int) -> None:
    assert drive(filled, point, times) == -9
    assert drive(filled) == 0
    check(filled)


def test_ten_queries_whose_driver_is_killed_again_and_again(tmp_path: Path) -> None:
    read = auctions.events(3_000, seed=41)
    with penstock.open_logs(f"file://{tmp_path}/logs") as store:
        auctions.append(store, read)
    for point, times in [
        ("spark.batch.computed", 9), ("log.transaction.committed", 14), ("stream.checkpoint.before", 6),
    ]:  # fmt: skip
        assert drive(tmp_path, point, times, "local[2]", "auctions") == -9, point
    assert drive(tmp_path, "none", 1, "local[2]", "auctions") == 0
    with penstock.open_logs(f"file://{tmp_path}/logs") as store:
        for query in auctions.QUERIES:
            assert auctions.results(store, query) == auctions.answer(query, read), query


def test_killed_again_and_again(filled: Path) -> None:
    for times in (2, 4, 3, 5):
        assert drive(filled, "stream.checkpoint.after", times) in (-9, 0)
    assert drive(filled) == 0
    check(filled)


def test_a_worker_killed(filled: Path) -> None:
    assert drive(filled, "worker", master="local[2,3]") == 0
    assert (filled / "spark-mark").exists()
    check(filled)


def test_a_cluster_of_two_executors(filled: Path) -> None:
    assert drive(filled, "stream.checkpoint.after", 3, "local-cluster[2,1,1024]") == -9
    assert drive(filled, "executor", master="local-cluster[2,1,1024]") == 0
    assert (filled / "spark-mark").exists()
    check(filled)


def test_a_standalone_cluster_loses_a_host(filled: Path) -> None:
    with standalone(filled) as master:
        assert drive(filled, "host", master=master) == 0
    assert (filled / "spark-mark").exists()
    check(filled)
