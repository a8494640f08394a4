"""State of long keys: whatever goes away at once, no record of the state log is larger than the log takes."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.ids import new_id
from penstock.stream import LocalRunner, Topology, Value, computation
from penstock.stream.engine.blocks import BYTES, block_entries, block_of

LONG = [f"{number:04}-" + "k" * 1100 for number in range(1200)]


@computation("c", inputs="in", outputs="out", states=[Value("v", int)])
def remember(record: Any, ctx: Any) -> None:
    if record.value < 0:
        ctx.value("v").clear()
    else:
        ctx.value("v").set(record.value)
        ctx.set_timer(record.time_us + 1_000_000)


@remember.timer
def forget(timer: Any, ctx: Any) -> None:
    ctx.value("v").clear()


def topology() -> Topology:
    return Topology("long").stream("in", int).stream("out", int).add(remember)


@pytest.mark.parametrize("by", ["records", "timers"])
def test_many_long_keys_are_forgotten_in_one_checkpoint(by: str) -> None:
    with penstock.open_logs(f"memory://{new_id()}?record_limit=1000000") as logs:
        logs.create("in")
        with logs.appender("in") as out:
            out.append_many([1] * len(LONG), keys=LONG, timestamps=[10**15] * len(LONG))
        assert LocalRunner(topology(), logs, checkpoint_records=10_000).start().drain("30s")
        if by == "records":
            with logs.appender("in") as out:
                out.append_many([-1] * len(LONG), keys=LONG, timestamps=[10**15] * len(LONG))
        runner = LocalRunner(topology(), logs, checkpoint_records=10_000).start()
        assert runner.drain("30s", final=by == "timers"), runner.status()


def test_entries_are_small_whatever_they_hold() -> None:
    values = dict.fromkeys(LONG, 1)
    entries = list(block_entries("v", "", values, LONG))
    assert max(len(entry.payload or b"") for entry in entries) <= BYTES
    kept: dict[str, Any] = {}
    gone: list[str] = []
    for entry in entries:
        some, others = block_of(entry)
        kept |= some
        gone += others
        assert entry.expires == len(some) + len(others)
    assert (kept, gone) == (values, LONG)


def test_a_sum_of_floats_that_cannot_be_added_leaves_the_others_right() -> None:
    """What was folded of a batch before the value that fails must not count twice."""
    from penstock.stream import Policy, running_sum

    with penstock.open_logs(f"memory://{new_id()}") as logs:
        logs.create("in")
        numbers = logs.log("in")
        numbers.append_many([0.5] + [1] * 8 + [10**400], keys=["a"] * 10)
        sums = Topology("sums").stream("in").stream("out")
        sums.add(running_sum("s", "in", "out", approx=True, policy=Policy(on_failure="continue")))
        runner = LocalRunner(sums, logs).start()
        try:
            numbers.append_many([1] * 20, keys=["a"] * 20)
            assert runner.drain("30s")
        finally:
            if not runner.is_terminated:
                runner.shutdown()
        assert [record.value for record in logs.log("out").records()][-1] == 28.5
