"""Which process this is: another one after a fork. Cheaper to compare than a pid is to ask the system for."""

from __future__ import annotations

import os


class Process:
    """Stands for one process."""


_this = Process()


def this_process() -> Process:
    """The object that stands for this process; compare with ``is``."""
    return _this


def _forked() -> None:
    global _this  # noqa: PLW0603 - a fork makes it another process, and nothing else does
    _this = Process()


os.register_at_fork(after_in_child=_forked)
