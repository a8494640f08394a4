"""gateleen's circuit API with exactly its paths, JSON and codes, for clients that were written against it.

It differs from ours where it has to: an unknown circuit is a closed one, and an error is plain text.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from penstock.errors import CircuitNotFound, PenstockError
from penstock.gateway.intake import Gateway
from penstock.service.access import WholeAdmin, WholeReader
from penstock.service.circuits import breaker_of
from penstock.service.keys import ApiKey
from penstock.service.recording import record

logger = logging.getLogger("penstock.service")

ALL = "_all"
STATES = ("closed", "open", "half_open")
METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"]


def seed_router(prefix: str) -> APIRouter:
    """The API under a prefix such as ``/playground/server/queuecircuitbreaker/circuit``."""
    router = APIRouter(prefix=prefix.rstrip("/"), include_in_schema=False)

    @router.get("")
    @router.get("/")
    @router.get(f"/{ALL}")
    @router.get(f"/{ALL}/")
    def every(request: Request, key: WholeReader) -> Response:
        try:
            circuits = breaker_of(request).circuits()
            return JSONResponse(
                {circuit.hash: circuit.listed(_metric_name(request, circuit.circuit)) for circuit in circuits}
            )
        except PenstockError as error:
            return _failed(error, 404)

    @router.get("/{circuit}")
    @router.get("/{circuit}/")
    def information(request: Request, key: WholeReader, circuit: str) -> Response:
        return _look(request, circuit, whole=True)

    @router.get("/{circuit}/status")
    @router.get("/{circuit}/status/")
    def status(request: Request, key: WholeReader, circuit: str) -> Response:
        return _not_allowed() if circuit == ALL else _look(request, circuit, whole=False)

    @router.put("/{circuit}/status")
    @router.put("/{circuit}/status/")
    async def close(request: Request, key: WholeAdmin, circuit: str) -> Response:
        wanted = _status_in(await request.body())
        if wanted is None:
            return PlainTextResponse("Body must contain a correct 'status' value", 400)
        if wanted != "closed":
            return PlainTextResponse("Status can be changed to 'CLOSED' only", 403)
        return await _in_thread(_close, request, circuit, key)

    @router.api_route("", methods=METHODS)
    @router.api_route("/{rest:path}", methods=METHODS)
    def anything_else(request: Request, key: WholeReader, rest: str = "") -> Response:
        return _not_allowed()

    return router


async def _in_thread(work: Any, *given: Any) -> Response:
    from starlette.concurrency import run_in_threadpool

    return await run_in_threadpool(work, *given)


def _close(request: Request, circuit: str, key: ApiKey) -> Response:
    breaker = breaker_of(request)
    try:
        if circuit == ALL:
            breaker.close_all(by=key.name)
        else:
            breaker.close(circuit, by=key.name, why="by hand")
        record(request, key, ("closing of circuit", circuit), "", "closed")
    except CircuitNotFound:
        pass  # an unknown circuit is closed
    except PenstockError as error:
        return _failed(error, 500)
    return Response(status_code=200)


def _look(request: Request, circuit: str, *, whole: bool) -> Response:
    body: dict[str, Any]
    try:
        shown = breaker_of(request).circuit(circuit)
        body = shown.information(_metric_name(request, shown.circuit))
    except CircuitNotFound:
        body = {"status": "closed", "info": {}}
    except PenstockError as error:
        return _failed(error, 404)
    return JSONResponse(body if whole else {"status": body["status"]})


def _metric_name(request: Request, circuit: str) -> str | None:
    """The name that the route of a circuit gives to its figures."""
    gateway: Gateway | None = request.app.state.gateway
    return None if gateway is None else gateway.routes.metric_names.get(circuit)


def _status_in(body: bytes) -> str | None:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    wanted = read.get("status") if isinstance(read, dict) else None
    lower = wanted.lower() if isinstance(wanted, str) else None
    return lower if lower in STATES else None


def _not_allowed() -> Response:
    return PlainTextResponse("Method Not Allowed", 405)


def _failed(error: PenstockError, status: int) -> Response:
    logger.warning("answered with %d: %s", status, error)  # it may name the store's address, which callers must not see
    return PlainTextResponse("The store did not answer; the log of the service says more.", status)
