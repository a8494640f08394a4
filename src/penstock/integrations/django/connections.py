"""Database connections looked after around handlers, as Django does it around requests: a lost one heals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context


class FreshConnections:
    """Middleware: connections that are broken or too old are closed before and after every attempt.

    Add it to queues of your own whose handlers use Django's models: ``Queues(middleware=[FreshConnections()])``.
    """

    def __call__(self, ctx: Context[Any], call_next: Callable[[], Any]) -> Any:
        """Around a sync handler, in its thread."""
        callers = _refresh()
        try:
            return call_next()
        finally:
            _close_old(callers)

    async def in_loop(self, ctx: Context[Any], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around an async handler: its connections belong to the thread in which Django runs sync code for it."""
        callers = await sync_to_async(_refresh)()
        try:
            return await call_next()
        finally:
            await sync_to_async(_close_old)(callers)


def _refresh() -> list[Any]:
    """Make connections ready, but those of a transaction around the whole drain, as in a TestCase; returns these."""
    callers = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    _close_old(callers)
    for connection in _others(callers):
        connection.queries_log.clear()
        # Django would find out with the first query that fails, and that attempt with it.
        if connection.connection is not None and not connection.is_usable():
            connection.close()
    return callers


def _close_old(callers: list[Any]) -> None:
    for connection in _others(callers):
        connection.close_if_unusable_or_obsolete()


def _others(callers: list[Any]) -> list[Any]:
    return [connection for connection in connections.all(initialized_only=True) if connection not in callers]
