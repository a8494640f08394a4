"""Batches: consecutive requests of one queue that are delivered as one.

A FIFO queue has one entry in flight, its head, and nothing behind it can be claimed or overtake it. So a batch is a
head that takes the bodies of its followers along. When the backend has answered, one document says what became of all
of them: that is the one effect of a batch. Then each comes to the head in its turn and is ended by what the document
says, without another call, by whichever process claims it. A batch that failed leaves no document: all of it stays,
and if its head is given up, the others are tried without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.clock import Micros, duration_micros
from penstock.errors import PenstockError, Undecodable
from penstock.gateway.item import CREDENTIALS, QueuedRequest, read_item
from penstock.gateway.routes import Batch, Route
from penstock.queue.entry import Entry
from penstock.queue.protocol import DocumentWrite, Find
from penstock.queue.queues import QueueStore

logger = logging.getLogger("penstock.gateway")

# What differs from request to request and says nothing about how it is to be treated, or is written again.
OF_ONE_REQUEST = frozenset(
    ("x-queue", "x-server-timestamp", "x-server-arrival-timestamp", "x-rp-unique_id", "x-rp-unique-id", "x-request-id",
     "x-correlation-id", "traceparent", "tracestate", "date", "host", "content-length")
)  # fmt: skip
MOST_BYTES = 8 * 1024 * 1024
PAGE = 100
SHORTEST_WAIT: Micros = 20_000
_MOST_KNOWN = 10_000


class Fate(msgspec.Struct, frozen=True):
    """A batch that was delivered: its entries, and digests of their content."""

    entries: dict[str, str]

    def covers(self, entry: Entry[Any]) -> bool:
        """Whether it is about this entry as it is now. An entry changed or replayed since is another request."""
        return self.entries.get(key_of(entry)) == _digest(entry.payload)


class Gathered(msgspec.Struct, frozen=True):
    """A head with its followers: the request to send, and the entries that it stands for."""

    request: QueuedRequest
    entries: dict[str, str]
    wait_us: Micros = 0


class Batches:
    """The batches of the queues of one store."""

    def __init__(self, store: QueueStore) -> None:
        """Start without state: the store keeps it."""
        self._store = store
        self._known: dict[str, tuple[Fate | None, str]] = {}  # by queue, and under which lease it was looked up

    def fate(self, entry: Entry[Any]) -> Fate | None:
        """What became of the batch that a claimed entry was delivered with, or None if it has not been delivered."""
        token = "" if entry.lease is None else entry.lease.token
        known, asked = self._known.get(entry.queue, (None, ""))
        if known is not None and known.covers(entry):
            return known
        if asked != token:
            # Another process may have delivered it.
            known = self._read(entry.queue)
            self._remember(entry.queue, known, token)
        return known if known is not None and known.covers(entry) else None

    def gather(self, head: Entry[Any], request: QueuedRequest, route: Route, batch: Batch) -> Gathered | None:
        """The head with those behind it that can go with it, or None if it has to go alone."""
        now = head.due_us if head.lease is None else head.lease.claimed_us
        if (first := _raw_json(request.body)) is None:
            return None
        bodies, entries, size = [first], {key_of(head): _digest(head.payload)}, len(first)
        others_follow = False
        for follower in self._followers(head, batch.most):
            if follower.expires_us is not None and follower.expires_us <= now:
                continue  # the store ends it in its turn
            body = _fitting(follower, request, route)
            size += 0 if body is None else len(body)
            if body is None or follower.due_us > now or size > MOST_BYTES:
                others_follow = True
                break
            bodies.append(body)
            entries[key_of(follower)] = _digest(follower.payload)
            if len(bodies) == batch.most:
                break
        whole = msgspec.structs.replace(request, body=b"[" + b",".join(bodies) + b"]")
        if len(bodies) < batch.least and not others_follow:
            wait = duration_micros(batch.wait)
            left = head.created_us + wait - now
            if left > 0:
                return Gathered(whole, entries, max(SHORTEST_WAIT, min(left, wait // 10)))
        return Gathered(whole, entries) if len(bodies) > 1 else None

    def delivered(self, head: Entry[Any], gathered: Gathered) -> None:
        """Record that all of a batch was delivered."""
        fate = Fate(gathered.entries)
        self._remember(head.queue, fate, "")
        try:
            self._store.driver.write([DocumentWrite(_document(head.queue), msgspec.json.encode(fate))])
        except PenstockError as error:
            # This process knows; another one that gets a follower delivers it again, as after any lost reply.
            logger.warning("what became of a batch of queue %r could not be stored: %s", head.queue, error)

    def ended(self, entry: Entry[Any], fate: Fate) -> None:
        """Note that an entry ends by its batch's fate. After the last one, the document is removed."""
        if key_of(entry) == next(reversed(fate.entries)):
            try:
                self._store.driver.write([DocumentWrite(_document(entry.queue), None)])
            except PenstockError as error:
                logger.info("the document of a batch of queue %r stays: %s", entry.queue, error)

    def _followers(self, head: Entry[Any], most: int) -> Iterator[Entry[Any]]:
        after, limit = head.seq, min(most - 1, PAGE)
        while True:
            page = self._store.driver.find(Find(queue=head.queue, states=("waiting",), after=after, limit=limit))
            yield from page
            if len(page) < limit:
                return
            after = page[-1].seq

    def _read(self, queue: str) -> Fate | None:
        document = self._store.driver.document(_document(queue))
        try:
            return None if document is None else msgspec.json.decode(document.value, type=Fate)
        except msgspec.DecodeError as error:
            logger.warning("what became of a batch of queue %r cannot be read; it is sent again: %s", queue, error)
            return None

    def _remember(self, queue: str, fate: Fate | None, token: str) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[queue] = (fate, token)


def _fitting(follower: Entry[Any], request: QueuedRequest, route: Route) -> bytes | None:
    """The body of a request that can go with another one, or None if it cannot."""
    try:
        other = read_item(follower.payload)
    except Undecodable:
        return None
    if (other.method, other.uri) != (request.method, request.uri):
        return None
    if _asked(other, route) != _asked(request, route):
        # One client's body must not arrive in another one's name, nor be given up by another one's rules.
        return None
    return _raw_json(other.body)


def _asked(request: QueuedRequest, route: Route) -> list[tuple[str, str]]:
    """The headers that the requests of a batch must share: who sends, and how failures are handled."""
    left_out = OF_ONE_REQUEST if route.credentials else OF_ONE_REQUEST | CREDENTIALS
    return sorted((name.lower(), value) for name, value in request.headers if name.lower() not in left_out)


def _raw_json(body: bytes) -> bytes | None:
    """A body unchanged if it is JSON, else None."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return body.strip()


def key_of(entry: Entry[Any]) -> str:
    """What identifies an entry in its current generation. A replay has another one."""
    return f"{entry.id}.{entry.generation}"


def _digest(payload: bytes) -> str:
    return blake2b(payload, digest_size=8).hexdigest()


def _document(queue: str) -> str:
    return document_of("batch", queue)


def document_of(kind: str, queue: str) -> str:
    """The name of a document about a queue. The queue's name may already have the full length, so it is hashed."""
    return f"{kind}.{blake2b(queue.encode(), digest_size=16).hexdigest()}"
