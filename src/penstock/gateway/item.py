"""QueuedRequest: a request as it is stored, in the JSON form that gateleen's nodes write and read."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

import msgspec

from penstock.codec import MOST_DEPTH, depth_of
from penstock.errors import BadInput, Undecodable

METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH")
Alphabet = Literal["standard", "url"]
LONGEST_URI = 8192
TYPE_NAME = "QueuedRequest"
CREDENTIALS = frozenset(("authorization", "cookie", "x-api-key", "api-key", "x-auth-token"))
MASK = "***"


class _Stored(msgspec.Struct, rename="camel", omit_defaults=True):
    method: str
    uri: str
    headers: list[tuple[str, str]] = []
    payload: str = ""
    queue_timestamp: int | None = None


class QueuedRequest(msgspec.Struct, frozen=True):
    """Method, address (path and query), headers (names may repeat), body, and when it was queued, in milliseconds."""

    method: str
    uri: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    queued_ms: int | None = None

    def header(self, name: str) -> str | None:
        """The first header of a name, in any case."""
        name = name.lower()
        return next((value for key, value in self.headers if key.lower() == name), None)

    def browsed(self) -> dict[str, Any]:
        """The form for people: a text body as text, a JSON object as an object."""
        shown: dict[str, Any] = {
            "method": self.method, "uri": self.uri, "headers": [list(header) for header in self.headers],
            "queueTimestamp": self.queued_ms,
        }  # fmt: skip
        kind = (self.header("content-type") or "").lower()
        if "application/json" in kind or "text/" in kind:
            try:
                text = self.body.decode()
                is_object = "application/json" in kind and depth_of(self.body) < MOST_DEPTH
                parsed = msgspec.json.decode(text) if is_object else None
            except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
                return {**shown, "payload": base64.b64encode(self.body).decode()}
            if isinstance(parsed, dict):
                return {**shown, "payloadObject": parsed}
            return {**shown, "payloadString": text}
        return {**shown, "payload": base64.b64encode(self.body).decode()}


def shown(uri: str) -> str:
    """An address for logs and error texts: short, and without its query, where secrets may be."""
    return uri.partition("?")[0][:200]


def masked_payload(payload: bytes, type_name: str) -> bytes:
    """A payload for a list: who may look at a queued request does not learn the credentials it carries."""
    if type_name != TYPE_NAME:
        return payload
    try:
        stored = msgspec.json.decode(payload, type=_Stored)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return payload
    stored.headers = [(name, MASK if name.lower() in CREDENTIALS else value) for name, value in stored.headers]
    return msgspec.json.encode(stored)


def from_browsed(shown: Any) -> QueuedRequest:
    """Back from the form for people; the length of a body is written again."""
    if not isinstance(shown, dict) or "headers" not in shown:
        raise BadInput("a queued request needs its headers.", hint='Give {"method", "uri", "headers", "payload"}.')
    body: bytes | None = None
    if "payloadObject" in shown:
        body = msgspec.json.encode(shown["payloadObject"])
    elif "payloadString" in shown:
        body = str(shown["payloadString"]).encode()
    fields = {name: value for name, value in shown.items() if name not in ("payloadObject", "payloadString")}
    if fields.get("queueTimestamp", 0) is None:
        del fields["queueTimestamp"]
    request = read_item(msgspec.json.encode(fields))
    if body is not None:
        headers = tuple(
            (name, str(len(body))) if name.lower() == "content-length" else (name, value)
            for name, value in request.headers
        )
        request = msgspec.structs.replace(request, body=body, headers=headers)
    return request


def read_item(payload: bytes) -> QueuedRequest:
    """Read a stored item, in either base64 alphabet, padded or not; raises ``Undecodable`` for anything else."""
    try:
        stored = msgspec.json.decode(payload, type=_Stored)
        body = _bytes(stored.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError, RecursionError) as cause:
        raise Undecodable(
            f"{len(payload)} stored bytes are not a queued request: {cause}.",
            hint='An item is {"method", "uri", "headers", "payload" (base64), "queueTimestamp"}.',
        ) from cause
    if stored.method not in METHODS or not stored.uri:
        raise Undecodable(
            f"a queued request has method {stored.method!r} and address {stored.uri[:100]!r}.",
            hint=f"The method is one of {', '.join(METHODS)}, the address is not empty.",
        )
    return QueuedRequest(stored.method, stored.uri, tuple(stored.headers), body, stored.queue_timestamp)


def _bytes(text: str) -> bytes:
    plain = text.translate(_TO_STANDARD).rstrip("=")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


_TO_STANDARD = str.maketrans("-_", "+/")


class RequestCodec:
    """Stores requests as gateleen does; ``alphabet`` is what old (standard) or new (url) nodes write."""

    name = "json"
    type_name = TYPE_NAME

    def __init__(self, alphabet: Alphabet = "standard") -> None:
        """Write base64 in this alphabet; both are read."""
        self._alphabet = alphabet

    def encode(self, value: QueuedRequest) -> bytes:
        """The item's text."""
        if not isinstance(value, QueuedRequest):
            raise BadInput(f"{value!r} is not a QueuedRequest.", hint="See penstock.gateway.item.")
        if self._alphabet == "url":
            body = base64.urlsafe_b64encode(value.body).rstrip(b"=")
        else:
            body = base64.b64encode(value.body)
        stored = {
            "method": value.method, "uri": value.uri, "headers": value.headers, "payload": body.decode(),
            **({} if value.queued_ms is None else {"queueTimestamp": value.queued_ms}),
        }  # fmt: skip
        return msgspec.json.encode(stored)

    def decode(self, payload: bytes) -> QueuedRequest:
        """The request."""
        return read_item(payload)
