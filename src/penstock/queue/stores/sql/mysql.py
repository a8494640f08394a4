"""MysqlStore: queues in MariaDB 10.6+ or MySQL 8+, through PyMySQL.

URL: ``mysql://user:password@host:3306/database?space=penstock``. Options as for PostgreSQL; what else is given goes
to the driver. Statements are common to MariaDB and MySQL; they are tested on MariaDB only. There is no way to be told
of another process's puts, so idle workers look again every quarter of a second.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pymysql
import pymysql.cursors
from pymysql.constants import SERVER_STATUS
from sqlalchemy import event
from sqlalchemy.engine import Engine

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import (
    CannotOpen,
    PayloadTooLarge,
    PenstockError,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.queue.cargo import Part
from penstock.queue.store import Finding
from penstock.queue.stores.sql import ranges
from penstock.queue.stores.sql.server import ServerStore, looked_for, settle
from penstock.queue.stores.sql.server_db import Db, ServerDialect, with_fixed
from penstock.queue.stores.sql.statements import SERVER

_NOW = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
_CONFLICTS = frozenset({1205, 1213})  # lock wait timeout, deadlock: either way the whole transaction is given up
_LOST = frozenset({1053, 1927, 2002, 2003, 2006, 2013, 2055})
_REFUSED = frozenset({1044, 1045, 1049, 1698})
_DENIED = frozenset({1142, 1143, 1370})
_NO_TABLE = frozenset({1054, 1146})
_READ_ONLY = frozenset({1290, 1792, 1836})
_FULL = frozenset({1021, 1114, 28})
_TOO_LARGE = 1153
_INDEX_EXISTS = 1061
_OURS = 2000  # from here on errors are the driver's own, not the server's
# There is no doorbell across processes here; an idle worker looks this often.
LOOK_SECONDS = 0.25
# A number is drawn a moment before anybody can see its row, however he looks.
DRAWN_SECONDS = 0.2
MOST_BYTES = 1_000_000  # of one statement that inserts many rows

_INSERT = re.compile(r"(INSERT IGNORE INTO \w+ \([^)]*\)) VALUES \(([^)]*)\)\s*$")
_UPSERT = re.compile(r"ON CONFLICT \([^)]*\) DO UPDATE SET (.*)$")
_EXCLUDED = re.compile(r"excluded\.(\w+)")


class MysqlDialect(ServerDialect):
    """MariaDB's and MySQL's words. Lists are written out by the driver, which quotes every value."""

    locks_what_it_scans = True
    words: ClassVar[dict[str, str]] = {
        "ints": "{0} IN {1}",
        "texts": "{0} IN {1}",
        "settled": (
            "JSON_TABLE({0}, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', "
            "token VARCHAR(90) CHARACTER SET utf8mb4 PATH '$[1]', started BIGINT PATH '$[2]'))"
        ),
        "token": "concat(fence + 1, '-', {0})",
        "label": "CAST(JSON_UNQUOTE(JSON_EXTRACT({0}, concat('$.\"', {1}, '\"'))) AS BINARY)",
        "locking": "FOR UPDATE",
        "skipping": "FOR UPDATE SKIP LOCKED",
        "sharing": "LOCK IN SHARE MODE",
    }
    overrides: ClassVar[dict[str, str]] = SERVER

    def translated(self, text: str) -> str:
        """A template with this family's way of saying what to do about a row that is there already."""
        text = super().translated(text)
        if text.endswith("ON CONFLICT DO NOTHING"):
            return "INSERT IGNORE" + text.removeprefix("INSERT").removesuffix("ON CONFLICT DO NOTHING")
        upsert = _UPSERT.search(text)
        if upsert is not None:
            text = text[: upsert.start()] + "ON DUPLICATE KEY UPDATE " + _EXCLUDED.sub(r"VALUES(\1)", upsert[1])
        return text

    def listed(self, values: Sequence[Any]) -> Any:
        """The driver writes a tuple as a list of quoted values; an empty one has to be a list that matches nothing."""
        return tuple(values) or (None,)


class MysqlDb(Db):
    """A PyMySQL connection that inserts many rows with one statement, as far as the server takes it."""

    most_bytes = MOST_BYTES

    def _cursor(self) -> Any:
        return self.connection.cursor(pymysql.cursors.Cursor)

    def executemany(self, text: str, rows: Any) -> Any:
        """Run a statement for many rows; the driver joins inserts only if all of their values are parameters."""
        insert = _INSERT.match(text)
        if insert is None or not rows:
            return super().executemany(text, rows)
        whole = list(with_fixed(insert[2], rows))
        cursor = self._cursor()
        cursor.max_stmt_length = self.most_bytes
        cursor.executemany(f"{insert[1]} VALUES ({', '.join(['%s'] * len(whole[0]))})", whole)
        return cursor


def open_store(location: Location, clock: Clock, *, prepare: bool = True) -> MysqlStore:
    """Open a ``mysql://`` or ``mariadb://`` URL."""
    return MysqlStore(location, clock, MysqlDialect(), prepare=prepare)


def is_there(location: Location) -> bool:
    """Whether the space has tables; looks, and makes none."""
    return looked_for(open_store(location, SystemClock(), prepare=False))


