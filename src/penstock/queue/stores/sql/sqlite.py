"""SqliteStore: the embedded store. Durable by default, several processes at once, no server."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from penstock.clock import Clock, Micros
from penstock.errors import BadInput, Conflict, EntryNotFound, LeaseLost
from penstock.location import Location
from penstock.queue.drivers.sql.callers import driver_connection
from penstock.queue.drivers.version import check_version
from penstock.queue.store import (
    Claimed,
    ClaimRequest,
    Finding,
    NewEntry,
    Note,
    Settled,
    Step,
    StepDone,
)
from penstock.queue.stores.sql.clocks import OneMoment
from penstock.queue.stores.sql.dialect import Dialect
from penstock.queue.stores.sql.migrations import migrate, stored_version
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.schema import VERSION
from penstock.queue.stores.sql.sqlite_errors import translated
from penstock.queue.stores.sql.sqlite_file import SqliteFile, Together, adopt, needs_guard
from penstock.queue.stores.sql.statements import Statements
from penstock.queue.stores.sql.steps import is_plain_put
from penstock.queue.stores.sql.store import SqlStore

logger = logging.getLogger("penstock.queue.store")

T = TypeVar("T")

# How often a waiting worker asks whether another process has written: eagerly while things happen, lazily when idle.
EAGER, LAZY, EAGER_FOR = 0.002, 0.02, 1.0

_OPTIONS = frozenset({"payload_limit", "busy_timeout"})


def open_store(location: Location, clock: Clock) -> SqliteStore:
    """Open ``sqlite:///relative.db`` or ``sqlite:////absolute.db``."""
    location.reject_unknown_options(_OPTIONS)
    return SqliteStore(location, clock)


# A child may be forked while another thread rings: the bell it inherits would stay held for ever.
_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _renew_bells() -> None:
    for store in list(_stores):
        store.renew_bell()


os.register_at_fork(after_in_child=_renew_bells)


