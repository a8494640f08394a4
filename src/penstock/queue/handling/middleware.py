"""Middleware: functions around a handler that see its outcome and may refuse an entry before the handler starts.

``middleware(ctx, call_next)`` calls ``call_next()`` for the next function inwards, in the end the handler, and returns
what that returned, or something else. What it returns or raises means what it would mean from the handler. An ``async
def`` one awaits ``call_next()``. Either kind may stand around either kind of handler; one of the handler's own kind
costs nothing.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import BadInput
from penstock.queue.protocol import DocumentWrite

if TYPE_CHECKING:
    # Where it is needed it is imported by the function: most programs have no async middleware.
    import asyncio

    from penstock.queue.handling.context import Context

Middleware = Callable[["Context[Any]", Callable[[], Any]], Any]
Call = Callable[[], Any]
AsyncCall = Callable[[], Awaitable[Any]]
RunAsync = Callable[[Any], Any]


class VerdictSink(Protocol):
    """Where a middleware's verdicts about attempts go: written with the settle call that ends them, without its own.

    A middleware that has one has it as ``sink``, and gives a verdict with ``ctx.add_verdict(sink, verdict)``.
    """

    def begin(self) -> None:
        """A worker that serves handlers with this sink has started."""

    def end(self) -> None:
        """It has stopped."""

    def writes(self, verdicts: Sequence[Any]) -> Sequence[DocumentWrite]:
        """What to write together with the attempts that gave these verdicts."""

    def written(self, writes: Sequence[DocumentWrite], results: Sequence[bool] | None) -> None:
        """Which of them were written. None means that the call failed, and its verdicts will be sent again."""

    def forget(self, verdict: Any) -> None:
        """The attempt that gave this verdict will never be settled."""


class Layer:
    """A middleware as it is called: sync, async, or both."""

    __slots__ = ("function", "in_loop", "in_thread", "sink")

    def __init__(self, middleware: Middleware) -> None:
        """One that offers ``in_loop`` beside itself is called so in an event loop, and itself in a thread."""
        self.function = middleware
        self.sink: VerdictSink | None = getattr(middleware, "sink", None)
        is_async = is_coroutine_function(middleware)
        self.in_thread = None if is_async else middleware
        self.in_loop = middleware if is_async else getattr(middleware, "in_loop", None)


def layers_of(*groups: Iterable[Middleware]) -> tuple[Layer, ...]:
    """Middleware ready to be called, the outermost first."""
    return tuple(Layer(middleware) for group in groups for middleware in group)


def check_middleware(given: Iterable[Middleware], of: str) -> tuple[Middleware, ...]:
    """Refuse anything that cannot be called as ``middleware(ctx, call_next)``."""
    if callable(given) or not isinstance(given, Iterable):
        raise BadInput(f"middleware={given!r} of {of} is not a list.", hint="Write middleware=[function].")
    functions = tuple(given)
    for function in functions:
        if not callable(function) or not _takes_two(function):
            raise BadInput(
                f"middleware {function!r} of {of} cannot be called with (ctx, call_next).",
                hint="Write: def middleware(ctx, call_next): return call_next()",
            )
    return functions


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine; also for objects that can be called."""
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a built-in that does not tell
        return True
    return True


# --- in a thread -----------------------------------------------------------------------------------


def call_in_thread(layers: tuple[Layer, ...], context: Context[Any], handler: Call, run_async: RunAsync) -> Any:
    """Call a sync handler through its middleware, in the calling thread."""
    call = handler
    for layer in reversed(layers):
        if layer.in_thread is not None:
            call = partial(layer.in_thread, context, call)
        elif layer.in_loop is not None:
            call = partial(_async_layer_in_thread, layer.in_loop, context, call, run_async)
    return call()


def _async_layer_in_thread(middleware: Middleware, context: Context[Any], inner: Call, run_async: RunAsync) -> Any:
    """Run an async middleware in the event loop; what it calls next runs here, in the thread of the handler."""
    import asyncio

    calls: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]] | None] = queue.SimpleQueue()
    outcome: list[tuple[Any, BaseException | None]] = []

    async def call_next() -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        calls.put((loop, future))
        return _unboxed(await future)

    def run() -> None:
        outcome.append(_boxed(partial(run_async, _await(middleware(context, call_next)))))
        calls.put(None)

    runner = threading.Thread(target=run, name="penstock-middleware", daemon=True)
    runner.start()
    while (wanted := calls.get()) is not None:
        loop, future = wanted
        loop.call_soon_threadsafe(_set, future, _boxed(inner))
    runner.join()
    return _unboxed(outcome[0])


# --- in an event loop ------------------------------------------------------------------------------


async def call_in_loop(layers: tuple[Layer, ...], context: Context[Any], handler: AsyncCall) -> Any:
    """Await an async handler through its middleware."""
    call = handler
    for layer in reversed(layers):
        if layer.in_loop is not None:
            call = partial(layer.in_loop, context, call)
        elif layer.in_thread is not None:
            call = partial(_sync_layer_in_loop, layer.in_thread, context, call)
    return await call()


async def _sync_layer_in_loop(middleware: Middleware, context: Context[Any], inner: AsyncCall) -> Any:
    """Run a sync middleware in a thread of its own; what it calls next runs here, in the loop."""
    import asyncio

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    under_way: list[Any] = []

    def call_next() -> Any:
        under_way.append(asyncio.run_coroutine_threadsafe(_boxed_async(inner), loop))
        return _unboxed(under_way[-1].result())

    def run() -> None:
        result = _boxed(partial(middleware, context, call_next))
        loop.call_soon_threadsafe(_set, ended, result)

    threading.Thread(target=run, name="penstock-middleware", daemon=True).start()
    try:
        return _unboxed(await asyncio.shield(ended))
    except asyncio.CancelledError:
        for future in under_way:
            future.cancel()
        raise


# An exception that left a thread or a task by itself would end it (SystemExit), or not fit into a future
# (StopIteration): so it travels in a box.


def _boxed(call: Call) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


async def _boxed_async(call: AsyncCall) -> tuple[Any, BaseException | None]:
    try:
        return await call(), None
    except BaseException as error:
        return None, error


def _unboxed(box: tuple[Any, BaseException | None]) -> Any:
    result, error = box
    if error is not None:
        raise error
    return result


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _set(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
