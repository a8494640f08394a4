"""Calling: how a synchronous call becomes one to await."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.to_thread

from penstock.queue.drivers.sql.callers import with_wait

R = TypeVar("R")
P = ParamSpec("P")

THREADS = 64  # calls of one store that are under way at once


async def run(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a synchronous call, such as ``ctx.extend`` in a handler, in a thread; to its end, also when cancelled."""
    return await in_thread(None, functools.partial(function, *args, **await joined_options(kwargs)))


async def joined_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a call whose ``connection`` may be of an async driver: the call's thread asks this loop to use it."""
    if options.get("connection") is None:
        return options
    return {**options, "connection": await with_wait(options["connection"], anyio.from_thread.run)}


async def in_thread(limiter: anyio.CapacityLimiter | None, call: Callable[[], R]) -> R:
    """Run a call in a thread, to its end."""
    inside = anyio.to_thread.run_sync(call, limiter=limiter)
    with anyio.CancelScope(shield=True):
        result = await (inside if running_loop() is None else _to_the_end(inside))
    return result


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The running event loop of asyncio; None under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _to_the_end(inside: Coroutine[Any, Any, R]) -> R:
    """asyncio's own ``task.cancel()`` knows no shields: remember it until the thread has answered."""
    task = asyncio.ensure_future(inside)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at, so that asyncio does not complain
        raise cancelled
    return task.result()


class Awaited:
    """An object whose synchronous twin does the work."""

    sync: Any
    limiter: anyio.CapacityLimiter


def awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method of the twin as one to await, with the same arguments and result."""

    name = method.__name__

    @functools.wraps(method)
    async def call(self: Awaited, /, *args: P.args, **kwargs: P.kwargs) -> R:
        # By name: the twin is of a class that may have a method of its own.
        options = await joined_options(kwargs)
        return cast(R, await in_thread(self.limiter, functools.partial(getattr(self.sync, name), *args, **options)))

    return call


async def each(limiter: anyio.CapacityLimiter, make: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
    """What an iterator gives, each step in a thread; batches, so that a step is worth one."""
    source = await in_thread(limiter, make)
    while (item := await in_thread(limiter, lambda: next(source, None))) is not None:
        yield item
