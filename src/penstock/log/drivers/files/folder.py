"""A log's folder: its settings, its control file, its lock, and its partitions."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import Micros, duration_micros
from penstock.errors import AppenderTaken, SchemaMismatch, StoreCorrupt
from penstock.ids import new_id
from penstock.log.drivers.files.format.control import BOOT, START, VISIBLE, WRITING, Control, End, Slot, boot
from penstock.log.drivers.files.format.segment import bases, segment_path
from penstock.log.drivers.files.locks import Line, LockFile
from penstock.log.drivers.files.private import make_private, write_private
from penstock.log.drivers.files.writing.partition import PartitionFile, sync_folder
from penstock.log.protocol import LogSettings, Retention
from penstock.log.record import Bounds, Partition

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileLogStore

FORMAT = 2
# Partitions whose segment and index are kept open by one handle: a share of what the process may open.
OPEN_FILES = max(64, min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))

# Lock bytes of a log: one per partition for appends, a range for appenders that are open.
APPENDERS = 1 << 32


class StoredSettings(msgspec.Struct, forbid_unknown_fields=True):
    """What ``log.json`` says."""

    format: int
    name: str
    partitions: int
    partitioner: str
    age_us: Micros | None
    size: int | None
    keep_for: tuple[str, ...]
    consumed: bool
    hard_size: int | None
    segment_bytes: int
    segment_age_us: Micros
    compression: str | None = None
    codec: str | None = None
    id: str = ""  # what a log created again under the name does not share; logs of older versions have none


def dump_settings(settings: LogSettings, identity: str) -> bytes:
    """Settings as JSON."""
    rule = settings.retention
    age = None if rule.age is None else duration_micros(rule.age)
    return msgspec.json.encode(
        StoredSettings(
            FORMAT, settings.name, settings.partitions, settings.partitioner, age, rule.size, rule.keep_for,
            rule.consumed, rule.hard_size, settings.segment_bytes, duration_micros(settings.segment_age),
            settings.compression, settings.codec, identity,
        )
    )  # fmt: skip


def partition_folder(folder: Path, index: int) -> Path:
    """Where a partition is."""
    return folder / f"p-{index:04d}"


def make_folder(folder: Path, settings: LogSettings, identity: str | None = None) -> None:
    """Make a log: everything in a folder aside, then one rename. ``identity`` is that of the log it is a copy of."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.{threading.get_ident()}")
    shutil.rmtree(aside, ignore_errors=True)  # of a try that found no room
    make_private(aside)
    for index in range(settings.partitions):
        place = partition_folder(aside, index)
        make_private(place)
        write_private(segment_path(place, 0), b"")
    write_private(aside / "log.json", dump_settings(settings, new_id() if identity is None else identity))
    write_private(aside / "lock", b"")
    control = Control(aside / "ctl", settings.partitions)
    for index in range(settings.partitions):
        slot = control.slot(index)
        slot.set_durable(End(0, 0, 0))
        slot.words[BOOT] = boot()  # empty, so there is nothing to recover
    control.flush()
    with (aside / "log.json").open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(aside)
    os.rename(aside, folder)
    sync_folder(folder.parent)


def read_identity(folder: Path) -> str | None:
    """What tells a log from others of its name, None if there is no log."""
    kept = _stored(folder)
    return None if kept is None else kept.id


def read_settings(folder: Path) -> LogSettings | None:
    """The settings of a log, None if there is none."""
    kept = _stored(folder)
    if kept is None:
        return None
    age = None if kept.age_us is None else timedelta(microseconds=kept.age_us)
    return LogSettings(
        kept.name, kept.partitions, kept.partitioner,
        Retention(age, kept.size, kept.keep_for, kept.consumed, kept.hard_size),
        kept.segment_bytes, timedelta(microseconds=kept.segment_age_us), kept.compression, kept.codec,
    )  # fmt: skip


