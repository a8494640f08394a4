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
import msgspec

from penstock.breaker.breaker import Breaker
from penstock.clock import Duration, Micros, duration_micros, from_micros
from penstock.errors import BadInput, CircuitNotFound, PenstockError
from penstock.gateway.batches import Batches, document_of, key_of
from penstock.gateway.deadlines import bounded_client, was_sent, within
from penstock.gateway.headers import (
    has_retries,
    retries,
    retry_after,
    retry_header,
    timeout_seconds,
    unique_request_id,
)
from penstock.gateway.intake import NOT_BELIEVED, Gateway
from penstock.gateway.item import CREDENTIALS, QueuedRequest, shown
from penstock.gateway.responses import Answers
from penstock.gateway.routes import Route, Routes
from penstock.gateway.slots import Slots
from penstock.policy import Outcome, Reject, Retry, Snooze, TryAgain
from penstock.queue.entry import Entry
from penstock.queue.handling.context import Context
from penstock.queue.protocol import DocumentWrite
from penstock.tracing import TRACEPARENT, TRACESTATE, Span

logger = logging.getLogger("penstock.gateway")

RETRY = Retry(attempts=None, delays=["1s", "2s", "5s", "10s"])
TIMEOUT = 120.0
MOST_READ = 1024 * 1024
CONFLICT = 409
UNROUTED_FOR = "24h"
LATER = timedelta(seconds=1)
UNROUTED_LATER = timedelta(seconds=5)
_MOST_UNROUTED = 10_000
_NOT_SENT = frozenset(("x-queue", "host", "content-length", "connection", "transfer-encoding"))


