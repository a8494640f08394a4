"""SQLite: queues in one file. Durable by default, several processes at once, no server, nothing to install.

URL: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``. Options: ``payload_limit`` (bytes), ``busy_timeout``
(seconds to wait for the write lock).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.clock import Clock
from penstock.errors import BadInput
from penstock.location import Location
from penstock.queue.drivers.sql import guidance, read, schema, sqlite_round_trip
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.sql.migrations import Migrator, Phase, Version
from penstock.queue.drivers.sql.round_trip import Hint, Trip
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.sqlite_errors import is_already_there
from penstock.queue.drivers.sql.sqlite_file import SqliteFile, needs_guard
from penstock.queue.drivers.sql.sqlite_script import sqlite_script
from penstock.queue.drivers.sql.sqlite_transactions import FileTransactions
from penstock.queue.drivers.sql.statements import Catalogue, Statement
from penstock.queue.protocol import ClaimRequest, Find, Finding, NewEntry, Part, PutResult, Step
from penstock.queue.wakeup import Bell

logger = logging.getLogger("penstock.queue.store")

# How often a waiting worker asks whether another process has written: eagerly while things happen, lazily when idle.
EAGER, LAZY, EAGER_FOR = 0.002, 0.02, 1.0
SCHEMA = "sqlite_schema.sql"
LARGE_LOG = 64 * 1024 * 1024
_OPTIONS = frozenset({"payload_limit", "busy_timeout"})


def open_driver(location: Location, clock: Clock, *, prepare: bool = True) -> SqlDriver:
    """Open a ``sqlite:///`` URL; ``prepare=False`` leaves the tables alone."""
    location.reject_unknown_options(_OPTIONS)
    server = SqliteServer(location, clock)
    try:
        if prepare:
            server.prepare()
    except BaseException:
        server.close()
        raise
    return SqlDriver(server, location.space, clock, f"sqlite:///{server.file.path}")


def is_there(location: Location) -> bool:
    """Whether the space has tables; looks, and makes none."""
    if not location.file.is_file():
        return False
    file = SqliteFile(location.file.absolute(), synchronous="FULL")
    try:
        with file.reading() as db:
            return _stored_version(db, location.space).pre > 0
    finally:
        file.close()


class SqliteDialect:
    """Lists are JSON; several statements make a script."""

    def candidates(self, id_: str, count: int) -> list[str]:
        """A list of ids for each label."""
        return guidance.each_label(id_, count)

    def guide(self, session: Session, where: Find, values: dict[str, Any]) -> list[str]:
        """By their labels; few entries are named one by one."""
        return self.candidates("e.id", len(where.labels)) + guidance.by_lookups(session, where, values)

    def statement(self, text: str) -> Statement:
        """One statement, or a script."""
        return sqlite_script(text)

    def among(self, column: str, parameter: str) -> str:
        """The column is in a list."""
        return f"{column} IN (SELECT value FROM json_each(%({parameter})s))"

    def label(self, labels: str, parameter: str) -> str:
        """A member of an object, whatever characters its name has."""
        return f"(SELECT j.value FROM json_each({labels}) j WHERE j.key = %({parameter})s)"


