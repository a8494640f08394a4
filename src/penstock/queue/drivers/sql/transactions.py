"""Transactions: begin, do, commit; try again what lost against another; repeat what may or may not have happened."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from penstock import failpoints
from penstock.clock import Clock, Micros
from penstock.errors import BadInput, Conflict, OutcomeUnknown, PenstockError, StoreUnavailable
from penstock.queue.drivers.sql.callers import AsyncCaller, driver_connection, one_at_a_time
from penstock.queue.drivers.sql.pool import Pool
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.statements import Catalogue

T = TypeVar("T")
logger = logging.getLogger("penstock.queue.drivers.sql")

TRIES = 5
_never = threading.Event()


class Database(Protocol):
    """What is a database's own."""

    name: str
    driver: str
    reply_timeout: float
    joins_async: bool  # whether a caller's connection may be one of an async driver

    def begin(self, connection: Any, fixed: Micros | None) -> Micros:
        """Begin a transaction. Returns the time."""

    def cursor(self, connection: Any) -> Any:
        """What statements are run with."""

    def server_now(self, cursor: Any) -> Micros:
        """The server's clock."""

    def announce(self, session: Session) -> None:
        """Tell other processes that something may be claimable, when this transaction commits."""

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the server aborted the whole transaction in favour of another one, so that it is tried again."""

    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection is gone."""

    def is_answer(self, error: BaseException) -> bool:
        """Whether the server rejected a statement, so that the connection is still usable."""

    def is_drivers(self, error: BaseException) -> bool:
        """Whether the driver raised it. Anything else is a bug, not an outage."""

    def translated(self, error: BaseException) -> PenstockError:
        """The driver's error as one of ours."""

    def is_ours(self, connection: Any) -> bool:
        """Whether this is a connection of the driver's."""

    def commits_by_itself(self, connection: Any) -> bool:
        """Whether a caller's connection is in no transaction, and the next statement would begin none."""


class Runner(Protocol):
    """Runs work in transactions: what a store asks of them."""

    def write(self, work: Callable[[Session], T], *, repeat: bool = False) -> tuple[T, bool]:
        """Do work in a transaction. Returns its result, and whether it made something claimable."""

    def alone(self, work: Callable[[Session], T], *, look: bool = True) -> T:
        """Do work that is its own transaction. Raises OutcomeUnknown if its reply was lost.

        ``look=False``: do not look first whether there still is a connection.
        """

    def reading(self) -> contextlib.AbstractContextManager[Session]:
        """A session for reading. Nothing that it does is kept."""

    def in_callers(self, connection: Any, work: Callable[[Session], T]) -> T:
        """Do work inside the caller's transaction. If it fails, only the work is undone."""

    def ahead_of_callers(self, work: Callable[[Session], object]) -> None:
        """Do what keeps others from waiting for the work that a caller's transaction is about to do."""


