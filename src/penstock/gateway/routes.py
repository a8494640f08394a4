"""Routes: from a request's address to its backend. What no route leads to is not delivered anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

import msgspec

from penstock.clock import duration
from penstock.codec import prepared
from penstock.errors import BadInput
from penstock.gateway.addresses import is_never_a_backend, plain_address
from penstock.gateway.item import LONGEST_URI, shown
from penstock.gateway.patterns import BoundedPattern

MOST_IN_BATCH = 1000
LONGEST_TIMEOUT = 3600.0
SHORTEST_LIMIT = 2048  # of an address, where a pattern leaves choices
_GROUP = re.compile(r"\$(\d)")
_CONTROL = re.compile(r"[\x00-\x20\x7f\\]")
_PORTS = {"http": 80, "https": 443}


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many requests of a queue are delivered as one: at most ``most``.

    Until there are at least ``least``, the first waits for others, but no longer than ``wait`` since it was queued.
    """

    most: int
    least: int = 1
    wait: str = "0s"

    def __post_init__(self) -> None:
        """Refuse what could never be sent."""
        if not 2 <= self.most <= MOST_IN_BATCH or not 1 <= self.least <= self.most:
            raise BadInput(
                f"a batch of {self.least} to {self.most} requests cannot be delivered.",
                hint=f"most is 2 to {MOST_IN_BATCH}, least 1 to most.",
            )
        duration(self.wait, name="wait")


class Route(msgspec.Struct, frozen=True):
    """A pattern for whole addresses, and the backend for them.

    A ``target`` with ``$1`` … takes the pattern's groups; one without gets the address appended. Whatever the groups
    say, scheme, host and port are the target's own. ``credentials`` lets the headers Authorization, Cookie, X-Api-Key,
    Api-Key and X-Auth-Token through, ``private`` lets the target's name lead into private networks; ``batch`` delivers
    several requests as one. ``timeout`` is how long the backend may take; a request can ask for less, not for more.
    ``metric_name`` is shown with the route's circuit, as in gateleen.
    """

    pattern: str
    target: str
    credentials: bool = False
    private: bool = False
    batch: Batch | None = None
    timeout: str | None = None
    metric_name: str | None = None

    @property
    def seconds(self) -> float | None:
        """The time limit in seconds, if the route has one of its own."""
        return None if self.timeout is None else duration(self.timeout, name="timeout").total_seconds()


@prepared
class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    target: str
    credentials: bool = False
    private: bool = False
    batch: int | Batch | None = None
    timeout: str | None = None
    metric_name: str | None = msgspec.field(default=None, name="metricName")

    def route(self, pattern: str) -> Route:
        batch = Batch(self.batch) if isinstance(self.batch, int) else self.batch
        return Route(pattern, self.target, self.credentials, self.private, batch, self.timeout, self.metric_name)


class Routes:
    """Routes in order; the first whose pattern matches the whole address wins."""

    def __init__(self, routes: list[Route]) -> None:
        """Check every route."""
        self._routes = [(_compiled(route), route, _origin(route.target, route)) for route in routes]

    @classmethod
    def read(cls, resource: Mapping[str, Any] | bytes | str) -> Routes:
        """Routes from JSON, in order: ``{pattern: target}``, or an object with a route's fields for the target."""
        try:
            read = json.loads(resource, object_pairs_hook=_each_once) if isinstance(resource, bytes | str) else resource
            given = msgspec.convert(read, dict[str, str | _Entry])
        except (ValueError, RecursionError, msgspec.ValidationError) as cause:
            raise BadInput(
                f"the routes cannot be read: {cause}.", hint='Write {"/crm/(.*)": "http://crm.internal:8080/api/$1"}.'
            ) from cause
        return cls(
            [
                Route(pattern, value) if isinstance(value, str) else value.route(pattern)
                for pattern, value in given.items()
            ]
        )

    @property
    def patterns(self) -> list[str]:
        """The patterns, in order: the names of the circuits."""
        return [route.pattern.strip() for _, route, _ in self._routes]

    @property
    def metric_names(self) -> dict[str, str]:
        """The names that routes give to the figures of their circuits, by pattern."""
        return {route.pattern.strip(): route.metric_name for _, route, _ in self._routes if route.metric_name}

    def find(self, uri: str) -> tuple[Route, str] | None:
        """The route of an address and the URL it leads to, or None if there is none."""
        if len(uri) > LONGEST_URI:
            raise BadInput(f"an address of {len(uri)} characters is not delivered.", hint=f"At most {LONGEST_URI}.")
        if _CONTROL.search(uri):
            raise BadInput(f"address {shown(uri)!r} leads away from every backend.", hint="Percent-encode it.")
        for pattern, route, origin in self._routes:
            hit = pattern.match(uri)
            if hit is not None:
                return route, _expanded(route, hit, uri, origin)
        return None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        twice = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
        raise BadInput(f"the routes have {twice!r} twice.", hint="Name each once; the first that matches wins.")
    return read


