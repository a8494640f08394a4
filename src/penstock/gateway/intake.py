"""Gateway: takes HTTP requests in, each to the end of its queue; a Deliverer sends them on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.clock import from_micros
from penstock.errors import BadInput, PayloadTooLarge
from penstock.gateway.headers import QUEUE, duplicate_seconds, expires_after
from penstock.gateway.item import CREDENTIALS, LONGEST_URI, METHODS, Alphabet, QueuedRequest, RequestCodec, shown
from penstock.gateway.routes import Route, Routes
from penstock.gateway.splitting import Splitter
from penstock.names import escape_name, unescape_name
from penstock.queue.entry import Unique
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.tracing import trace_headers

FAMILY = "requests."
IDEMPOTENCY_KEY = "idempotency-key"
ONCE = timedelta(days=1)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_MOST_KNOWN = 50_000
# They are about one connection, or are written again when the request is sent.
_NOT_STORED = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "proxy-connection", "host", "content-length", "expect", "http2-settings", QUEUE)
)  # fmt: skip
# A backend that trusts the one in front of it would believe what a client says of itself, or of the address.
NOT_BELIEVED = re.compile(r"forwarded|x-forwarded-.*|x-(?:http-)?method(?:-override)?|x-original-url|x-rewrite-url")


class Accepted(msgspec.Struct, frozen=True):
    """A request that was taken in: its entry, its queue, and whether an equal one stood for it already."""

    id: str
    queue: str
    duplicate: bool


class Gateway:
    """Stores requests in a family of FIFO queues, one queue per ``x-queue`` name."""

    def __init__(
        self,
        store: QueueStore,
        routes: Routes,
        *,
        family: str = FAMILY,
        alphabet: Alphabet = "standard",
        splitter: Splitter | None = None,
    ) -> None:
        """Store requests whose address matches a route. Others are refused."""
        self.store = store
        self.routes = routes
        self.splitter = splitter or Splitter()
        self.family: Queue[QueuedRequest] = store.family(family, QueuedRequest, fifo=True, codec=RequestCodec(alphabet))
        self._queues: dict[str, Queue[QueuedRequest]] = {}

    def wants(self, method: str, headers: Iterable[tuple[str, str]]) -> bool:
        """Whether a request asks to be queued: any method but GET, with a name in ``x-queue``."""
        return method.upper() != "GET" and bool(_first(headers, QUEUE))

    def accept(self, method: str, uri: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> Accepted:
        """Store a request. When this returns, it is in its queue, and the client may get a 202.

        Requests for one queue that come with the same ``Idempotency-Key`` within a day are stored once.
        """
        given = [(name, value) for name, value in headers]
        name = (_first(given, QUEUE) or "").strip()
        if not name:
            raise BadInput("a queued request names no queue.", hint="Send the header x-queue: NAME.")
        method = method.upper()
        if method not in METHODS or method == "GET":
            raise BadInput(f"requests with method {method!r} are not queued.", hint=f"Use {', '.join(METHODS[1:])}.")
        _check_headers(given)
        if not 0 < len(uri) <= LONGEST_URI:
            raise BadInput(f"an address of {len(uri)} characters is not queued.", hint=f"At most {LONGEST_URI}.")
        matched = self.routes.find(uri)
        if matched is None:
            raise BadInput(
                f"no route leads to {shown(uri)!r}; it is not queued.",
                hint="Queued requests go to configured backends only.",
            )
        forwarded = [(name, value) for name, value in given if not _is_left_out(name.lower(), given, matched[0])]
        return self._put(self.splitter.split(name, uri, given), self._stored(method, uri, forwarded, body))

    def _stored(self, method: str, uri: str, headers: list[tuple[str, str]], body: bytes) -> QueuedRequest:
        now = from_micros(self.store.clock.micros())
        arrived = now.isoformat(timespec="milliseconds")
        headers = [
            header for header in headers if header[0].lower() not in ("x-server-timestamp", "x-originally-queued")
        ]
        if _first(headers, "x-server-arrival-timestamp") is None:
            headers.append(("x-server-arrival-timestamp", arrived))
        headers += [("x-server-timestamp", arrived), ("x-originally-queued", "true")]
        since = datetime(1970, 1, 1, tzinfo=UTC)
        return QueuedRequest(method, uri, tuple(headers), body, (now - since) // timedelta(milliseconds=1))

    def _put(self, name: str, request: QueuedRequest) -> Accepted:
        options: dict[str, Any] = {"headers": trace_headers(request.headers)}
        seconds = expires_after(request)
        if seconds is not None:
            options["expires"] = timedelta(seconds=min(seconds, 10**9))
        period, once = duplicate_seconds(request), request.header(IDEMPOTENCY_KEY)
        if once:
            digest = blake2b(once.encode(), digest_size=16).hexdigest()
            options["unique"] = Unique(f"once-{digest}", period=ONCE)
        elif period is not None:
            whole = b"\0".join((request.method.encode(), request.uri.encode(), request.body))
            digest = blake2b(whole, digest_size=16).hexdigest()
            options["unique"] = Unique(f"request-{digest}", period=timedelta(seconds=min(period, 10**9)))
        queue = self.queue(name)
        try:
            put = queue.put(request, **options)
        except PayloadTooLarge as error:
            raise PayloadTooLarge(
                f"a request of {len(request.body):,} bytes does not fit into {self.store.name}.", hint=error.hint
            ) from error
        return Accepted(put.id, name, not put.created)

    def queue(self, name: str) -> Queue[QueuedRequest]:
        """The queue of an ``x-queue`` name."""
        known = self._queues.get(name)
        if known is None:
            known = self.family.member(self.queue_name(name))
            if len(self._queues) >= _MOST_KNOWN:
                self._queues.clear()
            self._queues[name] = known
        return known

    def queue_name(self, name: str) -> str:
        """The name under which the store knows an ``x-queue`` name."""
        return escape_name(self.family.name + name)

    def client_name(self, queue: str) -> str:
        """The ``x-queue`` name of a queue of this gateway."""
        return unescape_name(queue).removeprefix(self.family.name)


def _first(headers: Iterable[tuple[str, str]], wanted: str) -> str | None:
    return next((value for name, value in headers if name.lower() == wanted), None)


def _is_left_out(name: str, headers: list[tuple[str, str]], route: Route) -> bool:
    """Whether a header is left out. Credentials are stored only where the route sends them on."""
    if name in _NOT_STORED or NOT_BELIEVED.fullmatch(name):
        return True
    if name in CREDENTIALS and not route.credentials:
        return True
    named = (value for other, value in headers if other.lower() == "connection")
    return any(name == token.strip().lower() for value in named for token in value.split(","))


def believed_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The headers of a request that a client wrote itself, checked, without those that backends must not trust."""
    given = list(headers)
    _check_headers(given)
    return tuple(header for header in given if not NOT_BELIEVED.fullmatch(header[0].lower()))


def _check_headers(headers: list[tuple[str, str]]) -> None:
    for name, value in headers:
        if not _TOKEN.match(name) or any(char in value for char in "\r\n\0"):
            raise BadInput(
                f"header {name[:100]!r} cannot be sent on.", hint="Names are tokens, values have no line breaks."
            )
