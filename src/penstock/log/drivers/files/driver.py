"""FileDriver: logs in a folder, used by any number of processes on one machine."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import CannotOpen, Closed, Conflict
from penstock.log.commit_watch import CommitWatch
from penstock.log.driver import LogDriver
from penstock.log.drivers.files.disk import disk_errors
from penstock.log.drivers.files.filesystem import refuse_network
from penstock.log.drivers.files.folder import LogFolder, is_in_use, make_folder, refuse_foreign_files
from penstock.log.drivers.files.format.control import boot_id
from penstock.log.drivers.files.format.frames import MAX_FRAME
from penstock.log.drivers.files.groups.editing import delete_log, forget_offsets, set_offsets
from penstock.log.drivers.files.groups.leases import GroupState
from penstock.log.drivers.files.groups.membership import FileMembership
from penstock.log.drivers.files.groups.offsets import GroupFolder
from penstock.log.drivers.files.locks import LockFile
from penstock.log.drivers.files.opening import MARK, check_location, prepare_root, size_option
from penstock.log.drivers.files.ops import backup, doctor, repair, verify
from penstock.log.drivers.files.reading.reader import FileReader
from penstock.log.drivers.files.reading.search import offset_at, ranges_in_time
from penstock.log.drivers.files.reading.watch import FolderCommitWatch, watch_for
from penstock.log.drivers.files.sink import FileSink
from penstock.log.drivers.files.stored_settings import FILE, read_identity, read_settings
from penstock.log.drivers.files.transactions.commit import commit_transaction
from penstock.log.drivers.files.transactions.journal import Journal, JournalListener
from penstock.log.drivers.files.transactions.recovery import recover_transactions
from penstock.log.drivers.files.writing.adoption import ADOPT_BYTES, can_link
from penstock.log.drivers.files.writing.durability import sync_folder
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.drivers.files.writing.retention import enforce_retention, may_remove
from penstock.log.drivers.files.writing.staging import FileStage, discard, sweep
from penstock.log.drivers.files.writing.sync import BackgroundSync
from penstock.log.drivers.shared.source import EmbeddedSource
from penstock.log.group import Listener
from penstock.log.protocol import (
    Commit,
    Committed,
    Finding,
    LogCapabilities,
    OutOfRange,
    Removed,
    Sink,
    Source,
    Stage,
    Staged,
)
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.settings import LogSettings
from penstock.process import this_process

if TYPE_CHECKING:
    from penstock.location import Location

MIN_FREE = 16 * 1024 * 1024
SYNC_EVERY = 0.2  # seconds, in the fast profile
STAGED_FOR = 24 * 3600  # seconds after which staged records that were not committed are removed

# A file's lock keeps out other processes and handles, but not the threads that share a handle.
_creating = threading.Lock()


def open_driver(location: Location, clock: Clock) -> FileDriver:
    """Open ``file:///folder``. A missing folder is created; a folder with other files is refused."""
    check_location(location)
    return FileDriver(
        Path(location.path).absolute(), clock, location.masked, durable=location.durability == "durable",
        record_limit=size_option(location, "record_limit", FileDriver.record_limit, least=1),
        min_free=size_option(location, "min_free", MIN_FREE), network=location.options.get("network") == "allow",
    )  # fmt: skip


