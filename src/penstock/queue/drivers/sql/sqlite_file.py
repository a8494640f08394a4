"""A SQLite file as several processes may trust it: pragmas, one writer with group commit, readers, guarded checkpoints.

Two rules of SQLite's shape this module. **One SQLite library per process**: a second one (apsw, pysqlite3) that opens
the same file silently drops the first one's file locks, so it is refused. **The WAL-reset bug**: library versions
from 3.7.0 to 3.51.2 can corrupt a file when a checkpoint and a writer that restarts the log meet; below the mended
version our connections never checkpoint by themselves, and one checkpointer at a time does it while it also holds the
write lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from penstock import failpoints
from penstock.errors import (
    CannotOpen,
    PenstockError,
    StoreFull,
    StoreUnavailable,
)
from penstock.process import this_process
from penstock.queue.drivers.sql.sqlite_calls import Call, run_together
from penstock.queue.drivers.sql.sqlite_errors import in_doubt, no_room, says_full, translated
from penstock.queue.drivers.sql.sqlite_turns import Turns

T = TypeVar("T")
logger = logging.getLogger("penstock.queue.store")

MENDED = (3, 51, 3)  # the first library version without the WAL-reset bug
OTHER_LIBRARIES = ("apsw", "pysqlite3", "sqlcipher3", "pysqlcipher3", "sqlean", "libsql", "libsql_experimental")
CHECKPOINT_FRAMES = 4000
BUSY_SECONDS = 30.0

_creating = threading.Lock()
_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()
GATHER_SECONDS = 0.0003


class SqliteFile:
    """One database file, opened for this process."""

    def __init__(self, path: Path, *, synchronous: str, busy_seconds: float = BUSY_SECONDS) -> None:
        """Open or create the file. Raises a typed error that says what is in the way."""
        self.path = path
        self._synchronous = synchronous
        self._busy_seconds = busy_seconds
        self._process = this_process()
        self._abandoned: list[Any] = []
        self._paused = False
        self._turns = Turns(path, busy_seconds)
        self._create_file()
        self._open()
        _files.add(self)

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[Call[Any]] = deque()
        self._crowd = 1  # how many callers shared recent commits
        self._gathered = threading.Event()
        self._readers: list[sqlite3.Connection] = []
        self._checkpointer: sqlite3.Connection | None = None
        self._commits = 0
        self._next_checkpoint = 64
        self._is_full = False  # the disk was when something was last written
        self._writer = self.connect()
        self._identity = identity(self.path)
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
            # Closing any handle on a file drops all POSIX locks that this process holds on it, also those of its other
            # connections; another process would then take itself for the last one and remove the log under them. So
            # only a file that is not there yet is opened by hand, and nobody connects meanwhile.
            with _creating:
                if not self.path.exists():
                    # Payloads may be private: only the owner reads the file. SQLite gives its WAL the same rights.
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                elif not os.access(self.path, os.R_OK | os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except FileExistsError:
            pass  # another process was faster
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

    def check_it_is_the_same(self) -> None:
        """Raise when the path leads to another file: writes would be acknowledged, and lost with our last handle."""
        if identity(self.path) != self._identity:
            raise StoreUnavailable(
                f"{self.path} was removed or replaced while it was open; nothing was written.",
                hint="Put the file back with its -wal beside it, or start this program again to use what is there now.",
            )

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except sqlite3.Error as cause:
            raise translated(cause, self.path) from cause

    # --- writing: whoever holds the lock commits for all who wait ------------------------------------

    def write(self, work: Callable[[sqlite3.Connection], T], *, guarded: bool = True) -> T:
        """Run ``work`` in a write transaction and return when it is committed.

        Concurrent callers share one commit: the first to get the lock runs everything that is waiting. If one caller's
        work fails, the others' is committed. Work that changes nothing when it fails need not be ``guarded``.
        """
        self._after_fork()
        call: Call[T] = Call(work, guarded=guarded)
        self._pending.append(call)
        if len(self._pending) >= self._crowd:
            self._gathered.set()
        while not call.done:
            if self._lock.acquire(blocking=False):
                try:
                    while not call.done:
                        self._commit_all()
                finally:
                    self._let_go()
            else:
                # Woken when another caller has run this call, or when it is this caller's turn to lead.
                call.woken.acquire()
        return call.outcome(self.path)

    def _let_go(self) -> None:
        """Release the writer, and wake one waiting caller to lead the next commit."""
        self._lock.release()
        with contextlib.suppress(IndexError):
            self._pending[0].tell()

    def _gather(self) -> None:
        """Where many callers come at once, wait a moment for the rest: it costs less than the commit that it saves."""
        if self._crowd > 1 and len(self._pending) < self._crowd:
            self._gathered.clear()
            if len(self._pending) < self._crowd:
                self._gathered.wait(GATHER_SECONDS)

    def _commit_all(self) -> None:
        self._gather()
        calls: list[Call[Any]] = []
        while self._pending:
            calls.append(self._pending.popleft())
        self._crowd = max(len(calls), (self._crowd + len(calls)) // 2)
        try:
            self._commit(calls)
        finally:
            for call in calls:
                call.done = True
                call.tell()
        self._maybe_checkpoint()

    def _commit(self, calls: list[Call[Any]]) -> None:
        """Run calls in one transaction. On a full disk, make room first with a checkpoint."""
        if self._is_full and not self._make_room():
            # Room that comes back is for the checkpoint: the log would only eat it.
            for call in calls:
                call.error = no_room(self.path)
            return
        self._run(calls)
        refused = [call for call in calls if says_full(call.error)]
        if refused:
            self._is_full = True
            if self._make_room():
                self._run(refused)

    def _run(self, calls: list[Call[Any]]) -> None:
        db, committing = self._writer, False
        for call in calls:
            call.error = None
        self._turns.take()
        try:
            failpoints.point("commit.begin")
            db.execute("BEGIN IMMEDIATE")
            self.check_it_is_the_same()
            if len(calls) == 1:
                calls[0].run(db)
            else:
                run_together(db, calls)
            failpoints.point("commit.before")
            committing = not (len(calls) == 1 and calls[0].error is not None)
            db.execute("COMMIT" if committing else "ROLLBACK")
            failpoints.point("commit.after")
        except BaseException as error:
            # The transaction left nothing behind, so every caller may get the error.
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            for call in calls:
                call.error = in_doubt(error, self.path) if committing else error
            if not isinstance(error, PenstockError | sqlite3.Error):
                raise
        finally:
            self._turns.pass_on()

    def _make_room(self) -> bool:
        """Bring the log into the file, so that it starts over in the room it has. Returns whether that succeeded."""
        try:
            self.checkpoint_locked()
        except StoreFull:
            return False
        except PenstockError:
            return True  # another process holds it, or the call itself will hit the error
        self._is_full = False
        return True

    def others_wrote(self) -> bool:
        """Whether another connection, of this process or another, has committed since this was last asked.

        SQLite counts that for us, without the writer's own commits. Asking costs a few microseconds.
        """
        self._after_fork()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            (version,) = self._writer.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return True
        finally:
            self._let_go()
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
                    self.check_it_is_the_same()
                    yield db
                finally:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
        finally:
            self._readers.append(db)

    # --- checkpoints -------------------------------------------------------------------------------

    def _maybe_checkpoint(self) -> None:
        """Checkpoint about every CHECKPOINT_FRAMES pages. The last checkpoint reported the log's length."""
        self._commits += 1
        if self._commits < self._next_checkpoint or not needs_guard():
            return
        frames = 0
        # A checkpoint that fails leaves the log longer and nothing else. On a full disk it is tried again before
        # anything is written: a log that keeps growing would take the room that comes back.
        try:
            frames = self.checkpoint_locked()
        except StoreFull:
            self._is_full = True
        except PenstockError as error:
            logger.warning("the write-ahead log of %s was not brought into the file: %s", self.path, error)
        per_commit = max(1, frames // self._commits)
        self._next_checkpoint = min(max(CHECKPOINT_FRAMES // per_commit, 16), 1000) if frames else 16
        self._commits = 0

    def checkpoint(self) -> int:
        """Bring the log's pages into the file. Returns how many pages the log had, 0 when another process does it."""
        self._after_fork()
        self._lock.acquire()
        try:
            return self.checkpoint_locked()
        finally:
            self._let_go()

    def checkpoint_locked(self) -> int:
        """The same for a caller that holds this process's writer."""
        refuse_other_libraries()
        if self._checkpointer is None:
            self._checkpointer = self.connect()
        with self._flock() as mine, self.errors():
            if not mine:
                return 0
            self._turns.take()
            try:
                # Holding the write lock keeps every writer of every process from restarting the log meanwhile.
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    _, frames, _ = self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                finally:
                    self._writer.execute("ROLLBACK")
            finally:
                self._turns.pass_on()
            return int(frames)

    @contextlib.contextmanager
    def _flock(self) -> Iterator[bool]:
        try:
            handle = os.open(f"{self.path}-checkpoint", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as cause:
            if cause.errno == errno.ENOSPC:
                raise no_room(self.path) from cause
            raise StoreUnavailable(
                f"{self.path}-checkpoint: {cause}.", hint="Check the rights of the folder."
            ) from cause
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
        """Close all connections of this process. Callers that still wait to write get an error."""
        self._after_fork()
        self._lock.acquire()
        try:
            for db in (*self._readers, self._checkpointer, self._writer):
                if db is not None and self._process is this_process():
                    with contextlib.suppress(sqlite3.Error):
                        db.close()
            self._readers.clear()
            self._turns.close()
        finally:
            self._let_go()

    def begin_on(self, db: sqlite3.Connection) -> None:
        """Begin a caller's transaction on the caller's connection, when it is this process's turn."""
        turns = Turns(self.path, self._busy_seconds)
        turns.take()
        try:
            db.execute("BEGIN IMMEDIATE")
        finally:
            turns.pass_on()
            turns.close()

    def forked(self) -> None:
        """In a child: connections are opened again when the file is first used."""
        self._turns.forked()

    def pause(self) -> None:
        """Let no write begin until :meth:`resume`: a child forked inside one would find the file locked forever.

        SQLite keeps a list of its locks in the process, and the child inherits that list unchanged.
        """
        self._paused = self._lock.acquire(timeout=self._busy_seconds)

    def resume(self) -> None:
        """Go on writing."""
        if self._paused:
            self._paused = False
            self._let_go()

    def _after_fork(self) -> None:
        """A forked child must not touch its parent's connections. It abandons them and opens its own."""
        if self._process is not this_process():
            self._abandoned += [self._writer, self._readers, self._checkpointer]
            self._process = this_process()
            self._open()


def identity(path: Path) -> tuple[int, int] | None:
    """Which file a path leads to, or None for none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _pause_all() -> None:
    for file in list(_files):
        file.pause()


def _resume_all() -> None:
    for file in list(_files):
        file.resume()


# The child needs no resuming: it makes new connections, and a new lock, when it first uses the file.
os.register_at_fork(before=_pause_all, after_in_parent=_resume_all)


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
