"""Which process this is: another one after a fork, in which connections, threads and held locks are not ours.

Cheaper to compare than a pid is to ask the system for.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What has to leave something behind in a forked child."""

    def forked(self) -> None:
        """This is the child: start over, and touch nothing of the parent's."""


class Process:
    """Stands for one process."""


_this = Process()


def this_process() -> Process:
    """The object that stands for this process. Compare it with ``is``."""
    return _this


_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_of_forks(resource: Forkable) -> None:
    """Call ``resource.forked()`` in every child process that is forked while the resource lives."""
    _forkable.add(resource)


def _forked() -> None:
    global _this  # noqa: PLW0603 - a fork makes it another process, and nothing else does
    _this = Process()
    for resource in list(_forkable):
        resource.forked()


os.register_at_fork(after_in_child=_forked)
