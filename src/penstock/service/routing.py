"""Routes for requests with a JSON body: the key is checked first, then the body is read, strictly."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from penstock.codec import MOST_DEPTH, depth_of
from penstock.service.access import Requires, note_refusal

# The nesting around a value in a body: {"entries": [{"value": …}]}.
AROUND_A_VALUE = 3


class StrictRequest(Request):
    """Reads JSON as the stores do, so that every accepted value can be stored and shown again."""

    async def json(self) -> Any:
        """The body. Raises ``json.JSONDecodeError``, which becomes a 422, for anything but strict JSON."""
        body = await self.body()
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as cause:
            raise json.JSONDecodeError(str(cause), "", 0) from cause
        if depth_of(body) > MOST_DEPTH + AROUND_A_VALUE:
            raise json.JSONDecodeError(f"it is nested more than {MOST_DEPTH} deep", "", 0)
        return value


class CheckedRoute(APIRoute):
    """Checks the key before the body: the body of a refused caller is not parsed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of one request."""
        handle = super().get_route_handler()
        checks = [
            dependency.call for dependency in self.dependant.dependencies if isinstance(dependency.call, Requires)
        ]

        async def checked(request: Request) -> Response:
            keys = [requires.check(request) for requires in checks]
            try:
                return await handle(StrictRequest(request.scope, request.receive))
            except Exception as error:
                if request.method != "GET" and any(requires.scope == "admin" for requires in checks):
                    note_refusal(request, keys[0], error)
                raise

        return checked
