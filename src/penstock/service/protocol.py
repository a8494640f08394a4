"""HTTP/1.1 by uvicorn and h11, with a deadline for every state in which a connection waits for its client.

A connection costs memory and one of a limited number of slots. The application sees only whole requests, so the time
before, between and after them is limited here: for a head that does not arrive, a body that is not read, an answer
that is not received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.service.problems import problem
from penstock.service.settings import ServiceSettings

Waiting = Literal["head", "next request", "body", "rest of a body", "answer taken", "closing", "nothing"]


def protocol(settings: ServiceSettings) -> type[asyncio.Protocol]:
    """The protocol class for these settings; uvicorn makes one object per connection."""
    limits: dict[Waiting, float] = {
        "head": settings.head_seconds,
        "next request": settings.idle_seconds,
        # The application answers a slow body with 408 before the connection ends.
        "body": settings.body_seconds + settings.idle_seconds,
        "rest of a body": settings.idle_seconds,
        "answer taken": settings.answer_seconds,
        "closing": settings.answer_seconds,
    }
    look_every = min(1.0, min(limits.values()) / 4)

    class BoundedConnection(H11Protocol):
        """Closes itself when its client keeps it waiting for too long.

        Several times per second it checks what it waits for, and since when. Bytes that do not change what it waits for
        do not extend the time.
        """

        _answered = 0
        _head_begun = False
        _resumed = 0
        _waits_for: tuple[Waiting, int, int] = ("nothing", 0, 0)
        _since = 0.0
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head_begun = True  # of the first request, before its first byte
            excess = len(self.connections) - settings.connections
            if excess > settings.connections:  # as many are being refused already
                transport.abort()
                return
            if excess > 0:
                self.app = _busy(self.app)
            self._look()

        def data_received(self, data: bytes) -> None:
            if self.conn.their_state is h11.IDLE:
                self._head_begun = True
            super().data_received(data)

        def send_400_response(self, msg: str) -> None:
            """What arrived is not HTTP: nothing more is read, and nothing the application says is sent."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:  # it was answered before its body turned out to be wrong
                self.transport.close()
            if self.cycle is not None:
                self.cycle.disconnected = True
                self.cycle.message_event.set()

        def on_response_complete(self) -> None:
            self._answered += 1
            self._head_begun = bool(self.conn.trailing_data[0])  # of a request that was sent ahead
            super().on_response_complete()

        def resume_writing(self) -> None:
            self._resumed += 1
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            waits_for, now = self._state(), self.loop.time()
            if waits_for != self._waits_for:
                self._waits_for, self._since = waits_for, now
            limit = limits.get(waits_for[0])
            if limit is not None and now - self._since >= limit:
                self._end()
            else:
                self._timer = self.loop.call_later(look_every, self._look)

        def _state(self) -> tuple[Waiting, int, int]:
            """What the connection waits for, with the number of the request, so that each has its own time."""
            if self.transport.is_closing():
                return "closing", 0, 0
            reading_body = self.conn.their_state is h11.SEND_BODY
            if self.cycle is not None and not self.cycle.response_complete:
                if reading_body:
                    return "body", self._answered, 0
                if self.flow.write_paused:
                    # The reader has to take part of a stream in time, since it has no end, and all of any other answer.
                    return "answer taken", self._answered, self._resumed
                return "nothing", self._answered, 0
            if self.transport.get_write_buffer_size() > 0:
                return "answer taken", self._answered, -1
            if reading_body:
                return "rest of a body", self._answered, 0
            return "head" if self._head_begun else "next request", self._answered, 0

        def _end(self) -> None:
            if self.transport.get_write_buffer_size() > 0:
                self.transport.abort()  # close() would wait until all was taken
            else:
                self.transport.close()

    return BoundedConnection


def _busy(app: Any) -> Callable[..., Awaitable[None]]:
    """Answers with 503 in the place of an application; the health check still works."""

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        async def closing(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        if scope["path"] == "/live":
            await app(scope, receive, closing)
        else:
            answer = problem(503, "This service has as many connections as it takes.", hint="Try again later.")
            await answer(scope, receive, closing)

    return busy
