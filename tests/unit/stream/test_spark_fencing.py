"""A runner that was stopped for long and comes back when another one has its computation does no harm."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.contract.stream.shorthand import fill, numbers, told, values

import penstock

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from tests.unit.stream.spark_stopped import runner_of

from penstock.errors import Fenced
from penstock.log.protocol import Commit
from penstock.log.store import LogStore
from penstock.spark.runner.commit import BatchLog
from penstock.spark.runner.micro_batch import MicroBatch, TaskPlan

ROOT = Path(__file__).parents[3]
SPARK_POINTS = [
    "spark.batch.planned", "spark.batch.computed", "stream.checkpoint.before", "stream.checkpoint.after",
]  # fmt: skip
CASES = [
    ("spark", "spark", "spark.batch.computed"),
    ("spark", "local", "stream.checkpoint.before"),
    *(
        pytest.param(*case, marks=pytest.mark.faults)
        for case in (
            *(("spark", "spark", point) for point in SPARK_POINTS if point != "spark.batch.computed"),
            *(("spark", "local", point) for point in SPARK_POINTS if point != "stream.checkpoint.before"),
            *(("local", "spark", point) for point in ("stream.checkpoint.before", "stream.checkpoint.after")),
        )
    ),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("first", "second", "point"), CASES)
def test_stopped_at_every_step(tmp_path: Path, first: str, second: str, point: str) -> None:
    url = f"file://{tmp_path / 'logs'}?durability=fast"
    with penstock.open_logs(url) as store:
        fill(store, "in", numbers(200), partitions=2)
        command = [sys.executable, "-m", "tests.unit.stream.spark_stopped", url, first, point, "2"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as child:
            try:
                _, how = os.waitpid(child.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(how), "it came to the point"
                running = runner_of(second, store).start()
                assert running.drain("100s"), told(running)
                child.send_signal(signal.SIGCONT)
                said, _ = child.communicate(timeout=100)
            finally:
                child.kill()
        assert sorted(value for _, value in values(store, "out")) == list(range(200)), "each once"
        assert Counter(number for number, _ in values(store, "out")) == dict.fromkeys(range(1, 41), 5)
        if first == "spark":
            assert said.startswith("failed Fenced"), "it says so, and has stopped"


class TestBatchLog:
    @pytest.fixture
    def store(self, tmp_path: Path) -> LogStore:
        return penstock.open_logs(f"file://{tmp_path / 'logs'}?durability=fast")

    def test_the_driver_before_can_do_nothing_more(self, store: LogStore) -> None:
        store.create("out", 1)
        first, second = BatchLog(store, "count"), BatchLog(store, "count")
        assert first.begin() is None
        first.plan(MicroBatch(tasks=[TaskPlan(0, {"in": (0, 5)})]))
        last = second.begin()
        assert last is not None
        assert last.tasks[0].ranges == {"in": (0, 5)}, "what may not be done is known to the next one"
        for attempt in (lambda: first.plan(MicroBatch()), lambda: first.commit_batch([], [])):
            with pytest.raises(Fenced, match="another driver has begun to run count"):
                attempt()
        second.plan(MicroBatch())
        second.commit_batch([], [])

    def test_a_plan_outlives_drivers_that_do_nothing(self, store: LogStore) -> None:
        BatchLog(store, "count").begin()
        driver = BatchLog(store, "count")
        driver.begin()
        driver.plan(MicroBatch(tasks=[TaskPlan(7)]))
        for _ in range(2):
            last = BatchLog(store, "count").begin()
            assert last is not None
            assert [plan.index for plan in last.tasks] == [7]

    def test_a_log_that_was_deleted(self, store: LogStore) -> None:
        """The store remembers the numbers of its transactions; a new log goes on behind them."""
        for _ in range(30):
            BatchLog(store, "count").begin()
        store.delete("count.batches")
        driver = BatchLog(store, "count")
        assert driver.begin() is None
        driver.plan(MicroBatch())
        store.transact(Commit([], []))
