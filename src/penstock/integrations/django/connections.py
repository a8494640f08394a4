"""Database connections looked after around handlers, as Django does it around requests: a lost one heals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, reset_queries

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context


class FreshConnections:
    """Middleware: connections that are broken or too old are closed before and after every attempt.

    Add it to queues of your own whose handlers use Django's models: ``Queues(middleware=[FreshConnections()])``.
    """

    def __call__(self, ctx: Context[Any], call_next: Callable[[], Any]) -> Any:
        """Around a sync handler, in its thread."""
        _refresh()
        try:
            return call_next()
        finally:
            close_old_connections()

    async def in_loop(self, ctx: Context[Any], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around an async handler: its connections belong to the thread in which Django runs sync code for it."""
        await sync_to_async(_refresh)()
        try:
            return await call_next()
        finally:
            await sync_to_async(close_old_connections)()


def _refresh() -> None:
    reset_queries()
    close_old_connections()
    for connection in connections.all(initialized_only=True):
        # Django would find out with the first query that fails, and that attempt with it.
        if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
            connection.close()
