"""Calls that travel together: an interrupted one is nobody else's trouble."""

import threading
from typing import Any

import pytest

pytest.importorskip("redis")

from penstock.queue.drivers.redis.batching import CallBatcher


class Held:
    """A wire on which calls wait until they are let through."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sent: list[list[int]] = []

    def __call__(self, calls: list[int]) -> list[int]:
        self.sent.append(calls)
        assert self.gate.wait(10)
        return calls


class Interrupted(BaseException):
    """As a signal handler raises it."""


def start(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def until(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return
        pause.wait(0.005)
    pytest.fail("it never came to be")


def test_a_waiting_call_that_is_interrupted_leads_nobody() -> None:
    wire = Held()
    batcher = CallBatcher(wire)
    replies: list[int] = []
    first = start(lambda: replies.append(batcher.call(1, 1)))
    until(lambda: wire.sent == [[1]])

    def interrupted() -> None:
        with pytest.raises(Interrupted):
            batcher.call(2, 1)

    second = start(interrupted)
    until(lambda: len(batcher._waiting) == 1)
    third = start(lambda: replies.append(batcher.call(3, 1)))
    until(lambda: len(batcher._waiting) == 2)
    mine = batcher._waiting[0]

    # What an exception in its wait() does.
    batcher._withdraw(mine)
    mine.error, mine.done = Interrupted(), True
    assert mine.ready is not None
    mine.ready.set()
    second.join(10)
    wire.gate.set()
    for thread in (first, third):
        thread.join(10)
        assert not thread.is_alive(), "nobody led them"
    assert sorted(replies) == [1, 3]
    assert batcher.call(4, 1) == 4


def test_whose_turn_it_is_hands_on_when_interrupted() -> None:
    batcher = CallBatcher(lambda calls: calls)
    with batcher._lock:
        batcher._under_way = True
    replies: list[int] = []
    waiting = [start(lambda number=number: replies.append(batcher.call(number, 1))) for number in range(2)]
    until(lambda: len(batcher._waiting) == 2)
    with batcher._lock:
        chosen = batcher._waiting.popleft()  # as if its thread were gone
        chosen.leads = True
    batcher._withdraw(chosen)
    chosen.done, chosen.reply = True, -1
    assert chosen.ready is not None
    chosen.ready.set()
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
    assert len(replies) == 2
