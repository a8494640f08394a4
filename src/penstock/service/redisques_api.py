"""redisques' HTTP interface, with its paths, JSON and codes: for clients and dashboards that were written against it.

It differs only where it has to: credentials in items are masked, a lock that was not taken here stays, and unsupported
requests are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from penstock.errors import BadInput, EntryLeased, EntryNotFound, PayloadTooLarge, StoreFull
from penstock.gateway.intake import believed_headers
from penstock.gateway.item import QueuedRequest, from_browsed
from penstock.gateway.queuing import SPEED_SECONDS, Filter, Queuing, requested_by
from penstock.service.access import Requires, check_queue, given_secret, raw_path
from penstock.service.gateway import check_without_key
from penstock.service.keys import ApiKey, Scope
from penstock.service.paging import page_of
from penstock.service.recording import record

METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"]
USER_HEADER = "x-rp-usr"
ENDPOINTS = ["locks/", "queues/", "monitor/", "configuration/"]
DEFAULT_LIMIT = 50
MOST_ITEMS = 10_000
MUST_BE_LOCKED = "Queue must be locked to perform this operation"
SETTING = "processorDelayMax"
QUEUE, INDEX = "{queue}", "{index}"


@dataclass(frozen=True)
class Call:
    """A request after parsing."""

    request: Request
    key: ApiKey
    queuing: Queuing
    body: bytes
    queue: str = ""
    index: int = 0

    def is_set(self, name: str) -> bool:
        """Whether a parameter is set: without a value, or with "true"."""
        value = self.request.query_params.get(name)
        return value is not None and value.lower() in ("", "true")

    @property
    def filter(self) -> Filter:
        """The names that are asked for."""
        return Filter(self.request.query_params.get("filter"))

    def number(self, name: str) -> int | None:
        """A whole number above 0 among the parameters; anything else is ignored."""
        text = self.request.query_params.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0 else None

    @property
    def user(self) -> str:
        """Who asks for a lock."""
        return self.request.headers.get(USER_HEADER) or "Unknown"

    def names(self, field: str) -> list[str]:
        """The names in a body for many; raises ``BadInput`` in redisques' words."""
        try:
            read = json.loads(self.body)
        except (ValueError, RecursionError):
            raise BadInput("failed to parse request payload") from None
        names = read.get(field) if isinstance(read, dict) else None
        if not isinstance(names, list):
            raise BadInput(f"no array called '{field}' found")
        if not names:
            raise BadInput(f"array '{field}' is not allowed to be empty")
        if not all(isinstance(name, str) for name in names):
            raise BadInput(f"{field.capitalize()} must be string values")
        return [name for name in names if self.key.sees(self.queuing.stored_name(name))]

    def item(self) -> QueuedRequest:
        """The item in a body."""
        secret = given_secret(self.request)
        if self.request.app.state.keys is not None and secret is not None:
            check_without_key("", self.body, secret)
        try:
            request = from_browsed(json.loads(self.body))
            return msgspec.structs.replace(request, headers=believed_headers(request.headers))
        except BadInput:
            raise
        except (ValueError, RecursionError) as cause:
            raise BadInput(f"Failed to decode: {cause}") from None

    def did(self, what: str, after: str) -> None:
        """Record who changed what."""
        record(self.request, self.key, (what, self.queuing.stored_name(self.queue)), "", after)


Operation = Callable[[Call], Response]


