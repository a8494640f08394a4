"""A checkpoint that fails has rewritten nothing: the state of those who did nothing wrong outlives it."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import Retry, open_logs
from penstock.stream import Computation, Context, LocalRunner, Policy, Topology, Value


class Counts(Computation):
    """Counts; -1 puts a text where a number belongs."""

    name, inputs, outputs = "counts", "in", "out"
    states = (Value("n", int, 0),)

    def process(self, record: Any, ctx: Context) -> None:
        number = ctx.value("n")
        if record.value == -1:
            number.set("text")
            return
        number.set(number.get() + 1)
        ctx.produce("out", number.get())


def topology() -> Topology:
    made = Topology("t", partitions=2).stream("in", int).stream("out", int)
    return made.add(Counts, policy=Policy(on_failure="continue", retry=Retry(attempts=1)))


def test_idle_keys_keep_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stream.engine.changelog.SMALL", 50)
    logging.disable(logging.CRITICAL)
    idle = 100
    try:
        with open_logs(f"file://{tmp_path}/logs?durability=fast") as store:
            store.create("in", 2)
            with store.appender("in", int) as source:
                keys = [f"idle{number}" for number in range(idle)]
                source.append_many([1] * idle, keys=keys, partition=0)
                runner = LocalRunner(topology(), store, read=40, checkpoint_records=40).start()
                for _ in range(60):
                    source.append_many([1] * 20, keys=[f"hot{number}" for number in range(20)], partition=0)
                    source.append_many([1] * 3 + [-1] + [1] * 3, keys=["p"] * 7, partition=1)
                    time.sleep(0.005)
                assert runner.drain("60s")
                source.append_many([1] * idle, keys=keys, partition=0)
            assert LocalRunner(topology(), store).start().drain("60s")
            found: dict[str, list[int]] = {}
            for part in range(2):
                for record in store.log("out", int).records(part):
                    found.setdefault(record.key or "", []).append(record.value)
            assert [found[key] for key in keys] == [[1, 2]] * idle
    finally:
        logging.disable(logging.NOTSET)