class Deliverer:
    """Handles the queues of a gateway; run it with a Worker on the same store."""

    def __init__(
        self,
        gateway: Gateway,
        breaker: Breaker | None = None,
        *,
        retry: Retry = RETRY,
        concurrency: int = 40,
        timeout: float = TIMEOUT,
        give_up: Literal["drop", "dead"] = "drop",
        unrouted_for: Duration = UNROUTED_FOR,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        """``give_up`` says what becomes of a request that its own retry headers end: dropped, or a dead letter.

        A request that matches no route of this process waits for a process that has one, and is a dead letter after
        ``unrouted_for``. ``timeout`` holds for routes without their own. ``verify`` may be a TLS context, for backends
        whose certificates come from a private authority.
        """
        self.gateway = gateway
        self.breaker = breaker
        self._timeout = timeout
        self._give_up = give_up
        self._batches = Batches(gateway.store)
        self._answers = Answers(gateway.store)
        self._slots = Slots(concurrency)
        self._unrouted_for = duration_micros(unrouted_for, name="unrouted_for")
        self._unrouted: dict[str, Micros] = {}  # since when, by entry
        # Apart, so that no route uses a connection that another one was allowed to make.
        self._clients = {
            private: bounded_client(concurrency, private=private, verify=verify) for private in (False, True)
        }
        guard = None if breaker is None else breaker.guard(self._circuit, id=self._id)
        self._remove_vanished()
        gateway.family.add_handler(self.deliver, retry=retry, concurrency=concurrency, breaker=guard)

    def reroute(self, routes: Routes) -> list[str]:
        """Take other routes. Close and remove the circuits of those that vanished. Returns the vanished patterns."""
        self.gateway.routes = routes
        return self._remove_vanished()

    def _remove_vanished(self) -> list[str]:
        """Remove the circuits of routes that have vanished since a process last began to deliver.

        Nobody would ever probe them again. The breaker may hold circuits of others, so a document lists ours.
        """
        if self.breaker is None:
            return []
        store, name = self.gateway.store, document_of("routes", self.gateway.family.name)
        document, mine = store.driver.document(name), set(self.gateway.routes.patterns)
        before = set() if document is None else set(msgspec.json.decode(document.value, type=list[str]))
        removed = []
        for pattern in sorted(before - mine):
            with contextlib.suppress(CircuitNotFound):
                self.breaker.remove(pattern, why="its route is gone")
                removed.append(pattern)
        # A process that still has such a route makes its circuit again: the next one to begin looks once more.
        if (known := mine | set(removed)) != before:
            store.driver.write([DocumentWrite(name, msgspec.json.encode(sorted(known)))])
        return removed

    def close(self) -> None:
        """Stop handling, and close the connections."""
        self.gateway.family.remove_handler()
        for client in self._clients.values():
            client.close()

    def _circuit(self, entry: Entry[Any], request: QueuedRequest) -> str | None:
        try:
            matched = self.gateway.routes.find(request.uri)
        except BadInput:
            return None
        if matched is None:
            return None
        with contextlib.suppress(PenstockError):
            if matched[0].batch is not None and self._batches.fate(entry) is not None:
                return None  # it was delivered with others: no call is made that a circuit could be about
        return matched[0].pattern.strip()

    def _id(self, entry: Entry[Any], request: QueuedRequest) -> str:
        return unique_request_id(request, request.uri)

    def deliver(self, request: QueuedRequest, ctx: Context[QueuedRequest]) -> Outcome | None:
        """Send one request. Returns the outcome that keeps it in its queue or gives it up, None if it is delivered."""
        try:
            matched = self.gateway.routes.find(request.uri)
        except BadInput as error:
            return Reject(error.message)
        if matched is None:
            return self._without_route(request, ctx)
        route, url = matched
        if route.batch is None:
            return self._exchange(request, ctx, route, url)
        try:
            fate = self._batches.fate(ctx.entry)
            gathered = None if fate is not None else self._batches.gather(ctx.entry, request, route, route.batch)
        except PenstockError as error:
            # Nothing was sent, so nothing is known about the backend.
            logger.warning("a batch of queue %r cannot be gathered now: %s", ctx.entry.queue, error)
            return Snooze(LATER)
        if fate is not None:
            self._batches.ended(ctx.entry, fate)
            return None
        if gathered is None:
            return self._exchange(request, ctx, route, url)
        if gathered.wait_us:
            return Snooze(timedelta(microseconds=gathered.wait_us))
        outcome = self._exchange(gathered.request, ctx, route, url)
        if ctx.answered:
            # Only then; a head that is given up takes nobody along.
            self._batches.delivered(ctx.entry, gathered)
        return outcome

    def _without_route(self, request: QueuedRequest, ctx: Context[QueuedRequest]) -> Outcome:
        """Wait: another process may know the route, or the route may have been removed."""
        entry, now = ctx.entry, ctx.lease.claimed_us
        if len(self._unrouted) >= _MOST_UNROUTED:
            self._unrouted.clear()
        known = self._unrouted.get(key_of(entry))
        since = self._unrouted[key_of(entry)] = now if known is None else min(known, now)
        if now - since >= self._unrouted_for:
            del self._unrouted[key_of(entry)]
            return Reject(f"no route leads to {shown(request.uri)}")
        if known is None:
            logger.warning("no route leads to %s; it waits in queue %r for one", shown(request.uri), entry.queue)
        self.gateway.store.signals.tell("unrouted", entry.queue, (entry.id,), now, path=shown(request.uri))
        return Snooze(UNROUTED_LATER)

    def _exchange(self, request: QueuedRequest, ctx: Context[QueuedRequest], route: Route, url: str) -> Outcome | None:
        """Send a request. One that cannot be sent is a dead letter, and says nothing about the backend."""
        client, what = self._clients[route.private], f"{request.method} {shown(request.uri)}"
        timeout = timeout_seconds(request, route.seconds or self._timeout)
        tracing = self.gateway.store.driver.tracing
        span, named = (None, {}) if tracing is None else tracing.delivering(request.method, url)
        try:
            headers = _sendable(request.headers, route, named)
            built = client.build_request(request.method, url, headers=headers, content=request.body, timeout=timeout)
        except Exception as error:
            if span is not None:
                span.end(error)
            return Reject(f"{what} cannot be sent: {type(error).__name__}: {error}")
        try:
            outcome = self._send_built(client, built, timeout, request=request, ctx=ctx, route=route, span=span)
        except BaseException as error:
            if span is not None:
                span.end(error)
            raise
        if span is not None:
            span.end()
        return outcome

    def _send_built(
        self, client: httpx2.Client, built: httpx2.Request, timeout: float, *, request: QueuedRequest,
        ctx: Context[QueuedRequest], route: Route, span: Span | None,
    ) -> Outcome | None:  # fmt: skip
        what = f"{request.method} {shown(request.uri)}"
        if not self._slots.take(route.pattern, alone=len(self.gateway.routes.patterns) == 1):
            return Snooze(LATER)
        try:
            status, after = _send(client, built, timeout)
        except Exception as error:
            if client.is_closed:
                return Snooze(LATER)  # this process stops
            if not was_sent() and _is_ours(error):
                return Reject(f"{what} cannot be sent: {type(error).__name__}")  # its text may have a header's value
            if not isinstance(error, httpx2.HTTPError | httpx2.StreamError):
                raise
            ctx.report(False)
            return TryAgain(reason=f"{what}: {type(error).__name__}: {error}")
        finally:
            self._slots.give(route.pattern)
        if span is not None:
            span.status(status)
        return self._conclude(request, ctx, status, after)

    def _conclude(
        self, request: QueuedRequest, ctx: Context[QueuedRequest], status: int, after: str | None
    ) -> Outcome | None:
        what = f"{request.method} {shown(request.uri)}: status {status}"
        if 200 <= status < 300 or status == CONFLICT:
            if status == CONFLICT:
                logger.info("%s; a conflict counts as delivered", what)
            ctx.report(True)
            self._forget_answers(request, ctx)
            return None
        wanted = retries(request, status)
        # A client that expects a 4xx and wants no retry has not seen a backend that is down.
        if wanted != 0 or status >= 500:
            ctx.report(False)
        header = retry_header(request, status) or ""
        if wanted is not None and (wanted == 0 or self._answers.count(ctx.entry, header) > wanted):
            logger.warning("%s, and no retries are wanted any more: given up", what)
            self._forget_answers(request, ctx)
            return Reject(what) if self._give_up == "dead" else None
        if status in (429, 503):
            seconds = retry_after(after, from_micros(self.gateway.store.now()))
            if seconds is not None:
                return TryAgain(Retry(attempts=None, delays=[f"{seconds}s"]), what)
        return TryAgain(reason=what)

    def _forget_answers(self, request: QueuedRequest, ctx: Context[QueuedRequest]) -> None:
        """Remove the counted answers of a request that ends."""
        if ctx.entry.attempt > 1 and has_retries(request):
            try:
                self._answers.forget(ctx.entry)
            except PenstockError as error:
                logger.info("the answers counted for queue %r stay: %s", ctx.entry.queue, error)


def _send(client: httpx2.Client, request: httpx2.Request, timeout: float) -> tuple[int, str | None]:
    """Send a request. Returns the status, and when the backend wants the next try."""
    with within(timeout):
        response = client.send(request, stream=True)
        with contextlib.closing(response):
            read = 0
            for part in response.iter_raw():
                # Read so that the connection can be used again; of an endless answer no more than this.
                read += len(part)
                if read > MOST_READ:
                    break
            return response.status_code, response.headers.get("retry-after")


def _is_ours(error: Exception) -> bool:
    """Whether a request that was not sent can never be sent, because of what it contains."""
    if isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
        return True
    return not isinstance(error, httpx2.TransportError | OSError | MemoryError)


def _sendable(headers: Iterable[tuple[str, str]], route: Route, named: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """The headers that are sent on, byte for byte. ``named`` headers replace the trace.

    A request may have been put into its queue past the gateway, so headers that backends must not trust go here.
    """
    passed_on = [(name, value) for name, value in headers if not named or name.lower() not in (TRACEPARENT, TRACESTATE)]
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in [*passed_on, *named.items()]
        if name.lower() not in _NOT_SENT
        and not NOT_BELIEVED.fullmatch(name.lower())
        and (route.credentials or name.lower() not in CREDENTIALS)
    ]