class FileDriver(LogDriver):
    """Logs in a folder of this machine."""

    capabilities = LogCapabilities()

    def __init__(
        self,
        root: Path,
        clock: Clock,
        name: str,
        *,
        durable: bool = True,
        record_limit: int = LogDriver.record_limit,
        min_free: int = MIN_FREE,
        network: bool = False,
    ) -> None:
        """Open or create the folder. The first process after a restart of the machine recovers everything."""
        super().__init__(clock, name)
        self.root = root
        self.durable = durable
        self.record_limit = min(record_limit, MAX_FRAME // 2)
        self.min_free = min_free
        self.journal = Journal(self, root)
        self.background_sync = BackgroundSync(SYNC_EVERY)
        self._folders: dict[str, LogFolder] = {}
        self._mutex = threading.RLock()
        self._process = this_process()
        if not network:
            refuse_network(root, name)
        try:
            prepare_root(root, name)
            self._lock = LockFile(str(root / "lock"))
            self._recover_after_restart()
        except OSError as cause:
            raise CannotOpen(
                f"{name} cannot be opened: {cause}.", hint="Check the folder and its permissions."
            ) from cause

    def _recover_after_restart(self) -> None:
        """Recover every partition, then the transactions, once per boot of the machine."""
        if self._recovered_boot() == boot_id():
            return
        with self._lock.held(0):
            if self._recovered_boot() == boot_id():
                return
            self.journal.file()
            for name in self._names():
                folder = self.folder(name)
                for index in range(folder.settings.partitions):
                    folder.slot(index)
            recover_transactions(self.journal)
            os.pwrite(self._lock.fd, boot_id().to_bytes(8, "little"), 0)

    def _recovered_boot(self) -> int:
        return int.from_bytes(os.pread(self._lock.fd, 8, 0), "little")

    def check_open(self) -> None:
        """Raise ``Closed`` if the store was closed, or opened by a parent process."""
        super().check_open()
        if self._process is not this_process():
            raise Closed(
                f"{self.name} was opened by the parent of this process.", hint="Open it in the child, after the fork."
            )

    def close(self) -> None:
        """Sync what is not on disk yet, and close all files."""
        super().close()
        self.background_sync.close()
        self.journal.close()
        for folder in self._folders.values():
            folder.close()
        self._lock.close()

    # --- folders -----------------------------------------------------------------------------------

    def make_folder(self, folder: Path, settings: LogSettings) -> None:
        """Create the folder of a log, once."""
        with _creating, self._lock.held(1), disk_errors(f"log {settings.name}"):
            if not folder.exists():
                make_folder(folder, settings)

    def open_journal_folder(self, folder: Path, settings: LogSettings, listener: JournalListener) -> LogFolder:
        """Open the folder of the journal."""
        with self._mutex:
            if str(folder) not in self._folders:
                self._folders[str(folder)] = LogFolder(
                    folder, settings, listener, durable=self.durable, min_free=self.min_free, is_journal=True
                )
            return self._folders[str(folder)]

    def folder(self, name: str) -> LogFolder:
        """The folder of a log."""
        folder = self._folders.get(name)
        if folder is not None and folder.is_current():
            return folder
        with self._mutex:
            settings = self.settings(name)
            if folder is not None:
                folder.close()
            self._folders[name] = LogFolder(
                self.root / "logs" / name, settings, self, durable=self.durable, min_free=self.min_free
            )
            return self._folders[name]

    # --- what partitions ask and tell (PartitionListener) --------------------------------------------

    def is_committed(self, txn: int, hint: int) -> bool:
        """Whether a transaction is in the journal."""
        return self.journal.is_committed(txn, hint)

    def rolled(self, part: PartitionFile) -> None:
        """A segment ended: remove what the retention lets go of."""
        if may_remove(part, part.settings.retention, self.now()):
            removed = self._enforce_on(part, dry_run=False, seal=False)
            if removed is not None:
                self.signals.tell(
                    "retained", part.partition.log, (), self.now(), partition=part.partition.index,
                    offset=removed.start,
                )  # fmt: skip

    def truncated(self, part: PartitionFile, offset: int) -> None:
        """Recovery cut a partition."""
        partition = part.partition
        self.signals.tell("truncated", partition.log, (), self.now(), partition=partition.index, offset=offset)

    def written(self, part: PartitionFile) -> None:
        """Records were appended that are not on disk yet."""
        self.background_sync.add(part)

    def has_writers(self) -> bool:
        """Whether any partition has an append under way, or one that was never finished."""
        return any(self.folder(name).is_written() for name in self._names())

    def sync_offsets(self) -> None:
        """Bring every group's offsets to disk."""
        for path in (self.root / "groups").glob("*/offsets/*"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    # --- logs --------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all logs."""
        self.check_open()
        return self._names()

    def _names(self) -> list[str]:
        folders = (self.root / "logs").iterdir()
        return sorted(path.name for path in folders if path.name[0] != "." and (path / FILE).exists())

    def create(self, settings: LogSettings) -> bool:
        """Create the folder of a log."""
        folder = self.root / "logs" / settings.name
        with _creating, self._lock.held(1):
            if read_settings(folder) is not None:
                return False
            if folder.exists():
                raise Conflict(f"{folder} is in the way: it is not a log.", hint="Move it elsewhere.")
            with disk_errors(f"log {settings.name}"):
                make_folder(folder, settings)
            return True

    def find_settings(self, name: str) -> LogSettings | None:
        """The settings of a log."""
        known = self._folders.get(name)
        if known is not None and known.is_current():
            return known.settings
        return read_settings(self.root / "logs" / name)

    def find_identity(self, name: str) -> str | None:
        """The identity of a log."""
        return read_identity(self.root / "logs" / name)

    def delete(self, name: str) -> bool:
        """Delete a log that nobody has open."""
        with disk_errors(f"deleting log {name}"):
            settings = self.find_settings(name)
            if settings is None:
                return False
            folder = self.root / "logs" / name
            refuse_foreign_files(folder)
            self.journal.resolve()
            with self._lock.held(1):
                if is_in_use(folder):
                    raise Conflict(f"log {name} has an open appender.", hint="Close its appenders and tailers first.")
                for group in self._group_folders():
                    if group.knows(name):  # otherwise not even its state is opened, which may need room on the disk
                        delete_log(group, settings)
                deleted = folder.with_name(f".{name}.deleted.{os.getpid()}")
                os.rename(folder, deleted)
                sync_folder(folder.parent)
            with self._mutex:
                opened = self._folders.pop(name, None)
                if opened is not None:
                    opened.close()
            shutil.rmtree(deleted)
            return True

    def bounds(self, settings: LogSettings) -> list[Bounds]:
        """The bounds of every partition."""
        self.check_open()
        self.journal.resolve((settings.name,))
        return self.folder(settings.name).bounds()

    def bounds_of(self, partition: Partition) -> Bounds:
        """The bounds of one partition, without its size."""
        self.check_open()
        self.check_partition(partition)
        self.journal.resolve((partition.log,))
        reader = self._reader(partition)
        return Bounds(partition.index, reader.start, reader.end)

    def _reader(self, partition: Partition) -> FileReader:
        folder = self.folder(partition.log)
        return FileReader(folder.path(partition.index), partition, folder.slot(partition.index))

    def batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]:
        """The records of a range."""
        reader = self._reader(partition)
        try:
            yield from reader.frames(start, stop)
        finally:
            reader.close()

    def offset_at(self, partition: Partition, micros: Micros) -> int:
        """The first offset at or after a time."""
        folder = self.folder(partition.log)
        return offset_at(folder.path(partition.index), partition, folder.slot(partition.index), micros)

    def ranges_in_time(
        self, partition: Partition, span: tuple[int, int], times: tuple[Micros, Micros]
    ) -> list[tuple[int, int]]:
        """The ranges whose frames may have records of a time span."""
        folder = self.folder(partition.log)
        return ranges_in_time(folder.path(partition.index), partition, folder.slot(partition.index), span, times)

    # --- groups ------------------------------------------------------------------------------------

    def _group_folders(self) -> list[GroupFolder]:
        return [GroupFolder(self.root, path.name) for path in sorted((self.root / "groups").iterdir()) if path.is_dir()]

    def groups(self, name: str) -> list[str]:
        """The groups with offsets in a log."""
        self.journal.resolve((name,))
        count = self.settings(name).partitions
        return [group.name for group in self._group_folders() if any(group.committed(name, count))]

    def committed(self, settings: LogSettings, group: str) -> list[int | None]:
        """A group's offsets."""
        self.check_open()
        self.journal.resolve((settings.name,))
        committed = GroupFolder(self.root, group).committed(settings.name, settings.partitions)
        return [None if slot is None else slot.offset for slot in committed]

    def reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Set the offsets of a group without tailers."""
        self.journal.resolve()
        folder = GroupFolder(self.root, group)
        with disk_errors(f"group {group}"):
            state = GroupState(folder)
        try:
            set_offsets(state, folder, offsets, self.settings, durable=self.durable)
        finally:
            state.close()

    def forget(self, group: str, name: str | None) -> bool:
        """Delete the offsets of a group without tailers."""
        folder = GroupFolder(self.root, group)
        with disk_errors(f"forgetting group {group}"):
            if not folder.knows(name):
                return False
            self.journal.resolve()
            state = GroupState(folder)
            try:
                return forget_offsets(state, folder, name, self.find_settings)
            finally:
                state.close()

    def commit_watch(self, group: str) -> CommitWatch:
        """A watch on the group's offsets."""
        return FolderCommitWatch(GroupFolder(self.root, group).offsets)

    # --- writing and reading -----------------------------------------------------------------------

    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink:
        """A sink for an appender."""
        self.check_open()
        with disk_errors(f"log {settings.name}"):
            return FileSink(self, self.folder(settings.name), exclusive, producer)

    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        """A source with these partitions."""
        logs = {name: self.settings(name) for name in {partition.log for partition in partitions}}
        source = self._source(group, (), logs, None, out_of_range, max_poll)
        source.take_all(partitions)
        return source

    def open_subscribed(
        self,
        logs: Sequence[LogSettings],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> Source:
        """A source that follows its group."""
        return self._source(group, logs, {log.name: log for log in logs}, listener, out_of_range, max_poll)

    def _source(  # noqa: PLR0917 - the parts of a source
        self,
        group: str,
        subscribed: Sequence[LogSettings],
        logs: Mapping[str, LogSettings],
        listener: Listener | None,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> EmbeddedSource:
        self.check_open()
        resolve = partial(self.journal.resolve, frozenset(logs))
        resolve()
        folder = GroupFolder(self.root, group)
        with disk_errors(f"group {group}"):
            membership = FileMembership(
                folder, subscribed, max_poll, settings=logs, durable=self.durable, resolve=resolve
            )
        watch = watch_for(
            lambda partition: self.folder(partition.log).path(partition.index),
            (folder.folder, folder.members) if subscribed else (),
        )
        return EmbeddedSource(
            self, membership, watch, self._reader, group=group, out_of_range=out_of_range, max_poll=max_poll,
            logs=subscribed, listener=listener,
        )  # fmt: skip

    def transact(self, commit: Commit) -> Committed:
        """Commit a transaction through the journal."""
        self.check_open()
        with disk_errors("the transaction"):
            return commit_transaction(self.journal, commit)

    def stage(self, settings: LogSettings) -> Stage:
        """A stage for a log; records that others staged long ago are removed first."""
        with disk_errors("staged records"):
            sweep(self.root, SystemClock().micros() / 1e6 - STAGED_FOR)
            return FileStage(self.root, settings, self.now, durable=self.durable)

    def staged_commit(self) -> str:
        """What happens to the bytes of staged files."""
        folder = self.root / "logs"
        large = f"files of {ADOPT_BYTES >> 20} MiB and more"
        if (self.root / "staged").stat().st_dev == folder.stat().st_dev and can_link(self.root / MARK, folder):
            return f"{large} become segments of the log by a hard link, without being read; smaller ones are copied"
        return f"all files are copied: {self.root / 'staged'} is on another file system, or this one has no hard links"

    def discard(self, staged: Sequence[Staged]) -> None:
        """Remove staged files."""
        discard(self.root, [records.path for records in staged])

    # --- maintenance -------------------------------------------------------------------------------

    def enforce_retention(self, settings: LogSettings, dry_run: bool) -> list[Removed]:
        """Remove what the retention lets go of."""
        removals = []
        folder = self.folder(settings.name)
        for index in range(settings.partitions):
            part = folder.partition(index)
            with part.lock:
                removed = self._enforce_on(part, dry_run=dry_run, seal=True)
            if removed is not None:
                removals.append(removed)
        return removals

    def _enforce_on(self, part: PartitionFile, *, dry_run: bool, seal: bool) -> Removed | None:
        rule = part.settings.retention
        consumed = None
        if rule.keep_for:
            log, index = part.partition.log, part.partition.index
            offsets = [GroupFolder(self.root, group).committed(log, index + 1)[index] for group in rule.keep_for]
            consumed = min(0 if committed is None else committed.offset for committed in offsets)
        return enforce_retention(part, rule, consumed, self.now(), dry_run=dry_run, seal=seal)

    def sync(self) -> None:
        """Bring everything that this handle appended to disk."""
        self.background_sync.sync_all()

    def backup(self, target: str, *, dry_run: bool = False) -> list[Finding]:
        """Copy everything as it is at one moment."""
        self.check_open()
        with disk_errors(f"the backup at {target}"):
            return backup.backup(self, Path(target), dry_run=dry_run)

    def verify(self, name: str | None = None) -> list[Finding]:
        """Check every byte."""
        return verify.verify(self, [name] if name is not None else self.names())

    def repair(self, name: str, *, dry_run: bool = False) -> list[Finding]:
        """Move damaged frames aside."""
        return repair.repair(self, name, dry_run=dry_run)

    def check(self) -> list[Finding]:
        """What doctor reports."""
        return doctor.check(self)
