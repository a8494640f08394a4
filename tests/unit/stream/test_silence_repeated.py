"""What silence has decided: a restart at any point repeats it, and no record that waits in a log is made late by it."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.ids import new_id
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.stream import LocalRunner
from penstock.stream.computation import Computation, computation
from penstock.stream.engine.checkpoint import Checkpoint, InputBatch
from penstock.stream.engine.engine import Engine
from penstock.stream.engine.event_time import Positions
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import LOWEST, SilentInput
from penstock.stream.local.event_time import StoreEventTime
from penstock.stream.state import Value
from penstock.stream.topology import Topology

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "0"))
SECOND = 1_000_000
PARTITIONS = 2
IDLE = "20ms"
URLS = {
    "memory": lambda folder: f"memory://{new_id()}",
    "file": lambda folder: f"file://{folder / 'logs'}?durability=fast",
}

Place = tuple[str, int]  # a computation and its partition


class Witness:
    """Notes what the tasks of all runners decide, and what they begin with after a restart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.appended: dict[Partition, int] = defaultdict(int)  # ends of the inputs, as far as they are committed
        self.stored: dict[Place, tuple[Mapping[Partition, int], int]] = {}  # offsets and watermark of checkpoints
        self.silences: dict[Place, set[tuple[SilentInput, int]]] = defaultdict(set)  # with the watermark they allowed
        self.restarts = 0  # of tasks that had a watermark before
        self.wrong: list[str] = []
        self._found_silent: dict[Place, set[SilentInput]] = {}
        self._seen: set[int] = set()
        observe, committed, process = StoreEventTime.observe, Engine.committed, Task.process

        def observing(
            event_time: StoreEventTime, tasks: Collection[Task], positions: Positions, now: int
        ) -> Mapping[int, Mapping[str, SilentInput]]:
            waiting = dict(self.appended)  # what certainly is in the logs by now
            silent = observe(event_time, tasks, positions, now)
            for task in tasks:
                found = {*silent.get(task.index, {}).values()}
                found.update(each for reach in task.watermark.reaches.values() for each in reach.silent)
                self._found_silent[task.ctx.computation, task.index] = found
                for each in found:
                    if waiting.get(Partition(each.log, each.partition), 0) > each.end:
                        self.wrong.append(f"{task.ctx.computation}: {each} is not silent, records wait there")
            return silent

        def committing(engine: Engine, checkpoint: Checkpoint, ends: Mapping[Partition, int]) -> Any:
            cuts = committed(engine, checkpoint, ends)
            for task in engine.tasks.values():
                place = engine.node.name, task.index
                offsets = {at: offset for at, offset in checkpoint.offsets.items() if at.index == task.index}
                self.stored[place] = offsets, task.watermark.low
                self.silences[place] |= {(each, task.watermark.low) for each in self._found_silent.get(place, ())}
            return cuts

        def processing(task: Task, batch: InputBatch, *, in_batches: bool) -> int:
            self._compare(task, batch)
            return process(task, batch, in_batches=in_batches)

        monkeypatch.setattr(StoreEventTime, "observe", observing)
        monkeypatch.setattr(Engine, "committed", committing)
        monkeypatch.setattr(Task, "process", processing)
        self._tasks: list[Task] = []  # so that none gets the identity of another

    def _compare(self, task: Task, batch: InputBatch) -> None:
        """Whether a task that begins works by what its last checkpoint has stored, wherever that was."""
        if id(task) in self._seen:
            return
        self._seen.add(id(task))
        self._tasks.append(task)
        place = task.ctx.computation, task.index
        offsets, low = self.stored.get(place, ({}, LOWEST))
        self.restarts += low != LOWEST
        begins = batch.records[0].offset
        if begins < offsets.get(batch.partition, 0):
            self.wrong.append(f"{place} begins at {begins} of {batch.partition}, and had committed {offsets}")
        if task.ctx.low != low:
            self.wrong.append(f"{place} begins at {begins} with {task.ctx.low}, and had stored {low}")

    def check(self, logs: LogStore) -> None:
        """Look at all that was noted: what came late was appended after its partition was found silent."""
        assert self.wrong == []
        late = [record.value for place in logs.partitions("late") for record in logs.log("late").records(place.index)]
        for name, index, source, partition, offset, at in late:
            explained = any(
                (each.log, each.partition) == (source, partition) and each.end <= offset and low > at
                for each, low in self.silences[name, index]
            )
            assert explained, f"{name} {index}: offset {offset} of partition {partition} of {source} at {at} waited"


