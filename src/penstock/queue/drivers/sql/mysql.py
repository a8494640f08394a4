"""MariaDB 10.6+ and MySQL 8+ through PyMySQL: connecting, what their errors mean, being woken, doctor.

URL: ``mysql://user:password@host:3306/database?space=penstock``. Options as for PostgreSQL; what else is given goes to
the driver. Statements are common to MariaDB and MySQL; they are tested on MariaDB only. Nothing tells of another
process's puts, so who waits looks for them: soon after something came, then less and less often.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

import pymysql
from pymysql.constants import SERVER_STATUS

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import (
    CannotOpen,
    Conflict,
    PayloadTooLarge,
    PenstockError,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.queue.drivers.sql import mysql_round_trip, read, schema
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.sql.migrations import Migration, Phase, Version
from penstock.queue.drivers.sql.mysql_connection import Poller, connect, connect_arguments, is_mariadb, is_quiet
from penstock.queue.drivers.sql.mysql_statements import MOST_BYTES, Cursor, MysqlDialect, PutMany
from penstock.queue.drivers.sql.pool import Pool
from penstock.queue.drivers.sql.round_trip import Hint, Trip
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.statements import Catalogue
from penstock.queue.drivers.sql.tables import Tables, are_there, open_on
from penstock.queue.drivers.sql.transactions import Transactions
from penstock.queue.protocol import ClaimRequest, Finding, NewEntry, Part, PutResult, Step
from penstock.queue.wakeup import Bell

# So long the server waits for a client of ours that has begun a transaction and neither goes on nor reads: a frozen one
# must not keep others from its locks. It is half of the default heartbeat; who was only slow tries again.
IDLE_SECONDS = 10
MARK_SECONDS = 10  # to wait for transactions that may still commit a lower number
# A number is drawn a moment before anybody can see its row, however he looks.
DRAWN_SECONDS = 0.2
_NOW = "SELECT timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))"
# Lock wait timeout, deadlock, a row that is newer than the snapshot: either way the whole transaction is given up.
_CONFLICTS = frozenset({1020, 1205, 1213})
_LOST = frozenset({1053, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
_REFUSED = frozenset({1044, 1045, 1049, 1698})
_DENIED = frozenset({1142, 1143, 1370})
_NO_TABLE = frozenset({1054, 1146})
_READ_ONLY = frozenset({1290, 1792, 1836})
_FULL = frozenset({1021, 1114, 28})
_TOO_LARGE = 1153
_OURS = 2000  # from here on errors are the driver's own, not the server's
_BYTEWISE = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}  # the same on MariaDB and on MySQL
_never = threading.Event()


def open_driver(location: Location, clock: Clock, *, prepare: bool = True) -> SqlDriver:
    """Open a ``mysql://`` or ``mariadb://`` URL; ``prepare=False`` leaves the tables alone."""
    return open_on(MysqlServer(location, clock), clock, prepare=prepare)


def is_there(location: Location) -> bool:
    """Whether the space has tables; looks, and makes none."""
    return are_there(MysqlServer(location, SystemClock()))


DUPLICATE_COLUMN = 1060


def steps(space: str, *, mariadb: bool = True) -> list[Migration]:
    """The steps to the tables of a space."""
    return [
        step._replace(pre=[statement.replace(_BYTEWISE[True], _BYTEWISE[mariadb]) for statement in step.pre])
        for step in schema.steps("mysql_schema.sql", space)
    ]