class MysqlStore(ServerStore):
    """Queues in MariaDB or MySQL."""

    drivername = "mysql+pymysql"
    _most_bytes = MOST_BYTES

    def _make_engine(self, location: Location, pool_size: int) -> Engine:
        asked = any(name.startswith("ssl") for name in location.options)
        # The driver reads all of the system's certificates for every connection, which takes longer than connecting.
        self._plain = not asked and urlsplit(location.url).hostname in ("127.0.0.1", "localhost", "::1")
        engine = super()._make_engine(location, pool_size)

        def connected(connection: Any, _: Any) -> None:
            connection._read_timeout = self.reply_timeout  # noqa: SLF001 - the driver knows one for both
            limits = f"SESSION net_write_timeout = {self.idle_timeout}"
            if "mariadb" in connection.get_server_info().lower():  # MySQL has nothing like it
                limits += f", SESSION idle_transaction_timeout = {self.idle_timeout}"
            with connection.cursor() as cursor:
                cursor.execute(f"SET {limits}")

        event.listen(engine, "connect", connected)
        return engine

    def _connect_arguments(self) -> dict[str, Any]:
        return {
            **({"ssl_disabled": True} if self._plain else {}),
            "connect_timeout": self.timeout,
            "read_timeout": self.timeout,  # of the greeting; see _make_engine
            "write_timeout": self.reply_timeout,
            "charset": "utf8mb4",
            "init_command": (
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
                f"SESSION innodb_lock_wait_timeout = {self.lock_timeout}"
            ),
        }

    def _driver_options(self) -> Collection[str]:
        return inspect.signature(pymysql.connections.Connection.__init__).parameters

    def _wrapped(self, connection: Any) -> Db:
        db = MysqlDb(connection, self.dialect)
        db.most_bytes = self._most_bytes
        return db

    def _is_conflict(self, error: BaseException) -> bool:
        return _code(error) in _CONFLICTS

    def _is_lost(self, error: BaseException) -> bool:
        return _code(error) in _LOST or isinstance(error, pymysql.err.InterfaceError)

    def _is_answer(self, error: BaseException) -> bool:
        return 0 < _code(error) < _OURS

    def _is_ours(self, connection: Any) -> bool:
        return isinstance(connection, pymysql.connections.Connection)

    def _commits_by_itself(self, connection: Any) -> bool:
        in_transaction = connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS
        return bool(connection.get_autocommit()) and not in_transaction

    def _is_drivers(self, error: BaseException) -> bool:
        return isinstance(error, pymysql.err.MySQLError | OSError)

    @contextlib.contextmanager
    def _migrating(self, db: Db) -> Iterator[None]:
        # Every statement of a migration commits, so no row or table lock would last.
        name = f"penstock.{self.space}"
        (got,) = db.execute("SELECT GET_LOCK(%s, 60)", (name,)).fetchone()
        if got != 1:
            raise StoreUnavailable(
                f"another process has been migrating space {self.space!r} of {self.name} for a minute.",
                hint="Try again when it is done.",
            )
        try:
            yield
        finally:
            with contextlib.suppress(pymysql.err.MySQLError):
                db.execute("SELECT RELEASE_LOCK(%s)", (name,))

    def _already_there(self, error: BaseException) -> bool:
        return _code(error) == _INDEX_EXISTS

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
            return StoreFull(f"{self.name} has no room: {text}.", hint="Free space on the server; then it goes on.")
        if code == _TOO_LARGE:
            return PayloadTooLarge(
                f"{self.name} refused a packet: {text}.",
                hint="Raise max_allowed_packet on the server, or put less at once.",
            )
        return StoreUnavailable(
            f"{self.name}: {type(error).__name__} {code}: {text}.", hint="Is the server up and reachable?"
        )

    def mark(self, part: Part, *, after: int = 0) -> int:
        """The last number, once all below it are committed: a look at what is not committed tells."""
        with self._reading() as db:
            last = ranges.last(db, self.sql, part)
            settle(DRAWN_SECONDS)

            def is_final() -> bool:
                db.connection.rollback()
                db.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
                begun = ranges.count(db, self.sql, part, after, last)
                db.connection.rollback()
                return begun == ranges.count(db, self.sql, part, after, last)

            self._wait_until(is_final, last)
        return last

    def _server_now(self, db: Db) -> Micros:
        (now,) = db.execute(_NOW).fetchone()
        return int(now)

    def _has_tables(self, db: Db) -> bool:
        found = db.execute(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
            (f"{self.space}_meta",),
        )
        return found.fetchone() is not None

    def _check_settings(self, db: Db) -> None:
        settings = self._settings(db)
        self._check_version(settings.get("version", ""))
        self._most_bytes = min(MOST_BYTES, int(settings.get("max_allowed_packet", MOST_BYTES)) * 3 // 4)
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
        found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", text)
        oldest = (10, 6) if "maria" in text.lower() else (8, 0)
        if found is not None and (int(found[1]), int(found[2])) < oldest:
            raise CannotOpen(
                f"{self.name} is version {text}, which has no SKIP LOCKED.", hint="Use MariaDB 10.6 or MySQL 8.0."
            )

    def _settings(self, db: Db) -> dict[str, str]:
        names = ("innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "max_allowed_packet", "version")
        return dict(db.execute("SHOW VARIABLES WHERE Variable_name IN %s", (names,)).fetchall())

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until this process rings, or until it is time to look again."""
        return super().wait(seen, min(seconds, LOOK_SECONDS)) or seconds > LOOK_SECONDS

    def check(self) -> list[Finding]:
        """What doctor says about the server."""
        with self._reading() as db:
            settings = self._settings(db)
            schema = self._version(db)
        durable = settings.get("innodb_flush_log_at_trx_commit") == "1"
        packet = int(settings.get("max_allowed_packet", "0"))
        return [
            Finding("good", "server", settings.get("version", "unknown")),
            Finding("good", "schema", f"space {self.space!r} has version {schema}"),
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


def _code(error: BaseException) -> int:
    first = error.args[0] if isinstance(error, pymysql.err.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0
