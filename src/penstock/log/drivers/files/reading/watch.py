"""Waking up: inotify on the folders of partitions and groups, and adaptive polling where there is none."""

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

from penstock.log.drivers.files.format.segment import listed
from penstock.log.drivers.shared.source import Watch
from penstock.log.record import Partition
from penstock.log.store import CommitWatch

logger = logging.getLogger("penstock.log")

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_CREATE, IN_DELETE, IN_MOVED_TO = 0x2, 0x4, 0x8, 0x100, 0x200, 0x80
# A write is heard a moment before its end is shown, so that waking up and showing overlap; a reader that comes too
# early sees that a write is under way. Where showing has to wait for the disk, the file is touched afterwards.
DATA = IN_MODIFY | IN_ATTRIB
GROUP = IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_TO
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")
SHORTEST, LONGEST = 0.0002, 0.01  # of adaptive polling

_libc = ctypes.CDLL(None, use_errno=True)


def _last_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), what)


class Inotify:
    """One inotify descriptor with a way to be woken."""

    def __init__(self) -> None:
        """Raises OSError where there is no inotify or no more of it."""
        self._fd = _libc.inotify_init1(_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise _last_error("inotify")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)

    def watch(self, folder: Path, mask: int) -> int:
        """Hear of a folder."""
        number: int = _libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if number < 0:
            raise _last_error(str(folder))
        return number

    def forget(self, number: int) -> None:
        """Hear no more of it."""
        _libc.inotify_rm_watch(self._fd, number)

    def wait(self, seconds: float) -> set[int]:
        """Which watches heard something, waiting for the first; empty after a wake or in the end."""
        heard: set[int] = set()
        raw = b""
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000):
            with contextlib.suppress(BlockingIOError):
                if fd == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    raw = os.read(self._fd, 4096)  # what is left ends the next wait at once
        at = 0
        while at < len(raw):
            number, _, _, length = _EVENT.unpack_from(raw, at)
            heard.add(number)
            at += _EVENT.size + length
        return heard

    def wake(self) -> None:
        """End a wait of another thread."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Close both descriptors."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._bell)
            self._fd = -1


class FolderWatch(Watch):
    """Waits for partitions and a group by inotify."""

    def __init__(self, folder: Callable[[Partition], Path], group: Sequence[Path]) -> None:
        """Hear of the group's folders from the start."""
        self._folder = folder
        self._notify = Inotify()
        self._followed: dict[Partition, int] = {}
        try:
            self._group = {self._notify.watch(path, GROUP) for path in group}
        except OSError:
            self._notify.close()
            raise

    def follow(self, partitions: Sequence[Partition]) -> None:
        """Hear of these partitions, and of no others."""
        wanted = set(partitions)
        for partition in [one for one in self._followed if one not in wanted]:
            self._notify.forget(self._followed.pop(partition))
        for partition in partitions:
            if partition not in self._followed:
                try:
                    self._followed[partition] = self._notify.watch(self._folder(partition), DATA)
                except OSError as error:
                    if error.errno == errno.ENOENT:
                        listed(self._folder(partition))  # says what is gone
                    if error.errno != errno.ENOSPC:
                        raise
                    # No more watches for this user: the source looks every few milliseconds anyway.
                    logger.warning("no inotify watch for %s: %s; records are seen a little later", partition, error)
                    return

    def wait(self, seconds: float) -> bool:
        """Sleep until something is heard."""
        heard = self._notify.wait(seconds)
        self.heard = bool(heard - self._group)
        return not self._group.isdisjoint(heard)

    def wake(self) -> None:
        """End a wait."""
        self._notify.wake()

    def close(self) -> None:
        """End."""
        self._notify.close()


class PollingWatch(Watch):
    """Looks again after a pause that grows while nothing comes."""

    def __init__(self) -> None:
        """Start with short pauses."""
        self._pause = SHORTEST
        self._woken = threading.Event()

    def follow(self, partitions: Sequence[Partition]) -> None:
        """Looks at all anyway."""

    def wait(self, seconds: float) -> bool:
        """Pause; long waits come from long silence."""
        self._pause = SHORTEST if seconds < self._pause else min(self._pause * 1.3, LONGEST)
        self._woken.wait(min(seconds, self._pause))
        return False

    def wake(self) -> None:
        """End a wait."""
        self._woken.set()

    def close(self) -> None:
        """Nothing to end."""


def watch_for(folder: Callable[[Partition], Path], group: Sequence[Path]) -> Watch:
    """By inotify if it is to be had."""
    try:
        return FolderWatch(folder, group)
    except OSError as error:
        logger.warning("waiting by polling instead of inotify: %s", error)
        return PollingWatch()


class FolderCommitWatch(CommitWatch):
    """Waits for commits in a group's folder, once there is one."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is where the group's offsets are."""
        super().__init__()
        self._folder = folder
        self._notify: Inotify | None = None

    def wait(self, seconds: float) -> None:
        """Sleep until something is committed."""
        if self._notify is None:
            try:
                self._notify = Inotify()
                self._notify.watch(self._folder, IN_MODIFY | IN_CREATE)
            except OSError:
                self.__exit__()
                super().wait(seconds)
            return  # look once more: a commit may have come before the watch
        self._notify.wait(min(seconds, 0.2))

    def __exit__(self, *_: object) -> None:
        """Close what was opened."""
        if self._notify is not None:
            self._notify.close()
            self._notify = None