class Transactions:
    """The transactions of one store handle on a server."""

    def __init__(self, database: Database, pool: Pool[Any], catalogue: Catalogue, clock: Clock) -> None:
        """Keep what the transactions need."""
        self._database = database
        self._pool = pool
        self._catalogue = catalogue
        self._clock = clock

    # --- of our own -------------------------------------------------------------------------------------------------

    def write(self, work: Callable[[Session], T], *, repeat: bool = False) -> tuple[T, bool]:
        """Do work in a transaction. Returns its result, and whether it made something claimable."""
        began = time.monotonic()
        for attempt in range(TRIES):
            committing = False
            try:
                with self.connection() as connection:
                    began_at = self._database.begin(connection, self._clock.fixed())
                    session = self._session(connection, began_at, repeat=repeat)
                    result = work(session)
                    if session.rings:
                        self._database.announce(session)
                    failpoints.point("commit.before")
                    committing = True
                    connection.commit()
                    failpoints.point("commit.after")
                    return result, session.rings
            except StoreUnavailable as error:
                # No connection. A first attempt was not sent, so give up. A repeat may have happened, so keep trying.
                if not repeat:
                    raise
                if self._is_enough(attempt, began):
                    raise self._unknown(error) from error
                _never.wait(0.05 * 2**attempt)
            except PenstockError:
                raise
            except Exception as error:
                # A commit whose reply was lost may have happened: from here on the call is a repeat of itself.
                lost = self._database.is_lost(error)
                repeat = repeat or (lost and committing)
                self._refuse(error, repeat=repeat, enough=self._is_enough(attempt, began))
                logger.info("trying a transaction on %s again: %s", self._database.name, error)
                _never.wait(0.05 * 2**attempt if lost else 0.005 * 2**attempt)
        raise StoreUnavailable(f"{self._database.name} did not answer.", hint="Try again later.")

    def alone(self, work: Callable[[Session], T], *, look: bool = True) -> T:
        """Do work that is one statement and its own transaction. Raises OutcomeUnknown if its reply was lost."""
        for attempt in range(TRIES):
            try:
                with self.connection(look=look) as connection:
                    failpoints.point("commit.before")
                    session = self._session(connection)
                    session.alone = True
                    result = work(session)
                    failpoints.point("commit.after")
                    return result
            except PenstockError:
                raise
            except Exception as error:
                if self._database.is_lost(error):
                    raise self._unknown(error) from error
                self._refuse(error, repeat=False, enough=attempt == TRIES - 1)
                _never.wait(0.005 * 2**attempt)
        raise StoreUnavailable(f"{self._database.name} did not answer.", hint="Try again later.")

    def _refuse(self, error: Exception, *, repeat: bool, enough: bool) -> None:
        """Raise what an error means, unless it is worth another try."""
        database = self._database
        if not database.is_lost(error) and not database.is_conflict(error):
            if not database.is_drivers(error):
                raise error
            # What is refused now says nothing of a try before it whose reply was lost.
            raise (self._unknown(error) if repeat else database.translated(error)) from error
        if enough:
            raise (self._unknown(error) if repeat else database.translated(error)) from error

    def _is_enough(self, attempt: int, began: float) -> bool:
        """Whether a transaction was tried often or long enough. A silent server is waited for only once."""
        return attempt == TRIES - 1 or time.monotonic() - began >= self._database.reply_timeout

    def _unknown(self, error: BaseException) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self._database.name} was lost while committing, and did not come back: {error}.",
            hint="When it is back, look whether the call took effect, or repeat it with the same ids.",
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for reading. Nothing that it does is kept."""
        try:
            with self.connection() as connection:
                yield self._session(connection)
        except Exception as error:
            if not self._database.is_drivers(error):
                raise
            raise self._database.translated(error) from error

    @contextlib.contextmanager
    def connection(self, *, look: bool = True) -> Iterator[Any]:
        """A connection of the pool. Its transaction is rolled back unless the caller commits."""
        try:
            connection = self._pool.take(look=look)
        except PenstockError:
            raise
        except Exception as error:
            raise self._database.translated(error) from error
        try:
            yield connection
        except BaseException as error:
            if self._database.is_lost(error):
                self._pool.drop(connection, lost=True)
            elif not isinstance(error, PenstockError) and not self._database.is_answer(error):
                self._pool.drop(connection, lost=False)  # it may have a reply left that the next call would take
            else:
                self._roll_back(connection)
            raise
        self._pool.give(connection)

    def _roll_back(self, connection: Any) -> None:
        try:
            connection.rollback()
        except Exception as error:
            self._pool.drop(connection, lost=self._database.is_lost(error))
        else:
            self._pool.give(connection)

    def ahead_of_callers(self, work: Callable[[Session], object]) -> None:
        """Do what keeps others from waiting for the work that a caller's transaction is about to do."""
        self.write(work)

    # --- of the caller ----------------------------------------------------------------------------------------------

    def in_callers(self, connection: Any, work: Callable[[Session], T]) -> T:
        """Do work inside the caller's transaction. If it fails, only the work is undone."""
        database = self._database
        given = driver_connection(connection, joins_async=database.joins_async)
        if not database.is_ours(given):
            named = connection.connection if isinstance(connection, AsyncCaller) else connection
            raise BadInput(
                f"connection= was given a {type(named).__name__}, which is not a connection of {database.driver}.",
                hint="Pass the driver's connection, SQLAlchemy's Connection or Session, or Django's connection, on the "
                "same database.",
            )
        if database.commits_by_itself(given):
            raise BadInput(
                f"connection= on {database.name} commits every statement by itself.",
                hint="Begin a transaction on it first (in Django: transaction.atomic()), or switch autocommit off.",
            )
        try:
            with one_at_a_time(given):
                return self._in_savepoint(given, work)
        except Exception as error:
            if not database.is_drivers(error):
                raise
            if database.is_conflict(error):
                raise Conflict(
                    f"{database.name} gave the caller's transaction up for another one: {error}.",
                    hint="Roll it back and repeat it.",
                ) from error
            raise database.translated(error) from error

    def _in_savepoint(self, given: Any, work: Callable[[Session], T]) -> T:
        session = self._session(given)
        session.is_callers = True
        session.execute("SAVEPOINT penstock")
        try:
            result = work(session)
            if session.rings:
                self._database.announce(session)
        except PenstockError:
            session.execute("ROLLBACK TO SAVEPOINT penstock")
            raise
        session.execute("RELEASE SAVEPOINT penstock")
        return result

    # --- sessions ---------------------------------------------------------------------------------------------------

    def _session(self, connection: Any, now: Micros | None = None, *, repeat: bool = False) -> Session:
        cursor = self._database.cursor(connection)
        read_clock = partial(self._database.server_now, cursor)
        return Session(cursor, self._catalogue, read_clock, now=now, fixed_now=self._clock.fixed(), repeat=repeat)