def redisques_router(prefix: str) -> APIRouter:
    """The interface under a prefix such as ``/queuing``."""
    prefix = prefix.rstrip("/")
    router = APIRouter(include_in_schema=False)

    @router.api_route(prefix, methods=METHODS)
    @router.api_route(f"{prefix}/{{rest:path}}", methods=METHODS)
    async def answer(request: Request) -> Response:
        # As it was sent: a slash in the name of a queue is encoded, and not yet decoded here.
        path = raw_path(request).decode("latin-1").removeprefix(prefix)
        route = _find(request.method, path)
        if route is None:
            Requires("read").check(request)
            return PlainTextResponse("Method Not Allowed", 405)
        scope, operation, queue, index = route
        key = Requires(scope)(request, None, None)
        queuing: Queuing = request.app.state.queuing
        if queue:
            check_queue(key, queuing.stored_name(queue))
        call = Call(request, key, queuing, await request.body(), queue, index)
        return await run_in_threadpool(_run, operation, call)

    return router


def _run(operation: Operation, call: Call) -> Response:
    try:
        return operation(call)
    except PayloadTooLarge:
        raise
    except BadInput as error:
        return _said(str(error), 400)
    except StoreFull as error:
        return _said(error.message, 507)
    except EntryLeased as error:
        return _said(str(error), 409)
    except EntryNotFound:  # another client was faster
        return PlainTextResponse("Not Found", 404)


def _said(text: str, status: int) -> Response:
    """The text of an error, which may quote invalid Unicode from the request."""
    return PlainTextResponse(text.encode("utf-8", "backslashreplace"), status)


def _find(method: str, path: str) -> tuple[Scope, Operation, str, int] | None:
    """The operation of a path; a slash at the end of a fixed path is ignored."""
    parts = path.split("/")[1:]
    for wanted, scope, operation in OPERATIONS.get(method, ()):
        given = parts if len(parts) == len(wanted) or parts[-1:] != [""] else parts[:-1]
        if len(given) != len(wanted):
            continue
        if all(_fits(form, part) for form, part in zip(wanted, given, strict=True)):
            named = dict(zip(wanted, given, strict=True))
            return scope, operation, unquote(named.get(QUEUE, "")), int(named.get(INDEX, "0"))
    return None


def _fits(form: str, part: str) -> bool:
    if form == INDEX:
        return part.isascii() and part.isdecimal() and len(part) < 10
    return bool(part) if form == QUEUE else part == form


# --- queues ------------------------------------------------------------------------------------------


def endpoints(call: Call) -> Response:
    """List the endpoints."""
    prefix: str = call.request.app.state.settings.redisques
    return JSONResponse({prefix.rstrip("/").rpartition("/")[2]: ENDPOINTS})


def list_queues(call: Call) -> Response:
    """The queues that hold something, or how many those are."""
    names = [name for name, size in call.queuing.sizes(call.filter, call.key.sees).items() if size]
    return JSONResponse({"count": len(names)} if call.is_set("count") else {"queues": names})


def list_items(call: Call) -> Response:
    """The items of a queue as they are stored, or how many those are."""
    if call.is_set("count"):
        return JSONResponse({"count": call.queuing.size(call.queue)})
    limit = min(call.number("limit") or DEFAULT_LIMIT, MOST_ITEMS)
    find = partial(call.queuing.entries, call.queue)
    entries, _ = page_of(call.request, find, 0, limit)
    return JSONResponse({call.queue: [call.queuing.shown(entry) for entry in entries]})


def delete_queue(call: Call) -> Response:
    """Remove all items, and the lock if asked to."""
    gone = call.queuing.delete(call.queue)
    if call.is_set("unlock"):
        call.queuing.unlock(call.queue)
    if not gone:
        return PlainTextResponse("Not Found", 404)
    call.did("removal of all entries", f"{gone:,} cancelled")
    return PlainTextResponse("OK")


def delete_queues(call: Call) -> Response:
    """Remove all items of many queues."""
    if not call.is_set("bulkDelete"):
        return PlainTextResponse(
            "Unsupported operation. Add 'bulkDelete' parameter for bulk deleting queues", 400
        )  # fmt: skip
    gone = 0
    for name in call.names("queues"):
        entries = call.queuing.delete(name)
        gone += bool(entries)
        replace(call, queue=name).did("removal of all entries", f"{entries:,} cancelled")
    return JSONResponse({"deleted": gone})


