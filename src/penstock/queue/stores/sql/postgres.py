"""PostgresStore: queues in PostgreSQL, through psycopg 3.

URL: ``postgresql://user:password@host:5432/database?space=penstock``. Options: ``payload_limit`` (bytes),
``pool_size`` (connections of this process, whatever the number of workers), ``timeout`` (seconds to connect and to
wait for a connection), ``reply_timeout`` (seconds until a server that says nothing is given up), ``idle_timeout``
(seconds until the server gives up a client of ours that is frozen inside a transaction); what else is given goes to the
driver (``sslmode=verify-full`` and so on).
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import psycopg
from psycopg import errors as pg
from psycopg.pq import Conninfo, TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import event
from sqlalchemy.engine import Engine

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import (
    CannotOpen,
    Conflict,
    PenstockError,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.queue.cargo import Part
from penstock.queue.store import ClaimRequest, Finding, Settled, Step
from penstock.queue.stores.sql import ranges
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.postgres_turns import TURNS, PlainTurn, PostgresOperations, is_plain_turn
from penstock.queue.stores.sql.server import ServerStore, looked_for
from penstock.queue.stores.sql.server_db import Db, ServerDialect, with_fixed
from penstock.queue.stores.sql.statements import SERVER

_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_INSERT = re.compile(r"INSERT INTO (\w+) \(([^)]*)\) VALUES \(([^)]*)\) ON CONFLICT DO NOTHING$")
COPY_FROM = 20  # rows from which copying is faster
logger = logging.getLogger("penstock.queue.store")

OLDEST = 120_000  # as the server counts: 12
_CONFLICTS = (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable)


class PostgresDialect(ServerDialect):
    """PostgreSQL's words: arrays for lists, row locks, and endings that move rows in one statement."""

    words: ClassVar[dict[str, str]] = {
        "ints": "{0} = ANY({1}::bigint[])",
        "texts": "{0} = ANY({1}::text[])",
        "settled": (
            "(SELECT (v->>0)::bigint AS seq, v->>1 AS token, (v->>2)::bigint AS started "
            "FROM json_array_elements({0}::json) v)"
        ),
        "token": "concat(fence + 1, '-', {0}::text)",
        "label": "({0}::json ->> {1}::text)",
        "locking": "FOR UPDATE",
        "skipping": "FOR UPDATE OF {0} SKIP LOCKED",
        "sharing": "FOR SHARE OF l",
    }
    overrides: ClassVar[dict[str, str]] = {
        **SERVER,
        **TURNS,
    }

    def listed(self, values: Any) -> Any:
        """Lists are arrays."""
        return list(values)


class PostgresDb(Db):
    """A psycopg connection that copies many new rows in instead of inserting them one by one."""

    _waiting: list[tuple[str, Any]] | None = None

    def send_with_next(self, text: str, parameters: Any) -> None:
        """Run a statement in the same round trip as the next one; its result is not asked for."""
        self._waiting = [*(self._waiting or ()), (text, parameters)]

    def execute(self, text: str, parameters: Any = ()) -> Any:
        """Run a statement, and with it those that waited for one; the cursor."""
        waiting, self._waiting = self._waiting, None
        if not waiting:
            return super().execute(text, parameters)
        # A pipeline costs the driver a sixth of a turn, a longer statement next to nothing.
        together = _together(tuple(one for one, _ in waiting), text)
        if together is not None and len({values[0] for _, values in waiting}) == len(waiting):
            cursor = self._cursor()
            given = [value for _, values in waiting for value in values]
            cursor.execute(together, [*given, *self.ordered(text, parameters)])
            return cursor
        with self.connection.pipeline():
            for one in waiting:
                super().execute(*one)
            return super().execute(text, parameters)

    def _cursor(self) -> Any:
        return self.connection.cursor(row_factory=tuple_row)

    def executemany(self, text: str, rows: Any) -> Any:
        """Run a statement for many rows; COPY for a large insert, unless a row turns out to be there already."""
        insert = _INSERT.match(text)
        if insert is None or len(rows) < COPY_FROM:
            return super().executemany(text, rows)
        columns = [name.strip() for name in insert[2].split(",")]
        self.execute("SAVEPOINT copying")
        cursor = self._cursor()
        try:
            with cursor.copy(f"COPY {insert[1]} ({', '.join(columns)}) FROM STDIN") as copy:
                for row in with_fixed(insert[3], rows):
                    copy.write_row(row)
        except pg.UniqueViolation:
            self.execute("ROLLBACK TO SAVEPOINT copying")
            return super().executemany(text, rows)
        self.execute("RELEASE SAVEPOINT copying")
        return cursor


