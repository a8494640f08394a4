"""The doorbell: a watch on one node that is set by every commit after which something may be claimable."""

from __future__ import annotations

import threading
from typing import Any

from penstock.queue.stores.zookeeper.session import Session


class Bell:
    """Rings of this process and, while watched, of the others."""

    def __init__(self) -> None:
        """Start silent."""
        self._change = threading.Condition()
        self._watching = False
        self._closed = False
        self.rings = 0

    def ring(self) -> None:
        """Wake all who wait."""
        with self._change:
            self.rings += 1
            self._change.notify_all()

    def listen(self, session: Session, path: str) -> int:
        """Be told of what comes from now on; how often it has rung so far. Without a connection a worker polls."""
        if not self._watching and not self._closed and session.connected:
            self._watching = True
            if not session.watch(path, self._rang):
                self._watching = False
        return self.rings

    def _rang(self, _: Any) -> None:
        self._watching = False
        self.ring()

    def flapped(self) -> None:
        """The connection came or went, and the watch with it: nobody knows what was missed."""
        self._watching = False
        self.ring()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until it has rung since ``seen``."""
        with self._change:
            return self._change.wait_for(lambda: self.rings != seen or self._closed, max(0.0, seconds))

    def close(self) -> None:
        """Let everybody go who waits."""
        self._closed = True
        self.ring()
