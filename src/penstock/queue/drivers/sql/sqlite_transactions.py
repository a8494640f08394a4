"""The transactions of a SQLite file: one writer per process whose commits are shared, readers, and callers' own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from penstock.clock import Clock, Micros
from penstock.errors import BadInput, OutcomeUnknown, StoreUnavailable
from penstock.queue.drivers.sql.callers import driver_connection, one_at_a_time
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.sqlite_errors import translated
from penstock.queue.drivers.sql.sqlite_file import SqliteFile, adopt, identity
from penstock.queue.drivers.sql.statements import Catalogue

T = TypeVar("T")


class FileTransactions:
    """The transactions of one store handle."""

    def __init__(self, file: SqliteFile, catalogue: Catalogue, clock: Clock) -> None:
        """Keep what the transactions need."""
        self._file = file
        self._catalogue = catalogue
        self._clock = clock

    def write(self, work: Callable[[Session], T], *, repeat: bool = False) -> tuple[T, bool]:
        """Do work in a transaction. Returns its result, and whether it made something claimable."""

        def run(db: sqlite3.Connection) -> tuple[T, bool]:
            session = self._session(db, repeat=repeat)
            result = work(session)
            return result, session.rings

        try:
            return self._file.write(run)
        except StoreUnavailable as error:
            if not repeat:
                raise
            # What is refused now says nothing of a try before it whose commit was in doubt.
            raise OutcomeUnknown(
                f"a commit to {self._file.path} was in doubt, and the file cannot be asked: {error}.",
                hint="When it is back, look whether the call took effect, or repeat it with the same ids.",
            ) from error

    def alone(self, work: Callable[[Session], T], *, look: bool = True) -> T:
        """Do work that changes nothing when it fails; raises OutcomeUnknown if its commit was in doubt."""
        return self._file.write(lambda db: work(self._session(db)), guarded=False)

    def ahead_of_callers(self, work: Callable[[Session], object]) -> None:
        """Leave it: the caller's transaction may have the file already, and then nobody's heartbeat comes through."""

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for reading, with one consistent view of the file."""
        with self._file.reading() as db:
            yield self._session(db)

    def in_callers(self, connection: Any, work: Callable[[Session], T]) -> T:
        """Do work inside the caller's transaction. If it fails, only the work is undone."""
        db = self._callers_connection(connection)
        with one_at_a_time(db):
            return self._in_savepoint(db, work)

    def _in_savepoint(self, db: sqlite3.Connection, work: Callable[[Session], T]) -> T:
        try:
            adopt(db)
            if not db.in_transaction:
                if db.isolation_level is None:
                    raise BadInput(
                        "connection= is outside a transaction and commits every statement by itself.",
                        hint="Execute BEGIN IMMEDIATE on it first; in Django, call this inside transaction.atomic().",
                    )
                self._file.begin_on(db)
            db.execute("SAVEPOINT penstock")
            try:
                result = work(self._session(db))
            except BaseException:
                db.execute("ROLLBACK TO penstock")
                db.execute("RELEASE penstock")
                raise
            db.execute("RELEASE penstock")
        except sqlite3.Error as cause:
            raise translated(cause, self._file.path) from cause
        return result

    def _callers_connection(self, connection: Any) -> sqlite3.Connection:
        """The sqlite3 connection inside what the caller gave."""
        db = driver_connection(connection)
        if not isinstance(db, sqlite3.Connection):
            raise BadInput(
                f"connection= was given a {type(connection).__name__}, which is not a SQLite connection.",
                hint="Pass a sqlite3.Connection, SQLAlchemy's Connection or Session, or Django's connection.",
            )
        files = [row[2] for row in _plain_cursor(db).execute("PRAGMA database_list") if row[1] == "main"]
        self._file.check_it_is_the_same()
        if not files or not files[0] or identity(Path(files[0])) != identity(self._file.path):
            raise BadInput(
                f"connection= is open on {files[0] if files and files[0] else 'memory'}, not on {self._file.path}.",
                hint="What is committed together has to be in one file.",
            )
        return db

    def now(self) -> Micros:
        """The host's clock, or the fake one."""
        fixed = self._clock.fixed()
        return self._clock.micros() if fixed is None else fixed

    def _session(self, db: sqlite3.Connection, *, repeat: bool = False) -> Session:
        # The file is ours from the first moment of a transaction, so its time is read once.
        return Session(_plain_cursor(db), self._catalogue, self.now, fixed_now=self.now(), repeat=repeat)


def _plain_cursor(db: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor that gives tuples, whatever the caller's own connection gives."""
    cursor = db.cursor()
    cursor.row_factory = None
    return cursor
