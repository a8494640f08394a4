"""PostgreSQL through psycopg 3: connecting, what its errors mean, being woken, doctor.

URL: ``postgresql://user:password@host:5432/database?space=penstock``. Options: ``payload_limit`` (bytes),
``pool_size`` (connections of this process, whatever the number of workers), ``timeout`` (seconds to connect and to
wait for a connection), ``reply_timeout`` (seconds until a server that says nothing is given up), ``idle_timeout``
(seconds until the server gives up a client of ours that is frozen inside a transaction), ``listen`` (``host:port`` of
the server itself, where the URL leads to a connection pooler); what else is given goes to the driver
(``sslmode=verify-full`` and so on).
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import (
    BadInput,
    CannotOpen,
    Conflict,
    PenstockError,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.queue.drivers.sql import guidance, read, schema
from penstock.queue.drivers.sql.callers import AsyncCaller
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.sql.migrations import Migration, Phase, Version
from penstock.queue.drivers.sql.pool import Pool
from penstock.queue.drivers.sql.postgres_async import (
    awaited_cursor,
    begins_by_itself,
    is_joinable,
    transaction_status,
)
from penstock.queue.drivers.sql.postgres_connection import (
    BoundedConnection,
    Listener,
    connect_arguments,
    cursor_of,
    direct_arguments,
    is_pooled,
    is_quiet,
)
from penstock.queue.drivers.sql.put import put_plain
from penstock.queue.drivers.sql.round_trip import Hint, Trip, add_round_trips, round_trip
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.statements import Catalogue, Statement, numbered
from penstock.queue.drivers.sql.tables import Tables, are_there, open_on
from penstock.queue.drivers.sql.transactions import Transactions
from penstock.queue.protocol import ClaimRequest, Find, Finding, NewEntry, Part, PutResult, Step
from penstock.queue.wakeup import Bell

logger = logging.getLogger("penstock.queue.store")

OLDEST = 120_000  # as the server counts: 12
# So long the server waits for a client of ours that has begun a transaction and neither goes on nor reads: a frozen one
# must not keep others from its locks. It is half of the default heartbeat; who was only slow tries again.
IDLE_SECONDS = 10
MARK_SECONDS = 10  # to wait for transactions that may still commit a lower number
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_CONFLICTS = (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable)
_never = threading.Event()


def open_driver(location: Location, clock: Clock, *, prepare: bool = True) -> SqlDriver:
    """Open a ``postgresql://`` URL; ``prepare=False`` leaves the tables alone."""
    return open_on(PostgresServer(location, clock), clock, prepare=prepare)


def is_there(location: Location) -> bool:
    """Whether the space has tables; looks, and makes none."""
    return are_there(PostgresServer(location, SystemClock()))


class PostgresDialect:
    """Arrays, and operators for JSON."""

    def guide(self, session: Session, where: Find, values: dict[str, Any]) -> list[str]:
        """The labels first, or the page, in the narrow tables."""
        return guidance.by_label(where) or guidance.by_page(guidance.POSTGRES, session, where)

    def candidates(self, id_: str, count: int) -> list[str]:
        """One label is looked up, and the others are asked of what was found."""
        return [f"{id_} IN ({guidance.labelled(count)})"]

    def statement(self, text: str) -> Statement:
        """Numbered parameters, as the server wants them: the client puts nothing into the text."""
        return numbered(text)

    def among(self, column: str, parameter: str) -> str:
        """The column is in an array."""
        return f"{column} = ANY(%({parameter})s::text[])"

    def label(self, labels: str, parameter: str) -> str:
        """A member of an object."""
        return f"({labels}::json ->> %({parameter})s::text)"


