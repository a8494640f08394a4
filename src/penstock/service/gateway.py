"""Queued requests: a request with ``x-queue`` is stored, answered with 202, and delivered in order."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from penstock.errors import BadInput
from penstock.gateway.headers import QUEUE
from penstock.gateway.intake import Gateway
from penstock.service.access import KEY_HEADER, Producer, bearer_token, given_secret, raw_path
from penstock.service.keys import Keys

router = APIRouter(include_in_schema=False)

METHODS = ["PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"]
# How often a text that is searched for a key may be percent-encoded; without a limit, a long one could take very long.
MOST_ENCODINGS = 2


@router.get("/{path:path}")
async def nothing(path: str) -> Response:
    """A GET is never queued; without this it would be answered as if another method were taken here."""
    raise HTTPException(404, f"There is nothing at /{path}.")


@router.api_route("/{path:path}", methods=METHODS)
async def take_in(request: Request, key: Producer, path: str) -> Response:
    """Store the request; when this answers it is in its queue."""
    gateway: Gateway = request.app.state.gateway
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
    if not gateway.wants(request.method, headers):
        raise HTTPException(404, "There is nothing here; a request to be queued carries the header x-queue.")
    name = next((value for header, value in headers if header.lower() == QUEUE), "")
    queue = gateway.queue_name(name.strip())
    if not key.sees(queue):
        raise HTTPException(403, f"The API key {key.name!r} is for {key.prefix!r} only, and this is queue {queue!r}.")
    query: bytes = request.scope["query_string"]
    uri = raw_path(request).decode("latin-1") + (f"?{query.decode('latin-1')}" if query else "")
    body = await request.body()
    keys: Keys | None = request.app.state.keys
    secret = given_secret(request)
    if keys is not None and secret is not None:
        headers = _without_keys(headers, keys, secret)
        # In a thread, because a large body takes its time.
        await run_in_threadpool(check_without_key, uri, body, secret)
    accepted = await run_in_threadpool(gateway.accept, request.method, uri, headers, body)
    return Response(status_code=202, headers={"x-penstock-entry": accepted.id})


def _without_keys(headers: list[tuple[str, str]], keys: Keys, secret: str) -> list[tuple[str, str]]:
    """The headers without API keys, which are for this service only, not for the backend or its readers."""

    def tells_a_key(name: str, value: str) -> bool:
        token = bearer_token(value) if name == "authorization" else None
        return (
            name == KEY_HEADER
            or _holds(value.encode("latin-1"), secret)
            or (token is not None and keys.find(token) is not None)
        )

    return [(name, value) for name, value in headers if not tells_a_key(name.lower(), value)]


def check_without_key(uri: str, body: bytes, secret: str) -> None:
    """Refuse a request that would store the caller's API key: without the key it would be another request."""
    for part, content in (("address", uri.encode("latin-1")), ("body", body)):
        if _holds(content, secret):
            raise BadInput(
                f"the {part} of a queued request holds the API key that it was sent with; it is not queued.",
                hint=f"Send the key only in the header Authorization or {KEY_HEADER}.",
            )


def _holds(content: bytes, secret: str) -> bool:
    """Whether a text contains the secret, as it is or percent-encoded."""
    wanted = secret.encode("latin-1")
    for _ in range(MOST_ENCODINGS):
        if wanted in content:
            return True
        content = unquote_to_bytes(content)
    return wanted in content
