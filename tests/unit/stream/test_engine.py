"""The engine alone: fed batches, it gives checkpoints; no store is written and no thread runs."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest

import penstock
from penstock import LogStore, Retry
from penstock.errors import Fenced
from penstock.log.record import Partition
from penstock.stream import Computation, Policy, Topology, Value, computation
from penstock.stream.engine.checkpoint import Checkpoint, Counts
from penstock.stream.engine.engine import Engine
from penstock.stream.engine.event_time import Positions, Silent
from penstock.stream.engine.retry import Stopped
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.local.thread import Control, Membership
from penstock.stream.runner import Settings, Status
from penstock.stream.validate import ResolvedTopology


class NobodyElse:
    """Event time of inputs from outside, none of them silent."""

    def observe(self, tasks: Collection[Task], positions: Positions, now: int) -> Mapping[int, Silent]:
        return {}


class Sums(Computation):
    """Adds up per key, and rings when event time has passed its first record by ten."""

    name, inputs, outputs = "sums", "in", "out"
    states = (Value("sum", int, 0),)

    def process(self, record: Any, ctx: Any) -> None:
        if record.value < 0:
            raise RuntimeError("negative")
        total = ctx.value("sum")
        total.set(total.get() + record.value)
        ctx.produce("out", total.get())
        if ctx.timer() is None:
            ctx.set_timer(record.time_us + 10)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("out", -1)


class Scene:
    """An engine over a log in memory that it only reads."""

    def __init__(self, policy: Policy | None = None, *, step: Any = Sums, **options: Any) -> None:
        self.logs = penstock.open_logs("memory://")
        self.logs.create("in", 1)
        topology = Topology("t").stream("in", int).stream("out", int).add(step, policy=policy)
        self.node = topology.nodes["sums"]
        self.resolved = ResolvedTopology(topology, self.logs).computation(self.logs, self.node)._replace(**options)
        self.counts = Counts()
        self.engine = Engine(
            self.resolved, NobodyElse(), clock=lambda: 0, counts=self.counts, checkpoint_records=100,
            checkpoint_seconds=100.0,
        )  # fmt: skip
        self.engine.add(Task(self.resolved, 0, lambda: 0), {})

    def feed(self, *values: int, times: list[int] | None = None) -> None:
        start = self.logs.bounds("in")[0].end
        self.logs.log("in", int).append_many(values, keys=["k"] * len(values), timestamps=times)
        for batch in self.logs.batches(Partition("in", 0), start):
            batch.codec = self.resolved.inputs["in"].codec
            self.engine.feed(0, "in", batch)
        self.engine.read_to = {Partition("in", 0): self.logs.bounds("in")[0].end}

    def steps(self) -> list[Checkpoint]:
        """All checkpoints that come, each as if it was committed."""
        checkpoints = []
        for _ in range(20):
            checkpoint = self.engine.step(idle=True)
            if checkpoint is not None:
                checkpoints.append(checkpoint)
                self.engine.committed(checkpoint, {})
        return [checkpoint for checkpoint in checkpoints if not checkpoint.is_empty]


def outputs(checkpoint: Checkpoint) -> list[int]:
    return [int(value) for _, records in checkpoint.outputs for value in records.values]


def test_a_checkpoint_has_outputs_state_offsets_and_the_watermark() -> None:
    scene = Scene()
    scene.feed(1, 2, 3, times=[100, 105, 120])
    (checkpoint,) = scene.steps()
    assert outputs(checkpoint) == [1, 3, 6, -1], "the timer comes after the records"
    assert [partition for partition, _ in checkpoint.state] == [Partition("sums.state", 0)]
    assert checkpoint.offsets == {Partition("in", 0): 3}
    assert checkpoint.watermark == 120
    assert (scene.counts.records, scene.counts.produced, scene.counts.timers) == (3, 4, 1)


def test_nothing_comes_of_nothing() -> None:
    scene = Scene()
    assert scene.engine.step(idle=True) is None
    assert scene.engine.wait(7.0) == 7.0


def test_what_is_not_committed_is_done_again() -> None:
    scene = Scene()
    scene.feed(1, 2)
    checkpoint = scene.engine.step(idle=True)
    assert checkpoint is not None
    scene.engine.drop([7])  # not ours: nothing is undone
    scene.engine.drop_work()
    scene.feed(5)
    (after,) = scene.steps()
    assert outputs(after) == [5], "the state is that of the last checkpoint"


def test_a_failing_record_is_tried_alone_and_given_up() -> None:
    scene = Scene(Policy(retry=Retry(attempts=2, backoff="0s"), on_failure="continue"))
    scene.feed(1, -5, 2)
    checkpoints = scene.steps()
    assert [outputs(checkpoint) for checkpoint in checkpoints] == [[1], [], [3]]
    assert [checkpoint.offsets[Partition("in", 0)] for checkpoint in checkpoints] == [1, 2, 3]
    ((dead, letters),) = checkpoints[1].extras
    assert (dead, list(letters.values)) == (Partition("sums.dead", 0), [b"-5"])
    assert (scene.counts.failures, scene.counts.skipped) == (2, 1)


def test_a_pause_before_the_next_attempt_is_told_not_waited_for() -> None:
    scene = Scene(Policy(retry=Retry(attempts=2, delays=("1h",))))
    scene.feed(-5)
    assert scene.engine.step(idle=True) is None
    assert scene.engine.retrying is not None
    assert 3500 < scene.engine.retrying.wait <= 3600


def test_stop_is_raised_and_the_record_stays() -> None:
    scene = Scene()
    scene.feed(-5)
    with pytest.raises(Stopped):
        scene.engine.step(idle=True)
    assert scene.engine.queue.first_offsets(scene.engine.read_to) == {Partition("in", 0): 0}


def test_a_checkpoint_that_failed_has_stored_no_offsets() -> None:
    """Where readers may not see the newest records, a restore compares the offsets in the state with the group's."""
    scene = Scene(sees_all_commits=False)
    task = scene.engine.tasks[0]
    assert task.state_records(0, {"in": 7}), "the offsets are new"
    task.rollback()
    assert task.state_records(0, {"in": 7}), "they were not stored"
    task.committed({})
    assert not task.state_records(0, {"in": 7})


