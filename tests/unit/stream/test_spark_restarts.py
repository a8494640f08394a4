"""SparkRunner without a JVM: drains that come while it rests, and plans of earlier drivers with silent inputs."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from tests.spark.in_process import InProcess

from penstock import LogStore, failpoints, open_logs
from penstock.errors import StoreUnavailable
from penstock.log.record import Partition
from penstock.spark import SparkRunner
from penstock.spark.runner.micro_batch import decoded_batch
from penstock.spark.runner.planner import Planner
from penstock.stream import (
    Computation,
    LocalRunner,
    Topology,
    Tumbling,
    Value,
    join,
    map_values,
    windowed_count,
)
from penstock.stream.internal_logs import batch_log, last_change, last_payload
from penstock.stream.runner import Runner, wait_until

SECOND = 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with open_logs(f"file://{tmp_path}/logs?durability=fast") as opened:
        yield opened


def until(condition: Any) -> None:
    assert wait_until(condition, 60.0)


# --- drains ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("final", [True, False])
def test_a_drain_that_comes_after_a_look_that_found_nothing(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, final: bool
) -> None:
    """What was looked at before the drain says nothing about the end of the input."""
    looked, asked = threading.Event(), threading.Event()
    plain = Planner.next

    def slow(self: Planner, **options: Any) -> Any:
        batch = plain(self, **options)
        if batch is None and not asked.is_set():
            looked.set()
            asked.wait(30)
        return batch

    store.create("in", 1)
    store.log("in", int).append(1, key="k", timestamp=SECOND)
    piece = windowed_count("c", "in", "out", Tumbling("10s")) if final else map_values("c", abs, "in", "out")
    runner = SparkRunner(Topology("t").stream("in", int).stream("out").add(piece), store, InProcess()).start()
    until(lambda: runner.metrics["records"] == 1)
    monkeypatch.setattr(Planner, "next", slow)
    assert looked.wait(30)
    expected = 1
    if not final:
        store.log("in", int).append(2, key="k", timestamp=2 * SECOND)
        expected = 2
    finish = runner._finish

    def finish_and_go_on(driver: Any, how: bool, deadline: float) -> bool:
        threading.Timer(0.2, asked.set).start()  # the driver goes on after it was asked to finish
        return finish(driver, how, deadline)

    monkeypatch.setattr(runner, "_finish", finish_and_go_on)
    assert runner.drain("30s", final=final)
    assert store.bounds("out")[0].count == expected
    assert store.lag("in", "c").lag == 0


# --- silent inputs ---------------------------------------------------------------------------------------------------


class Both(Computation):
    """Says of each record whether it came late."""

    name, inputs, outputs = "both", ("left", "right"), ("out",)
    idle = "1s"
    states = (Value("n", int),)

    def process(self, record: Any, ctx: Any) -> None:
        ctx.produce("out", [ctx.stream, record.value, ctx.late])


def pair(left: int, right: int) -> list[int]:
    return [left, right]


def runner_of(kind: str, piece: Any, store: LogStore) -> Runner:
    topology = Topology("t").stream("left", int).stream("right", int).stream("out").add(piece)
    return LocalRunner(topology, store) if kind == "local" else SparkRunner(topology, store, InProcess())


def committed_watermark(store: LogStore) -> float:
    change = last_change(store, Partition("both.state", 0))
    return -1 if change is None else change.low / SECOND


def out(store: LogStore) -> list[Any]:
    return [record.value for record in store.log("out").records(0)]


@pytest.mark.parametrize("last", ["spark", "local"])
def test_an_old_plan_with_a_silent_input_is_not_done_again(store: LogStore, last: str) -> None:
    """Spark, local, Spark: what the first driver planned and committed is over, its silence too."""
    piece = join("both", "left", "right", "out", within="5s", joiner=pair, idle="1s")
    for name in ("left", "right"):
        store.create(name, 1)
    left, right = store.log("left", int), store.log("right", int)
    runner = runner_of("spark", piece, store).start()
    right.append(1, key="k", timestamp=10 * SECOND)
    until(lambda: runner.metrics["records"] == 1)
    left.append(2, key="k", timestamp=100 * SECOND)
    until(lambda: runner.metrics["records"] == 2)
    until(lambda: committed_watermark(store) == 100)  # the right side was silent
    assert runner.stop()
    runner = runner_of("local", piece, store).start()
    right.append(3, key="k", timestamp=150 * SECOND)
    left.append_many([170, 200], keys=["k", "k"], timestamps=[170 * SECOND, 200 * SECOND])
    until(lambda: runner.metrics["records"] == 3)
    assert runner.stop()
    right.append(172, key="k", timestamp=172 * SECOND)  # it waits in the log
    runner = runner_of(last, piece, store).start()
    until(lambda: runner.metrics["records"] == 1)
    assert runner.drain("30s", final=True)
    assert out(store) == [[170, 172]]


def test_silence_that_was_planned_and_never_committed_makes_nothing_late(store: LogStore) -> None:
    for name in ("left", "right"):
        store.create(name, 1)
    store.log("left", int).append(1, key="k", timestamp=100 * SECOND)
    store.log("right", int).append(1, key="k", timestamp=10 * SECOND)
    runner = runner_of("spark", Both, store).start()
    until(lambda: len(out(store)) == 2)

    def strike(name: str) -> None:
        """Break off the first batch in which the right side counts as silent, once its plan is written."""
        if name == "spark.batch.planned":
            last = last_payload(store, Partition(batch_log("both"), 0))
            if last is not None and any("right" in plan.silent for plan in decoded_batch(last[1]).tasks):
                struck.set()
                raise StoreUnavailable("broken off.")

    struck = threading.Event()
    failpoints.arm(strike)
    try:
        for number in range(200):
            store.log("left", int).append(number, key="k", timestamp=(101 + number) * SECOND)
            if struck.wait(0.1):
                break
        assert struck.is_set()
        runner.shutdown()
    finally:
        failpoints.arm(None)
    assert committed_watermark(store) < 50
    store.log("right", int).append(2, key="k", timestamp=50 * SECOND)  # it waits in the log before anybody runs again
    runner = runner_of("spark", Both, store).start()
    until(lambda: ["right", 2] in [value[:2] for value in out(store)])
    assert runner.stop()
    assert [value for value in out(store) if value[2]] == []
