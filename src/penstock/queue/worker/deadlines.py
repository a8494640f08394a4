"""Deadlines: one thread per worker that notices attempts whose time is over."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("penstock.queue.worker")


class Deadline:
    """What is called when its time comes, unless it was cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        """``call`` runs in the thread of the deadlines."""
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget it."""
        self.call = None


class Deadlines:
    """Calls functions at their times; the thread is started with the first one, if at all."""

    def __init__(self) -> None:
        """Start without a thread."""
        self._heap: list[tuple[float, int, Deadline]] = []
        self._number = itertools.count()  # so that deadlines at one time are never compared
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, call: Callable[[], None]) -> Deadline:
        """Call a function after this time."""
        deadline = Deadline(call)
        with self._change:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._number), deadline))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-deadlines", daemon=True)
                self._thread.start()
            if self._heap[0][2] is deadline:
                self._change.notify()
        return deadline

    def close(self) -> None:
        """Forget all of them and end the thread; the next use starts another."""
        with self._change:
            self._heap.clear()
            self._thread = None
            self._change.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                logger.exception("an attempt whose time is over could not be ended")

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next that was not cancelled. Returns None when this thread is not wanted any more."""
        with self._change:
            while self._thread is threading.current_thread():
                pause = self._heap[0][0] - time.monotonic() if self._heap else None
                if pause is not None and pause <= 0:
                    call = heapq.heappop(self._heap)[2].call
                    if call is not None:
                        return call
                    continue
                self._change.wait(pause)
            return None
