"""A Spark driver of its own, to be killed: drains a topology of three computations, or the queries over auctions.

python -m tests.faults.spark_topology URL MARK MASTER POINT TIMES [auctions]

POINT is a failpoint, at whose TIMES-th passing driver and JVM die; "worker", "executor" and "host" let one of those
die instead, once, which makes the file MARK; "none" nothing.
"""

import itertools
import os
import signal
import sys
from typing import Any

from tests import auctions
from tests.faults.spark_killing import kill_once

import penstock
from penstock import failpoints
from penstock.spark import SparkRunner, session
from penstock.stream import Topology, Tumbling, Value, computation, windowed_count


def topology(kills: str = "", mark: str = "") -> Topology:
    """Stateless, windows with timers, and a sum over both."""

    @computation("double", inputs="in", outputs="doubled")
    def double(record: Any, ctx: Any) -> None:
        ctx.produce("doubled", record.value * 2)

    @computation("sum", inputs=("doubled", "in"), outputs="sums", states=[Value("sum", int, 0)])
    def add(record: Any, ctx: Any) -> None:
        if kills and record.value == 100:
            kill_once(kills, mark)
        ctx.value("sum").set(ctx.value("sum").get() + record.value)
        ctx.set_timer(10**15, "end")

    @add.timer
    def tell(timer: Any, ctx: Any) -> None:
        ctx.produce("sums", ctx.value("sum").get())

    made = Topology("faults", partitions=2).stream("in", int).stream("doubled", int)
    made.stream("counts").stream("sums", int).add(double).add(add)
    return made.add(windowed_count("counts", "doubled", "counts", Tumbling("20ms")))


def main() -> int:
    url, mark, master, point, times = sys.argv[1:6]
    settings: dict[str, str | int | bool] = {
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    spark = session("faults", master=master, settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    passed = itertools.count(1)

    def strike(name: str) -> None:
        if name == point and next(passed) == int(times):
            os.killpg(os.getpgid(0), signal.SIGKILL)

    failpoints.arm(strike)
    kills = point if point in ("worker", "executor", "host") else ""
    with penstock.open_logs(url) as store:
        if sys.argv[6:] == ["auctions"]:
            runner = SparkRunner(auctions.everything(), store, spark, checkpoint_records=700)
        else:
            runner = SparkRunner(topology(kills, mark), store, spark, checkpoint_records=60)
        return 0 if runner.start().drain("250s", final=True) else 1


if __name__ == "__main__":
    sys.exit(main())