class SqliteStore(SqlStore):
    """Queues in one SQLite file."""

    def __init__(self, location: Location, clock: Clock) -> None:
        """Open the file, bring its schema up to date, and listen for the clock."""
        path = location.file
        sql = Statements(location.space, Dialect())
        super().__init__(location.space, clock, f"sqlite:///{path.absolute()}", sql)
        self.durability = location.durability
        self.payload_limit = _number(location, "payload_limit", self.payload_limit)
        self.file = SqliteFile(
            path.absolute(),
            synchronous="FULL" if location.durability == "durable" else "NORMAL",
            busy_seconds=_seconds(location, "busy_timeout", 30.0),
        )
        try:
            self._prepare()
        except BaseException:
            self.file.close()
            raise
        self._bell = threading.Condition()
        _stores.add(self)
        self._rings = 0
        self._last_ring = time.monotonic()
        self._forget_clock = clock.on_change(self.wake)

    def _prepare(self) -> None:
        with self.file.reading() as db:
            version = stored_version(db, self.space)
        check_version(version, self.space, VERSION)
        if version < VERSION:
            self.file.write(self._migrate)
            self._sync_folder()
        if version == 0:
            # Who meant a file that is there, seen from another folder, reads it here.
            logger.info("created a new store: space %s in %s", self.space, self.file.path)

    def _migrate(self, db: Any) -> None:
        """Create the tables, or do what this code needs beforehand; what old code could not bear is left alone."""
        version = stored_version(db, self.space)
        migrate(db, self.space, sqlite_dialect(), version=version, phase="pre" if version else "all")

    def _sync_folder(self) -> None:
        """A new file is only safe when its folder's entry is on the disk too."""
        handle = os.open(self.file.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def now(self) -> Micros:
        """The host's clock, or the fake one."""
        fixed = self.clock.fixed()
        return self.clock.micros() if fixed is None else fixed

    # --- running operations ------------------------------------------------------------------------

    def _write(self, work: Callable[[Operations], T], connection: Any = None, *, together: Together | None = None) -> T:
        """Run work in a write transaction of ours, or in the caller's own."""
        self._check_not_closed()
        # Calls that are run together put something, so the bell rings unless the work says otherwise.
        rings = True

        def run(db: Any) -> T:
            nonlocal rings
            operations = Operations(db, self.sql, OneMoment(self.now()))
            result = work(operations)
            operations.flush()
            rings = operations.rings
            return result

        own = connection is None
        result = self.file.write(run, together=together) if own else self._in_callers(connection, run)
        if rings:
            self.wake()
        return result

    def _in_callers(self, connection: Any, run: Callable[[Any], T]) -> T:
        db = self._driver_connection(connection)
        try:
            adopt(db)
            if not db.in_transaction:
                if db.isolation_level is None:
                    raise BadInput(
                        "connection= is outside a transaction and commits every statement by itself.",
                        hint="Execute BEGIN IMMEDIATE on it first; in Django, call this inside transaction.atomic().",
                    )
                db.execute("BEGIN IMMEDIATE")
            db.execute("SAVEPOINT penstock")
            try:
                result = run(db)
            except BaseException:
                db.execute("ROLLBACK TO penstock")
                db.execute("RELEASE penstock")
                raise
            db.execute("RELEASE penstock")
        except sqlite3.Error as cause:
            raise translated(cause, self.file.path) from cause
        return result

    def _driver_connection(self, connection: Any) -> sqlite3.Connection:
        """The sqlite3 connection inside what the caller gave."""
        db = driver_connection(connection)
        if not isinstance(db, sqlite3.Connection):
            raise BadInput(
                f"connection= was given a {type(connection).__name__}, which is no SQLite connection.",
                hint="Pass a sqlite3.Connection, SQLAlchemy's Connection or Session, or Django's connection.",
            )
        files = [row[2] for row in db.execute("PRAGMA database_list") if row[1] == "main"]
        if not files or not files[0] or not os.path.samefile(files[0], self.file.path):
            raise BadInput(
                f"connection= is open on {files[0] if files and files[0] else 'memory'}, not on {self.file.path}.",
                hint="What is committed together has to be in one file.",
            )
        return db

    # --- the contract ------------------------------------------------------------------------------

    # --- the contract, where this store does better ------------------------------------------------

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, notes: Sequence[Note] = ()
    ) -> Settled:
        if len(steps) == 1 and claim is None and connection is None and not notes:
            return self._settle_one(steps[0])
        return super()._settle(steps, claim, connection, notes)

    def _settle_one(self, step: Step) -> Settled:
        """A step by itself needs no savepoint of its own, and plain puts of several callers become one statement."""

        def work(operations: Operations) -> Settled:
            return Settled([operations.step(step)], Claimed(), operations.now)

        together = Together(self._put_together, step.puts) if is_plain_put(step) else None
        try:
            return self._write(work, together=together)
        except (LeaseLost, Conflict, BadInput, EntryNotFound) as error:
            return Settled([error], Claimed(), self.now())

    def _put_together(self, db: Any, puts: list[tuple[NewEntry, ...]]) -> list[Settled]:
        operations = Operations(db, self.sql, OneMoment(self.now()))
        results = operations.put([entry for entries in puts for entry in entries])
        operations.flush()
        replies, start = [], 0
        for entries in puts:
            mine = tuple(results[start : start + len(entries)])
            replies.append(Settled([StepDone(mine)], Claimed(), operations.now))
            start += len(entries)
        return replies

    # --- waiting -----------------------------------------------------------------------------------

    def renew_bell(self) -> None:
        """In a forked child."""
        self._bell = threading.Condition()

    def bell(self) -> int:
        """How often this process has rung."""
        return self._rings

    def wake(self) -> None:
        """Ring for every wait of this process."""
        with self._bell:
            self._rings += 1
            self._last_ring = time.monotonic()
            self._bell.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until this process rings, another one writes, or the time is over."""
        deadline = time.monotonic() + seconds
        while not self.closed:
            if self.file.others_wrote():
                self.wake()
            now = time.monotonic()
            pause = EAGER if now - self._last_ring < EAGER_FOR else LAZY
            with self._bell:
                if self._rings != seen:
                    return True
                if now >= deadline:
                    return False
                self._bell.wait(min(pause, deadline - now))
        return True

    # --- looking after it --------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """What doctor says about the file."""
        with self._reading() as db:
            integrity = [row[0] for row in db.execute("PRAGMA integrity_check(10)").fetchall()]
            version = stored_version(db, self.space)
        wal = Path(f"{self.file.path}-wal")
        size = wal.stat().st_size if wal.exists() else 0
        return [
            Finding("good" if integrity == ["ok"] else "bad", "integrity", "; ".join(integrity)),
            Finding("good", "schema", f"space {self.space!r} has version {version}"),
            Finding(
                "good" if self.durability == "durable" else "warning",
                "durability",
                "an acknowledged put survives a power cut (synchronous=FULL)"
                if self.durability == "durable"
                else "fast: the last commits can be lost in a power cut (synchronous=NORMAL)",
            ),
            Finding(
                "warning" if needs_guard() else "good",
                "sqlite library",
                f"{sqlite3.sqlite_version}"
                + (
                    " has the WAL-reset bug (mended in 3.51.3); Penstock's guarded checkpoints avoid it, "
                    "other programs that write this file must not checkpoint"
                    if needs_guard()
                    else ""
                ),
            ),
            Finding(
                "good" if size < 64 * 1024 * 1024 else "warning",
                "write-ahead log",
                f"{size / 1024 / 1024:.1f} MiB"
                + ("" if size < 64 * 1024 * 1024 else ": a long reader keeps it from shrinking"),
            ),
        ]

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if self.closed:
            return
        super().close()
        self._forget_clock()
        self.wake()
        self.file.close()

    def _reading(self) -> Any:
        self._check_not_closed()
        return self.file.reading()


def _seconds(location: Location, option: str, default: float) -> float:
    text = location.options.get(option, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 86400:
        raise BadInput(f"{option} {text!r} in {location.masked} is not a time.", hint="Give it in seconds, 0 or more.")
    return value


def _number(location: Location, option: str, default: int) -> int:
    text = location.options.get(option, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise BadInput(f"{option} {text!r} in {location.masked} is not a number.", hint="Use a whole number from 1 on.")
    return int(text)
