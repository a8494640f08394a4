"""Who is asking, and may they: bearer keys, scopes, prefixes and the audit of what administrators do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from penstock.errors import EntryNotFound, LogNotFound
from penstock.service.keys import ANYBODY, ApiKey, Keys, Scope

audit = logging.getLogger("penstock.audit")

bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer psk_…`.")


def caller(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None) -> ApiKey:
    """The key that the request came with."""
    keys: Keys | None = request.app.state.keys
    if keys is None:
        return ANYBODY
    if given is None:
        raise HTTPException(401, "This service asks for an API key: send it as a bearer token.")
    found = keys.find(given.credentials)
    if found is None:
        raise HTTPException(401, "The API key is not known.")
    return found


def requires(scope: Scope) -> Callable[..., ApiKey]:
    """A dependency that lets only keys with this scope through; what administrators change is noted."""

    def check(request: Request, key: Annotated[ApiKey, Depends(caller)]) -> ApiKey:
        if not key.may(scope):
            raise HTTPException(403, f"The API key {key.name!r} lacks the scope {scope!r}.")
        if scope == "admin" and request.method != "GET":
            # Before it is done: what fails half-way is noted too.
            audit.info("%s %s %s by %s", request.method, request.url.path, _query(request), key.name)
        return key

    check.scope = scope  # type: ignore[attr-defined]  # the authorization matrix reads it
    return check


Reader = Annotated[ApiKey, Depends(requires("read"))]
Producer = Annotated[ApiKey, Depends(requires("produce"))]
Consumer = Annotated[ApiKey, Depends(requires("consume"))]
Admin = Annotated[ApiKey, Depends(requires("admin"))]


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
    query: Any = request.url.query
    return f"?{query}" if query else ""
