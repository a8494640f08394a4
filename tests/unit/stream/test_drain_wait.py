"""A drain does not wait for a thread that waits for records."""

import threading
from typing import Any

import pytest
from tests.contract.stream.shorthand import fill, numbers, told

import penstock
from penstock.stream import LocalRunner, Topology, computation
from penstock.stream.local import thread

PATIENCE = 60.0


def test_a_thread_that_is_drained_looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears of the drain during its work, and must not wait for more records after it."""
    monkeypatch.setattr(thread, "LOOK", PATIENCE)
    hurried = threading.Event()
    hurry = thread.StreamThread.hurry

    def watched(self: thread.StreamThread) -> None:
        hurry(self)
        hurried.set()

    monkeypatch.setattr(thread.StreamThread, "hurry", watched)

    @computation("busy", inputs="in")
    def busy(record: Any, ctx: Any) -> None:
        assert hurried.wait(PATIENCE)

    with penstock.open_logs("memory://") as logs:
        fill(logs, "in", numbers(1))
        runner = LocalRunner(Topology("draining").stream("in", int).add(busy), logs).start()
        assert runner.drain(f"{PATIENCE / 2:g}s"), told(runner)
