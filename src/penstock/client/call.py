"""Call: one request, and how its answer is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from penstock.errors import BadInput

T = TypeVar("T")

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER = re.compile(r"[ -~\t]*")


class Call(Generic[T]):
    """One request, and how its answer is read. ``repeatable``: sent again after a lost reply it has one effect."""

    def __init__(
        self,
        method: str,
        path: str,
        read: Callable[[bytes, Mapping[str, str]], T],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        wait: float = 0.0,
    ) -> None:
        """``body`` goes as JSON, ``content`` as it is; ``wait`` is for how long the service may take its time."""
        self.method = method
        self.path = path
        self.read = read
        self.query = {name: value for name, value in (query or {}).items() if value is not None}
        self.headers = dict(headers or {})
        self.content = content
        if body is not None:
            self.content = _encoded(body, f"{method} {path}")
            self.headers["content-type"] = "application/json"
        for name, value in self.headers.items():
            if not TOKEN.fullmatch(name) or not isinstance(value, str) or not _HEADER.fullmatch(value):
                raise BadInput(
                    f"header {name!r} cannot be sent as {value!r:.100}.",
                    hint="Use printable ASCII without line breaks.",
                )
        self.repeatable = repeatable
        self.wait = wait


def get_call(path: str, type: type[T], query: Mapping[str, Any] | None = None) -> Call[T]:
    """A call that only looks."""
    return Call("GET", path, json_reader(type), query=query, repeatable=True)


def json_reader(type: type[T]) -> Callable[[bytes, Mapping[str, str]], T]:
    """Reads an answer as a type."""
    decoder = msgspec.json.Decoder(type)
    return lambda content, headers: decoder.decode(content)


def nothing(content: bytes, headers: Mapping[str, str]) -> None:
    """Reads an answer that says nothing."""
    return None


def log_path(name: str) -> str:
    """Where a log is."""
    return f"/v1/logs/{path_part(name)}"


def path_part(name: str) -> str:
    """A name as part of an address."""
    if not isinstance(name, str) or not name or name in (".", ".."):
        raise BadInput(f"{name!r} is not a name.", hint="Give the name of what is meant.")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as cause:
        raise BadInput(f"{name!r} is not a name: {cause}.", hint="Give the name of what is meant.") from cause


def _encoded(body: Any, what: str) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as cause:
        raise BadInput(f"{what} cannot be sent: {cause}.", hint="Give text, numbers and aware times.") from cause
