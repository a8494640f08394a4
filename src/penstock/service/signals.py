"""A stream of what happens in this process's stores, as server-sent events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

from penstock.clock import from_micros
from penstock.service.access import Reader
from penstock.service.keys import ApiKey, Keys
from penstock.service.problems import responses
from penstock.signals import Signal, Signals

router = APIRouter(prefix="/v1", tags=["signals"])

BACKLOG = 1000
QUIET = 5.0
LOOK = 0.5  # seconds after which a stream without signals checks whether the service ends


@router.get("/signals", responses=responses(429), response_class=StreamingResponse)
async def signals(
    request: Request,
    key: Reader,
    kind: Annotated[list[str] | None, Query(description="Only these kinds; may be repeated.")] = None,
    limit: Annotated[int | None, Query(ge=1, le=100_000, description="End after so many.")] = None,
) -> StreamingResponse:
    """What happens through this service, as it happens. A reader that is too slow misses some, and learns how many."""
    sources = [store.signals for store in (request.app.state.queues, request.app.state.logs) if store is not None]
    keys: Keys | None = request.app.state.keys
    give_back = request.app.state.streams_by_key.take(key)
    listener = Listener(key, keys, sources, tuple(kind or ()), request.app.state.ending, give_back)
    return StreamingResponse(
        listener.events(limit), media_type="text/event-stream", background=BackgroundTask(listener.end)
    )


class Listener:
    """One reader's share of the signals."""

    def __init__(
        self,
        key: ApiKey,
        keys: Keys | None,
        sources: list[Signals],
        kinds: tuple[str, ...],
        ending: threading.Event,
        give_back: Callable[[], None],
    ) -> None:
        """Listen from now on, for as long as the key is good and the service does not end."""
        self._ending = ending
        self._key = key
        self._keys = keys
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Signal] = asyncio.Queue(BACKLOG)
        self._missed = 0
        self._ends = [*(source.subscribe(self._hear, *kinds) for source in sources), give_back]

    def _hear(self, signal: Signal) -> None:
        if self._key.sees(signal.queue):
            self._loop.call_soon_threadsafe(self._take, signal)

    def _take(self, signal: Signal) -> None:
        try:
            self._waiting.put_nowait(signal)
        except asyncio.QueueFull:
            self._missed += 1

    async def events(self, limit: int | None) -> AsyncIterator[bytes]:
        """Signals as events, and a comment now and then that keeps the connection alive."""
        try:
            yield b": listening\n\n"
            left, quiet = limit, 0.0
            while left is None or left > 0:
                try:
                    async with asyncio.timeout(LOOK):
                        signal = await self._waiting.get()
                except TimeoutError:
                    quiet += LOOK
                    if self._ending.is_set() or (quiet >= QUIET and not self._good()):
                        return
                    if quiet >= QUIET:
                        quiet = 0.0
                        yield b": still here\n\n"
                    continue
                if not self._good():
                    return
                if self._missed:
                    missed, self._missed = self._missed, 0
                    yield f"event: missed\ndata: {missed}\n\n".encode()
                yield b"event: " + signal.kind.encode() + b"\ndata: " + msgspec.json.encode(_view(signal)) + b"\n\n"
                left = None if left is None else left - 1
        finally:
            self.end()

    def end(self) -> None:
        """Stop listening."""
        while self._ends:
            self._ends.pop()()

    def _good(self) -> bool:
        return self._keys is None or self._keys.holds(self._key)


def _view(signal: Signal) -> dict[str, Any]:
    data = {name: value if isinstance(value, str | int | float | bool | None) else str(value)
            for name, value in signal.data.items()}  # fmt: skip
    return {"kind": signal.kind, "queue": signal.queue, "ids": signal.ids, "at": from_micros(signal.at), **data}