class PostgresServer:
    """The server behind one store handle."""

    overlaps_round_trips = True  # one computes while the other waits for the disk
    trips_keep_results = True
    trips_consume_links = True

    driver = "psycopg"
    joins_async = True

    def __init__(self, location: Location, clock: Clock) -> None:
        """Read the URL; connections are made when they are needed."""
        self.name = location.masked
        self.space = location.space
        self.payload_limit = location.count("payload_limit", SqlDriver.payload_limit)
        self.timeout = math.ceil(location.seconds("timeout", 10))
        self.reply_timeout: float = math.ceil(location.seconds("reply_timeout", 60))
        self.idle_timeout = math.ceil(location.seconds("idle_timeout", IDLE_SECONDS))
        self.durability = location.durability
        self._arguments = connect_arguments(location, self.timeout)
        self._pooled = False  # whether a connection pooler stands between us and the server
        self.works_alone = True  # whether a statement outside a transaction runs with our settings
        size = location.count("pool_size", 10)
        self.pool: Pool[Any] = Pool(self._connect, is_quiet, size=size, timeout=self.timeout, name=self.name)
        catalogue = Catalogue(PostgresDialect(), "postgres.sql", location.space)
        add_round_trips(catalogue)
        self.transactions = Transactions(self, self.pool, catalogue, clock)
        self.tables = Tables(self)
        self.bell = Bell()
        self._direct = direct_arguments(location)
        self._listener = Listener({**self._arguments, **self._direct}, self.space, self.bell, self.name)
        # The server gives up a lock before we give up the server: nobody would wait for that transaction any more.
        # A queue fills and drains in minutes, so plans must not follow what the tables held when they were analysed.
        self._settings = {
            "lock_timeout": f"'{max(1, int(self.reply_timeout) // 2)}s'",
            "idle_in_transaction_session_timeout": f"'{self.idle_timeout}s'",
            "plan_cache_mode": "force_generic_plan",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            "jit": "off",
        }
        self._begin = _BEGIN

    def _connect(self) -> BoundedConnection:
        connection = BoundedConnection.connect(**self._arguments, autocommit=True)
        connection.reply_timeout = self.reply_timeout
        if is_pooled(connection):
            self._adapt_to_pooler(connection)
            return connection
        connection.prepare_threshold = 1
        connection.prepared_max = 300
        connection.execute("; ".join(f"SET {name} = {value}" for name, value in self._settings.items()))
        with contextlib.suppress(psycopg.DatabaseError):  # a server on a system that has no such thing
            connection.execute(f"SET tcp_user_timeout = '{self.idle_timeout}s'")
        return connection

    def _adapt_to_pooler(self, connection: BoundedConnection) -> None:
        """The next transaction may be on another connection to the server, which knows nothing of this one."""
        connection.prepare_threshold = None
        self._begin = "; ".join([_BEGIN, *(f"SET LOCAL {name} = {value}" for name, value in self._settings.items())])
        if not self._pooled and not self._direct:
            logger.info(
                "%s leads to a connection pooler, so waiting workers ask now and then; ?listen=host:port of the server "
                "itself gets them notified.",
                self.name,
            )
        self._pooled = True
        self.works_alone = False

    # --- transactions -----------------------------------------------------------------------------------------------

    def begin(self, connection: Any, fixed: Micros | None) -> Micros:
        """Begin, and ask for the time with the same message."""
        if fixed is not None:
            connection.execute(self._begin)
            return fixed
        cursor = connection.execute(f"{self._begin}; {_NOW}", prepare=False)
        while cursor.nextset():
            pass
        return int(cursor.fetchone()[0])

    def cursor(self, connection: Any) -> Any:
        """A cursor that gives tuples, whatever the caller's own connection gives."""
        if isinstance(connection, AsyncCaller):
            return awaited_cursor(connection)
        return connection.statements if isinstance(connection, BoundedConnection) else cursor_of(connection)

    def server_now(self, cursor: Any) -> Micros:
        """The server's clock."""
        return int(cursor.execute(_NOW).fetchone()[0])

    def announce(self, session: Session) -> None:
        """Tell listeners when this transaction commits."""
        session.change("announce", channel=session.channel)

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the server gave up the transaction in favour of another one."""
        return isinstance(error, _CONFLICTS)

    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection is gone."""
        if isinstance(error, pg.IdleInTransactionSessionTimeout):
            return True
        return isinstance(error, psycopg.OperationalError) and not isinstance(
            error, (*_CONFLICTS, pg.DiskFull, pg.QueryCanceled, pg.OutOfMemory)
        )

    def is_answer(self, error: BaseException) -> bool:
        """Whether the server said this to a statement."""
        return isinstance(error, psycopg.Error)

    def is_drivers(self, error: BaseException) -> bool:
        """Whether the driver raised it."""
        return isinstance(error, psycopg.Error | OSError)

    def is_ours(self, connection: Any) -> bool:
        """Whether this is a connection of psycopg's, or of an async driver that we know."""
        if isinstance(connection, AsyncCaller):
            return is_joinable(connection)
        return isinstance(connection, psycopg.Connection)

    def commits_by_itself(self, connection: Any) -> bool:
        """Whether the connection is in no transaction, and the next statement would begin none."""
        is_async = isinstance(connection, AsyncCaller)
        status = transaction_status(connection) if is_async else connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise Conflict(
                f"the transaction of connection= on {self.name} has failed already.", hint="Roll it back, start over."
            )
        begins = begins_by_itself(connection) if is_async else not connection.autocommit
        return not begins and status == TransactionStatus.IDLE

    def translated(self, error: BaseException) -> PenstockError:
        """psycopg's error as one of ours."""
        text = " ".join(str(error).split()).partition(" Is the server running")[0].rstrip(".")
        match error:
            case pg.DiskFull() | pg.OutOfMemory():
                return StoreFull(f"{self.name} has no room: {text}.", hint="Free space on the server.")
            case pg.InFailedSqlTransaction():
                return Conflict(
                    f"the transaction of connection= on {self.name} has failed already.", hint="Roll it back first."
                )
            case pg.ReadOnlySqlTransaction():
                return StoreReadOnly(f"{self.name} accepts no writes: {text}.", hint="Connect to the primary.")
            case pg.InsufficientPrivilege():
                return CannotOpen(
                    f"{self.name}: {text}.", hint="Grant the role its rights on the tables of this space."
                )
            case pg.UndefinedTable() | pg.UndefinedColumn():
                return SchemaMismatch(
                    f"{self.name} has not the tables of space {self.space!r}: {text}.",
                    hint="Was it changed by hand? `penstock schema check` says what is there.",
                )
        if isinstance(error, psycopg.DataError) and "NUL (0x00)" in text:
            return BadInput("text with a NUL in it is kept nowhere.", hint="Take it out of the id or the text.")
        refused = ("authentication failed", "does not exist", "no password supplied", "role ")
        if isinstance(error, psycopg.OperationalError) and any(word in text for word in refused):
            return CannotOpen(f"{self.name} refused the connection: {text}.", hint="Check user, password and database.")
        return StoreUnavailable(f"{self.name}: {type(error).__name__}: {text}.", hint="Is the server up and reachable?")

    # --- what one statement does ------------------------------------------------------------------------------------

    def put_plain(self, session: Session, entry: NewEntry) -> PutResult | None:
        """Put an entry in one statement."""
        return put_plain(session, entry)

    def round_trip(
        self, session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
    ) -> Trip:
        """Settle and claim in one statement."""
        try:
            return round_trip(session, steps, claim, hints, rings)
        except pg.DivisionByZero:  # what it has to release needs a closer look: nothing of it happened
            return Trip(set(), None, session.now)

    # --- tables -----------------------------------------------------------------------------------------------------

    def schema_version(self) -> Version:
        """How far the tables of the space have come."""
        return self.tables.version()

    def migrate(self, phase: Phase) -> list[str]:
        """Bring the tables to this version. Returns what was done."""
        return self.tables.migrate(phase)

    def steps(self, cursor: Any) -> list[Migration]:
        """The steps to the tables of the space."""
        return schema.steps("postgres_schema.sql", self.space)

    def is_already_there(self, error: BaseException) -> bool:
        """Whether a statement of a step failed because what it makes is there."""
        return False  # every statement says so itself

    def has_table(self, cursor: Any, name: str) -> bool:
        """Whether there is a table of this name.

        Not by to_regclass(): it may remember from before another process's migration that there was no such table.
        """
        tables = cursor.execute("SELECT 1 FROM pg_class WHERE relname = $1 AND pg_table_is_visible(oid)", (name,))
        return tables.fetchone() is not None

    @contextlib.contextmanager
    def migrating(self, cursor: Any) -> Generator[None]:
        """One transaction, with a lock that ends with it."""
        self.begin(cursor.connection, None)
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext($1))", (f"penstock.{self.space}",))
        yield
        cursor.connection.commit()

    def check_settings(self, cursor: Any) -> None:
        """Refuse a server that is too old, or that contradicts the durable profile."""
        version = cursor.connection.info.server_version
        if version < OLDEST:
            raise CannotOpen(
                f"{self.name} is PostgreSQL {version // 10_000}.", hint=f"Use PostgreSQL {OLDEST // 10_000} or later."
            )
        if self.durability == "fast":
            return
        off = [name for name, value in _durability(cursor).items() if value == "off"]
        if off:
            raise CannotOpen(
                f"{self.name} runs with {', '.join(f'{name}=off' for name in off)}: an acknowledged put could be lost.",
                hint="Switch it on, or accept that openly with ?durability=fast.",
            )

    def mark(self, session: Session, part: Part, after: int) -> int:
        """The last number, once everybody has ended who may have drawn a lower one: who did holds the table's lock."""
        table = self.space if part == "live" else f"{self.space}_{part}"
        last = read.last(session, part)
        writers = self._writers(session, table)
        deadline = time.monotonic() + MARK_SECONDS
        while writers := writers & self._writers(session, table):
            if time.monotonic() > deadline:
                raise Conflict(
                    f"a transaction in {self.name} has kept numbers up to {last} open for {MARK_SECONDS} s.",
                    hint="Rows of it would be missed. End it, then read again.",
                )
            _never.wait(0.01)
        return last

    def _writers(self, session: Session, table: str) -> set[str]:
        return {transaction for (transaction,) in session.rows("writers", table=table)}

    # --- waking and closing -----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Listen for other processes' puts from now on."""
        if self._direct or not self._pooled:
            self._listener.start()

    def hears(self) -> bool:
        """Whether the listener is connected."""
        return self._listener.hears

    def forked(self) -> None:
        """In a child: the connections and the listener are the parent's."""
        self.pool.begin_anew()
        self._listener.forked()

    def close(self) -> None:
        """Close the listener and the pool."""
        self._listener.close()
        self.pool.close()

    def check(self, session: Session) -> list[Finding]:
        """What doctor says about the server."""
        [(version, fsync, commits, pages, dead, oldest)] = session.rows("doctor", ready=f"{self.space}_ready")
        [(stored,)] = session.rows("stored_version")
        settings = {"fsync": fsync, "synchronous_commit": commits, "full_page_writes": pages}
        durable = "off" not in settings.values()
        return [
            Finding("good", "server", f"PostgreSQL {version}"),
            Finding("good", "schema", f"space {self.space!r} has version {stored}"),
            Finding(
                "good" if durable else "warning",
                "durability",
                ", ".join(f"{name}={value}" for name, value in settings.items()),
            ),
            Finding("good" if dead < 100_000 else "warning", "dead rows", f"{dead} among the ready entries"),
            Finding(
                "good" if oldest < 600 else "warning",
                "oldest transaction",
                f"{oldest} s; a long one keeps dead rows from being cleaned up and makes claims slow",
            ),
            *_replication(session, commits),
            *self._check_pooler(),
        ]

    def _check_pooler(self) -> list[Finding]:
        if not self._pooled:
            return []
        if self._direct:
            return [Finding("good", "connection pooler", "in between; LISTEN goes past it")]
        text = "in between, so no LISTEN: other processes' puts are found now and then; ?listen=host:port mends that"
        return [Finding("warning", "connection pooler", text)]


def _replication(session: Session, commits: str) -> list[Finding]:
    """Whether a standby that takes over has all that was acknowledged. Without a standby, no finding."""
    [(standbys, known, synchronous)] = session.rows("standbys")
    if not standbys:
        return []
    if not known:
        return [Finding("unknown", "replication", f"{standbys} standbys; GRANT pg_monitor to this role to see more")]
    if synchronous and commits in ("on", "remote_apply"):
        return [Finding("good", "replication", f"{synchronous} of {standbys} standbys are synchronous")]
    text = f"{standbys} standbys, asynchronous: one that takes over may lack the last commits, acknowledged or not"
    return [Finding("warning", "replication", text)]


def _durability(cursor: Any) -> dict[str, str]:
    names = ("fsync", "synchronous_commit", "full_page_writes")
    return {name: cursor.execute("SELECT current_setting($1)", (name,)).fetchone()[0] for name in names}