def monitor(call: Call) -> Response:
    """The queues, the longest first."""
    fields = {"lastDequeueAttempt": "", "lastDequeueSuccess": "", "nextDequeueDueTimestamp": ""}
    sizes = call.queuing.sizes(call.filter, call.key.sees)
    shown = [(name, size) for name, size in sizes.items() if size or call.is_set("emptyQueues")]
    shown.sort(key=lambda name_and_size: -name_and_size[1])
    return JSONResponse(
        {"queues": [{"name": name, "size": size, **fields} for name, size in shown[: call.number("limit")]]}
    )


def statistics(call: Call) -> Response:
    """The figures of the queues, the longest first."""
    figures = [
        figure
        for figure in call.queuing.figures(call.filter, call.key.sees)
        if figure.size or call.is_set("emptyQueues")
    ]
    figures.sort(key=lambda figure: -figure.size)
    shown = [
        {
            "name": figure.name, "size": figure.size, "failures": figure.failures,
            "backpressureTime": 0, "slowdownTime": 0, "speed": figure.speed, "dequeueStatistic": None,
        }
        for figure in figures[: call.number("limit")]
    ]  # fmt: skip
    return JSONResponse({"queues": shown})


def queue_sizes(call: Call) -> Response:
    """How many items each queue holds."""
    return JSONResponse(call.queuing.sizes(Filter(None), call.key.sees))


def speed(call: Call) -> Response:
    """How many items were done in the last minute."""
    return JSONResponse({"speed": call.queuing.speed(call.filter, call.key.sees), "unitSec": SPEED_SECONDS})


# --- items -------------------------------------------------------------------------------------------


def enqueue(call: Call) -> Response:
    """Put an item at the end, with ``locked`` into a queue that is locked first."""
    request = call.item()
    if call.is_set("locked"):
        if not call.key.may("admin"):
            raise HTTPException(403, f"The API key {call.key.name!r} lacks the scope 'admin' to lock queues.")
        call.queuing.lock(call.queue, call.user)
    call.queuing.queue(call.queue).put(request)
    return Response(status_code=200)


def add_item(call: Call) -> Response:
    """Put an item at the end."""
    call.queuing.queue(call.queue).put(call.item())
    return Response(status_code=200)


def get_item(call: Call) -> Response:
    """One item in the form for people."""
    entry = call.queuing.item(call.queue, call.index)
    if entry is None:
        return PlainTextResponse("Not Found", 404)
    return JSONResponse(call.queuing.browsed(entry))


def replace_item(call: Call) -> Response:
    """Give an item of a locked queue another content."""
    if call.queuing.lock_of(call.queue) is None:
        return PlainTextResponse(MUST_BE_LOCKED, 409)
    request = call.item()
    entry = call.queuing.item(call.queue, call.index)
    if entry is None:
        return PlainTextResponse("Not Found", 404)
    call.queuing.replace(entry, request)
    call.did("change of an entry", entry.id)
    return Response(status_code=200)


def delete_item(call: Call) -> Response:
    """Take an item out of a locked queue."""
    if call.queuing.lock_of(call.queue) is None:
        return PlainTextResponse(MUST_BE_LOCKED, 409)
    entry = call.queuing.item(call.queue, call.index)
    if entry is None:
        return PlainTextResponse("Not Found", 404)
    call.queuing.remove(entry)
    call.did("cancelling of an entry", entry.id)
    return Response(status_code=200)


# --- locks -------------------------------------------------------------------------------------------


def list_locks(call: Call) -> Response:
    """The queues that are locked."""
    return JSONResponse({"locks": call.queuing.locks(call.filter, call.key.sees)})


