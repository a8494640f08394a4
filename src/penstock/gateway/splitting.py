"""Splitter: spreads the requests for one queue over several. Order is kept within each of them only."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from penstock.codec import prepared
from penstock.errors import BadInput
from penstock.gateway.item import LONGEST_URI
from penstock.gateway.patterns import BoundedPattern
from penstock.gateway.routes import SHORTEST_LIMIT

COUNT = "x-static-queue-count"
LONGEST_NAME = 128  # of a queue
REMEMBERED = 24 * 3600.0
MOST_REMEMBERED = 10_000
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


class _FromRequest(msgspec.Struct, forbid_unknown_fields=True):
    header: str | None = None
    url: str | None = None


@prepared
class _Split(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    description: str = ""
    postfix_delimiter: str = "-"
    postfix_from_static: list[str] | None = None
    postfix_from_request: _FromRequest | None = None


class Splitter:
    """Splits by a resource of patterns for queue names, and by a header that says how many queues are wanted."""

    def __init__(self, resource: Mapping[str, Any] | bytes | str | None = None, **properties: str) -> None:
        """``resource`` has gateleen's form. ``${name}`` in it is taken from ``properties``."""
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, Iterator[int], float]] = {}
        self._splits: list[tuple[BoundedPattern, _Split, Iterator[str], BoundedPattern | None]] = []
        self.configure(resource, **properties)

    def configure(self, resource: Mapping[str, Any] | bytes | str | None, **properties: str) -> None:
        """Take another resource, checked as a whole first. None switches splitting off. Counts start over."""
        splits = [] if resource is None else _read(resource, properties)
        with self._lock:
            self._splits = splits
            self._counted.clear()

    def split(self, queue: str, uri: str, headers: list[tuple[str, str]]) -> str:
        """The queue that a request really goes to."""
        with self._lock:
            for pattern, split, names, url in self._splits:
                if pattern.match(queue):
                    return queue + _postfix(split, names, url, uri, headers)
            return self._by_count(queue, headers)

    def _by_count(self, queue: str, headers: list[tuple[str, str]]) -> str:
        text = next((value for name, value in headers if name.lower() == COUNT), None)
        known, now = self._counted.get(queue), time.monotonic()
        if known is not None and now - known[2] > REMEMBERED:
            del self._counted[queue]
            known = None
        if text is not None and _NUMBER.fullmatch(text.strip()):
            wanted = int(text)
            if wanted < 2:
                self._counted.pop(queue, None)
                return queue
            if known is None or known[0] != wanted:
                known = (wanted, itertools.cycle(range(1, min(wanted, 1000) + 1)), now)
        if known is None:
            return queue
        self._counted.pop(queue, None)
        self._counted[queue] = (known[0], known[1], now)
        while len(self._counted) > MOST_REMEMBERED:
            del self._counted[next(iter(self._counted))]
        return f"{queue}-Q{next(known[1])}"


def _postfix(
    split: _Split, names: Iterator[str], url: BoundedPattern | None, uri: str, headers: list[tuple[str, str]]
) -> str:
    delimiter = split.postfix_delimiter
    if split.postfix_from_static is not None:
        return delimiter + next(names)
    parts: list[str] = []
    hit = None if url is None else url.match(uri)
    if hit is not None:
        parts += [group for group in hit.groups() if group]
    wanted = None if split.postfix_from_request is None else split.postfix_from_request.header
    if wanted is not None:
        parts += [value for name, value in headers if name.lower() == wanted.lower()][:1]
    return "".join(delimiter + part for part in parts)


def _read(resource: Mapping[str, Any] | bytes | str, properties: Mapping[str, str]) -> list[Any]:
    text = resource if isinstance(resource, bytes | str) else msgspec.json.encode(dict(resource))
    text = text.decode() if isinstance(text, bytes) else text

    def value(hit: re.Match[str]) -> str:
        if hit[1] not in properties:
            raise BadInput(
                f"the splitting of queues asks for ${{{hit[1]}}}, which nobody gave.", hint="Give it, or write it out."
            )
        return msgspec.json.encode(properties[hit[1]]).decode()[1:-1]

    try:
        read = msgspec.json.decode(_PLACEHOLDER.sub(value, text), type=dict[str, _Split])
        return [_checked(name, split) for name, split in read.items()]
    except msgspec.DecodeError as cause:
        raise BadInput(f"the splitting of queues cannot be read: {cause}.", hint=_HINT) from cause


_HINT = 'Write {"PATTERN": {"postfixFromStatic": ["A", "B"]}} or {"PATTERN": {"postfixFromRequest": {"header": "x"}}}.'


def _checked(name: str, split: _Split) -> tuple[BoundedPattern, _Split, Iterator[str], BoundedPattern | None]:
    static, request = split.postfix_from_static, split.postfix_from_request
    if (static is None) == (request is None):
        raise BadInput(f"splitting of {name!r} needs a static postfix or one from the request.", hint=_HINT)
    if static is not None and (not static or len(set(static)) != len(static) or "" in static):
        raise BadInput(f"splitting of {name!r} needs postfixes that differ.", hint=_HINT)
    if request is not None and request.header is None and request.url is None:
        raise BadInput(f"splitting of {name!r} needs a header or a url.", hint=_HINT)
    url = None
    if request is not None and request.url is not None:
        url = BoundedPattern(request.url, LONGEST_URI, shortest=SHORTEST_LIMIT, what="splitting by the address")
    names = BoundedPattern(name, LONGEST_NAME, what="splitting of queues")
    return names, split, itertools.cycle(static or ()), url
