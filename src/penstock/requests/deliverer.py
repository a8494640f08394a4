"""Deliverer: replays queued requests against their backends, in order per queue, behind a breaker.

What the backend answered and what becomes of the request are two things: a client may not want a request repeated, and
still the backend was down.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

import httpx2

from penstock.breaker.breaker import Breaker
from penstock.errors import BadInput, CircuitNotFound
from penstock.policy import Outcome, Reject, Retry, Snooze, TryAgain
from penstock.queue.entry import Entry
from penstock.queue.handler import Context
from penstock.requests.batches import CREDENTIALS, Batches
from penstock.requests.deadlines import bounded_client, within
from penstock.requests.gateway import Gateway
from penstock.requests.headers import retries, timeout_seconds, unique_request_id
from penstock.requests.item import QueuedRequest
from penstock.requests.routes import Route, Routes

logger = logging.getLogger("penstock.requests")

RETRY = Retry(attempts=None, delays=["1s", "2s", "5s", "10s"])
TIMEOUT = 120.0
MOST_READ = 1024 * 1024
LONGEST_WAIT = 3600
CONFLICT = 409
_NOT_SENT = frozenset(("x-queue", "host", "content-length", "connection", "transfer-encoding"))


class Deliverer:
    """Handles the queues of a gateway; run it with a Worker on the same store."""

    def __init__(
        self,
        gateway: Gateway,
        breaker: Breaker | None = None,
        *,
        retry: Retry = RETRY,
        concurrency: int = 20,
        timeout: float = TIMEOUT,
        give_up: Literal["drop", "dead"] = "drop",
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        """``give_up`` says what becomes of a request that its own retry headers end: dropped, or a dead letter.

        ``verify`` may be a TLS context, for backends whose certificates are of an authority of one's own.
        """
        self.gateway = gateway
        self.breaker = breaker
        self._timeout = timeout
        self._give_up = give_up
        self._batches = Batches(gateway.store)
        # Apart, so that no route uses a connection that another one was allowed to make.
        self._clients = {
            private: bounded_client(concurrency, private=private, verify=verify) for private in (False, True)
        }
        guard = None if breaker is None else breaker.guard(self._circuit, id=self._id)
        gateway.family.add_handler(self.deliver, retry=retry, concurrency=concurrency, breaker=guard)

    def reroute(self, routes: Routes) -> list[str]:
        """Take other routes; the circuits of those that vanished are closed and removed. Their patterns."""
        before, self.gateway.routes = self.gateway.routes.patterns, routes
        gone = sorted(set(before) - set(routes.patterns))
        for pattern in gone:
            if self.breaker is not None:
                with contextlib.suppress(CircuitNotFound):
                    self.breaker.remove(pattern)
        return gone

    def close(self) -> None:
        """Stop handling; close the connections."""
        self.gateway.family.remove_handler()
        for client in self._clients.values():
            client.close()

    def _circuit(self, entry: Entry[Any], request: QueuedRequest) -> str | None:
        try:
            found = self.gateway.routes.find(request.uri)
        except BadInput:
            return None
        if found is None:
            return None
        if found[0].batch is not None and self._batches.fate(entry) is not None:
            return None  # it was delivered with others: no call is made that a circuit could be about
        return found[0].pattern.strip()

    def _id(self, entry: Entry[Any], request: QueuedRequest) -> str:
        return unique_request_id(request, request.uri)

    def deliver(self, request: QueuedRequest, ctx: Context[QueuedRequest]) -> Outcome | None:
        """Send one request; the outcome that keeps it in its queue or gives it up, None when it is delivered."""
        try:
            found = self.gateway.routes.find(request.uri)
        except BadInput as error:
            return Reject(error.message)
        if found is None:
            # It was taken in under a route that is gone; nothing will ever deliver it.
            return Reject(f"no route leads to {request.uri[:200]}")
        route, url = found
        if route.batch is None:
            return self._exchange(request, ctx, route, url)
        fate = self._batches.fate(ctx.entry)
        if fate is not None:
            self._batches.ended(ctx.entry, fate)
            return None if fate.reason is None else Reject(fate.reason)
        gathered = self._batches.gather(ctx.entry, request, route, route.batch)
        if gathered is None:
            return self._exchange(request, ctx, route, url)
        if gathered.wait_us:
            return Snooze(timedelta(microseconds=gathered.wait_us))
        outcome = self._exchange(gathered.request, ctx, route, url)
        if outcome is None or isinstance(outcome, Reject):
            self._batches.decide(ctx.entry, gathered, None if outcome is None else outcome.reason)
        return outcome

    def _exchange(self, request: QueuedRequest, ctx: Context[QueuedRequest], route: Route, url: str) -> Outcome | None:
        try:
            status, after = self._send(request, route, url)
        except httpx2.InvalidURL as error:
            return Reject(f"{url[:200]} is no URL: {error}")
        except (httpx2.TransportError, httpx2.StreamError, httpx2.DecodingError) as error:
            ctx.report(False)
            return TryAgain(reason=f"{request.method} {request.uri[:200]}: {type(error).__name__}: {error}")
        return self._conclude(request, ctx, status, after)

    def _send(self, request: QueuedRequest, route: Route, url: str) -> tuple[int, str | None]:
        """The status and what the backend says about when to come back."""
        timeout, headers = timeout_seconds(request, self._timeout), _sendable(request.headers, route)
        client = self._clients[route.private]
        exchange = client.stream(request.method, url, headers=headers, content=request.body, timeout=timeout)
        with within(timeout), exchange as response:
            read = 0
            for part in response.iter_raw():
                # Read so that the connection can be used again; of an endless answer no more than this.
                read += len(part)
                if read > MOST_READ:
                    break
            return response.status_code, response.headers.get("retry-after")

    def _conclude(
        self, request: QueuedRequest, ctx: Context[QueuedRequest], status: int, after: str | None
    ) -> Outcome | None:
        what = f"{request.method} {request.uri[:200]}: status {status}"
        if 200 <= status < 300 or status == CONFLICT:
            if status == CONFLICT:
                logger.info("%s; a conflict counts as delivered", what)
            ctx.report(True)
            return None
        wanted = retries(request, status)
        # A client that expects a 4xx and wants no retry has not seen a backend that is down.
        if wanted != 0 or status >= 500:
            ctx.report(False)
        if wanted is not None and ctx.entry.attempt > wanted:
            logger.info("%s, and no retries are wanted any more: given up", what)
            return Reject(what) if self._give_up == "dead" else None
        if status in (429, 503) and after is not None and after.strip().isdecimal():
            seconds = min(int(after), LONGEST_WAIT)
            return TryAgain(Retry(attempts=None, delays=[f"{seconds}s"]), what)
        return TryAgain(reason=what)


def _sendable(headers: Iterable[tuple[str, str]], route: Route) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in _NOT_SENT and (route.credentials or name.lower() not in CREDENTIALS)
    ]
