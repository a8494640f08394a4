"""Worker: runs async handlers in the event loop of the caller."""

from __future__ import annotations

import signal
import threading
from typing import Any

import anyio

from penstock.aio.calling import run, running_loop
from penstock.aio.queues import Queue, QueueStore
from penstock.clock import Duration
from penstock.errors import BadInput
from penstock.queue import worker as sync_worker


class Worker:
    """A worker whose async handlers run in the caller's own event loop, beside everything else that runs there.

        async with aio.Worker(store):
            ...                                # works until the block ends
        await aio.Worker(store).run()          # works until SIGTERM, SIGINT or cancellation

    Sync handlers run in threads, as with :class:`penstock.Worker`, whose options it takes. Under trio, async handlers
    run in an asyncio loop of their own.
    """

    def __init__(self, store: QueueStore, queues: list[Queue[Any]] | None = None, **options: Any) -> None:
        """Inside a running event loop."""
        if not isinstance(store, QueueStore):
            raise BadInput(
                f"aio.Worker was given a {type(store).__name__}, which has no calls to await.",
                hint="Open it with aio.open_queues(url), or wrap it: aio.QueueStore(store).",
            )
        chosen = None if queues is None else [queue.sync for queue in queues]
        self.sync = sync_worker.Worker(store.sync, chosen, loop=running_loop(), **options)

    async def start(self) -> None:
        """Begin to work."""
        await run(self.sync.start)

    async def stop(self, grace: Duration | None = None) -> bool:
        """Stop in order. Returns whether all handlers ended by themselves."""
        return await run(self.sync.stop, grace)

    async def drain(self, *, limit: int | None = None) -> int:
        """Handle all that is due, one after the other. Returns how many times a handler ran."""
        return await run(self.sync.drain, limit=limit)

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT, :meth:`stop` or cancellation, then stop in order."""
        async with self, anyio.create_task_group() as tasks:

            async def until_stopped() -> None:
                while not self.sync.is_stopping:
                    await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_stopped)
            if threading.current_thread() is not threading.main_thread():
                await anyio.sleep_forever()
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()
                    return

    async def __aenter__(self) -> Worker:
        """Begin to work."""
        try:
            await self.start()
        except BaseException:
            # Cancelled meanwhile: it has started all the same, and nobody else will stop it.
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop in order."""
        await self.stop()