@lru_cache(maxsize=256)
def _together(first: tuple[str, ...], text: str) -> str | None:
    """Statements whose results nobody asks for, and one more, as one statement; None if they cannot be.

    All of them see the same rows and run in no order. So the first ones may not touch what the last one reads: they
    write documents; nor the same row twice, which their first parameters tell.
    """
    begin, rest = text.split(None, 1)
    if begin not in ("WITH", "SELECT"):
        return None
    parts = ", ".join(f"first{number} AS ({one})" for number, one in enumerate(first))
    return f"WITH {parts}, {rest}" if begin == "WITH" else f"WITH {parts} {begin} {rest}"


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose server has to say something in time: one that is frozen or cut off never says that it is."""

    reply_timeout: float = 60

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for a reply."""
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        """The driver's own dialogue with the server, which hears every tenth of a second when nothing has come."""
        deadline = time.monotonic() + self.reply_timeout
        try:
            asked = next(gen)
            while True:
                ready = yield asked
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server said nothing for {self.reply_timeout} s")
                asked = gen.send(ready)
        except StopIteration as end:
            return end.value


def open_store(location: Location, clock: Clock, *, prepare: bool = True) -> PostgresStore:
    """Open a ``postgresql://`` URL."""
    return PostgresStore(location, clock, PostgresDialect(), prepare=prepare)


def is_there(location: Location) -> bool:
    """Whether the space has tables; looks, and makes none."""
    return looked_for(open_store(location, SystemClock(), prepare=False))


