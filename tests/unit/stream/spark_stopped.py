"""A runner in a process of its own that stops, as by SIGSTOP, at a named point; its Spark runs tasks in the process.

python -m tests.unit.stream.spark_stopped URL RUNNER POINT TIMES

It ends by itself, and writes what became of its computation: its state, and its error.
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from typing import Any

from tests.spark.in_process import InProcess

import penstock
from penstock import failpoints
from penstock.log.store import LogStore
from penstock.spark import SparkRunner
from penstock.stream import LocalRunner, Topology, Value, computation
from penstock.stream.runner import Runner, wait_until

MAX_POLL = "1s"  # after so long a silent runner has lost its partitions


def topology() -> Topology:
    @computation("count", inputs="in", outputs="out", states=[Value("n", int, 0)])
    def count(record: Any, ctx: Any) -> None:
        held = ctx.value("n")
        held.set(held.get() + 1)
        ctx.produce("out", [held.get(), record.value])

    return Topology("fenced", partitions=2).stream("in", int).stream("out", list).add(count)


def runner_of(kind: str, store: LogStore) -> Runner:
    options: dict[str, Any] = {
        "checkpoint_records": 20, "max_poll": MAX_POLL, "restart_backoff": "50ms", "restart_backoff_max": "200ms"
    }  # fmt: skip
    if kind == "local":
        return LocalRunner(topology(), store, **options)
    spark: Any = InProcess()
    return SparkRunner(topology(), store, spark, **options)


def main() -> None:
    url, kind, point, times = sys.argv[1:5]
    passed = itertools.count(1)

    def strike(name: str) -> None:
        if name == point and next(passed) == int(times):
            # To this thread: one that is sent to the process lets it continue for a moment, into the next lock.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    with penstock.open_logs(url) as store:
        failpoints.arm(strike)
        runner = runner_of(kind, store).start()
        wait_until(lambda: runner.is_terminated or runner.metrics["restarts"] > 0, 60.0)
        [status, *_] = runner.status()
        print(status.state, status.error)
        runner.shutdown()


if __name__ == "__main__":
    main()
