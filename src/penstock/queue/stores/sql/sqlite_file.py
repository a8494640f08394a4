"""A SQLite file as several processes may trust it: pragmas, one writer with group commit, readers, guarded checkpoints.

Two rules of SQLite's shape this module. **One SQLite library per process**: a second one (apsw, pysqlite3) that opens
the same file silently drops the first one's file locks, so it is refused. **The WAL-reset bug**: library versions
from 3.7.0 to 3.51.2 can corrupt a file when a checkpoint and a writer that restarts the log meet; below the mended
version our connections never checkpoint by themselves, and one checkpointer at a time does it while it also holds the
write lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from penstock import chaos
from penstock.errors import (
    CannotOpen,
    PenstockError,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

T = TypeVar("T")

MENDED = (3, 51, 3)  # the first library version without the WAL-reset bug
OTHER_LIBRARIES = ("apsw", "pysqlite3", "sqlcipher3", "pysqlcipher3", "sqlean", "libsql", "libsql_experimental")
CHECKPOINT_FRAMES = 4000
BUSY_SECONDS = 30.0


class SqliteFile:
    """One database file, opened for this process."""

    def __init__(self, path: Path, *, synchronous: str, busy_seconds: float = BUSY_SECONDS) -> None:
        """Open or create the file; raises a typed error that says what is in the way."""
        self.path = path
        self._synchronous = synchronous
        self._busy_seconds = busy_seconds
        self._pid = os.getpid()
        self._abandoned: list[Any] = []
        self._create_file()
        self._open()

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[_Call[Any]] = deque()
        self._readers: list[sqlite3.Connection] = []
        self._checkpointer: sqlite3.Connection | None = None
        self._commits = 0
        self._next_checkpoint = 64
        self._writer = self.connect()
        (self._version,) = self._writer.execute("PRAGMA data_version").fetchone()

    # --- opening -----------------------------------------------------------------------------------

    def _create_file(self) -> None:
        refuse_other_libraries()
        folder = self.path.parent
        if not folder.is_dir():
            raise CannotOpen(
                f"cannot open {self.path}: the folder {folder} does not exist.", hint=f"Create it: mkdir -p {folder}"
            )
        if self.path.is_dir():
            raise CannotOpen(f"cannot open {self.path}: it is a folder.", hint="Name a file.")
        try:
            # Payloads may be private: only the owner reads the file. SQLite gives its WAL the same rights.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as cause:
            raise CannotOpen(
                f"cannot open {self.path} for writing: {cause.strerror}.",
                hint="Check the rights of the file and its folder; a queue store has to be writable.",
            ) from cause

    def connect(self) -> sqlite3.Connection:
        """A connection with our pragmas."""
        with self.errors():
            db = sqlite3.connect(
                self.path,
                timeout=self._busy_seconds,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA cache_size = -16000")  # KiB: the hot ends of the indexes stay in memory
            db.execute("PRAGMA secure_delete = FAST")  # some builds overwrite deleted rows: twice the writing
            db.execute("PRAGMA temp_store = MEMORY")
            adopt(db)
            return db

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except sqlite3.Error as cause:
            raise translated(cause, self.path) from cause

    # --- writing: whoever holds the lock commits for all who wait ------------------------------------

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in a write transaction and return when it is committed.

        Concurrent callers share one commit: the first to get the lock runs everything that is waiting, each in a
        savepoint of its own, so that one caller's failure is no other's.
        """
        self._after_fork()
        call: _Call[T] = _Call(work)
        self._pending.append(call)
        with self._lock:
            if not call.done:
                self._commit_all()
        return call.outcome(self.path)

    def _commit_all(self) -> None:
        calls: list[_Call[Any]] = []
        while self._pending:
            calls.append(self._pending.popleft())
        db = self._writer
        try:
            with self.errors():
                chaos.point("commit.begin")
                db.execute("BEGIN IMMEDIATE")
                if len(calls) == 1:
                    calls[0].run(db)
                else:
                    for call in calls:
                        _in_savepoint(db, call)
                chaos.point("commit.before")
                db.execute("ROLLBACK" if len(calls) == 1 and calls[0].error is not None else "COMMIT")
                chaos.point("commit.after")
        except BaseException as error:
            # Nothing of the transaction happened, so nobody is told otherwise.
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            for call in calls:
                call.fail(error)
            if not isinstance(error, PenstockError):
                raise
        finally:
            for call in calls:
                call.done = True
        self._maybe_checkpoint()

    def others_wrote(self) -> bool:
        """Whether another connection, of this process or another, has committed since this was last asked.

        SQLite counts that for us, and the writer's own commits do not count; asking costs a few microseconds.
        """
        self._after_fork()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            (version,) = self._writer.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return True
        finally:
            self._lock.release()
        changed, self._version = bool(version != self._version), version
        return changed

    # --- reading -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection with one consistent view of the file."""
        self._after_fork()
        try:
            db = self._readers.pop()
        except IndexError:
            db = self.connect()
        try:
            with self.errors():
                db.execute("BEGIN")
                try:
                    yield db
                finally:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
        finally:
            self._readers.append(db)

    # --- checkpoints -------------------------------------------------------------------------------

    def _maybe_checkpoint(self) -> None:
        """Checkpoint about every CHECKPOINT_FRAMES pages; the log's length is learnt from the last checkpoint."""
        self._commits += 1
        if self._commits < self._next_checkpoint or not needs_guard():
            return
        frames = 0
        # A checkpoint that fails leaves the log longer and nothing else; the next one tries again.
        with contextlib.suppress(PenstockError):
            frames = self.checkpoint_locked()
        per_commit = max(1, frames // self._commits)
        self._next_checkpoint = min(max(CHECKPOINT_FRAMES // per_commit, 16), 1000)
        self._commits = 0

    def checkpoint(self) -> int:
        """Bring the log's pages into the file; how many pages the log had, 0 when another process is at it."""
        with self._lock:
            return self.checkpoint_locked()

    def checkpoint_locked(self) -> int:
        """The same for a caller that holds this process's writer."""
        refuse_other_libraries()
        if self._checkpointer is None:
            self._checkpointer = self.connect()
        with self._flock() as mine, self.errors():
            if not mine:
                return 0
            # Holding the write lock keeps every writer of every process from restarting the log meanwhile.
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                _, frames, _ = self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                self._writer.execute("ROLLBACK")
            return int(frames)

    @contextlib.contextmanager
    def _flock(self) -> Iterator[bool]:
        handle = os.open(f"{self.path}-checkpoint", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    # --- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections of this process."""
        with self._lock:
            for db in (*self._readers, self._checkpointer, self._writer):
                if db is not None and self._pid == os.getpid():
                    with contextlib.suppress(sqlite3.Error):
                        db.close()
            self._readers.clear()

    def _after_fork(self) -> None:
        """A forked child must not touch its parent's connections: it opens its own and lets those lie."""
        if self._pid != os.getpid():
            self._abandoned += [self._writer, self._readers, self._checkpointer]
            self._pid = os.getpid()
            self._open()


class _Call(Generic[T]):
    """One caller's part of a shared commit."""

    __slots__ = ("_result", "_work", "done", "error")

    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        self._work = work
        self._result: T | None = None
        self.error: BaseException | None = None
        self.done = False

    def run(self, db: sqlite3.Connection) -> None:
        """Do the work; a failure is this caller's own unless it took the whole transaction with it."""
        try:
            self._result = self._work(db)
        except Exception as error:
            if not db.in_transaction:
                raise
            self.error = error

    def fail(self, error: BaseException) -> None:
        self.error = error

    def outcome(self, path: Path) -> T:
        if isinstance(self.error, sqlite3.Error):
            raise translated(self.error, path) from self.error
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]


def _in_savepoint(db: sqlite3.Connection, call: _Call[Any]) -> None:
    db.execute("SAVEPOINT caller")
    call.run(db)
    if call.error is not None:
        db.execute("ROLLBACK TO caller")
    db.execute("RELEASE caller")


def needs_guard() -> bool:
    """Whether the SQLite library in use has the WAL-reset bug."""
    return sqlite3.sqlite_version_info < MENDED


def adopt(db: sqlite3.Connection) -> None:
    """Keep a connection, ours or a caller's, from checkpointing on its own where that is not safe."""
    if needs_guard():
        db.execute("PRAGMA wal_autocheckpoint = 0")


def refuse_other_libraries() -> None:
    """Raise when a second SQLite library is loaded in this process."""
    for name in OTHER_LIBRARIES:
        if name in sys.modules:
            raise CannotOpen(
                f"the module {name} brings a second SQLite library into this process; when both open one file, "
                "the file locks of the first are silently dropped.",
                hint=f"Use the standard library's sqlite3 only, or run the code that needs {name} in another process.",
            )


def translated(cause: sqlite3.Error, path: Path) -> PenstockError:
    """A SQLite error as one that says what to do."""
    code = getattr(cause, "sqlite_errorname", "") or ""
    if isinstance(cause, sqlite3.ProgrammingError) and "closed" in str(cause):
        return StoreUnavailable(f"the store {path} is closed.", hint="Open it again.")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(
            f"{path} is locked: another process or transaction kept the write lock too long ({cause}).",
            hint="End long write transactions on this file; begin your own with BEGIN IMMEDIATE.",
        )
    if code.startswith("SQLITE_FULL"):
        return StoreFull(
            f"no room left for {path}; nothing was written.", hint="Free space on that disk; then it goes on."
        )
    if code.startswith("SQLITE_READONLY"):
        return StoreReadOnly(f"{path} cannot be written: {cause}.", hint="Check the rights of the file and its folder.")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(
            f"{path} is damaged or no SQLite database: {cause}.",
            hint="Nothing was changed. Run `penstock doctor` on it; restore a copy, or recover with the sqlite3 tool.",
        )
    if code.startswith("SQLITE_CANTOPEN"):
        return CannotOpen(f"cannot open {path}: {cause}.", hint="Check that the path and its rights are right.")
    if code.startswith("SQLITE_IOERR"):
        return StoreUnavailable(
            f"the disk under {path} failed: {cause}; the call's outcome is not known to be stored.",
            hint="Check the disk, then open the store again.",
        )
    return StoreUnavailable(f"{path}: {type(cause).__name__}: {cause}.", hint="See the cause above.")
