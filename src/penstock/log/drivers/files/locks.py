"""Locks between processes: byte ranges of a file that the kernel frees when their holder dies.

These are open file description locks. They belong to one open file, so two handles within a process exclude each other
as two processes do, and closing another descriptor of the same file frees nothing.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import StoreUnavailable
from penstock.log.drivers.files.private import FILE_MODE

_FLOCK = struct.Struct("hhqqi4x")
_SET, _GET = 37, 36  # F_OFD_SETLK and F_OFD_GETLK on Linux
PATIENCE = 30.0  # seconds to wait for a lock that a running process holds for microseconds
_never = threading.Event()


def _request(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


class LockFile:
    """A file whose byte ranges are locked, with a descriptor of its own."""

    def __init__(self, path: str) -> None:
        """Open or create the file."""
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        _files.add(self)

    def try_lock(self, start: int, length: int = 1, *, shared: bool = False) -> bool:
        """Lock without waiting. Returns False if it is locked."""
        try:
            fcntl.fcntl(self.fd, _SET, _request(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, start, length))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def lock(self, start: int, length: int = 1, *, shared: bool = False) -> None:
        """Lock. Raises ``StoreUnavailable`` if another process holds the lock for too long."""
        if self.try_lock(start, length, shared=shared):
            return
        deadline = time.monotonic() + PATIENCE
        pause = 0.00002
        while not self.try_lock(start, length, shared=shared):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self.path} has been locked by another process for {PATIENCE:g} s.",
                    hint="Check whether a process that uses this store is stopped; resume or kill it.",
                )
            _never.wait(pause)
            pause = min(pause * 1.5, 0.002)

    def unlock(self, start: int, length: int = 1) -> None:
        """Unlock."""
        fcntl.fcntl(self.fd, _SET, _request(fcntl.F_UNLCK, start, length))

    def is_locked(self, start: int, length: int = 1, *, shared: bool = False) -> bool:
        """Whether another holder has the lock; with ``shared``, only an exclusive holder counts."""
        return is_locked(self.fd, start, length, shared=shared)

    @contextmanager
    def held(self, start: int, length: int = 1, *, shared: bool = False) -> Iterator[None]:
        """Hold the lock for a block."""
        self.lock(start, length, shared=shared)
        try:
            yield
        finally:
            self.unlock(start, length)

    def close(self) -> None:
        """Close the file, which frees all its locks."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        _files.discard(self)


def is_locked(fd: int, start: int = 0, length: int = 1, *, shared: bool = False) -> bool:
    """Whether another holder has a range locked. The file need not be writable."""
    answer = fcntl.fcntl(fd, _GET, _request(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, start, length))
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK


class PartitionLock:
    """A mutex for the threads of a handle, and one byte of a lock file for processes and other handles."""

    def __init__(self, file: LockFile, start: int) -> None:
        """For one byte."""
        self._file = file
        self._start = start
        self._mutex = threading.RLock()
        self._depth = 0
        # Packed once, as every append needs them.
        self._lock_request = _request(fcntl.F_WRLCK, start, 1)
        self._unlock_request = _request(fcntl.F_UNLCK, start, 1)

    def __enter__(self) -> None:
        """Lock; the same thread may lock again."""
        self._mutex.acquire()
        if self._depth == 0:
            try:
                fcntl.fcntl(self._file.fd, _SET, self._lock_request)
            except (BlockingIOError, PermissionError):
                self._wait()
            except BaseException:
                self._mutex.release()
                raise
        self._depth += 1

    def is_free_within(self, seconds: float) -> bool:
        """Whether the lock is free, or becomes free within a time."""
        deadline = time.monotonic() + seconds
        if not self._mutex.acquire(timeout=seconds):
            return False
        try:
            while self._depth == 0 and not self._file.try_lock(self._start):
                if time.monotonic() > deadline:
                    return False
                _never.wait(0.001)
            if self._depth == 0:
                self._file.unlock(self._start)
            return True
        finally:
            self._mutex.release()

    def _wait(self) -> None:
        try:
            self._file.lock(self._start)
        except BaseException:
            self._mutex.release()
            raise

    def __exit__(self, *_: object) -> None:
        """Unlock."""
        self._depth -= 1
        try:
            if self._depth == 0 and self._file.fd >= 0:
                fcntl.fcntl(self._file.fd, _SET, self._unlock_request)
        finally:
            self._mutex.release()


_files: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _forked() -> None:
    """A forked child shares its parent's locks, and must not keep them alive after the parent dies."""
    for file in list(_files):
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1


os.register_at_fork(after_in_child=_forked)
