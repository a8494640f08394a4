"""A process that dies at a named point."""

import os
import signal

from penstock import failpoints


def die_at(point: str, nth: int) -> None:
    """Kill this process when a point is reached for the nth time."""
    left = nth

    def strike(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.arm(strike)
