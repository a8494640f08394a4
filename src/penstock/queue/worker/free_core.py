"""FreeCore: whether this machine has a core to spare for a round trip beside the handlers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LOOK_SECONDS = 0.2
FIRST_LOOK_SECONDS = 0.05  # so that a worker that starts before a backlog soon knows
ENOUGH = 0.4  # of one core, idle since the last look


class FreeCore:
    """Looks a few times a second at what the cores have been doing. For the threads of one worker."""

    def __init__(self, idle_seconds: Callable[[], float | None] | None = None) -> None:
        """Take no core for free until it was seen."""
        self._idle_seconds = idle_seconds or idle_seconds_of_all_cores
        self._is_free = False
        self._pause = FIRST_LOOK_SECONDS
        self._looked_at = time.monotonic()
        self._idle = self._idle_seconds()

    def is_free(self) -> bool:
        """Whether a core was idle lately; where the system does not tell, whether there is a second one."""
        now = time.monotonic()
        if now - self._looked_at >= self._pause:
            self._pause = LOOK_SECONDS
            before, self._idle = self._idle, self._idle_seconds()
            if before is None or self._idle is None:
                self._is_free = (os.cpu_count() or 1) > 1
            else:
                self._is_free = self._idle - before >= ENOUGH * (now - self._looked_at)
            self._looked_at = now
        return self._is_free


def idle_seconds_of_all_cores() -> float | None:
    """How long cores have been idle since the start of the machine, added up, or None where nobody counts that."""
    try:
        with open("/proc/stat", "rb") as file:
            fields = file.readline().split()
        # cpu user nice system idle iowait ...: who waits for a disk leaves the core to others.
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
