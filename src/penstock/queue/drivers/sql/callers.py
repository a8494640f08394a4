"""What is given as ``connection=``: the driver's connection inside it, or why it cannot be used."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from penstock.errors import BadInput

Wait = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]

AWAIT_HINT = (
    "Await the call of penstock.aio with it, or call this inside run_sync(): "
    "await session.run_sync(lambda session: queue.put(value, connection=session))."
)
SYNC_HINT = (
    "Use a Connection or Session of a sync engine for this transaction, in a thread if need be (asyncio.to_thread); "
    "or put after the commit, with an id of your own so that it can be repeated."
)
_BEGIN = "SELECT 1"  # SQLAlchemy begins the transaction of some drivers with the first statement only


class AsyncCaller:
    """A caller's connection of an async driver, with a way for a synchronous call to wait for its answers."""

    def __init__(self, connection: Any, wait: Wait) -> None:
        """``wait`` takes a function that makes a coroutine, and returns the result of that."""
        self.connection = connection
        self.wait = wait


class _Turn:
    """The lock of a connection that calls are using just now."""

    def __init__(self) -> None:
        """Nobody uses it yet."""
        self.lock = threading.RLock()  # inside run_sync, SQLAlchemy switches between callers of one thread
        self.users = 0


_turns: dict[int, _Turn] = {}
_of_turns = threading.Lock()


@contextlib.contextmanager
def one_at_a_time(connection: Any) -> Iterator[None]:
    """One call after the other uses a caller's connection: a savepoint that is rolled back takes later ones with it."""
    inner = connection.connection if isinstance(connection, AsyncCaller) else connection
    with _of_turns:
        turn = _turns.setdefault(id(inner), _Turn())
        turn.users += 1
    try:
        with turn.lock:
            yield
    finally:
        with _of_turns:
            turn.users -= 1
            if not turn.users:
                del _turns[id(inner)]


async def with_wait(connection: Any, wait: Wait) -> Any:
    """Make what an awaited call was given usable in the call's thread; what is synchronous stays as it is."""
    if not _is_async(connection):
        return connection
    engines = connection
    if inspect.iscoroutinefunction(getattr(type(engines), "connection", None)):  # SQLAlchemy's AsyncSession
        engines = await engines.connection()
    if not hasattr(engines, "get_raw_connection"):
        return AsyncCaller(engines, wait)
    if not engines.in_transaction():  # SQLAlchemy's AsyncConnection, which would forget what it did not begin
        await engines.begin()
    driver = (await engines.get_raw_connection()).driver_connection
    if _is_not_begun(driver):
        await engines.exec_driver_sql(_BEGIN)
    return AsyncCaller(driver, wait)


def driver_connection(connection: Any, *, joins_async: bool = False) -> Any:
    """Find the driver's own connection in what was given: SQLAlchemy's and Django's objects hold one.

    One of an async driver is an :class:`AsyncCaller`, for stores that say that they can join its transaction.
    """
    if isinstance(connection, AsyncCaller):
        return connection if joins_async else _refuse_async(type(connection.connection).__name__, SYNC_HINT)
    _refuse_cursor(connection)
    if _is_async(connection):
        _refuse_async(type(connection).__name__, AWAIT_HINT if joins_async else SYNC_HINT)
    holder = _holder(connection)
    inner = getattr(holder, "driver_connection", holder)
    if _is_async(inner):
        adapted = getattr(holder, "dbapi_connection", None)
        if not joins_async or not hasattr(adapted, "run_async"):
            _refuse_async(f"{type(connection).__name__} on an async driver ({type(inner).__name__})", SYNC_HINT)
        return _inside_run_sync(inner, adapted)
    return inner


def _holder(connection: Any) -> Any:
    """What holds the driver's connection, inside what was given."""
    if hasattr(connection, "ensure_connection"):  # Django's wrapper, which connects when it is first used
        connection.ensure_connection()
        return connection.connection
    if inspect.ismethod(getattr(connection, "connection", None)):  # SQLAlchemy's Session
        return connection.connection().connection
    if inspect.ismethod(getattr(connection, "exec_driver_sql", None)) and not connection.in_transaction():
        connection.begin()  # SQLAlchemy's Connection, whose commit would forget what it did not begin
    return getattr(connection, "connection", connection)


def _inside_run_sync(driver: Any, adapted: Any) -> AsyncCaller:
    """A connection that SQLAlchemy lends to the function that run_sync() calls."""
    if _is_not_begun(driver):
        adapted.cursor().execute(_BEGIN)
    return AsyncCaller(driver, lambda make: adapted.run_async(lambda _: make()))


def _is_not_begun(driver: Any) -> bool:
    """Whether a driver that begins nothing by itself is in no transaction."""
    is_in_transaction = getattr(driver, "is_in_transaction", None)
    return is_in_transaction is not None and not is_in_transaction()


def _is_async(connection: Any) -> bool:
    if type(connection).__name__ == "PoolConnectionProxy":  # asyncpg's, whose methods only return coroutines
        return True
    return any(inspect.iscoroutinefunction(getattr(connection, name, None)) for name in ("commit", "execute"))


def _refuse_cursor(connection: Any) -> None:
    """A cursor knows its connection, but whoever gives one has mixed something up."""
    if hasattr(connection, "fetchone"):
        raise BadInput(
            f"connection= was given a {type(connection).__name__}, which is a cursor.", hint="Pass its connection."
        )


def _refuse_async(what: str, hint: str) -> None:
    article = "an" if what[:1] in "AEIO" else "a"
    raise BadInput(
        f"connection= was given {article} {what}, whose transaction only an event loop can work on.", hint=hint
    )
