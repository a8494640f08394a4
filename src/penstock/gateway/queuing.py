"""Queuing: redisques' operations on the queues of queued requests, for clients that were written against it.

It knows one lock per queue, of whoever asked for it last. Here that is one holder among others, whose locks it shows
but does not take away.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.clock import SECOND
from penstock.errors import BadInput, EntryNotFound
from penstock.gateway.intake import FAMILY
from penstock.gateway.item import CREDENTIALS, MASK, QueuedRequest, RequestCodec, masked_payload, read_item
from penstock.gateway.patterns import BoundedPattern
from penstock.names import escape_name, unescape_name
from penstock.queue.entry import Entry, Lock
from penstock.queue.protocol import Find
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore

HOLDER = "redisques"
SPEED_SECONDS = 60
MOST_COUNTED = 100_000  # entries of the last minute
LONGEST_NAME = 128
LONGEST_FILTER = 512  # a pattern is read before anybody knows what it would cost
READ_AT_ONCE = 200  # items with their bodies, each of which may be large

Sees = Callable[[str], bool]


class Filter:
    """Names that a pattern is found in; without a pattern, all."""

    def __init__(self, text: str | None) -> None:
        """Raise ``BadInput`` for a text that is not a pattern, or that takes too long."""
        # Report a bad pattern as it was given, not as a part of another.
        self._pattern = None
        if text is not None:
            if len(text) > LONGEST_FILTER:
                raise BadInput(f"a filter of {len(text)} characters is too long.", hint=f"At most {LONGEST_FILTER}.")
            BoundedPattern(text, LONGEST_NAME, what="filter")
            self._pattern = BoundedPattern(f"(?s:.*?)(?:{text})(?s:.*)", LONGEST_NAME, what="filter")

    def __call__(self, name: str) -> bool:
        """Whether this name is meant."""
        return self._pattern is None or self._pattern.match(name) is not None


class QueueFigures(msgspec.Struct, frozen=True):
    """What a queue holds, how often its first item has failed, and how many were done in the last minute."""

    name: str
    size: int
    failures: int = 0
    speed: int = 0


class Queuing:
    """The operations; names are those of the clients. ``sees`` says which queues of the store a caller may know of."""

    def __init__(self, store: QueueStore, *, family: str = FAMILY) -> None:
        """Work on one family of FIFO queues."""
        self.store = store
        self._family: Queue[QueuedRequest] = store.family(family, QueuedRequest, fifo=True, codec=RequestCodec("url"))

    def stored_name(self, name: str) -> str:
        """The name under which the store knows a queue."""
        return escape_name(self._family.name + name)

    def queue(self, name: str) -> Queue[QueuedRequest]:
        """The queue of a name, for those who write; created if it does not exist."""
        return self._family.member(self.stored_name(name))

    def entries(self, name: str, *, after: int = 0, limit: int) -> list[Entry[Any]]:
        """The first items of a queue, or those after one; the queue is not made by looking at it."""
        return self.store.driver.find(Find(queue=self.stored_name(name), after=after, limit=limit))

    # --- queues ------------------------------------------------------------------------------------

    def sizes(self, wanted: Filter, sees: Sees) -> dict[str, int]:
        """How many items each queue holds, also none."""
        counts = self.store.counts(family=self._family.name)
        named = ((self._client_name(counted.queue), counted.live) for counted in counts if sees(counted.queue))
        return {name: size for name, size in named if wanted(name)}

    def figures(self, wanted: Filter, sees: Sees) -> list[QueueFigures]:
        """The figures of every queue."""
        speeds = self._speeds()
        figures = []
        for name, size in self.sizes(wanted, sees).items():
            first = self.entries(name, limit=1) if size else []
            figures.append(QueueFigures(name, size, first[0].attempt if first else 0, speeds.get(name, 0)))
        return figures

    def speed(self, wanted: Filter, sees: Sees) -> int:
        """How many items were done in the last minute."""
        return sum(count for name, count in self._speeds().items() if wanted(name) and sees(self.stored_name(name)))

    def _speeds(self) -> Counter[str]:
        since = self.store.now() - SPEED_SECONDS * SECOND
        where = Find(family=self._family.name, states=("done",), from_us=since, limit=READ_AT_ONCE)
        speeds: Counter[str] = Counter()
        while rows := self.store.driver.history(where):
            speeds.update(self._client_name(row.queue) for row in rows)
            if len(rows) < READ_AT_ONCE or speeds.total() >= MOST_COUNTED:
                break
            where = msgspec.structs.replace(where, after=rows[-1].seq)
        return speeds

    def delete(self, name: str) -> int:
        """Remove all items of a queue, also one that is being delivered. Returns how many there were."""
        gone = 0
        while page := self.entries(name, limit=READ_AT_ONCE):
            with contextlib.suppress(EntryNotFound):  # one was delivered meanwhile: look again
                gone += self.store.driver.cancel([entry.id for entry in page], force=True)
        return gone

    # --- items -------------------------------------------------------------------------------------

    def shown(self, entry: Entry[Any]) -> str:
        """An item as it is stored; credentials in its headers are masked."""
        return _shown(entry).decode(errors="replace")

    def size(self, name: str) -> int:
        """How many items a queue holds."""
        return self.store.counts(self.stored_name(name))[0].live

    def item(self, name: str, index: int) -> Entry[Any] | None:
        """One item by its place from the head."""
        if index >= self.size(name):
            return None
        after = 0
        while page := self.entries(name, after=after, limit=min(index + 1, READ_AT_ONCE)):
            if index < len(page):
                return page[index]
            index, after = index - len(page), page[-1].seq
        return None

    def browsed(self, entry: Entry[Any]) -> dict[str, Any]:
        """An item in the form for people."""
        shown = read_item(_shown(entry)).browsed()
        return {key: value for key, value in shown.items() if value is not None}

    def replace(self, entry: Entry[Any], request: QueuedRequest) -> None:
        """Give an item another content; credentials that were masked when it was shown stay what they were."""
        if any(_is_masked(*header) for header in request.headers):
            before = read_item(entry.payload)
            headers = [(name, _unmasked(before, name, value)) for name, value in request.headers]
            request = msgspec.structs.replace(request, headers=tuple(headers))
        self._queue_of(entry).update(entry.id, request)

    def remove(self, entry: Entry[Any]) -> None:
        """Take one item out."""
        self._queue_of(entry).cancel(entry.id)

    def _queue_of(self, entry: Entry[Any]) -> Queue[QueuedRequest]:
        return self._family.member(entry.queue)

    # --- locks -------------------------------------------------------------------------------------

    def locks(self, wanted: Filter, sees: Sees) -> list[str]:
        """The queues that anybody has locked."""
        of_family = (lock.queue for lock in self.store.locks() if lock.queue.startswith(self._family.name))
        names = {self._client_name(queue) for queue in of_family if sees(queue)}
        return sorted(name for name in names if wanted(name))

    def lock_of(self, name: str) -> Lock | None:
        """The lock on a queue: the one that was taken here, or else anybody's."""
        locks = self.store.locks(self.stored_name(name))
        return min(locks, key=lambda lock: lock.holder != HOLDER, default=None)

    def lock(self, name: str, user: str) -> None:
        """Lock a queue; a lock that was taken here before is replaced."""
        self.queue(name).lock(holder=HOLDER, reason=user)

    def unlock(self, name: str) -> bool:
        """Remove the lock that was set here. Returns whether there was one."""
        return self.store.driver.unlock(self.stored_name(name), HOLDER)

    def unlock_all(self, names: Iterable[str]) -> int:
        """Remove many of them. Returns how many there were."""
        return sum(self.unlock(name) for name in names)

    def _client_name(self, queue: str) -> str:
        return unescape_name(queue).removeprefix(self._family.name)


def requested_by(lock: Lock) -> str:
    """Who asked for a lock, in redisques' words."""
    return (lock.reason if lock.holder == HOLDER else lock.holder) or lock.holder


def _is_masked(name: str, value: str) -> bool:
    return value == MASK and name.lower() in CREDENTIALS


def _unmasked(before: QueuedRequest, name: str, value: str) -> str:
    return (before.header(name) if _is_masked(name, value) else None) or value


def _shown(entry: Entry[Any]) -> bytes:
    """An item as it is stored, unless it carries credentials: who may look does not learn those."""
    if any(f'"{name}"'.encode() in entry.payload.lower() for name in CREDENTIALS):
        return masked_payload(entry.payload, entry.type)
    return entry.payload
