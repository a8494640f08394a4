"""One run of the part `wide` of the benchmark of streams; prints records a second.

python -m benchmarks.wide COUNT

A program of its own that uses only what earlier versions have too, so that it can run with the source of another
checkout. Two computations with eight partitions each: the first gives records other keys, so that each of its tasks
writes to all partitions of the second, which has to wait for all of them in event time.
"""

from __future__ import annotations

import sys
from typing import Any

import penstock
from benchmarks.measure import folder, timed
from penstock.stream import LocalRunner, Topology, computation

PARTITIONS = 8
KEYS = 1000
BATCH = 1000


@computation("first", inputs="in", outputs="mid")
def first(record: Any, ctx: Any) -> None:
    ctx.produce("mid", record.value, key=f"key-{record.value % KEYS}")


@computation("second", inputs="mid", outputs="out")
def second(record: Any, ctx: Any) -> None:
    ctx.produce("out", record.value)


def topology() -> Topology:
    flow = Topology("wide", partitions=PARTITIONS).stream("in", int).stream("mid", int).stream("out", int)
    return flow.add(first).add(second)


def rate_of(count: int) -> float:
    """Records a second from the start of a runner to the end of its drain."""
    with folder() as path, penstock.open_logs(f"file://{path.absolute() / 'logs'}?durability=fast") as store:
        store.create("in", PARTITIONS)
        with store.appender("in", int) as out:
            for begin in range(0, count, BATCH):
                numbers = range(begin, min(begin + BATCH, count))
                out.append_many(
                    list(numbers), keys=[f"user-{number % KEYS}" for number in numbers],
                    timestamps=[(number + 1) * 1000 for number in numbers],
                )  # fmt: skip
        runner = LocalRunner(topology(), store)

        def work() -> None:
            runner.start()
            assert runner.drain("600s")

        run = timed(count, work)
        assert runner.metrics["records"] == 2 * count
        return run.rate


if __name__ == "__main__":
    print(rate_of(int(sys.argv[1])))
