"""Waiting for records and commits: inotify on the folders of partitions and groups, or else adaptive polling."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.log.commit_watch import CommitWatch
from penstock.log.drivers.files.format.segments import listed
from penstock.log.drivers.shared.membership import Watch
from penstock.log.record import Partition

logger = logging.getLogger("penstock.log")

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_CREATE, IN_DELETE, IN_MOVED_TO = 0x2, 0x4, 0x8, 0x100, 0x200, 0x80
# A write wakes readers a moment before it becomes visible, so that both overlap; a reader that is too early sees that
# an append is under way. In the durable profile, the file is touched once its records are on disk.
DATA_EVENTS = IN_MODIFY | IN_ATTRIB
GROUP_EVENTS = IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_TO
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01  # seconds, for adaptive polling

_libc = ctypes.CDLL(None, use_errno=True)


def _last_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), what)


class Inotify:
    """An inotify descriptor, and an eventfd to end a wait."""

    def __init__(self) -> None:
        """Open both. Raises OSError if inotify is missing or the user's limit is reached."""
        self._fd = _libc.inotify_init1(_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise _last_error("inotify")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._wake_fd, select.POLLIN)

    def watch(self, folder: Path, mask: int) -> int:
        """Watch a folder. Returns the number of the watch."""
        number: int = _libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if number < 0:
            raise _last_error(str(folder))
        return number

    def forget(self, number: int) -> None:
        """Remove a watch."""
        _libc.inotify_rm_watch(self._fd, number)

    def wait(self, seconds: float) -> set[int]:
        """Wait for events. Returns the numbers of the watches, which is empty after :meth:`wake` or the timeout."""
        watches: set[int] = set()
        raw = b""
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000):
            with contextlib.suppress(BlockingIOError):
                if fd == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                else:
                    raw = os.read(self._fd, 4096)  # unread events end the next wait at once
        at = 0
        while at < len(raw):
            number, _, _, length = _EVENT.unpack_from(raw, at)
            watches.add(number)
            at += _EVENT.size + length
        return watches

    def wake(self) -> None:
        """End a wait in another thread."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close both descriptors."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._wake_fd)
            self._fd = -1


class FolderWatch(Watch):
    """Waits for partitions and a group with inotify."""

    def __init__(self, folder: Callable[[Partition], Path], group: Sequence[Path]) -> None:
        """Watch the group's folders; partitions are added by :meth:`follow`."""
        self._folder = folder
        self._notify = Inotify()
        self._followed: dict[Partition, int] = {}
        try:
            self._group = {self._notify.watch(path, GROUP_EVENTS) for path in group}
        except OSError:
            self._notify.close()
            raise

    def follow(self, partitions: Sequence[Partition]) -> None:
        """Watch these partitions and no others."""
        wanted = set(partitions)
        for partition in self._followed.keys() - wanted:
            self._notify.forget(self._followed.pop(partition))
        for partition in partitions:
            if partition not in self._followed:
                try:
                    self._followed[partition] = self._notify.watch(self._folder(partition), DATA_EVENTS)
                except OSError as error:
                    if error.errno == errno.ENOENT:
                        listed(self._folder(partition))  # raises the error that says what is missing
                    if error.errno != errno.ENOSPC:
                        raise
                    # The user's limit of watches is reached; the source also polls every few milliseconds.
                    logger.warning("no inotify watch for %s: %s; its records are seen a little later", partition, error)
                    return

    def wait(self, seconds: float) -> bool:
        """Sleep until an event."""
        watches = self._notify.wait(seconds)
        self.saw_write = bool(watches - self._group)
        return not self._group.isdisjoint(watches)

    def wake(self) -> None:
        """End a wait."""
        self._notify.wake()

    def close(self) -> None:
        """Close inotify."""
        self._notify.close()


class PollingWatch(Watch):
    """Pauses between polls, longer and longer while nothing comes."""

    def __init__(self) -> None:
        """Start with short pauses."""
        self._pause = SHORTEST_PAUSE
        self._woken = threading.Event()

    def follow(self, partitions: Sequence[Partition]) -> None:
        """Every poll checks all partitions."""

    def wait(self, seconds: float) -> bool:
        """Pause."""
        self._pause = SHORTEST_PAUSE if seconds < self._pause else min(self._pause * 1.3, LONGEST_PAUSE)
        self._woken.wait(min(seconds, self._pause))
        return False

    def wake(self) -> None:
        """End a wait."""
        self._woken.set()

    def close(self) -> None:
        """Nothing to close."""


def watch_for(folder: Callable[[Partition], Path], group: Sequence[Path]) -> Watch:
    """A watch with inotify, or with polling if inotify is not available."""
    try:
        return FolderWatch(folder, group)
    except OSError as error:
        logger.warning("inotify is not available, polling instead: %s", error)
        return PollingWatch()


class FolderCommitWatch(CommitWatch):
    """Waits for commits in a group's folder with inotify, once the folder exists."""

    def __init__(self, folder: Path) -> None:
        """``folder`` has the group's offsets."""
        super().__init__()
        self._folder = folder
        self._notify: Inotify | None = None

    def wait(self, seconds: float) -> None:
        """Sleep until a commit."""
        if self._notify is None:
            try:
                self._notify = Inotify()
                self._notify.watch(self._folder, IN_MODIFY | IN_CREATE)
            except OSError:
                self.__exit__()
                super().wait(seconds)
            return  # check again, as a commit may have come before the watch
        self._notify.wait(min(seconds, 0.2))

    def __exit__(self, *_: object) -> None:
        """Close inotify."""
        if self._notify is not None:
            self._notify.close()
            self._notify = None
