"""CommitWatch: waits for a group's commits."""

from __future__ import annotations

import threading
from typing import Any


class CommitWatch:
    """Waits for a group's commits: ``with watch as wait: wait(seconds)`` returns early after a commit.

    This one polls; a driver that can be notified returns its own.
    """

    POLL = 0.02

    def __init__(self) -> None:
        """Open nothing."""
        self._never = threading.Event()

    def __enter__(self) -> Any:
        """The function that waits."""
        return self.wait

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def wait(self, seconds: float) -> None:
        """Sleep briefly."""
        self._never.wait(min(seconds, self.POLL))
