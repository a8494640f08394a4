"""HandlerLoop: the event loop that a worker's async handlers share: its caller's, or one in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Where it is needed it is imported by the function: a worker whose handlers are all sync starts without it.
    import asyncio


class HandlerLoop:
    """One per worker; a thread is started with the first use, if at all."""

    def __init__(self, given: asyncio.AbstractEventLoop | None) -> None:
        """``given`` is a running loop that belongs to somebody else."""
        self._given = given
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop, from any thread."""
        self._running().call_soon_threadsafe(function, *args)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop and wait for it; from any thread but the loop's own."""
        import asyncio

        result, error = asyncio.run_coroutine_threadsafe(_outcome(coroutine), self._running()).result()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Cancel what is left and end a loop of our own; the next use starts another."""
        with self._lock:
            loop, thread, self._own, self._thread = self._own, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if threading.current_thread() is not thread:
                thread.join(timeout=5)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._given is not None:
            return self._given
        import asyncio

        with self._lock:
            if self._own is None:
                self._own = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._own,), name="penstock-handler-loop", daemon=True
                )
                self._thread.start()
            return self._own


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """What a coroutine came to; a SystemExit that left its task would end the loop for all the others."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
