"""Errors as problem+json (RFC 9457): one mapping for the whole service, and its part of the OpenAPI."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from penstock.errors import (
    BadInput,
    CircuitNotFound,
    Conflict,
    EntryNotFound,
    LeaseLost,
    LogNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    PartitionNotFound,
    PayloadTooLarge,
    PenstockError,
    StoreFull,
    StoreUnavailable,
    UnitTooLarge,
    Unsupported,
)

logger = logging.getLogger("penstock.service")

MEDIA = "application/problem+json"
RETRY_AFTER = 5
MOST_ERRORS = 20
LONGEST_TEXT = 500  # of a quotation from a request
UNEXPECTED = "Something unexpected went wrong; the log of the service says what."
WRONG_FORM = "urn:penstock:problem:wrong-form"

Page = Callable[[Request, int, str, str], Response]  # of the status, what went wrong, and a hint

# The first that fits decides.
STATUS: tuple[tuple[type[PenstockError], int], ...] = (
    (PayloadTooLarge, 413), (UnitTooLarge, 413), (PartitionNotFound, 404), (BadInput, 400), (EntryNotFound, 404),
    (LogNotFound, 404), (CircuitNotFound, 404), (OffsetOutOfRange, 416), (Conflict, 409), (LeaseLost, 409),
    (Unsupported, 409), (StoreUnavailable, 503), (OutcomeUnknown, 503), (StoreFull, 507),
)  # fmt: skip

REASONS = {
    400: "Something in the request cannot be used.",
    401: "An API key is needed, or the one given is not known.",
    403: "The API key may not do this.",
    404: "There is no such thing, or the API key does not reach it.",
    405: "This address does not take the method.",
    408: "The request took too long to arrive.",
    409: "What was asked contradicts what is there.",
    413: "The request or a payload in it is too large.",
    416: "The offset is not in the log.",
    421: "The service does not answer under this name.",
    422: "The request is not of the right form; `errors` says where.",
    429: "The API key has as many of these open as it may; try again after `Retry-After` seconds.",
    431: "The head of the request is too large.",
    503: "The store did not answer; try again after `Retry-After` seconds.",
    507: "The store has no room.",
}


class Problem(BaseModel):
    """What went wrong, and what to do next."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None
    errors: list[dict[str, Any]] | None = None


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI of these problems, and of those that every address may answer with."""
    all_codes = sorted({*codes, 400, 401, 403, 408, 413, 421, 422, 431, 503})
    return {code: {"model": Problem, "description": REASONS[code], "content": {MEDIA: {}}} for code in all_codes}


class Answer(JSONResponse):
    """An answer in plain ASCII, so that any request can be quoted, even invalid Unicode."""

    media_type = MEDIA

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, separators=(",", ":")).encode()


def problem(
    status: int, detail: str, *, kind: str = "about:blank", title: str = "", hint: str = "", **more: Any
) -> JSONResponse:
    """An answer that is a problem."""
    detail = detail if len(detail) <= 2 * LONGEST_TEXT else f"{detail[:LONGEST_TEXT]} … {detail[-LONGEST_TEXT:]}"
    body = {"type": kind, "title": title or REASONS.get(status, "Error"), "status": status, "detail": detail}
    if hint:
        body["hint"] = hint
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Answer({**body, **more}, status, headers)


def install(app: FastAPI, *, page: Page | None = None) -> None:
    """Let every error of the application become a problem; ``page`` renders what a browser gets instead of some."""
    app.state.problem_page = page
    app.add_exception_handler(PenstockError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(ClientDisconnect, _hung_up)
    app.add_exception_handler(Exception, _unexpected)


def of(error: PenstockError, *stores: str) -> JSONResponse:
    """An error of Penstock as an answer."""
    status, detail, hint = in_words(error, *stores)
    return problem(status, detail, kind=kind_of(error), hint=hint)


def in_words(error: PenstockError, *stores: str) -> tuple[int, str, str]:
    """Status, detail and hint of an error, without the addresses of the stores of these names."""
    status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
    if status >= 500:
        logger.warning("answered with %d: %s: %s", status, type(error).__name__, error)
        said = REASONS.get(status, "Something went wrong; the log of the service says what.")
        return status, said, ""
    detail, hint = error.message, error.hint
    for name in filter(None, stores):
        detail, hint = detail.replace(name, "the store"), hint.replace(name, "the store")
    return status, detail, hint


def kind_of(error: PenstockError) -> str:
    """The error's name as a URN: UniqueHeld is urn:penstock:problem:unique-held."""
    return "urn:penstock:problem:" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()


async def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PenstockError)  # noqa: S101 - what it was registered for
    state = request.app.state
    return of(error, *(store.name for store in (state.queues, state.logs) if store is not None))


async def _hung_up(_: Request, error: Exception) -> JSONResponse:
    return problem(400, "The request ended before its body had arrived.")  # no client will read it


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    errors = [_wrong(fault) for fault in list(error.errors())[:MOST_ERRORS]]
    first = errors[0] if errors else {"where": "body", "what": "cannot be read"}
    detail = f"{first['where']}: {first['what']}"
    return problem(422, detail, kind=WRONG_FORM, hint=_right_form(request, error), errors=errors)


def _wrong(error: Any) -> dict[str, str]:
    """One thing that is wrong with a request, in a few words."""
    what = str(error["msg"])
    if error["type"] == "json_invalid":
        what += f": {error.get('ctx', {}).get('error', '')}"
    return {"where": ".".join(map(str, error["loc"]))[:LONGEST_TEXT], "what": what[:LONGEST_TEXT]}


def _right_form(request: Request, error: RequestValidationError) -> str:
    """What to send instead."""
    kinds = {str(fault["type"]) for fault in list(error.errors())[:MOST_ERRORS] if fault["loc"][0] == "body"}
    said = request.headers.get("content-type", "nothing")
    if kinds and "json" not in said:
        return f"Send the header content-type: application/json; the request said {said}."
    if "json_invalid" in kinds:
        return "The body has to be one JSON document."
    if request.method == "POST" and request.url.path.endswith("/entries") and "extra_forbidden" in kinds:
        return 'Put what is to be stored into value: {"value": ...}; beside it only options such as delay and labels.'
    return "GET /openapi.json says what this address takes."


async def _plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if error.status_code == 404 and (page := _page_for(request)) is not None:
        return page(request, 404, "There is no such page.", "")
    response = problem(error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    logger.exception("a request failed", exc_info=error)
    if (page := _page_for(request)) is not None:
        return page(request, 500, UNEXPECTED, "")
    return problem(500, UNEXPECTED)


def _page_for(request: Request) -> Page | None:
    """What renders a problem for a browser, if one asks and there is a dashboard."""
    page: Page | None = request.app.state.problem_page
    return page if "text/html" in request.headers.get("accept", "") else None
