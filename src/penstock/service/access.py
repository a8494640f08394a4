"""Authentication and authorization: bearer keys, scopes, prefixes and the audit of what administrators do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException

from penstock.errors import EntryNotFound, LogNotFound
from penstock.service.keys import ANYBODY, ApiKey, Keys, Scope

audit = logging.getLogger("penstock.audit")

KEY_HEADER = "x-penstock-key"
BEARER = "bearer "

# They only describe both ways in the OpenAPI; `given_secret` reads the secret.
bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer psk_…`.")
own_header = APIKeyHeader(
    name=KEY_HEADER, auto_error=False, description="The API key where `Authorization` is meant for a backend."
)


def given_secret(request: Request) -> str | None:
    """The secret of a request: from its own header, or else a bearer token."""
    own = request.headers.get(KEY_HEADER, "").strip()
    return own or bearer_token(request.headers.get("authorization", ""))


def bearer_token(authorization: str) -> str | None:
    """The token in the value of an Authorization header."""
    if authorization[: len(BEARER)].lower() != BEARER:
        return None
    return authorization[len(BEARER) :].strip() or None


def caller(request: Request) -> ApiKey:
    """The key of the request."""
    keys: Keys | None = request.app.state.keys
    if keys is None:
        return ANYBODY
    secret = given_secret(request)
    if secret is None:
        raise HTTPException(401, "This service asks for an API key: send it as a bearer token.")
    key = keys.find(secret)
    if key is None:
        raise HTTPException(401, "The API key is not known.")
    return key


class Requires:
    """A dependency that lets only keys with this scope through; what administrators change is noted.

    ``whole``: the request concerns all queues, so keys with a prefix are refused.
    """

    def __init__(self, scope: Scope, *, whole: bool = False) -> None:
        """Require one scope."""
        self.scope = scope
        self.whole = whole

    def __call__(
        self, request: Request, _: Annotated[object, Depends(bearer)], __: Annotated[object, Depends(own_header)]
    ) -> ApiKey:
        """The key of a request whose body may have been read."""
        key = self.check(request)
        if self.scope == "admin" and request.method != "GET":
            # Note it first, so that what fails half-way is noted too; and as sent, so that no line can be forged.
            path = raw_path(request).decode("latin-1")
            audit.info("%s %s %s by %s", request.method, path, _query(request), key.name)
        return key

    def check(self, request: Request) -> ApiKey:
        """The key of a request; only its head is looked at."""
        key = caller(request)
        if not key.may(self.scope):
            raise HTTPException(403, f"The API key {key.name!r} lacks the scope {self.scope!r}.")
        if self.whole and key.prefix:
            raise HTTPException(403, f"The API key {key.name!r} is for {key.prefix!r} only; this is about all queues.")
        return key


Reader = Annotated[ApiKey, Depends(Requires("read"))]
Producer = Annotated[ApiKey, Depends(Requires("produce"))]
Consumer = Annotated[ApiKey, Depends(Requires("consume"))]
Admin = Annotated[ApiKey, Depends(Requires("admin"))]
WholeReader = Annotated[ApiKey, Depends(Requires("read", whole=True))]
WholeAdmin = Annotated[ApiKey, Depends(Requires("admin", whole=True))]


def note(key: ApiKey, did: str, queue: str, what: Iterable[str] | object) -> None:
    """Add to the audit what the address does not say: which entries, and what was set."""
    said = " ".join(what) if isinstance(what, list) else repr(what)
    audit.info("%s of queue %s by %s: %s", did, queue, key.name, said)


def note_refusal(request: Request, key: ApiKey, error: Exception) -> None:
    """Add to the audit that a noted change was not made."""
    path = raw_path(request).decode("latin-1")
    audit.info("refused: %s %s by %s: %s", request.method, path, key.name, type(error).__name__)


def check_queue(key: ApiKey, name: str) -> str:
    """Refuse a queue outside the key's reach, as if it did not exist."""
    if not key.sees(name):
        raise EntryNotFound(f"there is no queue {name!r}.", hint="GET /v1/queues lists those there are.")
    return name


def check_log(key: ApiKey, name: str) -> str:
    """Refuse a log outside the key's reach, as if it did not exist."""
    if not key.sees(name):
        raise LogNotFound(f"there is no log {name!r}.", hint="GET /v1/logs lists those there are.")
    return name


class Shares:
    """Limits how many of a scarce resource each key holds at once."""

    def __init__(self, most: int, what: str) -> None:
        """Set the limit per key."""
        self._most = most
        self._what = what
        self._held: dict[str, int] = {}

    def take(self, key: ApiKey) -> Callable[[], None]:
        """Take one for this key. Call the result to give it back. Raises 429 if the key has its share."""
        if self._held.get(key.name, 0) >= self._most:
            raise too_many(f"the API key {key.name!r} has {self._most} {self._what} open already.")
        self._held[key.name] = self._held.get(key.name, 0) + 1
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                self._held[key.name] -= 1
                if not self._held[key.name]:
                    del self._held[key.name]

        return give_back


def too_many(detail: str) -> HTTPException:
    """The caller should come back later."""
    return HTTPException(429, detail, {"retry-after": "1"})


def raw_path(request: Request) -> bytes:
    """The path as it was sent; some servers add the query to it."""
    path: bytes = request.scope["raw_path"]
    return path.partition(b"?")[0]


def _query(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return f"?{query.decode('latin-1')}" if query else ""
