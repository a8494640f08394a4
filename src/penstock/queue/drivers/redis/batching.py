"""Calls made at the same time go to the server as one: one function call, one round trip and one sync for all of them.

A call that finds nobody on the way goes at once. Calls that come meanwhile wait until that one is back, and then the
first of them takes the others along. So the busier a process is, the fewer round trips each of its calls costs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.errors import OutcomeUnknown

C = TypeVar("C")

MOST_CALLS = 200
MOST_BYTES = 4 * 1024 * 1024


class _PendingCall(Generic[C]):
    """A call and, later, its reply."""

    __slots__ = ("call", "done", "error", "leads", "ready", "reply", "size")

    def __init__(self, call: C, size: int) -> None:
        self.call = call
        self.size = size
        self.ready: threading.Event | None = None  # it is done, or the next to lead, or None for one that leads at once
        self.done = False
        self.leads = False
        self.reply: Any = None
        self.error: BaseException | None = None


class CallBatcher(Generic[C]):
    """Sends calls in groups, one group at a time; a thread waits for its reply, so the order of its calls is kept."""

    def __init__(self, send: Callable[[list[C]], list[Any]]) -> None:
        """``send`` takes calls and gives a reply for each."""
        self._send = send
        self._lock = threading.Lock()
        self._waiting: deque[_PendingCall[C]] = deque()
        self._under_way = False

    def call(self, call: C, size: int) -> Any:
        """Send a call, alone or with others. Returns its reply."""
        mine = _PendingCall(call, size)
        try:
            with self._lock:
                if self._under_way:
                    mine.ready = threading.Event()
                self._waiting.append(mine)
                mine.leads, self._under_way = not self._under_way, True
            if mine.ready is not None:
                mine.ready.wait()
            if not mine.done:
                self._lead(mine)
        except BaseException:
            self._withdraw(mine)
            raise
        if mine.error is not None:
            raise mine.error
        return mine.reply

    def _lead(self, leader: _PendingCall[C]) -> None:
        group = self._next_group()
        try:
            for pending, reply in zip(group, self._send([pending.call for pending in group]), strict=True):
                pending.reply = reply
        except BaseException as error:
            for pending in group:
                pending.error = error
                if pending is not leader and not isinstance(error, Exception):
                    # An interrupt is its own thread's alone.
                    pending.error = OutcomeUnknown(
                        "the call that was sent together with this one was interrupted.",
                        hint="Repeat it with the same ids, or look whether it took effect.",
                    )
        with self._lock:
            for pending in group:
                pending.done = True
            leader.leads = False
            self._hand_on()
        for pending in group:
            if pending.ready is not None:
                pending.ready.set()

    def _hand_on(self) -> None:
        """The first of those who wait leads the next group."""
        self._under_way = bool(self._waiting)
        if self._waiting:
            following = self._waiting[0]
            following.leads = True
            if following.ready is not None:
                following.ready.set()

    def _withdraw(self, mine: _PendingCall[C]) -> None:
        """A call whose thread was interrupted is neither sent nor leads; others must not wait for it."""
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
            if mine.leads:
                mine.leads = False
                self._hand_on()

    def _next_group(self) -> list[_PendingCall[C]]:
        """The calls that go next, in order, from the one who leads on."""
        group: list[_PendingCall[C]] = []
        size = 0
        with self._lock:
            while self._waiting and len(group) < MOST_CALLS:
                size += self._waiting[0].size
                if group and size > MOST_BYTES:
                    break
                group.append(self._waiting.popleft())
        return group
