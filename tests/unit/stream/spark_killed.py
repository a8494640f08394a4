"""A runner in a process of its own that dies at a named point; its Spark runs tasks in the process.

python -m tests.unit.stream.spark_killed URL POINT TIMES

It drains the topology of tests/faults/spark_topology.py; POINT "none" lets it live.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

from tests.faults.spark_topology import topology
from tests.spark.in_process import InProcess

import penstock
from penstock import failpoints
from penstock.spark import SparkRunner


def main() -> int:
    url, point, times = sys.argv[1:4]
    passed = itertools.count(1)

    def strike(name: str) -> None:
        if name == point and next(passed) == int(times):
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.arm(strike)
    spark: Any = InProcess()
    with penstock.open_logs(url) as store:
        runner = SparkRunner(topology(), store, spark, checkpoint_records=60)
        return 0 if runner.start().drain("100s", final=True) else 1


if __name__ == "__main__":
    sys.exit(main())
