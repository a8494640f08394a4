"""Calls made at the same time go to the server together: one script, one round trip and one sync for all of them.

A call that finds nobody on the way goes at once. Calls that come meanwhile wait for it and then go as one, so the
busier a process is, the fewer round trips each of its calls costs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

C = TypeVar("C")

MOST_CALLS = 200
MOST_BYTES = 4 * 1024 * 1024
FLIGHTS = 1  # groups on the way at once: the server takes them one by one anyway


class _Waiting(Generic[C]):
    """A call and, later, what came of it."""

    __slots__ = ("call", "error", "ready", "reply", "size")

    def __init__(self, call: C, size: int) -> None:
        self.call = call
        self.size = size
        self.ready = threading.Event()
        self.reply: Any = None
        self.error: BaseException | None = None


class Together(Generic[C]):
    """Sends calls in as few groups as possible; the order of one thread's calls is kept, as each waits for its reply."""

    def __init__(self, send: Callable[[list[C]], list[Any]]) -> None:
        """``send`` takes calls and gives a reply for each."""
        self._send = send
        self._lock = threading.Lock()
        self._queue: list[_Waiting[C]] = []
        self._flights = 0

    def call(self, call: C, size: int) -> Any:
        """Send a call, alone or with others; its reply."""
        mine = _Waiting(call, size)
        with self._lock:
            self._queue.append(mine)
            group = self._depart() if self._flights < FLIGHTS else []
        if group:
            self._fly(group)
        # Whoever lands takes the next group along, so this may be ready already, or be part of a later flight.
        mine.ready.wait()
        if mine.error is not None:
            raise mine.error
        return mine.reply

    def _depart(self) -> list[_Waiting[C]]:
        group: list[_Waiting[C]] = []
        size = 0
        for waiting in self._queue[:MOST_CALLS]:
            size += waiting.size
            if group and size > MOST_BYTES:
                break
            group.append(waiting)
        del self._queue[: len(group)]
        if group:
            self._flights += 1
        return group

    def _fly(self, group: list[_Waiting[C]]) -> None:
        while group:
            try:
                replies = self._send([waiting.call for waiting in group])
                for waiting, reply in zip(group, replies, strict=True):
                    waiting.reply = reply
            except BaseException as error:
                for waiting in group:
                    waiting.error = error
            for waiting in group:
                waiting.ready.set()
            with self._lock:
                self._flights -= 1
                group = self._depart()