class PostgresStore(ServerStore):
    """Queues in PostgreSQL."""

    drivername = "postgresql+psycopg"
    isolation = "AUTOCOMMIT"  # we begin ourselves, with the same message that asks for the time
    operations = PostgresOperations

    def __init__(self, location: Location, clock: Clock, dialect: ServerDialect, *, prepare: bool = True) -> None:
        """Open the pool and, with it, the listener that is told of other processes' puts."""
        self._listener: threading.Thread | None = None
        self._listening: psycopg.Connection[Any] | None = None
        super().__init__(location, clock, dialect, prepare=prepare)
        self._channel = f"penstock_{self.space}"

    def _connect_arguments(self) -> dict[str, Any]:
        return {
            "connect_timeout": self.timeout,
            "application_name": "penstock",
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        }

    def _make_engine(self, location: Location, pool_size: int) -> Engine:
        engine = super()._make_engine(location, pool_size)

        def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
            made = BoundedConnection.connect(*arguments, **options)
            made.reply_timeout = self.reply_timeout
            made.execute(
                f"SET lock_timeout = '{self.lock_timeout}s'; "
                f"SET idle_in_transaction_session_timeout = '{self.idle_timeout}s'"
            )
            made.commit()
            try:
                made.execute(f"SET tcp_user_timeout = '{self.idle_timeout}s'")
                made.commit()
            except psycopg.DatabaseError:  # a server on a system that has no such thing
                made.rollback()
            return made

        event.listen(engine, "do_connect", connect)
        return engine

    def _driver_options(self) -> Collection[str]:
        return {one.keyword.decode() for one in Conninfo.get_defaults()}

    def _wrapped(self, connection: Any) -> Db:
        return PostgresDb(connection, self.dialect)

    def _is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, _CONFLICTS)

    def _is_lost(self, error: BaseException) -> bool:
        if isinstance(error, pg.IdleInTransactionSessionTimeout):
            return True
        return isinstance(error, psycopg.OperationalError) and not isinstance(
            error, (*_CONFLICTS, pg.DiskFull, pg.QueryCanceled, pg.OutOfMemory)
        )

    def _is_answer(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.Error)

    @contextlib.contextmanager
    def _migrating(self, db: Db) -> Iterator[None]:
        # It ends with the transaction, as all of a migration does here.
        db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"penstock.{self.space}",))
        yield

    def _is_ours(self, connection: Any) -> bool:
        return isinstance(connection, psycopg.Connection)

    def _commits_by_itself(self, connection: Any) -> bool:
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise Conflict(
                f"the transaction of connection= on {self.name} has failed already.", hint="Roll it back, begin anew."
            )
        return bool(connection.autocommit) and status == TransactionStatus.IDLE

    def _is_drivers(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.Error | OSError)

    def translated(self, error: BaseException) -> PenstockError:
        """psycopg's error as one of ours."""
        if isinstance(error, pg.DiskFull | pg.OutOfMemory):
            return StoreFull(
                f"{self.name} has no room: {error}".strip(), hint="Free space on the server; then it goes on."
            )
        if isinstance(error, pg.ReadOnlySqlTransaction):
            return StoreReadOnly(f"{self.name} accepts no writes: {error}".strip(), hint="Connect to the primary.")
        if isinstance(error, pg.InsufficientPrivilege):
            return CannotOpen(
                f"{self.name}: {error}".strip(), hint="Grant the role its rights on the tables of this space."
            )
        text = " ".join(str(error).split())
        if isinstance(error, pg.UndefinedTable | pg.UndefinedColumn):
            return SchemaMismatch(
                f"{self.name} has not the tables of space {self.space!r}: {text}.",
                hint="Was it changed by hand? `penstock schema check` says what is there.",
            )
        if isinstance(error, psycopg.OperationalError) and any(
            word in text for word in ("authentication failed", "does not exist", "no password supplied", "role ")
        ):
            return CannotOpen(f"{self.name} refused the connection: {text}", hint="Check user, password and database.")
        return StoreUnavailable(f"{self.name}: {type(error).__name__}: {text}", hint="Is the server up and reachable?")

    def _begin(self, db: Db) -> Micros:
        fixed = self.clock.fixed()
        if fixed is not None:
            db.connection.execute(_BEGIN)
            return fixed
        cursor = db.connection.execute(f"{_BEGIN}; {_NOW}", prepare=False)
        cursor.nextset()
        return int(cursor.fetchone()[0])

    def _exchange(self, operations: Operations, steps: Sequence[Step], claim: ClaimRequest | None) -> Settled:
        if claim is None or not is_plain_turn(steps, claim):
            return super()._exchange(operations, steps, claim)
        return PlainTurn(operations, claim, self._rounds).exchange(steps)

    def _server_now(self, db: Db) -> Micros:
        (now,) = db.execute(_NOW).fetchone()
        return int(now)

    def _has_tables(self, db: Db) -> bool:
        # Not to_regclass(): it may remember from before another process's migration that there was no such table.
        found = db.execute(
            "SELECT 1 FROM pg_class WHERE relname = %s AND pg_table_is_visible(oid)", (f"{self.space}_meta",)
        )
        return found.fetchone() is not None

    def _announce(self, db: Db) -> None:
        db.execute("SELECT pg_notify(%s, '')", (self._channel,))

    def _check_settings(self, db: Db) -> None:
        version = db.connection.info.server_version
        if version < OLDEST:
            raise CannotOpen(
                f"{self.name} is PostgreSQL {version // 10_000}.", hint=f"Use PostgreSQL {OLDEST // 10_000} or later."
            )
        bad = [
            name
            for name, wanted in (("fsync", "on"), ("synchronous_commit", ""), ("full_page_writes", "on"))
            if (value := self._setting(db, name)) == "off" or (wanted and value != wanted)
        ]
        if self.durability == "durable" and bad:
            raise CannotOpen(
                f"{self.name} runs with {', '.join(f'{name}=off' for name in bad)}: an acknowledged put could be lost.",
                hint="Switch it on, or accept that openly with ?durability=fast.",
            )
        if self.durability == "fast":
            return

    def _setting(self, db: Db, name: str) -> str:
        (value,) = db.execute("SELECT current_setting(%s)", (name,)).fetchone()
        return str(value)

    def mark(self, part: Part, *, after: int = 0) -> int:
        """The last number, once everybody has ended who may have drawn a lower one: who did holds the table's lock."""
        table = self.space if part == "live" else f"{self.space}_{part}"
        with self._reading() as db:
            last = ranges.last(db, self.sql, part)
            held = self._writers(db, table)

            def is_final() -> bool:
                held.intersection_update(self._writers(db, table))
                return not held

            self._wait_until(is_final, last)
        return last

    def _writers(self, db: Db, table: str) -> set[str]:
        found = db.execute(
            "SELECT l.virtualtransaction FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relname = %s "
            "AND pg_table_is_visible(c.oid) AND l.mode = 'RowExclusiveLock' "
            "AND l.pid IS DISTINCT FROM pg_backend_pid() "  # a prepared transaction has none
            "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (table,),
        )
        return {one for (one,) in found.fetchall()}

    def forked(self) -> None:
        """The listener is the parent's; the child's first wait starts its own."""
        super().forked()
        self._left_behind.append(self._listening)
        self._listener = self._listening = None

    # --- waking ----------------------------------------------------------------------------------------

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until the bell rings; the first wait starts the listener."""
        if self._listener is None and not self.closed:
            self._listener = threading.Thread(target=self._listen, name="penstock-listen", daemon=True)
            self._listener.start()
        return super().wait(seen, seconds)

    def _listen(self) -> None:
        """Ring for every notification; after a lost connection ring once, for what may have been missed."""
        deaf = False  # whether that was said
        while not self.closed:
            try:
                with psycopg.connect(
                    **self._listen_arguments(), autocommit=True, **self._connect_arguments()
                ) as connection:
                    self._listening, deaf = connection, False
                    connection.execute(f"LISTEN {self._channel}")
                    self.wake()
                    for _ in connection.notifies():
                        if self.closed:
                            return
                        self.wake()
            except Exception as error:
                if self.closed:
                    return
                level = logging.DEBUG if deaf else logging.WARNING
                deaf = True
                logger.log(level, "cannot listen on %s, so waiting workers ask now and then: %s", self.name, error)
                threading.Event().wait(1.0)

    def _listen_arguments(self) -> dict[str, Any]:
        arguments = self.engine.dialect.create_connect_args(self.engine.url)[1]
        return dict(arguments)

    def close(self) -> None:
        """Close the listener and the pool."""
        super().close()
        listening, self._listening = self._listening, None
        if listening is not None:
            with contextlib.suppress(Exception):
                listening.cancel_safe(timeout=1)
            with contextlib.suppress(Exception):
                listening.close()

    def check(self) -> list[Finding]:
        """What doctor says about the server."""
        with self._reading() as db:
            (version,) = db.execute("SHOW server_version").fetchone()
            settings = {name: self._setting(db, name) for name in ("fsync", "synchronous_commit", "full_page_writes")}
            (dead,) = db.execute(
                "SELECT coalesce(max(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relname = %s", (self.space,)
            ).fetchone()
            (oldest,) = db.execute(
                "SELECT coalesce(extract(epoch FROM max(now() - xact_start)), 0)::bigint FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone()
            schema = self._version(db)
        durable = "off" not in settings.values()
        return [
            Finding("good", "server", f"PostgreSQL {version}"),
            Finding("good", "schema", f"space {self.space!r} has version {schema}"),
            Finding(
                "good" if durable else "warning",
                "durability",
                ", ".join(f"{name}={value}" for name, value in settings.items()),
            ),
            Finding("good" if dead < 100_000 else "warning", "dead rows", f"{dead} in the live table"),
            Finding(
                "good" if oldest < 600 else "warning",
                "oldest transaction",
                f"{oldest} s; a long one keeps dead rows from being cleaned up and makes claims slow",
            ),
        ]
