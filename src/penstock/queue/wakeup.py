"""Bell: how those who wait for work in this process are woken."""

from __future__ import annotations

import threading
import time


class Bell:
    """Counts how often work may have arrived; who waits compares."""

    def __init__(self) -> None:
        """Start silent."""
        self._changed = threading.Condition()
        self.rings = 0
        self.waiting = 0  # how many wait
        self._closed = False

    def ring(self) -> None:
        """Wake everybody who waits."""
        with self._changed:
            self.rings += 1
            if self.waiting:
                self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until it has rung since ``seen``, or the time is over. Returns whether it rang."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self.waiting += 1
            if self.waiting == 1:
                self._changed.notify_all()
            try:
                while self.rings == seen and not self._closed:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    self._changed.wait(left)
            finally:
                self.waiting -= 1
        return True

    def await_waiters(self) -> bool:
        """Sleep until somebody waits, or it is closed. Returns whether it is open."""
        with self._changed:
            while not self.waiting and not self._closed:
                self._changed.wait()
        return not self._closed

    def forked(self) -> None:
        """In a child: nobody waits, and the lock may have been somebody's of the parent."""
        self._changed = threading.Condition()
        self.waiting = 0

    def close(self) -> None:
        """Let everybody go, now and from now on."""
        with self._changed:
            self._closed = True
            self.rings += 1
            self._changed.notify_all()