class FileBell(Bell):
    """Rings when this process makes work claimable, and when other processes commit to the file."""

    def __init__(self, file: SqliteFile) -> None:
        """Watch a file while somebody waits."""
        super().__init__()
        self._file = file
        self._last_ring = time.monotonic()

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._last_ring = time.monotonic()
        super().ring()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until it has rung since ``seen``, or the time is over. Returns whether it rang."""
        deadline = time.monotonic() + seconds
        while True:
            if self._file.others_wrote():
                self.ring()
            now = time.monotonic()
            pause = EAGER if now - self._last_ring < EAGER_FOR else LAZY
            if super().wait(seen, min(pause, deadline - now)):
                return True
            if now >= deadline:
                return False


class SqliteServer:
    """The file behind one store handle."""

    overlaps_round_trips = False  # a file has one writer
    trips_keep_results = False
    trips_consume_links = False

    def __init__(self, location: Location, clock: Clock) -> None:
        """Open or create the file."""
        self.space = location.space
        self.durability = location.durability
        self.payload_limit = location.count("payload_limit", SqlDriver.payload_limit)
        self.file = SqliteFile(
            location.file.absolute(),
            synchronous="FULL" if location.durability == "durable" else "NORMAL",
            busy_seconds=_seconds(location, "busy_timeout", 30.0),
        )
        self.transactions = FileTransactions(self.file, Catalogue(SqliteDialect(), "sqlite.sql", location.space), clock)
        self.bell = FileBell(self.file)

    # --- the shortest ways ------------------------------------------------------------------------------------------

    works_alone = True  # they bring their own transaction

    def put_plain(self, session: Session, entry: NewEntry) -> PutResult | None:
        """Put an entry in two statements."""
        return sqlite_round_trip.put_plain(session, entry)

    def round_trip(
        self, session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
    ) -> Trip:
        """Settle and claim. Hints have no use here: entries that were taken do not slow the next claim down."""
        return sqlite_round_trip.round_trip(session, steps, claim)

    def end_plain(self, session: Session, steps: Sequence[Step]) -> set[int] | None:
        """End plain successes. Returns the bodies of those that were still held, or None if all were."""
        return sqlite_round_trip.end_plain(session, steps)

    # --- tables -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the tables or bring them up to date."""
        version = self.schema_version()
        schema.check(version, self.space)
        if version.pre < schema.VERSION:
            self.file.write(lambda db: self._migrate(db, "pre" if _stored_version(db, self.space).pre else "all"))
            self._sync_folder()
        if version.pre == 0:
            # Who meant a file that is there, seen from another folder, reads it here.
            logger.info("created a new store: space %s in %s", self.space, self.file.path)

    def schema_version(self) -> Version:
        """How far the tables of the space have come."""
        with self.file.reading() as db:
            return _stored_version(db, self.space)

    def migrate(self, phase: Phase) -> list[str]:
        """Bring the tables to this version. Returns what was done."""
        schema.check(self.schema_version(), self.space)
        return self.file.write(lambda db: self._migrate(db, phase))

    def _migrate(self, db: sqlite3.Connection, phase: Phase) -> list[str]:
        steps = schema.steps(SCHEMA, self.space)
        migrator = Migrator(db, self.space, is_already_there)
        return migrator.migrate(steps, version=_stored_version(db, self.space), phase=phase)

    def _sync_folder(self) -> None:
        """A new file is only safe when its folder's entry is on the disk too."""
        handle = os.open(self.file.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def mark(self, session: Session, part: Part, after: int) -> int:
        """The last number: who draws one here has the whole file to itself until it commits."""
        return read.last(session, part)

    # --- waking and closing -----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """The bell looks at the file by itself while somebody waits."""

    def hears(self) -> bool:
        """Not while nobody waits; a look costs little here."""
        return False

    def forked(self) -> None:
        """In a child: leave the parent's connections alone."""
        self.file.forked()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def check(self, session: Session) -> list[Finding]:
        """What doctor says about the file."""
        with self.file.reading() as db:
            integrity = [row[0] for row in db.execute("PRAGMA integrity_check(10)").fetchall()]
            version = _stored_version(db, self.space)
        return [
            Finding("good" if integrity == ["ok"] else "bad", "integrity", "; ".join(integrity)),
            Finding("good", "schema", f"space {self.space!r} has version {version.pre}"),
            self._check_durability(),
            _check_library(),
            _check_log(Path(f"{self.file.path}-wal")),
        ]

    def _check_durability(self) -> Finding:
        if self.durability == "durable":
            return Finding("good", "durability", "an acknowledged put survives a power cut (synchronous=FULL)")
        return Finding(
            "warning", "durability", "fast: the last commits can be lost in a power cut (synchronous=NORMAL)"
        )


def _check_library() -> Finding:
    version = sqlite3.sqlite_version
    if not needs_guard():
        return Finding("good", "sqlite library", version)
    return Finding(
        "warning",
        "sqlite library",
        f"{version} has the WAL-reset bug (mended in 3.51.3); Penstock's guarded checkpoints avoid it, "
        "other programs that write this file must not checkpoint",
    )


def _check_log(log: Path) -> Finding:
    size = log.stat().st_size if log.exists() else 0
    large = size >= LARGE_LOG
    return Finding(
        "warning" if large else "good",
        "write-ahead log",
        f"{size / 1024 / 1024:.1f} MiB" + (": a long reader keeps it from shrinking" if large else ""),
    )


def _stored_version(db: sqlite3.Connection, space: str) -> Version:
    table = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (f"{space}_meta",)).fetchone()
    if table is None:
        return Version()
    return Migrator(db, space).version()


def _seconds(location: Location, option: str, default: float) -> float:
    text = location.options.get(option, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 86400:
        raise BadInput(f"{option} {text!r} in {location.masked} is not a time.", hint="Give it in seconds, 0 or more.")
    return value
