"""Middleware from a context manager around each attempt, for sync and async handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context


class Around:
    """A middleware that enters a context manager for every attempt, in the thread or task of its handler."""

    def __init__(self, enter: Callable[[Context[Any]], AbstractContextManager[Any]]) -> None:
        """``enter`` makes the context manager of one attempt."""
        self._enter = enter

    def __call__(self, ctx: Context[Any], call_next: Callable[[], Any]) -> Any:
        """Around a sync handler."""
        with self._enter(ctx):
            return call_next()

    async def in_loop(self, ctx: Context[Any], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around an async handler."""
        with self._enter(ctx):
            return await call_next()
