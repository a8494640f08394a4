"""Turns: the processes that write to one file take turns, so that none has it for itself while another waits.

SQLite has no queue for its write lock: waiters poll, so one of two busy processes would get it nearly every time. So
before a transaction begins, its process takes a turn. Two lock files do that: ``next`` is held by the one process that
is waiting for its turn, and a process that wants the turn has to hold ``next`` first. So a process that has just had
its turn cannot take it again before the one that waited.

This is a courtesy and not what keeps the file sound: that is SQLite's own lock. Where no lock file can be made, or a
stopped process keeps one, the others continue without. A lock goes with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from pathlib import Path

EAGER_SECONDS, LAZY_SECONDS, EAGER_FOR = 0.00005, 0.001, 0.02  # how often it is looked whether a lock is free
PATIENCE_SECONDS = 5.0
UNFAIR_SECONDS = 10.0  # after somebody's turn did not end
_never = threading.Event()


class Turns:
    """The turns of one handle on a file; whoever takes one passes it on."""

    def __init__(self, path: Path, patience: float) -> None:
        """``patience`` is how long to wait for a turn, in seconds."""
        self._path = path
        self._patience = min(patience, PATIENCE_SECONDS)
        self._handles: tuple[int, int] | None = None
        self._has_turn = False
        self._unfair_until = 0.0

    def take(self) -> bool:
        """Wait for a turn; False: continue without one."""
        now = time.monotonic()
        if now < self._unfair_until:
            return False
        handles = self._handles or self._open()
        if handles is None:
            return False
        deadline = now + self._patience
        following, turn = handles
        if _wait_for(following, deadline):
            self._has_turn = _wait_for(turn, deadline)
            _let_go(following)
        if not self._has_turn:
            self._unfair_until = time.monotonic() + UNFAIR_SECONDS
        return self._has_turn

    def pass_on(self) -> None:
        """Let the next process have its turn."""
        if self._has_turn and self._handles is not None:
            self._has_turn = False
            _let_go(self._handles[1])

    def _open(self) -> tuple[int, int] | None:
        handles: list[int] = []
        try:
            for name in ("next", "turn"):
                handles.append(_open_beside(self._path, name))
        except OSError:
            for handle in handles:
                os.close(handle)
            self._unfair_until = time.monotonic() + UNFAIR_SECONDS
            return None
        self._handles = (handles[0], handles[1])
        return self._handles

    def forked(self) -> None:
        """In a child: a lock that the parent takes later must not live on in the child, so let go of its handles."""
        self._has_turn = False
        self.close()

    def close(self) -> None:
        """Let go of the lock files; the next turn opens them again."""
        handles, self._handles = self._handles, None
        for handle in handles or ():
            with contextlib.suppress(OSError):
                os.close(handle)


def _open_beside(path: Path, name: str) -> int:
    """A lock file beside the database, for all who may write the database."""
    beside = f"{path}-{name}"
    try:
        return os.open(beside, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):
            os.fchmod(handle, path.stat().st_mode & 0o666)
        return handle


def _wait_for(handle: int, deadline: float) -> bool:
    """Lock a file within some time. It is looked at again and again: a lock that is waited for has no deadline."""
    eager_until = 0.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            eager_until = eager_until or now + EAGER_FOR
            if now >= deadline:
                return False
            _never.wait(EAGER_SECONDS if now < eager_until else LAZY_SECONDS)
        except OSError:  # a file system without such locks
            return False
        else:
            return True


def _let_go(handle: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
