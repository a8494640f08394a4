"""What is given as ``connection=``: the driver's connection inside it, or why it cannot be used."""

from __future__ import annotations

import inspect
from typing import Any

from penstock.errors import BadInput

ASYNC_HINT = (
    "Use a Connection or Session of a sync engine for this transaction, in a thread if need be (asyncio.to_thread); "
    "or put after the commit, with an id of your own so that it can be repeated."
)


def driver_connection(connection: Any) -> Any:
    """The driver's own connection: what was given, or what SQLAlchemy's or Django's object holds."""
    _refuse_cursor(connection)
    _refuse_async(connection, type(connection).__name__)
    inner = connection
    if hasattr(inner, "ensure_connection"):  # Django's wrapper, which connects when it is first used
        inner.ensure_connection()
        inner = inner.connection
    elif inspect.ismethod(getattr(inner, "connection", None)):  # SQLAlchemy's Session
        inner = inner.connection().connection
    else:
        inner = getattr(inner, "connection", inner)
    inner = getattr(inner, "driver_connection", inner)
    _refuse_async(inner, f"{type(connection).__name__} on an async driver ({type(inner).__name__})")
    return inner


def _refuse_cursor(connection: Any) -> None:
    """A cursor knows its connection, but whoever gives one has mixed something up."""
    if hasattr(connection, "fetchone"):
        raise BadInput(
            f"connection= was given a {type(connection).__name__}, which is a cursor.", hint="Pass its connection."
        )


def _refuse_async(connection: Any, what: str) -> None:
    """Nothing in the store awaits, so a transaction of an async driver cannot be joined, also not inside run_sync."""
    if any(inspect.iscoroutinefunction(getattr(connection, name, None)) for name in ("commit", "execute")):
        article = "an" if what[:1] in "AEIO" else "a"
        raise BadInput(
            f"connection= was given {article} {what}, whose transaction only an event loop can work on.",
            hint=ASYNC_HINT,
        )
