"""Durability: bringing a partition to disk, one fdatasync for all threads that wait."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.errors import StoreReadOnly
from penstock.log.drivers.files.format.control import DURABLE, VISIBLE, WRITING, End
from penstock.log.drivers.files.format.segments import bases, segment_path

if TYPE_CHECKING:
    from penstock.log.drivers.files.writing.partition import PartitionFile


class Durability:
    """Syncs one partition. After a failed sync, the partition accepts nothing more."""

    def __init__(self, part: PartitionFile) -> None:
        """Nothing is being synced."""
        self._part = part
        self._bell = threading.Condition()
        self._is_syncing = False
        self._failure: BaseException | None = None

    def check(self) -> None:
        """Raise ``StoreReadOnly`` if a sync has failed."""
        if self._failure is not None:
            raise StoreReadOnly(
                f"{self._part.partition} could not be written to disk before ({self._failure}); nothing more is "
                "accepted.",
                hint="Check the disk, then close the store, open it again and verify().",
            ) from self._failure

    def wait(self, target: int) -> None:
        """Return once everything before ``target`` is on disk and visible; one thread syncs for all that wait."""
        words = self._part.slot.words
        with self._bell:
            while True:
                if words[DURABLE] >= target and words[VISIBLE] >= target:
                    return
                if self._failure is not None:
                    raise self._read_only(self._failure) from self._failure
                if not self._is_syncing:
                    self._is_syncing = True
                    break
                self._bell.wait()
        try:
            self.sync()
        finally:
            with self._bell:
                self._is_syncing = False
                self._bell.notify_all()

    def sync(self) -> None:
        """Bring everything written so far to disk, then make it visible."""
        part = self._part
        with part.lock:
            was_open = part.is_open
            if part.slot.words[WRITING]:
                part.begin()
            end = part.slot.end()
            durable = part.slot.durable()
            fd = os.dup(part.current_segment(end.base).fd)
            if not was_open:
                part.close()  # its folder limits the open files, and does not know of this one
        try:
            failpoints.point("log.sync.before")
            if durable is None or durable.base != end.base:
                self._sync_ended(durable.base if durable is not None else 0, end.base)
            self.fdatasync(fd)
            failpoints.point("log.sync.after")
            with part.lock:
                visible_before = part.slot.words[VISIBLE]
                self.make_visible(end)
            if visible_before < end.next:
                os.utime(fd)  # readers sleep on the folder, and a write to mapped memory wakes nobody
        finally:
            os.close(fd)

    def sync_locked(self) -> None:
        """Under the lock: bring everything to disk now."""
        end, durable = self._part.slot.end(), self._part.slot.durable()
        self._sync_ended(durable.base if durable is not None else 0, end.base)
        self.fdatasync(self._part.current_segment(end.base).fd)
        self.make_visible(end)

    def sync_current(self) -> None:
        """Under the lock: bring the current segment to disk; in the durable profile, those before are there."""
        self.fdatasync(self._part.current_segment(self._part.slot.end().base).fd)

    def _sync_ended(self, first: int, current: int) -> None:
        """Sync the segments that ended since the last sync, and the folder with their names."""
        for base in bases(self._part.folder):
            if first <= base < current:
                try:
                    fd = os.open(segment_path(self._part.folder, base), os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # retention has removed it
                try:
                    self.fdatasync(fd)
                finally:
                    os.close(fd)
        sync_folder(self._part.folder)

    def make_visible(self, end: End) -> None:
        """Under the lock: show readers what is on disk."""
        slot = self._part.slot
        if end.next > slot.words[DURABLE] or slot.durable() is None:
            slot.set_durable(end)
        slot.words[VISIBLE] = max(slot.words[VISIBLE], end.next)
        self._part.unsynced = 0

    def fdatasync(self, fd: int) -> None:
        """Bring a file of the partition to disk. After a failure, nothing more is accepted."""
        try:
            os.fdatasync(fd)
        except OSError as error:
            # The kernel may have dropped the pages, so a second call could succeed without writing them.
            self._failure = error
            raise self._read_only(error) from error

    def _read_only(self, failure: BaseException) -> StoreReadOnly:
        return StoreReadOnly(
            f"{self._part.partition} could not be written to disk: {failure}.",
            hint="Check the disk, then close the store, open it again and verify().",
        )


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
