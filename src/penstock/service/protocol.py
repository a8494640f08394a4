"""HTTP/1.1 by uvicorn and h11, with a deadline for every state in which a connection waits for its client.

A connection costs memory and one of a limited number of slots. The application sees only whole requests, so the time
before, between and after them is limited here: for a head that does not arrive, a body that is not read, an answer
that is not received.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.service.problems import problem
from penstock.service.settings import ServiceSettings

_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLD = re.compile(rb"\n[ \t]")

Waiting = Literal["head", "next request", "body", "rest of a body", "answer taken", "closing", "nothing"]


def protocol(settings: ServiceSettings) -> Callable[..., asyncio.Protocol]:
    """What makes the connections for these settings; uvicorn calls it once per connection."""
    return partial(BoundedConnection, settings)


def _deadlines(settings: ServiceSettings) -> dict[Waiting, float]:
    """For how many seconds a connection waits for what."""
    return {
        "head": settings.head_seconds,
        "next request": settings.idle_seconds,
        # The application answers a slow body with 408 before the connection ends.
        "body": settings.body_seconds + settings.idle_seconds,
        "rest of a body": settings.idle_seconds,
        "answer taken": settings.answer_seconds,
        "closing": settings.answer_seconds,
    }


def _ambiguity(arrived: bytes) -> str:
    """Why what has arrived of a head is refused, or nothing. Proxies disagree on where such heads and lines end."""
    head = arrived.partition(b"\r\n\r\n")[0]
    if _BARE_LF.search(head):
        return "A line of the head ends with LF alone."
    return "A header continues on the next line." if _FOLD.search(head) else ""


class BoundedConnection(H11Protocol):
    """Closes itself when its client keeps it waiting for too long.

    Several times per second it checks what it waits for, and since when. Bytes that do not change what it waits for
    do not extend the time.
    """

    def __init__(self, settings: ServiceSettings, *args: Any, **options: Any) -> None:
        """``settings`` bounds it; the rest is uvicorn's."""
        super().__init__(*args, **options)
        self._most = settings.connections
        self._limits = _deadlines(settings)
        self._look_every = min(1.0, min(self._limits.values()) / 4)
        self._answered = 0
        self._head_begun = False
        self._resumed = 0
        self._waits_for: tuple[Waiting, int, int] = ("nothing", 0, 0)
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_begun = True  # of the first request, before its first byte
        excess = len(self.connections) - self._most
        if excess > self._most:  # as many are being refused already
            transport.abort()
            return
        if excess > 0:
            self.app = _busy(self.app)
        self._look()

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE:
            self._head_begun = True
        super().data_received(data)

    def handle_events(self) -> None:
        """Parse what has arrived, unless it is the beginning of a head that another server might read differently."""
        if self.conn.their_state is h11.IDLE and (wrong := _ambiguity(self.conn.trailing_data[0])):
            self.send_400_response(wrong)
        else:
            super().handle_events()

    def send_400_response(self, msg: str) -> None:
        """What arrived is not HTTP: nothing more is read, and nothing the application says is sent."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(msg)
        else:  # it was answered before its body turned out to be wrong
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _refuse(self, why: str) -> None:
        answer = problem(400, why, hint="The request has to be HTTP/1.1 as RFC 9112 has it.")
        head = h11.Response(status_code=400, headers=[*answer.raw_headers, (b"connection", b"close")])
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

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
        limit = self._limits.get(waits_for[0])
        if limit is not None and now - self._since >= limit:
            self._end()
        else:
            self._timer = self.loop.call_later(self._look_every, self._look)

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
