"""Spark under fire: drivers killed inside the sink's commit, workers and executors killed, on all kinds of clusters."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.spark_able import able
from tests.faults.spark_cluster import environment, spark_home, standalone

from penstock import open_logs
from penstock.log.record import Record

__all__ = ["able"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1000)]

HERE = Path(__file__).parent
COUNT = 200
PATIENCE = 300  # seconds for one driver: starting a cluster on a busy machine takes minutes
POINTS = [
    "spark.commit.before",
    "log.adopt.segment",
    "log.adopt.index",
    "log.transaction.written",
    "log.transaction.before",
    "log.transaction.committed",
    "log.transaction.published",
    "spark.commit.after",
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = f"file://{tmp_path}/logs"
    with open_logs(place) as store:
        store.create("in", 2)
        store.create("out", 3)
        with store.appender("in", bytes) as out:
            out.append_many([b"%d" % at for at in range(COUNT)], keys=[f"k{at}" for at in range(COUNT)])
    return place


def drive(url: str, folder: Path, master: str, *more: str, strike: str = "", checkpoint: str = "check") -> int:
    """Run a driver to its end, whatever that is."""
    path = os.pathsep.join([str(HERE / "spark_site"), str(HERE.parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    script = (
        "import os, runpy, sys; os.environ['SPARK_GROUP'] = str(os.getpid()); sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    if strike:
        environment["SPARK_STRIKE"] = f"{strike},{folder / 'book'}"
    arguments = [str(HERE / "spark_driver.py"), url, str(folder / checkpoint), master, *more]
    command = [sys.executable, "-c", script, *arguments]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log, cwd=folder)
        try:
            return process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its JVM too
                process.wait(10)


def copied(url: str, log: str = "out") -> list[int]:
    with open_logs(url) as store:
        records: list[Record[bytes]] = []
        for partition in store.partitions(log):
            records += store.log(log, bytes).records(partition.index)
        assert [one.level for one in store.verify(log)] == ["good"]
        return sorted(int(one.payload) for one in records)


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_inside_the_commit(point: str, url: str, tmp_path: Path) -> None:
    assert drive(url, tmp_path, "local[2]", strike=f"{point},2") == -9
    assert len(copied(url)) < COUNT
    assert drive(url, tmp_path, "local[2]", strike=f"{point},2") == 0
    assert copied(url) == list(range(COUNT))


def test_a_cluster_loses_a_worker_and_an_executor(url: str, tmp_path: Path) -> None:
    """Driver and executors are processes of their own; then a commit file is lost, and the checkpoint is not reused."""
    assert drive(url, tmp_path, "local-cluster[2,1,1024]", "worker") == 0
    assert (tmp_path / "check-worker").exists()
    assert copied(url) == list(range(COUNT))
    for path in (tmp_path / "check" / "commits").glob("*4*"):
        path.unlink()
    assert drive(url, tmp_path, "local-cluster[2,1,1024]") == 0
    assert copied(url) == list(range(COUNT))
    shutil.rmtree(tmp_path / "check")
    assert drive(url, tmp_path, "local-cluster[2,1,1024]", "executor") == 0
    assert (tmp_path / "check-executor").exists()
    assert copied(url) == sorted([*range(COUNT), *range(COUNT)])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster of a master and two workers."""
    with standalone(tmp_path) as url:
        yield url


def test_a_standalone_cluster(master: str, url: str, tmp_path: Path) -> None:
    """It loses the driver inside a commit, then an executor, then a whole worker with its executor."""
    strike = "log.transaction.committed,2"
    assert drive(url, tmp_path, master, strike=strike) == -9
    assert drive(url, tmp_path, master, "executor", strike=strike) == 0
    assert (tmp_path / "check-executor").exists()
    assert copied(url) == list(range(COUNT))
    assert drive(url, tmp_path, master, "host", checkpoint="other") == 0
    assert (tmp_path / "other-host").exists()
    assert copied(url) == sorted([*range(COUNT), *range(COUNT)])


def submit(url: str, folder: Path, master: str) -> None:
    """Hand a script to spark-submit, with nothing set that Penstock would want."""
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master, "--conf", "spark.executor.memory=512m"]
    command += [str(HERE / "spark_plain.py"), url, str(folder / "check")]
    with open_logs(url) as store:
        store.create("copy", 2)
    done = subprocess.run(
        command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert copied(url) == [1] * COUNT  # every key has one record
    assert copied(url, "copy") == list(range(COUNT))


def test_spark_submit(url: str, tmp_path: Path) -> None:
    submit(url, tmp_path, "local[2]")


def test_spark_submit_to_a_cluster(master: str, url: str, tmp_path: Path) -> None:
    submit(url, tmp_path, master)
