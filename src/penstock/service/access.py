"""Who is asking, and may they: bearer keys, scopes, prefixes and the audit of what administrators do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from penstock.errors import EntryNotFound, LogNotFound
from penstock.service.keys import ANYBODY, ApiKey, Keys, Scope

audit = logging.getLogger("penstock.audit")

KEY_HEADER = "x-penstock-key"

bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer psk_…`.")
own_header = APIKeyHeader(
    name=KEY_HEADER, auto_error=False, description="The API key where `Authorization` is meant for a backend."
)


def caller(
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None,
    own: Annotated[str | None, Depends(own_header)] = None,
) -> ApiKey:
    """The key that the request came with."""
    keys: Keys | None = request.app.state.keys
    if keys is None:
        return ANYBODY
    secret = own or (None if given is None else given.credentials)
    if secret is None:
        raise HTTPException(401, "This service asks for an API key: send it as a bearer token.")
    found = keys.find(secret)
    if found is None:
        raise HTTPException(401, "The API key is not known.")
    return found


def requires(scope: Scope, *, whole: bool = False) -> Callable[..., ApiKey]:
    """A dependency that lets only keys with this scope through; what administrators change is noted.

    ``whole``: what is asked is about the queues of everybody, so a key with a prefix may not.
    """

    def check(request: Request, key: Annotated[ApiKey, Depends(caller)]) -> ApiKey:
        if not key.may(scope):
            raise HTTPException(403, f"The API key {key.name!r} lacks the scope {scope!r}.")
        if whole and key.prefix:
            raise HTTPException(403, f"The API key {key.name!r} is for {key.prefix!r} only; this is about all queues.")
        if scope == "admin" and request.method != "GET":
            # Before it is done: what fails half-way is noted too. As it was sent, so that no line can be forged.
            path = request.scope["raw_path"].decode("latin-1")
            audit.info("%s %s %s by %s", request.method, path, _query(request), key.name)
        return key

    check.scope = scope  # type: ignore[attr-defined]  # the authorization matrix reads it
    return check


Reader = Annotated[ApiKey, Depends(requires("read"))]
Producer = Annotated[ApiKey, Depends(requires("produce"))]
Consumer = Annotated[ApiKey, Depends(requires("consume"))]
Admin = Annotated[ApiKey, Depends(requires("admin"))]
WholeReader = Annotated[ApiKey, Depends(requires("read", whole=True))]
WholeAdmin = Annotated[ApiKey, Depends(requires("admin", whole=True))]


def check_queue(key: ApiKey, name: str) -> str:
    """A queue outside of the key's reach is not there."""
    if not key.sees(name):
        raise EntryNotFound(f"there is no queue {name!r}.", hint="GET /v1/queues lists those there are.")
    return name


def check_log(key: ApiKey, name: str) -> str:
    """A log outside of the key's reach is not there."""
    if not key.sees(name):
        raise LogNotFound(f"there is no log {name!r}.", hint="GET /v1/logs lists those there are.")
    return name


def _query(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return f"?{query.decode('latin-1')}" if query else ""
