"""The file store's handle: logs in a folder, used by any number of processes of one machine."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import BadInput, CannotOpen, Closed, Conflict, SchemaMismatch, StoreCorrupt
from penstock.log.drivers.files.disk import disk_errors
from penstock.log.drivers.files.filesystem import refuse_network
from penstock.log.drivers.files.folder import (
    AppenderLock,
    LogFolder,
    is_in_use,
    make_folder,
    read_identity,
    read_settings,
)
from penstock.log.drivers.files.format.control import boot
from penstock.log.drivers.files.format.frame import MAX_FRAME, encode, split
from penstock.log.drivers.files.format.segment import OURS
from penstock.log.drivers.files.groups.membership import (
    FileMembership,
    GroupFolder,
    GroupState,
    Kept,
    OffsetsFile,
    free_of_owners,
)
from penstock.log.drivers.files.locks import LockFile
from penstock.log.drivers.files.ops import backup as copies
from penstock.log.drivers.files.private import make_private, write_private
from penstock.log.drivers.files.reading.reader import FileReader, offset_at, ranges_in_time
from penstock.log.drivers.files.reading.watch import FolderCommitWatch, watch_for
from penstock.log.drivers.files.transactions.journal import Journal
from penstock.log.drivers.files.writing.adoption import WORTH, can_link
from penstock.log.drivers.files.writing.partition import PartitionFile, sync_folder
from penstock.log.drivers.files.writing.producers import Registration
from penstock.log.drivers.files.writing.retention import may_retain, retain
from penstock.log.drivers.files.writing.staging import FileStage, discard, sweep
from penstock.log.drivers.files.writing.sync import Syncing
from penstock.log.drivers.shared.source import EmbeddedSource, Watch
from penstock.log.group import Listener
from penstock.log.protocol import (
    Commit,
    Committed,
    Finding,
    LogCapabilities,
    LogSettings,
    Removed,
    Sink,
    Source,
    Stage,
    Staged,
)
from penstock.log.record import Bounds, NewRecords, Partition, RecordBatch
from penstock.log.store import CommitWatch, LogStore, OutOfRange
from penstock.process import this_process

if TYPE_CHECKING:
    from penstock.location import Location

FORMAT = 2
MARK = "penstock-logs.json"
FOLDERS = ("logs", "groups", "producers", "staged")
OPTIONS = frozenset({"record_limit", "min_free", "sync", "network"})
MIN_FREE = 16 * 1024 * 1024
SYNC = 0.2
STAGED_FOR = 24 * 3600  # seconds after which records that were staged and not committed belong to nobody


def open_store(location: Location, clock: Clock) -> FileLogStore:
    """Open ``file:///folder``; the folder is made if it is missing, and refused if it holds something else."""
    location.reject_unknown_options(OPTIONS)
    if location.space != "penstock":
        raise BadInput(f"logs know no spaces ({location.masked}).", hint="Use another folder.")
    if not location.path.strip("/"):
        raise BadInput(f"{location.masked} names no folder.", hint='Write it as "file:///var/lib/shop/logs".')
    if not sys.platform.startswith("linux"):
        raise CannotOpen("file:// needs Linux: its locks belong to open files.", hint="Use memory:// or kafka:// here.")
    numbers = {}
    for name, default in (("record_limit", FileLogStore.record_limit), ("min_free", MIN_FREE)):
        text = location.options.get(name, str(default))
        if not text.isdecimal() or (name == "record_limit" and int(text) < 1):
            raise BadInput(f"{name} {text!r} in {location.masked} is not a size.", hint="Give a number of bytes.")
        numbers[name] = int(text)
    if location.options.get("network", "refuse") not in ("refuse", "allow"):
        raise BadInput(f"network={location.options['network']!r} is unknown.", hint="Use refuse (default) or allow.")
    return FileLogStore(
        Path(location.path).absolute(), clock, location.masked, durable=location.durability == "durable",
        network=location.options.get("network") == "allow", **numbers,
    )  # fmt: skip


class _Mark(msgspec.Struct):
    format: int = FORMAT


# A file's lock keeps other processes and handles away, not the threads that share a handle.
_making = threading.Lock()


