"""The doorbell: a watch on one node that is set by every commit after which something may be claimable."""

from __future__ import annotations

from typing import Any

from penstock.queue.drivers.zookeeper.connection import Connection
from penstock.queue.wakeup import Bell


class Doorbell:
    """Rings of this process and, while watched, of the others."""

    def __init__(self) -> None:
        """Start silent."""
        self._bell = Bell()
        self._watching = False
        self._closed = False

    def ring(self) -> None:
        """Wake all who wait."""
        self._bell.ring()

    def listen(self, connection: Connection, path: str) -> int:
        """Listen from now on. Returns how often it has rung so far. Without a connection a worker polls."""
        if not self._watching and not self._closed and connection.connected:
            self._watching = True
            if not connection.watch(path, self._rang):
                self._watching = False
        return self._bell.rings

    def _rang(self, _: Any) -> None:
        self.flapped()

    def flapped(self) -> None:
        """The watch is gone: it has rung, or the connection came or went and rings may have been missed."""
        self._watching = False
        self._bell.ring()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until it has rung since ``seen``."""
        return self._bell.wait(seen, max(0.0, seconds))

    def forked(self) -> None:
        """In a child: the watch is the parent's."""
        self._watching = False
        self._bell.forked()

    def close(self) -> None:
        """Let everybody go who waits."""
        self._closed = True
        self._bell.close()
