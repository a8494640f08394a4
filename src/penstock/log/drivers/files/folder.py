"""LogFolder: the folder of one log, with its control file, its lock and its partitions."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections import OrderedDict
from pathlib import Path

from penstock.errors import AppenderTaken, Conflict
from penstock.ids import new_id
from penstock.log.drivers.files.format.control import BOOT, START, VISIBLE, WRITING, Control, End, Slot, boot_id
from penstock.log.drivers.files.format.segments import OURS, bases, segment_path
from penstock.log.drivers.files.locks import LockFile, PartitionLock
from penstock.log.drivers.files.private import make_private, write_private
from penstock.log.drivers.files.stored_settings import FILE, dump_settings
from penstock.log.drivers.files.writing.durability import sync_folder
from penstock.log.drivers.files.writing.partition import PartitionFile, PartitionListener
from penstock.log.drivers.shared.errors import exclusive_appender
from penstock.log.record import Bounds, Partition
from penstock.log.settings import LogSettings

# Partitions whose segment and index one handle keeps open: a share of the files that the process may open.
OPEN_FILES = max(64, min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))

# The lock bytes of a log: one per partition for appends, and this one for open appenders.
APPENDERS = 1 << 32


def partition_folder(folder: Path, index: int) -> Path:
    """The folder of a partition."""
    return folder / f"p-{index:04d}"


def make_folder(folder: Path, settings: LogSettings, identity: str | None = None) -> None:
    """Create a log in a temporary folder and rename it. ``identity`` is given for a copy of another log."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{threading.get_ident()}")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a call that found no room
    make_private(temporary)
    for index in range(settings.partitions):
        partition = partition_folder(temporary, index)
        make_private(partition)
        write_private(segment_path(partition, 0), b"")
    write_private(temporary / FILE, dump_settings(settings, new_id() if identity is None else identity))
    write_private(temporary / "lock", b"")
    control = Control(temporary / "ctl", settings.partitions)
    for index in range(settings.partitions):
        slot = control.slot(index)
        slot.set_durable(End(0, 0, 0))
        slot.words[BOOT] = boot_id()  # it is empty, so there is nothing to recover
    control.flush()
    with (temporary / FILE).open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(temporary)
    os.rename(temporary, folder)
    sync_folder(folder.parent)