class FileLogStore(LogStore):
    """Logs in a folder of this machine."""

    capabilities = LogCapabilities()

    def __init__(
        self,
        root: Path,
        clock: Clock,
        name: str,
        *,
        durable: bool = True,
        record_limit: int = LogStore.record_limit,
        min_free: int = MIN_FREE,
        network: bool = False,
    ) -> None:
        """Open or make the folder; the first one after a restart of the machine recovers everything."""
        super().__init__(clock, name)
        self.root = root
        self.durable = durable
        self.record_limit = min(record_limit, MAX_FRAME // 2)
        self.min_free = min_free
        self._folders: dict[str, LogFolder] = {}
        self._mutex = threading.RLock()
        self._journal = Journal(self, root)
        self._syncing = Syncing(SYNC)
        if not network:
            refuse_network(root, name)
        try:
            self._prepare()
        except OSError as cause:
            raise CannotOpen(f"{name} cannot be opened: {cause}.", hint="Check the folder and its rights.") from cause

    def _prepare(self) -> None:
        mark = self.root / MARK
        if not mark.exists():
            self.root.parent.mkdir(parents=True, exist_ok=True)
            make_private(self.root, exist_ok=True)
            strange = [one.name for one in self.root.iterdir() if one.name not in (*FOLDERS, MARK, "lock", "txn")]
            if strange:
                raise CannotOpen(
                    f"{self.name} holds files that are not Penstock's ({sorted(strange)[0]}).",
                    hint="Use an empty folder, or one that does not exist.",
                )
            for folder in FOLDERS:
                make_private(self.root / folder, exist_ok=True)
            write_private(mark, msgspec.json.encode({"format": FORMAT}))
            sync_folder(self.root)
        try:
            form = msgspec.json.decode(mark.read_bytes() or b"{}", type=_Mark).format
        except msgspec.MsgspecError as cause:
            raise StoreCorrupt(
                f"{mark} cannot be read: {cause}.",
                hint=f'Restore it from a backup of the folder; it says {{"format": {FORMAT}}}.',
            ) from cause
        if form != FORMAT:
            raise SchemaMismatch(
                f"{self.name} has format {form}; this version reads format {FORMAT}.",
                hint="Use a version of Penstock that reads it.",
            )
        self._lock = LockFile(str(self.root / "lock"))
        if self._booted() != boot():
            with self._lock.held(0):
                if self._booted() != boot():
                    self._recover()
                    os.pwrite(self._lock.fd, boot().to_bytes(8, "little"), 0)

    def _booted(self) -> int:
        return int.from_bytes(os.pread(self._lock.fd, 8, 0), "little")

    def _recover(self) -> None:
        """After a restart of the machine: every partition, then the transactions."""
        self._journal.file()
        for name in self._names():
            folder = self.folder(name)
            for index in range(folder.settings.partitions):
                folder.slot(index)
        self._journal.after_restart()

    # --- for the parts of this store -----------------------------------------------------------------

    def make_folder(self, folder: Path, settings: LogSettings) -> None:
        """Make the folder of a log, once."""
        with _making, self._lock.held(1), disk_errors(f"log {settings.name}"):
            if not folder.exists():
                make_folder(folder, settings)

    def open_folder(self, folder: Path, settings: LogSettings) -> LogFolder:
        """The folder of a log that is not among the user's."""
        with self._mutex:
            return self._folders.setdefault(str(folder), LogFolder(self, folder, settings))

    def folder(self, name: str) -> LogFolder:
        """An opened log."""
        found = self._folders.get(name)
        if found is not None and found.is_current():
            return found
        with self._mutex:
            settings = self.settings(name)
            if found is not None:
                found.close()
            self._folders[name] = LogFolder(self, self.root / "logs" / name, settings)
            return self._folders[name]

    def settings_or_none(self, name: str) -> LogSettings | None:
        """The settings, if there is such a log."""
        return self._settings(name)

    def happened(self, txn: int, hint: int) -> bool:
        """Whether a transaction is in the journal."""
        return self._journal.happened(txn, hint)

    def told(self, what: str, part: PartitionFile, offset: int = 0) -> None:
        """Something happened to a partition, under its lock."""
        if part.place.log == "txn" and part.folder.parent.name == "txn":
            return
        if what == "truncated":
            self.signals.tell("truncated", part.place.log, (), self.now(), partition=part.place.index, offset=offset)
        elif what == "rolled" and may_retain(part, part.settings.retention, self.now()):
            removed = self._retain_one(part, dry_run=False, seal=False)
            if removed is not None:
                self.signals.tell(
                    "retained", part.place.log, (), self.now(), partition=part.place.index, offset=removed.start
                )

    def dirty(self, part: PartitionFile) -> None:
        """It was written without waiting for the disk."""
        self._syncing.add(part)

    def anybody_writes(self) -> bool:
        """Whether a partition of any log has an append under way, or one that was never finished."""
        return any(self.folder(name).is_written() for name in self._names())

    def sync_offsets(self) -> None:
        """Every group's offsets to disk."""
        for path in (self.root / "groups").glob("*/offsets/*"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    # --- logs --------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All logs."""
        self._check_open()
        return self._names()

    def _names(self) -> list[str]:
        return sorted(
            one.name for one in (self.root / "logs").iterdir() if one.name[0] != "." and (one / "log.json").exists()
        )

    def _create(self, settings: LogSettings) -> bool:
        folder = self.root / "logs" / settings.name
        with _making, self._lock.held(1):
            if read_settings(folder) is not None:
                return False
            if folder.exists():
                raise Conflict(f"{folder} is in the way: it is not a log.", hint="Move it elsewhere.")
            with disk_errors(f"log {settings.name}"):
                make_folder(folder, settings)
            return True

    def _settings(self, name: str) -> LogSettings | None:
        known = self._folders.get(name)
        if known is not None and known.is_current():
            return known.settings
        return read_settings(self.root / "logs" / name)

    def _identity(self, name: str) -> str | None:
        return read_identity(self.root / "logs" / name)

    def _delete(self, name: str) -> bool:
        with disk_errors(f"deleting log {name}"):
            return self._remove(name)

    def _remove(self, name: str) -> bool:
        settings = self._settings(name)
        if settings is None:
            return False
        folder = self.root / "logs" / name
        self._refuse_foreign(folder)
        self._journal.resolve()
        with self._lock.held(1):
            if is_in_use(folder):
                raise Conflict(f"log {name} has an open appender.", hint="Close its appenders and tailers first.")
            for group in self._group_folders():
                if not group.knows(name):
                    continue  # not even its counter is looked for: on a full disk it could not be made
                state = GroupState(group)
                try:
                    with state.changing():
                        free_of_owners(group, settings, range(settings.partitions))
                        (group.offsets / name).unlink(missing_ok=True)
                        (group.leases / name).unlink(missing_ok=True)
                finally:
                    state.close()
            aside = folder.with_name(f".{name}.deleted.{os.getpid()}")
            os.rename(folder, aside)
            sync_folder(folder.parent)
        with self._mutex:
            opened = self._folders.pop(name, None)
            if opened is not None:
                opened.close()
        shutil.rmtree(aside)
        return True

    def _refuse_foreign(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            ours = path.is_dir() or path.name in ("log.json", "ctl", "lock") or path.name.endswith(OURS)
            if not ours:
                raise Conflict(
                    f"{path.relative_to(folder.parent)} is not one of our files, so log {folder.name} is not deleted.",
                    hint="Move it elsewhere first.",
                )

    def _bounds(self, settings: LogSettings) -> list[Bounds]:
        self._check_open()
        self._journal.resolve((settings.name,))
        return self.folder(settings.name).bounds()

    def bounds_of(self, partition: Partition) -> Bounds:
        """What one partition holds."""
        self._check_open()
        self.check_partition(partition)
        self._journal.resolve((partition.log,))
        slot = self.folder(partition.log).slot(partition.index)
        reader = FileReader(self.folder(partition.log).path(partition.index), partition, slot)
        return Bounds(partition.index, reader.start, reader.end)

    def _reader(self, partition: Partition) -> FileReader:
        folder = self.folder(partition.log)
        return FileReader(folder.path(partition.index), partition, folder.slot(partition.index))

    def _batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]:
        reader = self._reader(partition)
        try:
            yield from reader.frames(start, stop)
        finally:
            reader.close()

    def _offset_at(self, partition: Partition, micros: Micros) -> int:
        folder = self.folder(partition.log)
        return offset_at(folder.path(partition.index), partition, folder.slot(partition.index), micros)

    def _ranges_in_time(
        self, partition: Partition, span: tuple[int, int], times: tuple[Micros, Micros]
    ) -> list[tuple[int, int]]:
        folder = self.folder(partition.log)
        return ranges_in_time(folder.path(partition.index), partition, folder.slot(partition.index), span, times)

    # --- groups ------------------------------------------------------------------------------------

    def _group_folders(self) -> list[GroupFolder]:
        return [GroupFolder(self.root, path.name) for path in sorted((self.root / "groups").iterdir()) if path.is_dir()]

    def _groups(self, name: str) -> list[str]:
        self._journal.resolve((name,))
        count = self.settings(name).partitions
        return [one.name for one in self._group_folders() if any(one.kept(name, count))]

    def _committed(self, settings: LogSettings, group: str) -> list[int | None]:
        self._check_open()
        self._journal.resolve((settings.name,))
        kept = GroupFolder(self.root, group).kept(settings.name, settings.partitions)
        return [None if one is None else one.offset for one in kept]

    def _reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        self._journal.resolve()
        folder = GroupFolder(self.root, group)
        with disk_errors(f"group {group}"):
            state = GroupState(folder)
        try:
            with state.changing():
                for log in {partition.log for partition in offsets}:
                    chosen = [partition.index for partition in offsets if partition.log == log]
                    free_of_owners(folder, self.settings(log), chosen)
                for partition, offset in offsets.items():
                    file = OffsetsFile(folder, partition.log, self.settings(partition.log).partitions)
                    try:
                        last = file.read(partition.index)
                        file.write(partition.index, Kept(last.generation + 1 if last else 1, offset, 0, 0))
                        if self.durable:
                            file.sync()
                    finally:
                        file.close()
        finally:
            state.close()

    def _forget(self, group: str, name: str | None) -> bool:
        with disk_errors(f"forgetting group {group}"):
            return self._forget_group(group, name)

    def _forget_group(self, group: str, name: str | None) -> bool:
        folder = GroupFolder(self.root, group)
        if not folder.knows(name):
            return False
        self._journal.resolve()
        state = GroupState(folder)
        try:
            with state.changing():
                logs = [path.name for path in folder.leases.iterdir() if name in (None, path.name)]
                for log in logs:
                    settings = self._settings(log)
                    if settings is not None:
                        free_of_owners(folder, settings, range(settings.partitions))
                going = [path for path in folder.offsets.iterdir() if name in (None, path.name)]
                had = any(any(folder.kept(path.name, path.stat().st_size // 128)) for path in going)
                for path in going:
                    path.unlink()
                return had
        finally:
            state.close()

    def _commit_watch(self, group: str) -> CommitWatch:
        return FolderCommitWatch(GroupFolder(self.root, group).offsets)

    # --- working -----------------------------------------------------------------------------------

    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink:
        """An appender's sink."""
        self._check_open()
        with disk_errors(f"log {settings.name}"):
            return FileSink(self, self.folder(settings.name), exclusive, producer)

    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        """A source with these partitions."""
        logs = {name: self.settings(name) for name in {one.log for one in partitions}}
        source = self._source(group, (), logs, None, out_of_range, max_poll)
        return EmbeddedSource.assigned(partitions, source)

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
        return self._source(group, logs, {one.name: one for one in logs}, listener, out_of_range, max_poll)

    def _source(  # noqa: PLR0917 - a source's parts
        self,
        group: str,
        logs: Sequence[LogSettings],
        all_logs: Mapping[str, LogSettings],
        listener: Listener | None,
        policy: OutOfRange,
        patience: timedelta,
    ) -> EmbeddedSource:
        self._check_open()
        resolve = partial(self._journal.resolve, frozenset(all_logs))
        resolve()
        place = GroupFolder(self.root, group)
        with disk_errors(f"group {group}"):
            membership = FileMembership(place, logs, patience, settings=all_logs, durable=self.durable, resolve=resolve)
        watch: Watch = watch_for(
            lambda one: self.folder(one.log).path(one.index), (place.folder, place.members) if logs else ()
        )
        return EmbeddedSource(
            self, membership, watch, self._reader, group=group, out_of_range=policy, max_poll=patience, logs=logs,
            listener=listener,
        )  # fmt: skip

    def transact(self, commit: Commit) -> Committed:
        """One commit point for all."""
        self._check_open()
        with disk_errors("the transaction"):
            return self._journal.commit(commit)

    def _stage(self, settings: LogSettings) -> Stage:
        with disk_errors("staged records"):
            sweep(self.root, SystemClock().micros() / 1e6 - STAGED_FOR)
            return FileStage(self.root, settings, self.now, durable=self.durable)

    def staged_commit(self) -> str:
        """What is done with the bytes of staged files."""
        folder = self.root / "logs"
        large = f"files of {WORTH >> 20} MiB and more"
        if (self.root / "staged").stat().st_dev == folder.stat().st_dev and can_link(self.root / MARK, folder):
            return (
                f"{large} become segments of the log by a second name; no byte of them is read, smaller ones are copied"
            )
        return f"all files are copied: {self.root / 'staged'} is on another file system, or this one has no hard links"

    def _discard(self, staged: Sequence[Staged]) -> None:
        discard(self.root, [one.path for one in staged])

    # --- keeping -----------------------------------------------------------------------------------

    def _retain(self, settings: LogSettings, dry_run: bool) -> list[Removed]:
        removed = []
        folder = self.folder(settings.name)
        for index in range(settings.partitions):
            part = folder.partition(index)
            with part.line:
                one = self._retain_one(part, dry_run=dry_run, seal=True)
            if one is not None:
                removed.append(one)
        return removed

    def _retain_one(self, part: PartitionFile, *, dry_run: bool, seal: bool) -> Removed | None:
        rule = part.settings.retention
        consumed = None
        if rule.keep_for:
            found = []
            for group in rule.keep_for:
                kept = GroupFolder(self.root, group).kept(part.place.log, part.settings.partitions)[part.place.index]
                found.append(0 if kept is None else kept.offset)
            consumed = min(found)
        return retain(part, rule, consumed, self.now(), dry_run=dry_run, seal=seal)

    def sync(self) -> None:
        """Everything that this handle appended to disk."""
        self._syncing.now()

    def backup(self, target: str, *, dry_run: bool = False) -> list[Finding]:
        """Copy everything as it is at one moment."""
        self._check_open()
        with disk_errors(f"the backup at {target}"):
            return copies.backup(self, Path(target), dry_run=dry_run)

    def verify(self, name: str | None = None) -> list[Finding]:
        """Look at every byte."""
        return copies.verify(self, [name] if name is not None else self.names())

    def repair(self, name: str, *, dry_run: bool = False) -> list[Finding]:
        """Put damaged frames aside."""
        return copies.repair(self, name, dry_run=dry_run)

    def check(self) -> list[Finding]:
        """Room, durability, and what waits for recovery."""
        return copies.check(self)

    @property
    def journal(self) -> Journal:
        """The transactions."""
        return self._journal

    @property
    def lock(self) -> LockFile:
        """The folder's own lock."""
        return self._lock

    def check_open(self) -> None:
        """Raise when the handle was closed or belongs to a parent process."""
        self._check_open()

    def _check_open(self) -> None:
        super()._check_open()
        if self._process is not this_process():
            raise Closed(
                f"{self.name} was opened by the parent of this process.", hint="Open it in the child, after the fork."
            )

    def _close(self) -> None:
        self._syncing.close()
        self._journal.close()
        for folder in self._folders.values():
            folder.close()
        self._lock.close()


class FileSink(Sink):
    """Appends to a log's partitions."""

    def __init__(self, store: FileLogStore, folder: LogFolder, exclusive: bool, producer: str | None) -> None:
        """Say that an appender is open."""
        self._store = store
        self._folder = folder
        self._lock = AppenderLock(folder.folder, folder.settings.name, exclusive=exclusive)
        self._exclusive = exclusive
        if exclusive:
            folder.exclusive = True
            folder.pass_through()  # a transaction that was let in before ends first
        self._compression = folder.settings.compression
        self._process = this_process()
        self._producer = None
        if producer is not None:
            self._producer = Registration(store.root / "producers", producer)

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append; what goes to one partition is one write."""
        store = self._store
        if store.closed or self._process is not this_process():
            store.check_open()
        spans: list[Sequence[int]] = []
        for number, records in parts:
            frames = [encode(one, self._compression) for one in split(records, MAX_FRAME // 2)]
            part = self._folder.partition(number)
            producer = self._producer
            if producer is None:
                spans.append(part.append(frames, store.now()))
            else:
                spans.append(part.append(frames, store.now(), producer.stamp(sequence), producer.check))
        return spans

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence of this producer."""
        if self._producer is None:
            return super().last_sequence(partition)
        return self._folder.partition(partition).last_sequence(self._producer.id)

    def close(self) -> None:
        """Let go."""
        if self._exclusive:
            self._exclusive = self._folder.exclusive = False
        self._lock.close()
        if self._producer is not None:
            self._producer.close()