class Rings(Computation):
    """Two timers at one moment: ``b`` always fails, ``a`` only when it is fired for the second time."""

    name, inputs, outputs = "sums", "in", "out"

    def process(self, record: Any, ctx: Any) -> None:
        ctx.set_timer(1, "a")
        ctx.set_timer(1, "b")

    def on_timer(self, timer: Any, ctx: Any) -> None:
        calls[timer.name] += 1
        if timer.name == "b" or calls["a"] == 2:
            raise RuntimeError("not now")


calls: Counter[str] = Counter()


def test_each_timer_has_the_attempts_of_its_policy_whatever_others_do() -> None:
    calls.clear()
    scene = Scene(Policy(retry=Retry(attempts=2, backoff="0s"), on_failure="continue"), step=Rings)
    scene.feed(1)
    scene.steps()
    assert calls == {"a": 3, "b": 2}, "a: undone with b, failed, done"
    assert scene.counts.skipped == 1
    assert not len(scene.engine.tasks[0].timers)


@computation("through", inputs="in", outputs="out")
def through(record: Any, ctx: Any) -> None:
    ctx.produce("out", record.value)


def test_partitions_that_stay_lose_nothing_when_others_go_and_the_last_commit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with penstock.open_logs("memory://") as logs:
        logs.create("in", 2)
        topology = Topology("t", partitions=2).stream("in", int).stream("out", int).add(through)
        resolved = ResolvedTopology(topology, logs)
        settings = Settings(checkpoint_every="1h")
        status = Status("through", 0)
        membership = Membership(
            logs, resolved, topology.nodes["through"], settings=settings, status=status, control=Control()
        )
        while len(membership.engine.tasks) < 2:
            membership.round()
        with logs.appender("in", int) as source:
            source.append(10, partition=0)
            source.append(11, partition=1)
        while membership.engine.wait(1.0):  # until both are processed
            membership._read()
            assert membership.engine.step() is None
        membership._read()
        assert membership.engine.step() is None

        def refuse(store: LogStore, commit: Any) -> Any:
            raise Fenced("another one has it")

        with monkeypatch.context() as patched:
            patched.setattr(type(logs), "transact", refuse)
            membership._revoked([0])
        assert sorted(membership.engine.tasks) == [1]
        membership.round()
        membership.round()
        written = [record.value for index in range(2) for record in logs.log("out", int).records(index)]
        assert written == [11]
        assert membership.engine.tasks[1].watermark.low != LOWEST
        membership.leave(graceful=False)


def test_the_end_of_the_input_comes_after_all_records_also_if_the_engine_is_to_stop() -> None:
    scene = Scene()
    scene.feed(1, 2)
    scene.engine.end_input(final=True)
    scene.engine.is_stopping = True
    assert scene.engine.step(idle=True) is None
    assert not scene.engine.has_ended
    scene.engine.is_stopping = False
    checkpoints = scene.steps()
    assert [outputs(checkpoint) for checkpoint in checkpoints] == [[1, 3], [-1]], "records, then the end: its timer"
    assert [checkpoint.ending for checkpoint in checkpoints] == [None, 0]
    assert scene.engine.has_ended
