"""Spark on Kafka under fire: drivers killed before, inside and behind the transactions that commit, at the log sink
and at SparkRunner. What readers of committed records see is each record once."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream.shorthand import fill, numbers, rows
from tests.faults.spark_topology import topology
from tests.faults.test_spark import able, drive
from tests.faults.test_spark_runner import STREAMS, expected

import penstock
from penstock import LogStore
from penstock.ids import new_id

__all__ = ["able"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
COUNT = 200
# The last three: what is committed is there, and Spark does not know it yet.
SINK = ["spark.commit.before", "log.transaction.before", "log.transaction.committed", "spark.commit.after"]
RUNNER = [
    ("stream.checkpoint.before", 4),
    ("log.transaction.before", 3),
    ("log.transaction.before", 8),
    ("log.transaction.committed", 5),
    ("stream.checkpoint.after", 7),
]


@pytest.fixture
def url(servers: Callable[[str], Any]) -> str:
    # What a killed driver leaves open ends by itself after three times this.
    return f"{servers('kafka').url}/{new_id()}?timeout=10"


@pytest.fixture
def logs(url: str) -> Iterator[LogStore]:
    with penstock.open_logs(url) as store:
        yield store


def committed(url: str, log: str) -> list[int]:
    """What another client reads who wants committed records only, each with its place."""
    from confluent_kafka import Consumer, TopicPartition

    with penstock.open_logs(url) as store:
        topic, servers = store.driver.cluster.topic(log), store.driver.cluster.servers  # type: ignore[attr-defined]
        ends = {one.partition: one.end for one in store.bounds(log)}
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": new_id(), "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True,
    })  # fmt: skip
    found, open_ = [], {index for index, end in ends.items() if end}
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in open_])
        while open_:
            message = consumer.poll(30)
            assert message is not None, "it does not answer"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                open_.discard(message.partition())
            else:
                found.append(int(message.value()))
    finally:
        consumer.close()
    return sorted(found)


class TestTheLogSink:
    @pytest.fixture(autouse=True)
    def filled(self, logs: LogStore) -> None:
        logs.create("in", 2)
        logs.create("out", 3)
        with logs.appender("in", bytes) as out:
            out.append_many([b"%d" % at for at in range(COUNT)], keys=[f"k{at}" for at in range(COUNT)])

    @pytest.mark.parametrize("point", SINK)
    def test_a_driver_killed_at_its_commit(self, point: str, url: str, tmp_path: Path) -> None:
        assert drive(url, tmp_path, "local[2]", strike=f"{point},2") == -9
        before = committed(url, "out")
        assert len(before) == len(set(before)) < COUNT
        assert drive(url, tmp_path, "local[2]", strike=f"{point},2") == 0
        assert committed(url, "out") == list(range(COUNT))

    def test_the_last_commit_file_is_lost_and_the_checkpoint_is_not_reused(self, url: str, tmp_path: Path) -> None:
        assert drive(url, tmp_path, "local[2]") == 0
        for path in (tmp_path / "check" / "commits").glob("*4*"):
            path.unlink()
        assert drive(url, tmp_path, "local[2]") == 0
        assert committed(url, "out") == list(range(COUNT))
        shutil.rmtree(tmp_path / "check")
        assert drive(url, tmp_path, "local[2]") == 0
        assert committed(url, "out") == sorted([*range(COUNT), *range(COUNT)])


class TestSparkRunner:
    @pytest.fixture(autouse=True)
    def filled(self, logs: LogStore) -> None:
        fill(logs, "in", numbers(300), partitions=2)

    @pytest.mark.parametrize(("point", "times"), RUNNER)
    def test_a_driver_killed_at_its_commit(
        self, point: str, times: int, url: str, logs: LogStore, tmp_path: Path
    ) -> None:
        assert run(url, tmp_path, point, times) == -9
        assert run(url, tmp_path) == 0
        check(url, logs)

    def test_killed_again_and_again(self, url: str, logs: LogStore, tmp_path: Path) -> None:
        for point, times in (("log.transaction.committed", 2), ("log.transaction.before", 3), ("worker", 1)):
            assert run(url, tmp_path, point, times) in (-9, 0)
        assert run(url, tmp_path) == 0
        check(url, logs)

    def test_executors_of_their_own(self, url: str, logs: LogStore, tmp_path: Path) -> None:
        assert run(url, tmp_path, "executor", master="local-cluster[2,1,1024]") == 0
        assert (tmp_path / "spark-mark").exists()
        check(url, logs)


def run(url: str, folder: Path, point: str = "none", times: int = 1, master: str = "local[2,3]") -> int:
    """Run a driver to its end, whatever that is; driver and JVM are a process group of their own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.faults.spark_topology", url, f"{folder}/spark-mark", master]
    command += [point, str(times)]
    with (folder / "errors").open("ab") as errors:
        child = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stderr=errors)
        try:
            return child.wait(300)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # its JVM too
                child.wait(10)


def check(url: str, logs: LogStore) -> None:
    assert {stream: rows(logs, stream) for stream in STREAMS} == expected()
    assert committed(url, "doubled") == [2 * number for number in range(300)]
    groups = [(log, node.name) for node in topology().nodes.values() for log in node.inputs.values()]
    assert [logs.lag(log, group).lag for log, group in groups] == [0] * len(groups)
