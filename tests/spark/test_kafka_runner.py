"""SparkRunner with its logs on Kafka: state, timers, windows and dead letters, over stops and starts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.contract.stream.shorthand import fill, numbers, records, rows, told, wait_until

import penstock
from penstock import LogStore
from penstock.ids import new_id
from penstock.policy import Reject
from penstock.spark import SparkRunner
from penstock.stream import LocalRunner, Policy, Topology, Tumbling, Value, computation, windowed_count

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

STREAMS = ("clean", "sums", "counts", "clean.dead")


@computation("clean", inputs="in", outputs="clean")
def clean(record: Any, ctx: Any) -> None:
    if record.value % 17 == 3:
        raise Reject("not for us")
    ctx.produce("clean", record.value * 2)


@computation("sum", inputs=("clean", "in"), outputs="sums", states=[Value("sum", int, 0)])
def add(record: Any, ctx: Any) -> None:
    ctx.value("sum").set(ctx.value("sum").get() + record.value)
    ctx.set_timer(10**15, "end")


@add.timer
def tell(timer: Any, ctx: Any) -> None:
    ctx.produce("sums", ctx.value("sum").get())


def topology() -> Topology:
    """A computation that keeps nothing, and behind it two that keep state: with timers, and in windows."""
    made = Topology("kafka", partitions=2).stream("in", int).stream("clean", int).stream("counts").stream("sums", int)
    made.add(clean, policy=Policy(on_failure="continue")).add(add)
    return made.add(windowed_count("counts", "clean", "counts", Tumbling("20ms")))


def results(store: LogStore) -> dict[str, Any]:
    found: dict[str, Any] = {stream: rows(store, stream) for stream in STREAMS}
    found["why"] = sorted({dict(one.headers).get("error", "") for one in records(store, "clean.dead")})
    return found


def expected(count: int) -> dict[str, Any]:
    with penstock.open_logs("memory://") as store:
        fill(store, "in", numbers(count), partitions=2)
        assert LocalRunner(topology(), store).start().drain("30s", final=True)
        return results(store)


@pytest.fixture
def logs(servers: Callable[[str], Any]) -> Iterator[LogStore]:
    with penstock.open_logs(f"{servers('kafka').url}/{new_id()}?durability=fast") as store:
        yield store


def test_stopped_and_started_again(spark: Any, logs: LogStore) -> None:
    def runner(*names: str) -> SparkRunner:
        return SparkRunner(topology().only(*names), logs, spark)

    fill(logs, "in", numbers(60), partitions=2)
    first = runner("clean", "sum").start()
    wait_until(lambda: logs.exists("clean") and rows(logs, "clean"), "something was done")
    assert first.stop("60s"), told(first)
    fill(logs, "in", numbers(120)[60:])
    second = runner("clean", "sum", "counts").start()
    assert second.drain("150s", final=True), told(second)
    assert results(logs) == expected(120)
    groups = [("in", "clean"), ("clean", "sum"), ("in", "sum"), ("clean", "counts")]
    assert [logs.lag(log, group).lag for log, group in groups] == [0] * 4
