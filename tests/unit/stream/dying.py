"""A topology whose processes are killed at moments that a test chooses: each file in a folder is one death."""

import os
import signal
from pathlib import Path
from typing import Any

from penstock import failpoints
from penstock.policy import Batching
from penstock.stream.computation import Computation
from penstock.stream.state import Value
from penstock.stream.topology import Topology
from penstock.stream.windows import Tumbling, Windowed, windowed_count

FOLDER = "PENSTOCK_TEST_DEATHS"
END = 10**15
_ended: list[int] = []  # the partitions that have, in this process


def dies(moment: str) -> None:
    """End this process as kill -9 does, if the test wants it at this moment and no other has died of it."""
    folder = os.environ.get(FOLDER)
    if folder:
        try:
            (Path(folder) / moment).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def after_the_end(point: str) -> None:
    if point == "stream.checkpoint.after" and _ended:
        dies("ended")


class Rings(Computation):
    """Counts per key; tells at the end of the input, and sets another timer that no end waits for."""

    name, inputs, outputs = "rings", "in", "rung"
    states = (Value("count", int, 0),)

    def init(self, ctx: Any) -> None:
        if FOLDER in os.environ:
            with Path(os.environ[FOLDER], "begun").open("a") as out:
                out.write(f"{os.getpid()}\n")

    def process(self, record: Any, ctx: Any) -> None:
        if record.value % 50 == 49:
            dies("record")
        ctx.value("count").set(ctx.value("count").get() + 1)
        ctx.set_timer(END)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        dies("timer")
        ctx.produce("rung", ["count", ctx.value("count").get()])
        ctx.set_timer(timer.time_us + 10)

    def on_drain(self, ctx: Any) -> None:
        dies("drain")
        ctx.produce("rung", ["partition", ctx.partition], key=f"p{ctx.partition}")
        _ended.append(ctx.partition)


class Totals(Computation):
    """What came under a key, told at the end; its batches would wait for an hour."""

    name, inputs, outputs = "totals", "rung", "out"
    states = (Value("seen", list, []),)
    batch = Batching(1_000, "1h")

    def process_batch(self, records: list[Any], ctx: Any) -> None:
        dies("second")
        for record in records:
            ctx.use(record)
            ctx.value("seen").set([*ctx.value("seen").get(), record.value])
            ctx.set_timer(END)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        dies("second timer")
        ctx.produce("out", ctx.value("seen").get())


def topology() -> Topology:
    dies("import")
    failpoints.arm(after_the_end if FOLDER in os.environ else None)
    made = Topology("dying", partitions=4).stream("in", int).stream("rung", list).stream("out", list)
    made.stream("windows", Windowed)
    made.add(Rings).add(Totals)
    return made.add(windowed_count("counts", "in", "windows", Tumbling("10ms")))