def _stored(folder: Path) -> StoredSettings | None:
    try:
        raw = (folder / "log.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        form = msgspec.json.decode(raw, type=_Format).format
        if form != FORMAT:
            raise SchemaMismatch(
                f"log {folder.name} has format {form}; this version reads format {FORMAT}.",
                hint="Use a version of Penstock that reads it.",
            )
        return msgspec.json.decode(raw, type=StoredSettings)
    except msgspec.MsgspecError as cause:
        raise StoreCorrupt(
            f"{folder / 'log.json'} cannot be read: {cause}.", hint="Restore it from a backup of the folder."
        ) from cause


class _Format(msgspec.Struct):
    format: int


def _written(mark: str) -> tuple[int, int] | None:
    """The file of the settings, which is written once, when a log is made: cheaper to ask for than what is in it."""
    try:
        found = os.stat(mark)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class LogFolder:
    """One log, opened by one handle."""

    def __init__(self, store: FileLogStore, folder: Path, settings: LogSettings) -> None:
        """Map the control file."""
        self.folder = folder
        self.settings = settings
        self._store = store
        self._mark = str(folder / "log.json")
        self._written = _written(self._mark)
        self._control = Control(folder / "ctl", settings.partitions)
        self._lock = LockFile(str(folder / "lock"))
        self._parts: dict[int, PartitionFile] = {}
        self._open: OrderedDict[int, PartitionFile] = OrderedDict()
        self._last: PartitionFile | None = None
        self._mutex = threading.Lock()
        self._slots: dict[int, Slot] = {}
        self.exclusive = False  # this handle has an appender that keeps the log to itself

    def is_current(self) -> bool:
        """Whether it is still the log of its name: somebody may have deleted it, and made another one."""
        return self._written is not None and _written(self._mark) == self._written

    def pass_through(self) -> None:
        """Wait for whoever writes at this moment."""
        for index in range(self.settings.partitions):
            with self.partition(index).line:
                pass

    def check_appendable(self) -> None:
        """Under a partition's lock: raise when an appender of another handle keeps the log to itself."""
        if not self.exclusive and self._lock.is_locked(APPENDERS, shared=True):
            raise AppenderTaken(
                f"log {self.settings.name} has an appender that was opened with exclusive=True.",
                hint="Close it first, or commit the transaction through its store.",
            )

    def place(self, index: int) -> Partition:
        """A partition's name."""
        return Partition(self.settings.name, index)

    def path(self, index: int) -> Path:
        """A partition's folder."""
        return partition_folder(self.folder, index)

    def slot(self, index: int) -> Slot:
        """A partition's words, right for this boot."""
        slot = self._slots.get(index)
        if slot is None:
            slot = self._slots[index] = self._control.slot(index)
        if slot.words[BOOT] != boot():
            part = self.partition(index)
            with part.line:
                part.begin()
        return slot

    def partition(self, index: int, happened: Callable[[int, int], bool] | None = None) -> PartitionFile:
        """The partition as something to append to."""
        last = self._last
        if last is not None and last.place.index == index:
            return last
        with self._mutex:
            part = self._parts.get(index)
            if part is None:
                slot = self._slots.setdefault(index, self._control.slot(index))
                part = self._parts[index] = PartitionFile(
                    self.path(index), self.place(index), self.settings, slot, Line(self._lock, index),
                    durable=self._store.durable, min_free=self._store.min_free,
                    happened=happened or self._store.happened, told=self._store.told, opened=self._store.dirty,
                )  # fmt: skip
            if index in self._open:
                self._open.move_to_end(index)
            else:
                self._open[index] = part
            self._last = part
            idle = self._open.popitem(last=False)[1] if len(self._open) > OPEN_FILES else None
        if idle is not None:
            with idle.line:
                idle.close()
        return part

    def bounds(self, sizes: bool = True) -> list[Bounds]:
        """What each partition holds."""
        found = []
        for index in range(self.settings.partitions):
            words = self.slot(index).words
            size = 0
            if sizes:
                end = self.slot(index).end()
                all_bases = bases(self.path(index)) if end.base else [0]
                size = end.position + sum(_size(self.path(index), base) for base in all_bases if base < end.base)
            # The end first: retention only moves the start, and never behind an end.
            stop = int(words[VISIBLE])
            found.append(Bounds(index, min(int(words[START]), stop), stop, size))
        return found

    def is_written(self) -> bool:
        """Whether an append is under way in a partition, or was never finished."""
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
        return 0  # retention was faster


class AppenderLock:
    """Says that an appender is open; an exclusive one goes only alone."""

    def __init__(self, folder: Path, name: str, *, exclusive: bool) -> None:
        """Lock with a descriptor of its own; raises when that is not possible."""
        self._file = LockFile(str(folder / "lock"))
        if not self._file.try_lock(APPENDERS, shared=not exclusive):
            self._file.close()
            raise AppenderTaken(
                f"log {name} has another appender.",
                hint="Close it first." if exclusive else "It was opened with exclusive=True; close it first.",
            )

    def close(self) -> None:
        """Let go."""
        self._file.close()


def is_in_use(folder: Path) -> bool:
    """Whether an appender is open, anywhere."""
    file = LockFile(str(folder / "lock"))
    try:
        return file.is_locked(APPENDERS)
    finally:
        file.close()