class MysqlServer:
    """The server behind one store handle."""

    overlaps_round_trips = False  # the second would wait for the locks of the first
    trips_keep_results = True
    trips_consume_links = True

    driver = "PyMySQL"
    joins_async = False

    def __init__(self, location: Location, clock: Clock) -> None:
        """Read the URL; connections are made when they are needed."""
        self.name = location.masked
        self.space = location.space
        self.payload_limit = location.count("payload_limit", SqlDriver.payload_limit)
        self.timeout = math.ceil(location.seconds("timeout", 10))
        self.reply_timeout: float = math.ceil(location.seconds("reply_timeout", 60))
        self.idle_timeout = math.ceil(location.seconds("idle_timeout", IDLE_SECONDS))
        self.durability = location.durability
        self._arguments = connect_arguments(location, self.timeout, int(self.reply_timeout))
        size = location.count("pool_size", 10)
        self.pool: Pool[Any] = Pool(self._connect, is_quiet, size=size, timeout=self.timeout, name=self.name)
        self.most_bytes = MOST_BYTES
        catalogue = Catalogue(MysqlDialect(), "mysql.sql", location.space)
        catalogue.add("put_many", PutMany(catalogue))
        mysql_round_trip.add_round_trips(catalogue)
        self.transactions = Transactions(self, self.pool, catalogue, clock)
        self.tables = Tables(self)
        self.bell = Bell()
        self._window = (0, 0)
        self._trips = mysql_round_trip.RoundTrips()
        self._poller = Poller(self._look, self.bell, self.name)

    def _connect(self) -> pymysql.Connection[Any]:
        settings = {
            # The server gives up a lock before we give up the server: nobody would wait for that transaction any more.
            "innodb_lock_wait_timeout": max(1, int(self.reply_timeout) // 2),
            "net_write_timeout": self.idle_timeout,
            "idle_transaction_timeout": self.idle_timeout,
            "in_predicate_conversion_threshold": 0,  # a long list is looked up by the index, as a short one is
            "group_concat_max_len": 2**32 - 1,  # what a message notes for itself is as long as a packet may be
        }
        return connect(self._arguments, settings, int(self.reply_timeout))

    # --- transactions -----------------------------------------------------------------------------------------------

    def begin(self, connection: Any, fixed: Micros | None) -> Micros:
        """Begin, and ask for the time with the same message."""
        cursor = self.cursor(connection)
        if fixed is not None:
            cursor.execute("START TRANSACTION")
            return fixed
        [(now,)] = cursor.execute(f"START TRANSACTION; {_NOW}").fetchall()
        return int(now)

    def cursor(self, connection: Any) -> Cursor:
        """A cursor that gives tuples, whatever the caller's own connection gives."""
        return Cursor(connection, self.most_bytes)

    def server_now(self, cursor: Any) -> Micros:
        """The server's clock."""
        [(now,)] = cursor.execute(_NOW).fetchall()
        return int(now)

    def announce(self, session: Session) -> None:
        """Let those who look find something when this transaction commits."""
        session.change("announce")

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the server gave up the transaction in favour of another one."""
        return _code(error) in _CONFLICTS

    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection is gone."""
        return _code(error) in _LOST or isinstance(error, pymysql.err.InterfaceError)

    def is_answer(self, error: BaseException) -> bool:
        """Whether the server said this to a statement."""
        return 0 < _code(error) < _OURS

    def is_drivers(self, error: BaseException) -> bool:
        """Whether the driver raised it."""
        return isinstance(error, pymysql.err.MySQLError | OSError)

    def is_ours(self, connection: Any) -> bool:
        """Whether this is a connection of PyMySQL's."""
        return isinstance(connection, pymysql.connections.Connection)

    def commits_by_itself(self, connection: Any) -> bool:
        """Whether the connection is in no transaction, and the next statement would begin none."""
        in_transaction = connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS
        return bool(connection.get_autocommit()) and not in_transaction

    def translated(self, error: BaseException) -> PenstockError:
        """PyMySQL's error as one of ours."""
        code, text = _code(error), str(error.args[1] if len(error.args) > 1 else error)
        if code in _REFUSED:
            return CannotOpen(f"{self.name} refused the connection: {text}.", hint="Check user, password and database.")
        if code in _DENIED:
            return CannotOpen(f"{self.name}: {text}.", hint="Grant the user its rights on the tables of this space.")
        if code in _NO_TABLE:
            return SchemaMismatch(
                f"{self.name} has not the tables of space {self.space!r}: {text}.",
                hint="Was it changed by hand? `penstock schema check` says what is there.",
            )
        if code in _READ_ONLY:
            return StoreReadOnly(f"{self.name} accepts no writes: {text}.", hint="Connect to the primary.")
        if code in _FULL:
            return StoreFull(f"{self.name} has no room: {text}.", hint="Free space on the server.")
        if code == _TOO_LARGE:
            return PayloadTooLarge(
                f"{self.name} refused a packet: {text}.",
                hint="Raise max_allowed_packet on the server, or put less at once.",
            )
        return StoreUnavailable(
            f"{self.name}: {type(error).__name__} {code}: {text}.", hint="Is the server up and reachable?"
        )

    # --- what one message does --------------------------------------------------------------------------------------

    works_alone = True  # they bring their own transaction

    def put_plain(self, session: Session, entry: NewEntry) -> PutResult | None:
        """Put an entry in one message."""
        return mysql_round_trip.put_plain(session, entry)

    def round_trip(
        self, session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
    ) -> Trip:
        """Settle and claim in one message, which takes as much as a packet."""
        if mysql_round_trip.size_of_results(steps) > self.most_bytes:
            return Trip(set(), None, session.now)
        return self._trips.round_trip(session, steps, claim, hints, rings)

    # --- tables -----------------------------------------------------------------------------------------------------

    def schema_version(self) -> Version:
        """How far the tables of the space have come."""
        return self.tables.version()

    def migrate(self, phase: Phase) -> list[str]:
        """Bring the tables to this version. Returns what was done."""
        return self.tables.migrate(phase)

    def steps(self, cursor: Cursor) -> list[Migration]:
        """The steps to the tables of the space, in the words of MariaDB or of MySQL."""
        return steps(self.space, mariadb=is_mariadb(cursor.connection))

    def is_already_there(self, error: BaseException) -> bool:
        """Whether a statement of a step failed because what it makes is there."""
        return bool(error.args) and error.args[0] == DUPLICATE_COLUMN

    def has_table(self, cursor: Cursor, name: str) -> bool:
        """Whether there is a table of this name."""
        tables = cursor.execute(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = %s", (name,)
        )
        return tables.fetchone() is not None

    @contextlib.contextmanager
    def migrating(self, cursor: Cursor) -> Generator[None]:
        """A lock by name: every statement of a migration commits, so no row or table lock would last."""
        name = f"penstock.{self.space}"
        [(got,)] = cursor.execute("SELECT get_lock(%s, 60)", (name,)).fetchall()
        if got != 1:
            raise StoreUnavailable(
                f"another process has been migrating space {self.space!r} of {self.name} for a minute.",
                hint="Try again when it is done.",
            )
        try:
            yield
        finally:
            with contextlib.suppress(pymysql.err.MySQLError):
                cursor.execute("SELECT release_lock(%s)", (name,))

    def check_settings(self, cursor: Cursor) -> None:
        """Refuse a server that is too old, or that contradicts the durable profile."""
        settings = _settings(cursor)
        self._check_version(settings.get("version", ""))
        self.most_bytes = min(MOST_BYTES, int(settings.get("max_allowed_packet", MOST_BYTES)) * 3 // 4)
        bad = []
        if settings.get("innodb_flush_log_at_trx_commit") != "1":
            bad.append(f"innodb_flush_log_at_trx_commit={settings.get('innodb_flush_log_at_trx_commit')}")
        if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
            bad.append(f"sync_binlog={settings.get('sync_binlog')}")
        if self.durability == "durable" and bad:
            raise CannotOpen(
                f"{self.name} runs with {', '.join(bad)}: an acknowledged put could be lost.",
                hint="Set it to 1, or accept that openly with ?durability=fast.",
            )

    def _check_version(self, text: str) -> None:
        number = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", text)
        oldest = (10, 6) if "maria" in text.lower() else (8, 0)
        if number is not None and (int(number[1]), int(number[2])) < oldest:
            raise CannotOpen(
                f"{self.name} is version {text}, which has no SKIP LOCKED.", hint="Use MariaDB 10.6 or MySQL 8.0."
            )

    def mark(self, session: Session, part: Part, after: int) -> int:
        """The last number, once all below it are committed: a look at what is not committed tells."""
        last = read.last(session, part)
        _never.wait(DRAWN_SECONDS)
        deadline = time.monotonic() + MARK_SECONDS
        while not self._is_final(session, part, after, last):
            if time.monotonic() > deadline:
                raise Conflict(
                    f"a transaction in {self.name} has kept numbers up to {last} open for {MARK_SECONDS} s.",
                    hint="Rows of it would be missed. End it, then read again.",
                )
            _never.wait(0.01)
        return last

    def _is_final(self, session: Session, part: Part, after: int, last: int) -> bool:
        session.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        begun = session.rows(f"sum_{part}", after=after, last=last)
        return begun == session.rows(f"sum_{part}", after=after, last=last)

    # --- waking and closing -----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Look for other processes' puts while somebody waits."""
        self._poller.start()

    def _look(self) -> tuple[int, ...]:
        """What others have left: it changes with every put, whichever order they are committed in."""
        bodies, rings = self._window
        with self.transactions.reading() as session:
            [counters] = session.rows("look", bodies=bodies, rings=rings)
        bodies_there, last_body, rings_there, last_ring = counters
        if bodies_there > WINDOW or rings_there > WINDOW:
            self._window = (last_body - WINDOW // 2, last_ring - WINDOW // 2)
        return (bodies, rings, *counters)

    def hears(self) -> bool:
        """Whether somebody looks for us."""
        return self._poller.hears

    def forked(self) -> None:
        """In a child: the connections and the thread are the parent's."""
        self.pool.begin_anew()
        self._poller.forked()

    def close(self) -> None:
        """Stop looking and close the pool."""
        self._poller.close()
        self.pool.close()

    def check(self, session: Session) -> list[Finding]:
        """What doctor says about the server."""
        settings = dict(session.rows("settings"))
        [(stored,)] = session.rows("stored_version")
        durable = settings.get("innodb_flush_log_at_trx_commit") == "1"
        packet = int(settings.get("max_allowed_packet", "0"))
        return [
            Finding("good", "server", settings.get("version", "unknown")),
            Finding("good", "schema", f"space {self.space!r} has version {stored}"),
            Finding(
                "good" if durable else "warning",
                "durability",
                f"innodb_flush_log_at_trx_commit={settings.get('innodb_flush_log_at_trx_commit')}, "
                f"log_bin={settings.get('log_bin')}, sync_binlog={settings.get('sync_binlog')}",
            ),
            Finding(
                "good" if packet > 4 * self.payload_limit else "warning",
                "max_allowed_packet",
                f"{packet:,} bytes for payloads of up to {self.payload_limit:,}",
            ),
        ]


WINDOW = 200  # newest rows that are counted to see whether something came


def _settings(cursor: Cursor) -> dict[str, str]:
    names = ("innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "max_allowed_packet", "version")
    return dict(cursor.execute("SHOW VARIABLES WHERE Variable_name IN %s", (names,)).fetchall())


def _code(error: BaseException) -> int:
    first = error.args[0] if isinstance(error, pymysql.err.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0