def _compiled(route: Route) -> BoundedPattern:
    pattern = BoundedPattern(route.pattern.strip(), LONGEST_URI, shortest=SHORTEST_LIMIT, what="route")
    numbers = [int(number) for number in _GROUP.findall(route.target)]
    if numbers and (max(numbers) > pattern.groups or 0 in numbers):
        raise BadInput(
            f"route {route.pattern!r} has {pattern.groups} groups, its target {route.target!r} asks for more.",
            hint="Use $1 up to the number of groups.",
        )
    if (seconds := route.seconds) is not None and not 0 < seconds <= LONGEST_TIMEOUT:
        raise BadInput(f"route {route.pattern!r} has timeout {route.timeout!r}.", hint="Use more than 0s, at most 1h.")
    return pattern


def _origin(target: str, route: Route) -> tuple[str, str, int]:
    """Scheme, host and port of a target."""
    try:
        parts = urlsplit(target)
        port = parts.port
    except ValueError as cause:
        raise BadInput(f"target {target!r} of route {route.pattern!r} is not a URL: {cause}.", hint=_HINT) from cause
    if parts.scheme not in _PORTS or not parts.hostname or "$" in parts.netloc:
        raise BadInput(f"target {target!r} of route {route.pattern!r} names no backend.", hint=_HINT)
    if parts.username is not None or parts.password is not None:
        raise BadInput(f"the target of route {route.pattern!r} has a password in its URL.", hint="Send it as a header.")
    address = plain_address(parts.hostname)
    if address is not None and is_never_a_backend(address):
        raise BadInput(
            f"target {target!r} of route {route.pattern!r} is at {address}, where no backend may be.",
            hint="Link-local, multicast and unspecified addresses are never delivered to.",
        )
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


_HINT = "Write http://host:port/path, with $1 only in the path or the query."


def _expanded(route: Route, hit: re.Match[str], uri: str, origin: tuple[str, str, int]) -> str:
    if "#" in uri:
        raise BadInput(f"address {shown(uri)!r} has a fragment; it is not delivered.", hint="Write # as %23.")
    if _GROUP.search(route.target):
        path, mark, query = route.target.partition("?")
        url = _GROUP.sub(lambda group: hit[int(group[1])] or "", path)
        # A group is one value there, and must not become several.
        url += mark + _GROUP.sub(lambda group: quote(hit[int(group[1])] or "", safe=_ONE_VALUE), query)
    else:
        url = route.target.rstrip("/") + (uri if uri.startswith("/") else f"/{uri}")
    if _CONTROL.search(url) or _origin(url, route) != origin:
        raise BadInput(f"address {shown(uri)!r} leads away from the backend of its route.", hint="It is not delivered.")
    if climbs(uri) or climbs(urlsplit(url).path):
        raise BadInput(f"address {shown(uri)!r} has a segment of dots; it is not delivered.", hint="Write it out.")
    return url


_ONE_VALUE = "%/:@!$'()*,;~"  # what stays as it is, percent escapes included
_MOST_DECODINGS = 8
# Dots and slashes in more bytes than UTF-8 allows, which lenient servers undo.
_OVERLONG = tuple((re.compile(pattern), plain) for pattern, plain in (
    (rb"\xc0\xae|\xe0\x80\xae|\xf0\x80\x80\xae", b"."), (rb"\xc0\xaf|\xe0\x80\xaf|\xf0\x80\x80\xaf", b"/"),
))  # fmt: skip


def climbs(address: str) -> bool:
    """Whether a path has a dot segment, also in disguises that servers undo: encoded, with parameters, after ``\\``."""
    path = re.split(r"[?#]", address, maxsplit=1)[0].encode("utf-8", "surrogateescape")
    for _ in range(_MOST_DECODINGS):
        decoded = unquote_to_bytes(path)
        if decoded == path:
            break
        path = decoded
    else:
        return True  # nobody encodes that often by accident
    for overlong, plain in _OVERLONG:
        path = overlong.sub(plain, path)
    return any(_is_dots(segment) for segment in re.split(rb"[/\\]", path))


def _is_dots(segment: bytes) -> bool:
    """Whether a segment means its parent or itself to a server that drops what it cannot read."""
    return bytes(byte for byte in segment.partition(b";")[0] if 0x20 < byte < 0x7F) in (b".", b"..")