def note_late(name: str, record: Any, ctx: Any) -> None:
    if ctx.late:
        ctx.produce("late", [name, ctx.partition, *record.value, record.time_us])


@computation("first", inputs="in", outputs="mid", idle=IDLE)
def first(record: Any, ctx: Any) -> None:
    """To partitions by another key; the values say where they come from."""
    ctx.produce("mid", record.value, key=f"k{record.offset % 5}")


class Total(Computation):
    """Keeps state, so its changelog stores the watermark."""

    name, inputs, outputs, idle = "total", "mid", "late", IDLE
    states = (Value("n", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        ctx.value("n").set(ctx.value("n").get() + 1)
        ctx.set_timer(record.time_us)
        note_late(self.name, record, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> None: ...


class Both(Computation):
    """Two inputs from outside and no state: its reports store the watermark."""

    name, inputs, outputs, idle = "both", ("in", "other"), "late", IDLE

    def process(self, record: Any, ctx: Any) -> None:
        note_late(self.name, record, ctx)


class Merge(Computation):
    """One from outside, and one that is computed."""

    name, inputs, outputs, idle = "merge", ("mid", "other"), ("late", "merged"), IDLE

    def process(self, record: Any, ctx: Any) -> None:
        ctx.produce("merged", record.value)
        note_late(self.name, record, ctx)


class Last(Computation):
    """Reads what is computed, without state or readers."""

    name, inputs, outputs, idle = "last", "mid", "late", IDLE

    def process(self, record: Any, ctx: Any) -> None:
        note_late(self.name, record, ctx)


def topology() -> Topology:
    flows = Topology("silence", partitions=PARTITIONS)
    for stream in ("in", "other", "mid", "merged", "late"):
        flows.stream(stream, list)
    for step in (first, Total, Both, Merge, Last):
        flows.add(step)
    return flows


class Feeder:
    """Appends to partitions that are ahead of one another, each in order."""

    def __init__(self, logs: LogStore, witness: Witness, rng: random.Random) -> None:
        self._logs, self._witness, self._rng = logs, witness, rng
        self._places = [Partition(log, index) for log in ("in", "other") for index in range(PARTITIONS)]
        self._times = dict.fromkeys(self._places, SECOND)
        for log in ("in", "other"):
            logs.create(log, PARTITIONS)

    def feed(self) -> None:
        """Some records, to one partition or to several in one transaction."""
        rng = self._rng
        chosen = rng.sample(self._places, rng.choice([1, 1, 2, 4]))
        ends = {}
        with self._logs.transaction() as transaction:
            for place in chosen:
                offset = self._witness.appended[place]
                count = rng.randint(1, 30)
                times = []
                for _ in range(count):
                    self._times[place] += rng.randrange(SECOND)
                    times.append(self._times[place])
                values = [[place.log, place.index, offset + rank] for rank in range(count)]
                transaction.append_many(place.log, values, partition=place.index, timestamps=times)
                ends[place] = offset + count
            transaction.commit()
        self._witness.appended.update(ends)


@pytest.mark.parametrize("kind", list(URLS))
@pytest.mark.parametrize("seed", range(max(5, EXAMPLES)))
def test_a_restart_repeats_what_silence_has_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    rng = random.Random(seed)
    witness = Witness(monkeypatch)
    options = {"checkpoint_records": rng.choice([1, 7, 10_000]), "read": rng.choice([1, 10, 200])}
    with penstock.open_logs(URLS[kind](tmp_path)) as logs:
        feeder = Feeder(logs, witness, rng)
        runner = LocalRunner(topology(), logs, **options).start()
        for _ in range(12):
            for _ in range(rng.randint(1, 3)):
                feeder.feed()
                time.sleep(rng.choice([0, 0, 0.005, 0.05]))  # some of them become silent
            if rng.random() < 0.5:
                runner.shutdown() if rng.random() < 0.7 else runner.stop()
                if rng.random() < 0.3:
                    feeder.feed()
                runner = LocalRunner(topology(), logs, **options).start()
        assert runner.drain("30s"), runner.status()
        witness.check(logs)
        assert witness.restarts, "no task came back with a watermark"
        assert any(witness.silences.values()), "nothing was silent"
