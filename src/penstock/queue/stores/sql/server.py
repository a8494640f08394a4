"""ServerStore: what stores on a database server share: pool, server's clock, retries, repeats after a lost reply."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock import failpoints
from penstock.clock import Clock, Micros
from penstock.errors import (
    BadInput,
    CannotOpen,
    Conflict,
    OutcomeUnknown,
    PenstockError,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.names import did_you_mean
from penstock.process import tell_of_forks
from penstock.queue.drivers.sql.callers import driver_connection
from penstock.queue.drivers.version import check_version
from penstock.queue.store import ClaimRequest
from penstock.queue.stores.sql.answers import answering
from penstock.queue.stores.sql.clocks import ServerClock
from penstock.queue.stores.sql.migrations import Phase, migrate
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.schema import VERSION
from penstock.queue.stores.sql.server_claiming import Rounds, ServerClaiming, ServerOperations
from penstock.queue.stores.sql.server_db import Db, ServerDialect
from penstock.queue.stores.sql.statements import Statements
from penstock.queue.stores.sql.store import SqlStore

T = TypeVar("T")
logger = logging.getLogger("penstock.queue.stores.sql")

TRIES = 5
# So long the server waits for a client of ours that has begun a transaction and neither goes on nor reads: a frozen one
# must not keep others from its locks. It is half of the default heartbeat; who was only slow tries again.
IDLE_SECONDS = 10
MARK_SECONDS = 10  # to wait for transactions that may still commit a lower number
_never = threading.Event()


def settle(seconds: float) -> None:
    """Let what is under way arrive."""
    _never.wait(seconds)


class ServerStore(SqlStore):
    """Queues in the tables of a database server."""

    drivername: ClassVar[str]
    isolation: ClassVar[str] = "READ COMMITTED"
    operations: ClassVar[type[ServerOperations]] = ServerOperations
    options: ClassVar[frozenset[str]] = frozenset(
        {"payload_limit", "pool_size", "timeout", "reply_timeout", "idle_timeout"}
    )

    def __init__(self, location: Location, clock: Clock, dialect: ServerDialect, *, prepare: bool = True) -> None:
        """Connect, bring the schema up to date, check what the durable profile needs; or leave the schema alone."""
        super().__init__(location.space, clock, location.masked, Statements(location.space, dialect))
        self.dialect = dialect
        self.durability = location.durability
        self.payload_limit = _number(location, "payload_limit", self.payload_limit)
        self.timeout = math.ceil(location.seconds("timeout", 10))
        self.reply_timeout = math.ceil(location.seconds("reply_timeout", 60))
        self.idle_timeout = math.ceil(location.seconds("idle_timeout", IDLE_SECONDS))
        self._lost_at = 0.0  # when a connection was last found to be gone
        self.engine = self._make_engine(location, _number(location, "pool_size", 10))
        self._bell = threading.Condition()
        self._rings = 0
        self._rounds = Rounds()
        self._forget_clock = clock.on_change(self.wake)
        self._left_behind: list[Any] = []
        tell_of_forks(self)
        try:
            if prepare:
                self._prepare()
        except BaseException as error:
            self._forget_clock()
            self.engine.dispose()
            if isinstance(error, StoreUnavailable) and not isinstance(error, StoreReadOnly):
                raise CannotOpen(str(error)) from error
            raise

    def _make_engine(self, location: Location, pool_size: int) -> Engine:
        try:
            url = make_url(location.url)
        except (ArgumentError, ValueError) as cause:
            raise BadInput(
                f"{location.masked} is not a database URL: {cause}.", hint="See the docs of this store."
            ) from cause
        ours = {"space", "durability", *self.options}
        query = {name: value for name, value in url.query.items() if name not in ours}
        for name in query:
            if meant := did_you_mean(name, ours):
                raise BadInput(
                    f"option {name!r} in {location.masked} is unknown.", hint=f"{meant}Ours: {', '.join(sorted(ours))}."
                )
            if name not in self._driver_options():
                raise BadInput(
                    f"option {name!r} in {location.masked} is known neither to us nor to the driver.",
                    hint=f"{did_you_mean(name, self._driver_options())}Ours: {', '.join(sorted(ours))}.",
                )
        url = URL.create(self.drivername, url.username, url.password, url.host, url.port, url.database, query)
        engine = create_engine(
            url, isolation_level=self.isolation, pool_size=pool_size, max_overflow=0, pool_timeout=self.timeout,
            pool_pre_ping=False, pool_use_lifo=True, connect_args=self._connect_arguments(),
        )  # fmt: skip
        event.listen(engine, "connect", lambda _, record: record.info.update(made=time.monotonic()))
        event.listen(engine, "checkout", self._refuse_stale)
        return engine

    def _refuse_stale(self, _: Any, record: Any, __: Any) -> None:
        """What took one connection has most likely taken those before it too: another is made instead of a dead one."""
        if record.info["made"] < self._lost_at:
            raise DisconnectionError

    # --- what a database's own module says -----------------------------------------------------------

    @abstractmethod
    def _connect_arguments(self) -> dict[str, Any]:
        """The driver's own arguments: timeouts, isolation."""

    @abstractmethod
    def _driver_options(self) -> Collection[str]:
        """What the driver takes in the URL beside our own options."""

    def _wrapped(self, connection: Any) -> Db:
        return Db(connection, self.dialect)

    @abstractmethod
    def _is_conflict(self, error: BaseException) -> bool:
        """Whether the server gave up the whole transaction in favour of another one: to be tried again."""

    @abstractmethod
    def _is_lost(self, error: BaseException) -> bool:
        """Whether the connection is gone."""

    @abstractmethod
    def _is_answer(self, error: BaseException) -> bool:
        """Whether this is what the server said to a statement, after which the connection can be used again."""

    @property
    def lock_timeout(self) -> int:
        """Seconds until the server gives up waiting for a lock: before we give up waiting for the server.

        Otherwise a transaction that nobody waits for any more would go on waiting, and keep others from its own locks.
        """
        return max(1, self.reply_timeout // 2)

    @abstractmethod
    def translated(self, error: BaseException) -> PenstockError:
        """The driver's error as one of ours."""

    @abstractmethod
    def _server_now(self, db: Db) -> Micros:
        """The server's clock."""

    @abstractmethod
    def _has_tables(self, db: Db) -> bool:
        """Whether the space is there."""

    @abstractmethod
    def _migrating(self, db: Db) -> AbstractContextManager[None]:
        """Keep other processes from changing the schema meanwhile."""

    def _already_there(self, error: BaseException) -> bool:
        """Whether a migration's statement failed because it was done before."""
        return False

    def _announce(self, db: Db) -> None:
        """Tell other processes that something may be claimable, when this transaction commits."""

    def _check_settings(self, db: Db) -> None:
        """Raise if the server is seen to contradict the durable profile."""

    # --- opening -------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        try:
            with self._connection() as db:
                self._begin(db)
                if self._known_version(db) < VERSION:
                    with self._migrating(db):
                        version = self._known_version(db)  # another process may have done it meanwhile
                        if version < VERSION:
                            migrate(
                                db, self.space, self.engine.dialect, version=version,
                                phase="pre" if version else "all", already_there=self._already_there,
                            )  # fmt: skip
                self._check_settings(db)
                db.connection.commit()
        except PenstockError:
            raise
        except Exception as error:
            raise self.translated(error) from error

    def schema_version(self) -> int:
        """The version the tables of the space have; 0 when there are none."""
        try:
            with self._connection() as db:
                return self._version(db)
        except PenstockError:
            raise
        except Exception as error:
            raise self.translated(error) from error

    def migrate(self, phase: Phase) -> list[str]:
        """Bring the tables to this version; what was done."""
        try:
            with self._connection() as db, self._migrating(db):
                done = migrate(
                    db, self.space, self.engine.dialect, version=self._version(db), phase=phase,
                    already_there=self._already_there,
                )  # fmt: skip
                db.connection.commit()
                return done
        except PenstockError:
            raise
        except Exception as error:
            raise self.translated(error) from error

    def _known_version(self, db: Db) -> int:
        version = self._version(db)
        check_version(version, self.space, VERSION)
        return version

    def _version(self, db: Db) -> int:
        if not self._has_tables(db):
            return 0
        row = db.execute(f"SELECT value FROM {self.space}_meta WHERE name = 'schema'").fetchone()
        return int(row[0]) if row else 0

    # --- transactions ----------------------------------------------------------------------------------

    def now(self) -> Micros:
        """The server's clock, or the fake one."""
        fixed = self.clock.fixed()
        if fixed is not None:
            self._check_not_closed()
            return fixed
        with self._reading() as db:
            return self._server_now(db)

    def claiming(self, work: Operations, request: ClaimRequest) -> ServerClaiming:  # type: ignore[override]
        """A claim that remembers whose turn it is."""
        return ServerClaiming(work, request, self._rounds)

    def _write(self, work: Callable[[Operations], T], connection: Any = None) -> T:
        self._check_not_closed()
        if connection is not None:
            return self._in_callers(connection, lambda db: self._work_on(db, work))
        repeat, began = False, time.monotonic()
        for attempt in range(TRIES):
            committing = False
            try:
                with self._connection() as db:
                    made = self.operations(db, self.sql, self._clock_of(db, self._begin), repeat=repeat)
                    result = work(made)
                    made.flush()
                    if made.rings:
                        self._announce(db)
                    failpoints.point("commit.before")
                    committing = True
                    db.connection.commit()
                    failpoints.point("commit.after")
            except StoreUnavailable as error:
                # There is no connection. What was not sent yet need not be waited for; what may have happened is.
                if not repeat:
                    raise
                if self._is_enough(attempt, began):
                    raise self._unknown(error) from error
                threading.Event().wait(0.05 * 2**attempt)
            except PenstockError:
                raise
            except Exception as error:
                lost = self._is_lost(error)
                if not lost and not self._is_conflict(error):
                    # What is refused now says nothing of a try before it whose reply was lost.
                    drivers = self._unknown(error) if repeat else self.translated(error)
                    raise (drivers if self._is_drivers(error) else error) from error
                # A commit whose reply was lost may have happened: from here on the call is a repeat of itself.
                repeat = repeat or (lost and committing)
                if self._is_enough(attempt, began):
                    raise (self._unknown(error) if repeat else self.translated(error)) from error
                logger.info("trying a transaction on %s again: %s", self.name, error)
                threading.Event().wait(0.05 * 2**attempt if lost else 0.005 * 2**attempt)
            else:
                if made.rings:
                    self.wake()
                return result
        raise StoreUnavailable(f"{self.name} did not answer.", hint="Try again later.")

    def _write_once(self, work: Callable[[Operations], T], kind: Any, connection: Any = None) -> T:
        return self._write(answering(work, kind) if connection is None else work, connection)

    def _is_enough(self, attempt: int, began: float) -> bool:
        """Whether a transaction was tried often or long enough: a server that says nothing is not waited for twice."""
        return attempt == TRIES - 1 or time.monotonic() - began >= self.reply_timeout

    def _unknown(self, error: BaseException) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.name} was lost while committing, and did not come back: {error}.",
            hint="When it is back, look whether the call took effect, or repeat it with the same ids.",
        )

    def _begin(self, db: Db) -> Micros:
        """Begin a transaction, for drivers that do not by themselves; the time."""
        return self._moment(db)

    def _moment(self, db: Db) -> Micros:
        fixed = self.clock.fixed()
        return self._server_now(db) if fixed is None else fixed

    def _clock_of(self, db: Db, begin: Callable[[Db], Micros]) -> ServerClock:
        return ServerClock(lambda: begin(db), lambda: self._server_now(db), fixed=self.clock.fixed())

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Db]:
        """A connection of the pool; what was begun on it is rolled back unless the caller commits."""
        try:
            fairy = self.engine.raw_connection()
        except PoolTimeout as cause:
            raise StoreUnavailable(
                f"all connections to {self.name} were in use for {self.timeout} s.",
                hint="Raise ?pool_size=, or look for calls that hold their connection.",
            ) from cause
        except DBAPIError as cause:
            raise self.translated(cause.orig or cause) from cause
        except Exception as cause:
            raise self.translated(cause) from cause
        try:
            yield self._wrapped(fairy.driver_connection)
        except BaseException as error:
            if self._is_lost(error):
                fairy.invalidate()
                self._lost_at = time.monotonic()
            elif not isinstance(error, PenstockError) and not self._is_answer(error):
                fairy.invalidate()  # it may have a reply left that the next call would take for its own
            else:
                with contextlib.suppress(Exception):
                    fairy.rollback()
            raise
        finally:
            with contextlib.suppress(Exception):
                fairy.close()

    def _wait_until(self, is_final: Callable[[], bool], last: int) -> None:
        """Wait for those who may still commit a number up to ``last``."""
        deadline = time.monotonic() + MARK_SECONDS
        while not is_final():
            if time.monotonic() > deadline:
                raise Conflict(
                    f"a transaction in {self.name} has kept numbers up to {last} open for {MARK_SECONDS} s.",
                    hint="Rows of it would be missed. End it, then read again.",
                )
            _never.wait(0.01)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Db]:
        self._check_not_closed()
        try:
            with self._connection() as db:
                yield db
                db.connection.rollback()
        except Exception as error:
            if not self._is_drivers(error):
                raise
            raise self.translated(error) from error

    def _work_on(self, db: Db, work: Callable[[Operations], T]) -> T:
        operations = self.operations(db, self.sql, self._clock_of(db, self._moment))
        result = work(operations)
        operations.flush()
        if operations.rings:
            self._announce(db)
        return result

    def _in_callers(self, connection: Any, run: Callable[[Any], T]) -> T:
        """Work inside the caller's transaction; what fails undoes itself alone."""
        given = self._driver_connection(connection)
        if self._commits_by_itself(given):
            raise BadInput(
                f"connection= on {self.name} commits every statement by itself.",
                hint="Begin a transaction on it first (in Django: transaction.atomic()), or switch autocommit off.",
            )
        db = self._wrapped(given)
        try:
            db.execute("SAVEPOINT penstock")
            try:
                result = run(db)
            except PenstockError:
                db.execute("ROLLBACK TO SAVEPOINT penstock")
                raise
            db.execute("RELEASE SAVEPOINT penstock")
        except Exception as error:
            if not self._is_drivers(error):
                raise
            if self._is_conflict(error):
                raise Conflict(
                    f"{self.name} gave the caller's transaction up for another one: {error}.",
                    hint="Roll it back and repeat it.",
                ) from error
            raise self.translated(error) from error
        return result

    def _driver_connection(self, connection: Any) -> Any:
        """The driver's connection inside what the caller gave."""
        db = driver_connection(connection)
        if not self._is_ours(db):
            raise BadInput(
                f"connection= was given a {type(connection).__name__}, which is no connection of {self.drivername}.",
                hint="Pass the driver's connection, SQLAlchemy's Connection or Session, or Django's connection, on the "
                "same database.",
            )
        return db

    @abstractmethod
    def _is_ours(self, connection: Any) -> bool:
        """Whether this is the driver's connection."""

    @abstractmethod
    def _commits_by_itself(self, connection: Any) -> bool:
        """Whether a caller's connection is in no transaction, and the next statement would begin none."""

    @abstractmethod
    def _is_drivers(self, error: BaseException) -> bool:
        """Whether the driver raised it; anything else is a mistake in the code, and no outage."""

    def forked(self) -> None:
        """The connections are the parent's: they are neither used nor closed here."""
        self._left_behind.append(self.engine.pool)
        self.engine.dispose(close=False)
        self._bell = threading.Condition()
        self._rounds = Rounds()

    # --- waking ----------------------------------------------------------------------------------------

    def bell(self) -> int:
        """How often this handle has heard that something may be claimable."""
        return self._rings

    def wake(self) -> None:
        """Ring for every wait of this process."""
        with self._bell:
            self._rings += 1
            self._bell.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until the bell rings or the time is over."""
        deadline = time.monotonic() + seconds
        with self._bell:
            while self._rings == seen and not self.closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._bell.wait(left)
        return True

    def close(self) -> None:
        """Close the pool; safe to repeat."""
        if self.closed:
            return
        super().close()
        self._forget_clock()
        self.wake()
        self.engine.dispose()


def looked_for(store: ServerStore) -> bool:
    """Whether the space of a store that was opened unprepared is there; closes it."""
    try:
        return store.schema_version() > 0
    finally:
        store.close()


def _number(location: Location, option: str, default: int) -> int:
    text = location.options.get(option, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise BadInput(f"{option} {text!r} in {location.masked} is not a number.", hint="Use a whole number from 1 on.")
    return int(text)