def _file_id(path: str) -> tuple[int, int] | None:
    """The inode and time of ``log.json``, which is written once per log: cheaper to compare than its content."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


class LogFolder:
    """One log, opened by one store handle."""

    def __init__(
        self,
        folder: Path,
        settings: LogSettings,
        listener: PartitionListener,
        *,
        durable: bool,
        min_free: int,
        is_journal: bool = False,
    ) -> None:
        """Map the control file."""
        self.folder = folder
        self.settings = settings
        self._listener = listener
        self._durable = durable
        self._min_free = min_free
        self._is_journal = is_journal
        self._settings_path = str(folder / FILE)
        self._settings_id = _file_id(self._settings_path)
        self._control = Control(folder / "ctl", settings.partitions)
        self._lock = LockFile(str(folder / "lock"))
        self._parts: dict[int, PartitionFile] = {}
        self._open: OrderedDict[int, PartitionFile] = OrderedDict()
        self._last: PartitionFile | None = None
        self._mutex = threading.Lock()
        self._slots: dict[int, Slot] = {}
        self.exclusive = False  # an appender of this handle keeps the log to itself

    def is_current(self) -> bool:
        """Whether this is still the log of its name, which may have been deleted and created again."""
        return self._settings_id is not None and _file_id(self._settings_path) == self._settings_id

    def wait_for_writers(self) -> None:
        """Wait for the appends that are under way."""
        for index in range(self.settings.partitions):
            with self.partition(index).lock:
                pass

    def check_appendable(self) -> None:
        """Under a partition's lock: raise ``AppenderTaken`` if another handle's appender keeps the log to itself."""
        if not self.exclusive and self._lock.is_locked(APPENDERS, shared=True):
            raise exclusive_appender(self.settings.name)

    def path(self, index: int) -> Path:
        """The folder of a partition."""
        return partition_folder(self.folder, index)

    def slot(self, index: int) -> Slot:
        """A partition's slot, recovered in this boot."""
        slot = self._slots.get(index)
        if slot is None:
            slot = self._slots[index] = self._control.slot(index)
        if slot.words[BOOT] != boot_id():
            part = self.partition(index)
            with part.lock:
                part.begin()
        return slot

    def partition(self, index: int) -> PartitionFile:
        """A partition, for appending."""
        last = self._last
        if last is not None and last.partition.index == index:
            return last
        with self._mutex:
            part = self._parts.get(index)
            if part is None:
                slot = self._slots.setdefault(index, self._control.slot(index))
                part = self._parts[index] = PartitionFile(
                    self.path(index), Partition(self.settings.name, index), self.settings, slot,
                    PartitionLock(self._lock, index), listener=self._listener, durable=self._durable,
                    min_free=self._min_free, is_journal=self._is_journal,
                )  # fmt: skip
            if index in self._open:
                self._open.move_to_end(index)
            else:
                self._open[index] = part
            self._last = part
            idle = self._open.popitem(last=False)[1] if len(self._open) > OPEN_FILES else None
        if idle is not None:
            with idle.lock:
                idle.close()
        return part

    def bounds(self, sizes: bool = True) -> list[Bounds]:
        """The bounds of every partition."""
        all_bounds = []
        for index in range(self.settings.partitions):
            words = self.slot(index).words
            size = 0
            if sizes:
                end = self.slot(index).end()
                all_bases = bases(self.path(index)) if end.base else [0]
                size = end.position + sum(_size(self.path(index), base) for base in all_bases if base < end.base)
            # The end is read first: retention moves only the start, and never past an end.
            stop = int(words[VISIBLE])
            all_bounds.append(Bounds(index, min(int(words[START]), stop), stop, size))
        return all_bounds

    def is_written(self) -> bool:
        """Whether a partition has an append under way, or one that was never finished."""
        return any(self.slot(index).words[WRITING] for index in range(self.settings.partitions))

    def close(self) -> None:
        """Close all files."""
        for part in self._parts.values():
            part.close()
            part.dropped = True
        self._lock.close()


def _size(folder: Path, base: int) -> int:
    try:
        return segment_path(folder, base).stat().st_size
    except FileNotFoundError:
        return 0  # retention has removed it


class AppenderLock:
    """Marks an open appender. An exclusive one tolerates no other."""

    def __init__(self, folder: Path, name: str, *, exclusive: bool) -> None:
        """Lock with a descriptor of its own. Raises ``AppenderTaken``."""
        self._file = LockFile(str(folder / "lock"))
        if not self._file.try_lock(APPENDERS, shared=not exclusive):
            self._file.close()
            raise AppenderTaken(
                f"log {name} has another appender.",
                hint="Close it first." if exclusive else "It was opened with exclusive=True; close it first.",
            )

    def close(self) -> None:
        """Unlock."""
        self._file.close()


def is_in_use(folder: Path) -> bool:
    """Whether any process has an open appender."""
    file = LockFile(str(folder / "lock"))
    try:
        return file.is_locked(APPENDERS)
    finally:
        file.close()


def refuse_foreign_files(folder: Path) -> None:
    """Raise ``Conflict`` if a log's folder has files of other programs."""
    for path in folder.rglob("*"):
        is_ours = path.is_dir() or path.name in (FILE, "ctl", "lock") or path.name.endswith(OURS)
        if not is_ours:
            raise Conflict(
                f"{path.relative_to(folder.parent)} is not one of our files, so log {folder.name} is not deleted.",
                hint="Move it elsewhere first.",
            )
