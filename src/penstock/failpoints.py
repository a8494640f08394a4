"""Named points at which tests let a process die, stop or fail; in production each is a call that does nothing."""

from __future__ import annotations

from collections.abc import Callable

_strike: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Say that this point is reached."""
    if _strike is not None:
        _strike(name)


def arm(strike: Callable[[str], None] | None) -> None:
    """Call ``strike`` with the name of every point reached. None disarms."""
    global _strike  # noqa: PLW0603 - one process, one test, one strike
    _strike = strike
