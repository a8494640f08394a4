"""Calls that travel together: an interrupted one is nobody else's trouble."""

import threading
from typing import Any

import pytest

pytest.importorskip("redis")

from penstock.queue.stores.redis.together import Together


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
    together = Together(wire)
    replies: list[int] = []
    first = start(lambda: replies.append(together.call(1, 1)))
    until(lambda: wire.sent == [[1]])

    def interrupted() -> None:
        with pytest.raises(Interrupted):
            together.call(2, 1)

    second = start(interrupted)
    until(lambda: len(together._waiting) == 1)
    third = start(lambda: replies.append(together.call(3, 1)))
    until(lambda: len(together._waiting) == 2)
    mine = together._waiting[0]

    # What an exception in its wait() does.
    together._step_aside(mine)
    mine.error, mine.landed = Interrupted(), True
    mine.ready.set()
    second.join(10)
    wire.gate.set()
    for thread in (first, third):
        thread.join(10)
        assert not thread.is_alive(), "nobody led them"
    assert sorted(replies) == [1, 3]
    assert together.call(4, 1) == 4


def test_whose_turn_it_is_hands_on_when_interrupted() -> None:
    together = Together(lambda calls: calls)
    with together._lock:
        together._under_way = True
    replies: list[int] = []
    waiting = [start(lambda number=number: replies.append(together.call(number, 1))) for number in range(2)]
    until(lambda: len(together._waiting) == 2)
    with together._lock:
        chosen = together._waiting.popleft()  # as if its thread were gone
        chosen.leads = True
    together._step_aside(chosen)
    chosen.landed, chosen.reply = True, -1
    chosen.ready.set()
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
    assert len(replies) == 2
