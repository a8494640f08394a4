"""State of streams: what a checkpoint writes beside what it changed, and what a restart costs as batches go by.

python -m benchmarks.state [--quick]

Every runner keeps state in the same log, so a local runner stands for all of them. One task holds all keys; a batch
changes some of them, chosen at random, and is one checkpoint. A restart is timed until the first record behind it is
done, so it holds reading the whole state.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import penstock
from benchmarks.measure import Bar, conditions, folder, report
from penstock import LogStore
from penstock.log.record import Offset, Partition
from penstock.stream.computation import Computation
from penstock.stream.engine.changelog import state_log
from penstock.stream.local.runner import LocalRunner
from penstock.stream.state import Value
from penstock.stream.topology import Topology

QUICK = "--quick" in sys.argv
MANY = 200_000 if QUICK else 10_000_000
FEWER = 20_000 if QUICK else 1_000_000
CHANGED = 1_000 if QUICK else 10_000
BATCHES = 100 if QUICK else 1_000
TOGETHER = 50_000
STATE = Partition(state_log("count"), 0)


class Count(Computation):
    name, inputs = "count", "in"
    states = (Value("n", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        held = ctx.value("n")
        held.set(held.get() + 1)


class Counted:
    """A topology that counts per key, and its log."""

    def __init__(self, path: Path, keys: int) -> None:
        self.keys = keys
        self.random = random.Random(1)  # the same keys in every run
        self.store: LogStore = penstock.open_logs(f"file://{path.absolute() / 'logs'}?durability=fast")
        self.store.create("in", 1)
        topology = Topology("bench").stream("in", int).add(Count())
        self._make = lambda: LocalRunner(topology, self.store, checkpoint_records=TOGETHER, read=TOGETHER)
        self.runner = self._make().start()
        for begin in range(0, keys, TOGETHER):
            self.append(range(begin, min(begin + TOGETHER, keys)))
        self.drain()

    def append(self, numbers: Any) -> None:
        self.store.log("in").append_many([1] * len(numbers), keys=[f"user-{number}" for number in numbers])

    def drain(self) -> None:
        """Wait until all there is has been committed."""
        last = self.store.bounds_of(Partition("in", 0)).end - 1
        assert self.store.log("in").wait_for(Offset("in", 0, last), "count", "30m")

    def batch(self) -> tuple[int, int]:
        """Change some keys; the bytes of what changed, and of what was written."""
        chosen = self.random.sample(range(self.keys), CHANGED)
        before = self.store.bounds_of(STATE).end
        self.append(chosen)
        self.drain()
        changed = sum(len(msgspec.msgpack.encode(("n", f"user-{number}", "", b"2", 0))) for number in chosen)
        batches = self.store.batches(STATE, before, self.store.bounds_of(STATE).end)
        return changed, sum(len(record.payload) for batch in batches for record in batch.records())

    def restart(self) -> float:
        """Stop and start; seconds until a record is done."""
        self.runner.stop()
        del self.runner
        gc.collect()
        self.append([0])
        begin = time.perf_counter()
        self.runner = self._make().start()
        self.drain()
        return time.perf_counter() - begin

    def close(self) -> None:
        self.runner.stop()
        self.store.close()


def main() -> int:
    print(f"Conditions: {conditions()}", flush=True)
    bars, notes = [], []
    with folder() as path:
        counted = Counted(path, MANY)
        changed, written = (sum(part) for part in zip(*(counted.batch() for _ in range(10)), strict=True))
        seconds = counted.restart()
        counted.close()
        ratio = written / changed
        bars.append(Bar(f"bytes written vs changed, {MANY:,} keys", "at most 3x", f"{ratio:.2f}x", ratio <= 3))
        notes.append(f"a restart with {MANY:,} keys takes {seconds:.1f} s")
    with folder() as path:
        counted = Counted(path, FEWER)
        totals = [0, 0]
        for number in range(BATCHES):
            for place, part in enumerate(counted.batch()):
                totals[place] += part
            if number == 9:
                early = counted.restart()
        late = counted.restart()
        counted.close()
        bars.append(
            Bar(
                f"a restart after {BATCHES:,} batches vs after 10, {FEWER:,} keys", "at most 2x",
                f"{late / early:.2f}x", late <= 2 * early,
            )
        )  # fmt: skip
        ratio = totals[1] / totals[0]
        bars.append(
            Bar(f"bytes written vs changed over {BATCHES:,} batches", "at most 3x", f"{ratio:.2f}x", ratio <= 3)
        )
        notes.append(f"after 10 batches {early:.2f} s, after {BATCHES:,} {late:.2f} s; {CHANGED:,} keys a batch")
    return 0 if report("State of streams", bars, notes) else 1


if __name__ == "__main__":
    sys.exit(main())