def get_lock(call: Call) -> Response:
    """Who locked a queue, and when."""
    lock = call.queuing.lock_of(call.queue)
    if lock is None:
        return PlainTextResponse("No such lock", 404)
    return JSONResponse({"requestedBy": requested_by(lock), "timestamp": lock.since_us // 1000})


def put_lock(call: Call) -> Response:
    """Lock a queue."""
    call.queuing.lock(call.queue, call.user)
    call.did("lock", f"by {call.user}")
    return Response(status_code=200)


def delete_lock(call: Call) -> Response:
    """Take the lock away, if there is one."""
    if call.queuing.unlock(call.queue):
        call.did("unlock", "")
    return Response(status_code=200)


def change_locks(call: Call) -> Response:
    """Lock or unlock many queues."""
    names = call.names("locks")
    if call.is_set("bulkDelete"):
        return JSONResponse({"deleted": call.queuing.unlock_all(names)})
    for name in names:
        call.queuing.lock(name, call.user)
        replace(call, queue=name).did("lock", f"by {call.user}")
    return PlainTextResponse("OK")


def delete_locks(call: Call) -> Response:
    """Take all locks away that were taken here."""
    return JSONResponse({"deleted": call.queuing.unlock_all(call.queuing.locks(Filter(None), call.key.sees))})


# --- configuration -----------------------------------------------------------------------------------


def configuration(call: Call) -> Response:
    """The parts of redisques' configuration that apply here."""
    prefix = call.request.app.state.settings.redisques
    return JSONResponse(
        {
            SETTING: 0, "httpRequestHandlerEnabled": True, "httpRequestHandlerPrefix": prefix,
            "httpRequestHandlerUserHeader": USER_HEADER, "enableQueueNameDecoding": True,
            "queueSpeedIntervalSec": SPEED_SECONDS,
        }
    )  # fmt: skip


def configure(call: Call) -> Response:
    """Check a new configuration: items are never delayed on purpose, so only 0 is allowed."""
    try:
        read = json.loads(call.body)
    except (ValueError, RecursionError) as cause:
        raise BadInput(f"Failed to decode: {cause}") from None
    if not isinstance(read, dict) or not read:
        raise BadInput("Configuration values missing")
    if unknown := sorted(read.keys() - {SETTING}):
        raise BadInput(f"Not supported configuration values received: [{', '.join(unknown)}]")
    if isinstance(read[SETTING], bool) or not isinstance(read[SETTING], int | float):
        raise BadInput(f"Value for configuration property '{SETTING}' is not a number")
    if read[SETTING] != 0:
        raise BadInput(f"Items are not held back here: '{SETTING}' can only be 0")
    return PlainTextResponse("OK")


OPERATIONS: dict[str, list[tuple[tuple[str, ...], Scope, Operation]]] = {
    "GET": [
        ((), "read", endpoints),
        (("configuration",), "read", configuration),
        (("monitor",), "read", monitor),
        (("statistics",), "read", statistics),
        (("statistics", "queuesize"), "read", queue_sizes),
        (("speed",), "read", speed),
        (("monitor", QUEUE), "read", list_items),
        (("queues",), "read", list_queues),
        (("queues", QUEUE), "read", list_items),
        (("queues", QUEUE, INDEX), "read", get_item),
        (("locks",), "read", list_locks),
        (("locks", QUEUE), "read", get_lock),
    ],
    "PUT": [
        (("enqueue", QUEUE, ""), "produce", enqueue),
        (("queues", QUEUE, INDEX), "admin", replace_item),
        (("locks", QUEUE), "admin", put_lock),
    ],
    "POST": [
        (("configuration",), "admin", configure),
        (("queues",), "admin", delete_queues),
        (("queues", QUEUE, ""), "produce", add_item),
        (("locks",), "admin", change_locks),
    ],
    "DELETE": [
        (("queues", QUEUE), "admin", delete_queue),
        (("queues", QUEUE, INDEX), "admin", delete_item),
        (("locks",), "admin", delete_locks),
        (("locks", QUEUE), "admin", delete_lock),
    ],
}
