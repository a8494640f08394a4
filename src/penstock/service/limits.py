"""Limits of size, time and headers for every request and answer, as plain ASGI: checked before anything is parsed."""

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
VERSIONS = ("1.0", "1.1", "2", "2.0")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# Headers with the origin of a browser's page. Of two values it would be unclear which one is true.
SAID_ONCE = (b"host", b"origin", b"sec-fetch-site")
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

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in HEADERS if header[0] not in own)]
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            answer = problem(refused.status_code, refused.detail)
            answer.headers.update(CLOSE)
            await answer(scope, receive, with_headers)
        else:
            await self.app(scope, self._guarded(receive), with_headers)

    def _refused(self, scope: MutableMapping[str, Any]) -> HTTPException | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if len(headers) > MOST_HEADERS:
            return HTTPException(413, f"{len(headers)} headers are over the limit of {MOST_HEADERS}.")
        address: bytes = scope["raw_path"] + b"?" + scope["query_string"]
        # A head that arrives in one piece is parsed before its size is checked.
        if len(address) + sum(len(name) + len(value) + 4 for name, value in headers) > self.settings.head_bytes:
            return HTTPException(431, f"the head is over the limit of {self.settings.head_bytes:,} bytes.")
        if scope.get("http_version", "1.1") not in VERSIONS:
            return HTTPException(400, f"HTTP/{scope['http_version']} is not spoken here.")
        if b"%00" in address:
            return HTTPException(400, "the address has a NUL in it, which no name or id can have.")
        names = {name for name, _ in headers}
        if b"content-length" in names and b"transfer-encoding" in names:
            return HTTPException(400, "the length of the body is given in two ways: content-length, transfer-encoding.")
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self.settings.body_bytes:
                return self._too_large()
        return self._foreign(scope["method"], headers) if self.settings.keys is None else None

    def _foreign(self, method: str, headers: list[tuple[bytes, bytes]]) -> HTTPException | None:
        """Whether a page from elsewhere made the browser send this; without API keys it must have no effect."""
        names = [name for name, _ in headers]
        repeated = next((name for name in SAID_ONCE if names.count(name) > 1), None)
        if repeated is not None:
            return HTTPException(400, f"the header {repeated.decode()} is sent more than once; send it once.")
        given = {name: value.decode("latin-1").strip() for name, value in headers}
        host = given.get(b"host", "")
        if not self.settings.is_guarded and b"host" in given and not _is_here(host, self.settings.host):
            return HTTPException(421, "without API keys this service is for the machine it runs on only.")
        if method in SAFE_METHODS:
            return None
        origin = given.get(b"origin")
        if origin in self.settings.cors_origins:
            return None
        elsewhere = origin is not None and origin.partition("://")[2].lower() != host.lower()
        if elsewhere or given.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            return HTTPException(
                403, f"a page of {origin or 'another site'} may not use this service without API keys."
            )
        return None

    def _guarded(self, receive: Receive) -> Receive:
        size = 0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.body_seconds
        complete = False

        async def guarded() -> Message:
            nonlocal size, complete
            if complete:  # only the end of the connection can follow now, and that may take a while
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


def _is_here(given: str, own: str) -> bool:
    """Whether a Host header names this machine; that of a rebound name (DNS rebinding) does not."""
    host = given.lower()
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return host == own.lower() or is_loopback(host)
