"""SparkRunner beyond the contract: what it refuses, policies, mixed running, the clicks example on both runners."""

import importlib.util
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, numbers, records, rows, told, values, wait_until
from tests.spark.runners import clock, logs, patience, runner

import penstock
from penstock import LogStore
from penstock.errors import BadInput, StoreUnavailable, Unsupported
from penstock.policy import Reject, Retry
from penstock.spark import SparkRunner
from penstock.stream import LocalRunner, Policy, Topology, Value, computation
from penstock.testing import FakeClock

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


@computation("double", inputs="in", outputs="mid")
def double(record: Any, ctx: Any) -> None:
    ctx.produce("mid", record.value * 2)


@computation("count", inputs="mid", outputs="out", states=[Value("n", int, 0)])
def count(record: Any, ctx: Any) -> None:
    ctx.value("n").set(ctx.value("n").get() + 1)
    ctx.produce("out", [ctx.value("n").get(), record.value])


def both(partitions: int = 2) -> Topology:
    made = Topology("both", partitions=partitions).stream("in", int).stream("mid", int).stream("out", list)
    return made.add(double).add(count)


class TestRefusals:
    """Before anything runs, in one line."""

    def test_a_source_runs_elsewhere(self, logs: LogStore, runner: Run) -> None:
        @computation("ticks", outputs="in")
        def ticks(record: Any, ctx: Any) -> None:
            """Never called."""

        ticks.timer(lambda timer, ctx: None)
        topology = both().add(ticks)
        with pytest.raises(Unsupported, match="ticks has no inputs"):
            runner(topology)
        runner(topology.only("double", "count"))

    def test_memory_is_in_one_process(self) -> None:
        with penstock.open_logs("memory://") as store, pytest.raises(BadInput, match="memory://"):
            SparkRunner(both(), store)

    def test_what_cannot_be_sent_to_a_worker(self, logs: LogStore, runner: Run) -> None:
        held = threading.Lock()

        @computation("holds", inputs="in")
        def holds(record: Any, ctx: Any) -> None:
            held.acquire()

        with pytest.raises(BadInput, match="holds cannot be sent"):
            runner(Topology("holds").stream("in", int).add(holds))

    def test_options(self, logs: LogStore) -> None:
        with pytest.raises(BadInput, match="checkpoint_recods"):
            SparkRunner(both(), logs, checkpoint_recods=3)


class TestRunning:
    """What the contract's tests cannot look at from here."""

    def test_one_computation_local_the_next_on_spark(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(100), partitions=2)
        here = LocalRunner(both().only("double"), logs).start()
        there = runner(both().only("count")).start()
        assert here.drain("20s"), told(here)
        assert there.drain("100s"), told(there)
        assert sorted(value for _, value in values(logs, "out")) == [number * 2 for number in range(100)]
        assert {logs.lag("in", "double").lag, logs.lag("mid", "count").lag} == {0}

    def test_nobody_else_can_run_it_meanwhile(self, logs: LogStore, runner: Run) -> None:
        topology = both().only("double")
        first = runner(topology).start()
        assert first.wait_for_assignments("60s")
        second = runner(topology, restart_backoff="50ms").start()
        wait_until(lambda: second.metrics["restarts"] > 0, "it finds the partitions taken")
        assert "PartitionTaken" in told(second)
        second.stop()
        assert first.stop()

    def test_an_error_of_the_store_starts_it_again(self, logs: LogStore, runner: Run) -> None:
        left = [2]
        transact = logs.transact

        def broken(commit: Any) -> Any:
            if left[0] and any(place.log == "mid" for place, _ in commit.outputs):
                left[0] -= 1
                raise StoreUnavailable("the disk is away for a moment.")
            return transact(commit)

        logs.transact = broken  # type: ignore[method-assign]
        fill(logs, "in", numbers(20), partitions=2)
        running = runner(both().only("double"), restart_backoff="10ms").start()
        wait_until(lambda: len(values(logs, "mid")) == 20, "it recovers")
        assert running.metrics["restarts"] == 2
        assert "the disk is away" in told(running)
        assert running.drain("60s"), told(running)
        assert len(values(logs, "mid")) == 20

    def test_stop_and_start_one_computation(self, logs: LogStore, runner: Run) -> None:
        running: Any = runner(both()).start()
        assert running.wait_for_assignments("60s")
        assert running.stop_computation("count")
        fill(logs, "in", numbers(30))
        wait_until(lambda: len(values(logs, "mid")) == 30, "the first goes on")
        assert logs.lag("mid", "count").lag == 30
        running.start_computation("count")
        running.start_computation("count")
        assert running.drain("100s"), told(running)
        assert len(values(logs, "out")) == 30

    def test_processing_time_comes_without_records(self, logs: LogStore, runner: Run, clock: FakeClock) -> None:
        @computation("rings", inputs="in", outputs="out")
        def rings(record: Any, ctx: Any) -> None:
            ctx.set_timer_after("1h", "late")

        @rings.timer
        def ring(timer: Any, ctx: Any) -> None:
            ctx.produce("out", timer.key)

        fill(logs, "in", [("b", 1, 1), ("a", 2, 2)])
        running = runner(Topology("rings").stream("in", int).stream("out", str).add(rings)).start()
        wait_until(lambda: running.metrics["records"] == 2, "they are read")
        clock.advance("2h")
        wait_until(lambda: values(logs, "out") == ["a", "b"], "both fire")
        assert running.stop()


