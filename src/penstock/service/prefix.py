"""The service under a prefix of another application: its pages and answers lead to addresses below that prefix."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Attributes of our pages that hold an address of ours. Text of users is escaped: it has no bare quotation marks.
_ADDRESS = re.compile(rb'\b(href|src|action|formaction|hx-get|sse-connect)="/(?!/)')
_REDIRECTS = (b"location", b"hx-redirect")
PREFIX = "penstock.prefix"  # where a scope says which prefix was removed


class Prefixed:
    """An ASGI application that was made for ``/``, below a prefix."""

    def __init__(self, app: App) -> None:
        """The prefix is what the outer application has removed: the scope's ``root_path``."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; the application sees its path without the prefix."""
        prefix: str = scope.get("root_path", "")
        if scope["type"] != "http" or not prefix:
            await self.app(scope, receive, send)
            return
        answer = _Answer(prefix.encode("utf-8"), send)
        await self.app(_without(scope, prefix), receive, answer.send)


def _without(scope: Scope, prefix: str) -> Scope:
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or path.encode("utf-8")
    sent = prefix.encode("utf-8")
    return {
        **scope,
        "root_path": "",
        PREFIX: prefix,
        "path": path.removeprefix(prefix) or "/",
        "raw_path": raw.removeprefix(sent) or b"/",
    }


class _Answer:
    """One answer: pages are collected and get the prefix, everything else passes through."""

    def __init__(self, prefix: bytes, send: Send) -> None:
        self._prefix = prefix
        self._send = send
        self._start: Message | None = None  # held back while a page is collected
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [(name, self._onward(name, value)) for name, value in message["headers"]]
            if any(name == b"content-type" and value.startswith(b"text/html") for name, value in message["headers"]):
                self._start = message
                return
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_page(self._start)
            return
        await self._send(message)

    def _onward(self, name: bytes, value: bytes) -> bytes:
        is_own = name.lower() in _REDIRECTS and value.startswith(b"/") and not value.startswith(b"//")
        return self._prefix + value if is_own else value

    async def _send_page(self, start: Message) -> None:
        body = _ADDRESS.sub(lambda match: match[0][:-1] + self._prefix + b"/", bytes(self._body))
        headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        start["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
