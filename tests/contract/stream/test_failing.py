"""Failures: retries with real pauses, dead letters, stopping, batches, discarded attempts, restarts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, numbers, records, told, values, wait_until

from penstock.log.store import LogStore
from penstock.policy import Batching, Reject, Retry
from penstock.stream.computation import Policy, computation
from penstock.stream.state import List, Value
from penstock.stream.topology import Topology

QUICK = Retry(attempts=3, backoff="5ms", jitter=False)


class Fails:
    """Fails at some values, so many times."""

    def __init__(self, **times: int) -> None:
        self.left = Counter({int(value[1:]): count for value, count in times.items()})
        self.calls: list[int] = []
        self.at: list[float] = []

    def __call__(self, record: Any, ctx: Any) -> None:
        """One record: keeps it, produces it, and fails in the end."""
        self.calls.append(record.value)
        self.at.append(time.monotonic())
        ctx.produce("out", record.value)
        kept = ctx.list("seen")
        kept.append(record.value)
        ctx.produce("out", -len(kept.items()))
        if self.left[record.value]:
            self.left[record.value] -= 1
            raise RuntimeError(f"no {record.value} today")


def failing(function: Any, policy: Policy | None = None, partitions: int = 1, **options: Any) -> Topology:
    made = computation("fails", inputs="in", outputs="out", states=[List("seen", int)], **options)(function)
    topology = Topology("failing", partitions=partitions).stream("in", int).stream("out", int)
    return topology.add(made, policy=policy)


def good(numbers: list[int]) -> list[int]:
    """What Fails produces for records of one key that did not fail."""
    return [one for rank, number in enumerate(numbers) for one in (number, -(rank + 1))]


class TestFailures:
    """Nothing of a failed attempt is ever seen."""

    @pytest.fixture(autouse=True)
    def ten(self, logs: LogStore) -> None:
        """Ten records of one key."""
        fill(logs, "in", [("k", number, number + 1) for number in range(10)])

    def test_the_default_stops_and_leaves_the_record(self, logs: LogStore, runner: Run) -> None:
        running = runner(failing(Fails(v6=99))).start()
        assert not running.drain("20s")
        assert values(logs, "out") == good(list(range(6)))
        assert logs.lag("in", "fails").lag == 4
        [status] = running.status()
        assert (status.state, status.error) == ("failed", "RuntimeError: no 6 today")
        drained(runner, failing(Fails()))
        assert values(logs, "out") == good(list(range(10))), "the next one goes on"

    def test_retries_that_finally_succeed(self, logs: LogStore, runner: Run) -> None:
        function = Fails(v3=2, v7=1)
        policy = Policy(retry=Retry(attempts=3, delays=["100ms"], jitter=False))
        done = drained(runner, failing(function, policy))
        assert values(logs, "out") == good(list(range(10)))
        assert done.metrics["failures"] == 3
        tries = [at for call, at in zip(function.calls, function.at, strict=True) if call == 3]
        assert tries[-1] - tries[-2] >= 0.1, "the pause is real"

    def test_continue_puts_it_into_the_dead_letters(self, logs: LogStore, runner: Run) -> None:
        function = Fails(v0=99, v5=99, v9=99)
        done = drained(runner, failing(function, Policy(retry=QUICK, on_failure="continue")))
        assert values(logs, "out") == good([1, 2, 3, 4, 6, 7, 8])
        assert logs.lag("in", "fails").lag == 0
        assert done.metrics["skipped"] == 3
        dead = records(logs, "fails.dead")
        assert [one.value for one in dead] == [0, 5, 9]
        assert dead[1].key == "k"
        assert dead[1].time_us == 6
        assert dead[1].headers["penstock-error"] == "RuntimeError: no 5 today"
        assert dead[1].headers["penstock-attempts"] == "3"
        assert function.calls.count(5) == 3, "no more attempts than allowed"

    def test_a_key_that_is_no_text(self, logs: LogStore, runner: Run) -> None:
        """Logs take any bytes; state is kept by text. It is a failure of that record, not of the computation."""
        with logs.appender("in") as out:
            out.append(10, key=b"\xff\xfe", timestamp=11)
            out.append(11, key="k", timestamp=12)
        drained(runner, failing(Fails(), Policy(on_failure="continue")))
        assert values(logs, "out") == good([*range(10), 11])
        [dead] = records(logs, "fails.dead")
        assert (dead.value, dead.key) == (10, b"\xff\xfe".decode("utf-8", "surrogateescape"))
        assert "not UTF-8" in str(dead.headers["penstock-error"])

    def test_without_dead_letters_it_is_gone(self, logs: LogStore, runner: Run) -> None:
        drained(runner, failing(Fails(v5=99), Policy(on_failure="continue", dead_letters=False)))
        assert values(logs, "out") == good([0, 1, 2, 3, 4, 6, 7, 8, 9])
        assert values(logs, "fails.dead") == []

    def test_reject_is_not_tried_again(self, logs: LogStore, runner: Run) -> None:
        calls = []

        def rejects(record: Any, ctx: Any) -> None:
            calls.append(record.value)
            ctx.produce("out", record.value)
            if record.value == 4:
                raise Reject("not for us")

        drained(runner, failing(rejects, Policy(retry=QUICK, on_failure="continue")))
        assert values(logs, "out") == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert calls.count(4) == 1

    def test_what_cannot_be_decoded_is_a_dead_letter(self, logs: LogStore, runner: Run) -> None:
        with logs.appender("in", bytes) as out:
            out.append(b"{torn", key="k")
        drained(runner, failing(Fails(), Policy(retry=QUICK, on_failure="continue")))
        assert values(logs, "out") == good(list(range(10)))
        assert [one.payload for one in records(logs, "fails.dead")] == [b"{torn"]

    def test_the_first_failures_can_be_skipped(self, logs: LogStore, runner: Run) -> None:
        running = runner(failing(Fails(v2=99, v6=99), Policy(skip_first=1))).start()
        assert not running.drain("20s")
        assert values(logs, "out") == good([0, 1, 3, 4, 5])
        assert logs.lag("in", "fails").lag == 4

    def test_a_failing_timer(self, logs: LogStore, runner: Run) -> None:
        calls: Counter[str] = Counter()

        @computation("rings", inputs="in", outputs="out", states=[Value("n", int, 0)])
        def rings(record: Any, ctx: Any) -> None:
            ctx.produce("out", record.value)
            ctx.set_timer(1, f"t{record.value}")

        @rings.timer
        def ring(timer: Any, ctx: Any) -> None:
            calls[timer.name] += 1
            ctx.value("n").set(ctx.value("n").get() + 1)
            ctx.produce("out", 100 * ctx.value("n").get())
            if timer.name == "t3" or (timer.name == "t5" and calls["t5"] < 3):
                raise RuntimeError("not now")

        topology = Topology("rings").stream("in", int).stream("out", int)
        drained(runner, topology.add(rings, policy=Policy(retry=QUICK, on_failure="continue")))
        assert values(logs, "out") == [*range(10), *range(100, 1000, 100)], "nine timers, each once"
        assert calls["t3"] == 3
        assert [one.key for one in records(logs, "rings.dead")] == ["k"]

    def test_a_slow_record_does_not_end_a_drain_early(self, logs: LogStore, runner: Run) -> None:
        slept = threading.Event()

        def slow(record: Any, ctx: Any) -> None:
            if record.value in (3, 8):
                slept.wait(0.4)
            ctx.produce("out", record.value)

        drained(runner, failing(slow))
        assert values(logs, "out") == list(range(10))

    def test_stop_does_not_wait_for_a_long_pause(self, logs: LogStore, runner: Run) -> None:
        running = runner(failing(Fails(v3=99), Policy(retry=Retry(attempts=9, delays=["1h"])))).start()
        wait_until(lambda: running.metrics["failures"] == 1, "it has failed once")
        began = time.monotonic()
        assert running.stop("10s")
        assert time.monotonic() - began < 5
        assert values(logs, "out") == good([0, 1, 2])

    def test_an_error_of_the_store_restarts_the_instance(self, logs: LogStore, runner: Run) -> None:
        """The bell tolls for one who comes back."""
        from penstock.errors import StoreUnavailable

        transact = logs.transact
        left = [2]

        def broken(commit: Any) -> Any:
            if left[0] and commit.outputs and commit.offsets:
                left[0] -= 1
                raise StoreUnavailable("the disk is away for a moment.")
            return transact(commit)

        logs.transact = broken  # type: ignore[method-assign]
        running = runner(failing(Fails()), restart_backoff="10ms").start()
        wait_until(lambda: len(values(logs, "out")) == 20, "it recovers")
        assert running.metrics["restarts"] == 2
        assert running.drain("20s"), told(running)
        assert values(logs, "out") == good(list(range(10)))


class TestBatches:
    """Several records at once."""

    @staticmethod
    def topology(function: Any, policy: Policy | None = None, **batch: Any) -> Topology:
        """One computation that takes batches."""
        made = computation("batches", inputs="in", outputs="out", batch=Batching(**batch), states=[Value("n", int, 0)])
        topology = Topology("batches").stream("in", int).stream("out", list)
        return topology.add(made(function), policy=policy)

    def test_full_batches_and_the_rest_after_a_while(self, logs: LogStore, runner: Run) -> None:
        def take(batch: Any, ctx: Any) -> None:
            ctx.produce("out", [record.value for record in batch], key=None)

        fill(logs, "in", numbers(7))
        running = runner(self.topology(take, size=3, linger="1s")).start()
        wait_until(lambda: len(values(logs, "out")) >= 2, "two full ones")
        assert values(logs, "out")[:2] == [[0, 1, 2], [3, 4, 5]]
        assert logs.lag("in", "batches").lag == 1
        wait_until(lambda: values(logs, "out")[2:] == [[6]], "the rest")
        assert running.drain("20s")

    def test_a_drain_does_not_wait_for_a_batch_to_fill(self, logs: LogStore, runner: Run) -> None:
        def take(batch: Any, ctx: Any) -> None:
            ctx.produce("out", [record.value for record in batch], key=None)

        fill(logs, "in", numbers(7))
        drained(runner, self.topology(take, size=5, linger="1h"))
        assert values(logs, "out") == [[0, 1, 2, 3, 4], [5, 6]]

    def test_keys_of_a_batch(self, logs: LogStore, runner: Run) -> None:
        def take(batch: Any, ctx: Any) -> None:
            for record in batch:
                ctx.use(record)
                ctx.value("n").set(ctx.value("n").get() + 1)
                ctx.produce("out", [ctx.key, ctx.value("n").get()])

        fill(logs, "in", numbers(6, keys=2))
        drained(runner, self.topology(take, size=4, linger="1s"))
        assert values(logs, "out") == [["k0", 1], ["k1", 1], ["k0", 2], ["k1", 2], ["k0", 3], ["k1", 3]]

    def test_a_failing_batch_is_taken_apart(self, logs: LogStore, runner: Run) -> None:
        def take(batch: Any, ctx: Any) -> None:
            for record in batch:
                ctx.produce("out", [record.value, len(batch)])
                if record.value == 4:
                    raise RuntimeError("four")

        fill(logs, "in", numbers(8))
        policy = Policy(retry=QUICK, on_failure="continue")
        drained(runner, self.topology(take, policy, size=3, linger="1s"))
        assert values(logs, "out") == [[0, 3], [1, 3], [2, 3], [3, 1], [5, 1], [6, 2], [7, 2]]
        assert values(logs, "batches.dead") == [4]

    def test_stop_keeps_what_was_not_done(self, logs: LogStore, runner: Run) -> None:
        def take(batch: Any, ctx: Any) -> None:
            raise RuntimeError("never")

        fill(logs, "in", numbers(3))
        running = runner(self.topology(take, size=2, linger="200ms")).start()
        assert not running.drain("20s")
        assert logs.lag("in", "batches").lag == 3
