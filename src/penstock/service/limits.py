"""Size, time and headers of every request and answer, as plain ASGI: nothing is parsed before it was weighed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from penstock.service.problems import problem
from penstock.service.settings import ServiceSettings, is_loopback

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MOST_HEADERS = 100
# What is left of a refused body is not read.
CLOSE = {"connection": "close"}

HEADERS = tuple(
    (name.encode(), value.encode())
    for name, value in (
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
    )
)


class Limits:
    """Refuses bodies that are too large or too slow, and sets the headers that browsers should see."""

    def __init__(self, app: App, settings: ServiceSettings) -> None:
        """Wrap an application."""
        self.app = app
        self.settings = settings

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in there)]
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            answer = problem(refused.status_code, refused.detail)
            answer.headers.update(CLOSE)
            await answer(scope, receive, told)
        else:
            await self.app(scope, self._guarded(receive), told)

    def _refused(self, scope: MutableMapping[str, Any]) -> HTTPException | None:
        if len(scope["headers"]) > MOST_HEADERS:
            return HTTPException(413, f"{len(scope['headers'])} headers are over the limit of {MOST_HEADERS}.")
        for name, value in scope["headers"]:
            if name == b"host" and self.settings.keys is None and not _is_here(value, self.settings.host):
                return HTTPException(421, "without API keys this service is for the machine it runs on only.")
            if name == b"content-length" and value.isdigit() and int(value) > self.settings.body_bytes:
                return self._too_large()
        return None

    def _guarded(self, receive: Receive) -> Receive:
        size = 0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.body_seconds
        complete = False

        async def guarded() -> Message:
            nonlocal size, complete
            if complete:  # only the end of the connection can come now, and that may take its time
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as cause:
                detail = f"the body did not arrive within {self.settings.body_seconds:g} s."
                raise HTTPException(408, detail, CLOSE) from cause
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self.settings.body_bytes:
                raise self._too_large()
            return message

        return guarded

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is over the limit of {self.settings.body_bytes:,} bytes.", CLOSE)


def _is_here(given: bytes, own: str) -> bool:
    """Whether a Host header names this machine: a page from elsewhere whose name was made to lead here does not."""
    host = given.decode("latin-1").strip().lower()
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return host == own.lower() or is_loopback(host)
