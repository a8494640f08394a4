"""ThreadedPool: threads that are started once and waited for; the part that both pools share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Generic, TypeVar

from penstock.clock import Duration, duration
from penstock.errors import Conflict

S = TypeVar("S")


class ThreadedPool(Generic[S]):
    """Threads, each with its own status."""

    def __init__(self, statuses: list[S]) -> None:
        """Start nothing yet."""
        self.statuses = statuses
        self._threads: list[threading.Thread] = []

    def _launch(self, threads: Iterable[threading.Thread]) -> None:
        if self._threads:
            raise Conflict("this pool was started before.", hint="Create a new pool.")
        self._threads = list(threads)
        for thread in self._threads:
            thread.start()

    def wait(self, timeout: Duration | None = None) -> list[S]:
        """Wait until all threads have ended.

        Args:
            timeout: at most so long; by default without end

        Returns:
            their statuses
        """
        deadline = None if timeout is None else time.monotonic() + duration(timeout, name="timeout").total_seconds()
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self.statuses

    @property
    def done(self) -> bool:
        """Whether all threads were started and have ended."""
        return bool(self._threads) and all(thread.ident and not thread.is_alive() for thread in self._threads)