class TestPolicies:
    """Failures, as far as they can be seen from outside the workers."""

    @staticmethod
    def topology(function: Any, policy: Policy) -> Topology:
        made = computation("fails", inputs="in", outputs="out", states=[Value("n", int, 0)])(function)
        return Topology("failing").stream("in", int).stream("out", int).add(made, policy=policy)

    @pytest.fixture(autouse=True)
    def ten(self, logs: LogStore) -> None:
        fill(logs, "in", [("k", number, number + 1) for number in range(10)])

    @pytest.mark.parametrize("pause", ["10ms", "1200ms"], ids=["in the worker", "by the driver"])
    def test_retries_and_dead_letters(self, logs: LogStore, runner: Run, tmp_path: Path, pause: str) -> None:
        tries = str(tmp_path / "tries")

        def fails(record: Any, ctx: Any) -> None:
            ctx.produce("out", record.value)
            ctx.value("n").set(ctx.value("n").get() + 1)
            if record.value in (3, 7):
                with open(tries, "a", encoding="ascii") as out:
                    out.write(f"{record.value} ")
                with open(tries, encoding="ascii") as made:
                    if record.value == 7 or made.read().count("3") < 3:
                        raise RuntimeError(f"no {record.value}")
            ctx.produce("out", -ctx.value("n").get())

        policy = Policy(retry=Retry(attempts=3, delays=[pause], jitter=False), on_failure="continue")
        began = time.monotonic()
        done = drained(runner, self.topology(fails, policy))
        # Found once in the run of all, then tried alone until the third attempt.
        assert Path(tries).read_text(encoding="ascii").split() == ["3"] * 3 + ["7"] * 3
        good = [0, 1, 2, 3, 4, 5, 6, 8, 9]
        assert values(logs, "out") == [one for rank, number in enumerate(good) for one in (number, -rank - 1)]
        assert done.metrics["failures"] == 5
        assert done.metrics["skipped"] == 1
        assert pause == "10ms" or time.monotonic() - began > 4 * 1.2
        [dead] = records(logs, "fails.dead")
        assert (dead.value, dead.key, dead.time_us) == (7, "k", 8)
        assert dead.headers["penstock-attempts"] == "3"
        assert dead.headers["penstock-error"] == "RuntimeError: no 7"

    def test_reject(self, logs: LogStore, runner: Run) -> None:
        def rejects(record: Any, ctx: Any) -> None:
            ctx.produce("out", record.value)
            if record.value == 4:
                raise Reject("not for us")

        drained(runner, self.topology(rejects, Policy(retry=Retry(attempts=9, backoff="1h"), on_failure="continue")))
        assert values(logs, "out") == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert values(logs, "fails.dead") == [4]

    def test_a_failing_timer(self, logs: LogStore, runner: Run) -> None:
        @computation("rings", inputs="in", outputs="out", states=[Value("n", int, 0)])
        def rings(record: Any, ctx: Any) -> None:
            ctx.produce("out", record.value)
            ctx.set_timer(1, f"t{record.value}")

        @rings.timer
        def ring(timer: Any, ctx: Any) -> None:
            ctx.value("n").set(ctx.value("n").get() + 1)
            ctx.produce("out", 100 * ctx.value("n").get())
            if timer.name == "t3":
                raise RuntimeError("not now")

        quick = Policy(retry=Retry(attempts=3, backoff="5ms", jitter=False), on_failure="continue")
        drained(runner, Topology("rings").stream("in", int).stream("out", int).add(rings, policy=quick))
        assert values(logs, "out") == [*range(10), *range(100, 1000, 100)], "nine timers, each once"
        assert [one.key for one in records(logs, "rings.dead")] == ["k"]


def test_many_keys_and_small_batches(logs: LogStore, runner: Run) -> None:
    """Many keys, then a few of them again, in other workers."""
    many = [(f"k{number}", number, number + 1) for number in range(20_000)]
    fill(logs, "mid", many, partitions=2)
    topology = both().only("count")
    drained(runner, topology, final=False)
    fill(logs, "mid", many[::97])
    drained(runner, topology)
    assert Counter(number for number, _ in values(logs, "out")) == {1: len(many), 2: len(many[::97])}


def test_the_clicks_example_is_the_same_on_both(spark: Any, tmp_path: Path) -> None:
    flows, visitors = example("flows"), example("visitors")
    found: dict[str, Any] = {}
    given = visitors.clicks(people=40)
    runners: dict[str, Callable[..., Any]] = {
        "local": LocalRunner,
        "spark": lambda topology, store: SparkRunner(topology, store, spark, checkpoint_records=300),
    }
    for name, make in runners.items():
        topology = flows.topology()
        with penstock.open_logs(f"file://{tmp_path / name}?durability=fast") as store:
            store.create("clicks", topology.partitions)
            with store.appender("clicks", flows.Click) as out:
                out.append_many(
                    [click for _, _, click in given], keys=[user for user, _, _ in given],
                    timestamps=[at for _, at, _ in given],
                )  # fmt: skip
            runner = make(topology, store).start()
            assert runner.drain("150s", final=True), told(runner)
            found[name] = {stream: rows(store, stream) for stream in ("sessions", "alerts", "per-minute")}
    assert found["spark"] == found["local"]
    assert found["spark"]["alerts"]


def example(name: str) -> Any:
    """A module of the example, under its own name: that is how its files import each other."""
    if name not in sys.modules:
        place = Path(__file__).parents[2] / "examples" / "clicks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[name])  # workers do not have this folder on their path
    return sys.modules[name]
