"""What a task stores of one state: committed values as bytes, changes since the last checkpoint, and expiry."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.clock import Micros
from penstock.codec import codec_for
from penstock.errors import PayloadTooLarge, Undecodable

if TYPE_CHECKING:
    from penstock.stream.state import Declared

AROUND = 64 * 1024  # bytes of a record besides the value
LARGEST = 8 * 1024 * 1024 - AROUND
SLACK = 64  # outdated moments that a heap may hold beside as many valid ones


class Entry(NamedTuple):
    """One stored item of the state; ``payload`` None means that it is deleted."""

    state: str
    key: str
    sub: str
    payload: bytes | None
    expires: Micros = 0


def check_texts(*texts: str) -> None:
    """Refuse keys and names that are not text: records may have such keys, states and timers may not."""
    for text in texts:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as cause:
                raise Undecodable(
                    f"the key {text!r} is not UTF-8 and cannot have state or timers.",
                    hint="Give records of such keys another one first: rekey.",
                ) from cause


def value_limit(record_limit: int) -> int:
    """How many bytes a value of a state may have: it has to fit into a record of the state log."""
    return min(LARGEST, max(record_limit - AROUND, record_limit // 2))


class Scope:
    """What the cells of a task share: the key under work and the time."""

    __slots__ = ("key_text", "limit", "now", "strict")

    def __init__(self) -> None:
        self.key_text = ""  # the canonical text of the key
        self.limit = LARGEST  # bytes of a value
        self.strict = True  # whether a value of a wrong type is to be found when it is set, not with the checkpoint
        self.now: Micros = 0  # processing time, as of the beginning of this checkpoint's work


class TaskScope:
    """The scope of states that a task has once, not once per key."""

    __slots__ = ("_scope",)

    key_text = ""

    def __init__(self, scope: Scope) -> None:
        """Time and limits are those of ``scope``."""
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scope, name)


class Cell:
    """One state of one task."""

    def __init__(self, declared: Declared[Any]) -> None:
        self.name = declared.name
        self.ttl = declared.ttl
        self.keyed = declared.keyed
        self.encode = declared.codec.encode
        self.decode = declared.codec.decode
        self.scope = Scope()
        self.expiries: dict[tuple[str, str], Micros] = {}
        self._queue: list[tuple[Micros, str, str]] = []
        self._ready: list[Entry] = []

    def load(self, entry: Entry) -> None:
        """Load a stored entry during a restore."""
        self._commit(entry)

    def changes(self) -> list[Entry]:
        """The entries that this checkpoint's work changed."""
        self._ready = list(self._changed(self.scope.now + self.ttl if self.ttl else 0))
        return self._ready

    def apply(self) -> None:
        """Make the changes permanent: their checkpoint was committed."""
        for entry in self._ready:
            self._commit(entry)
        self._forget_work()

    def rollback(self) -> None:
        """Undo the changes since the last checkpoint."""
        self._forget_work()

    def places(self) -> Iterator[tuple[Any, str]]:
        """Key, or keys that are stored together, and sub-key of everything that is stored."""
        raise NotImplementedError

    def entry(self, key: str, sub: str) -> Entry | None:
        """A stored entry."""
        raise NotImplementedError

    def entries(self, key: Any, sub: str) -> Iterator[Entry]:
        """What is stored at a place, to be written again."""
        entry = self.entry(key, sub)
        if entry is not None:
            yield entry

    def weight(self, entry: Entry) -> int:
        """How many items an entry holds."""
        return 1

    def converted(self, entry: Entry, convert: Callable[[str, Any], Any]) -> Entry:
        """The entry with what ``convert`` makes of each key and value, as plain JSON; None drops a value."""
        value = convert(entry.key, codec_for(Any).decode(entry.payload or b"null"))
        return entry._replace(payload=None if value is None else self.encode(value))

    def probe(self, entry: Entry) -> None:
        """Read what an entry holds. Raises :class:`Undecodable` if it does not fit the type."""
        self.decode(entry.payload or b"")

    def forget(self, key: str, sub: str) -> Entry | None:
        """Drop what has expired. Returns the entry that says so."""
        raise NotImplementedError

    def entry_count(self) -> int:
        """How many entries are kept, of all keys."""
        raise NotImplementedError

    def _commit(self, entry: Entry) -> None:
        """Keep an entry, or drop it if it says that it is gone."""
        raise NotImplementedError

    def _changed(self, expires: Micros) -> Iterator[Entry]:
        """What this checkpoint's work changed; what it wrote ends at ``expires``."""
        raise NotImplementedError

    def _forget_work(self) -> None:
        """Forget what was decoded and changed since the last checkpoint."""
        raise NotImplementedError

    def _is_changed(self, key: str, sub: str) -> bool:
        """Whether this checkpoint's work has changed an entry, or the list it belongs to."""
        raise NotImplementedError

    def check(self, value: Any) -> None:
        """Refuse a value that a checkpoint could not keep, or a key."""
        check_texts(self.scope.key_text)
        size = len(self.encode(value))
        if size > self.scope.limit:
            raise PayloadTooLarge(
                f"a value of {size:,} bytes for state {self.name} is over the limit of {self.scope.limit:,}.",
                hint="Keep less of it, or spread it over several keys.",
            )

    def note_expiry(self, entry: Entry) -> None:
        """Remember when a kept entry ends."""
        if entry.expires:
            self.expiries[entry.key, entry.sub] = entry.expires
            heapq.heappush(self._queue, (entry.expires, entry.key, entry.sub))
            if len(self._queue) > 2 * len(self.expiries) + SLACK:
                self._queue = [(at, key, sub) for (key, sub), at in self.expiries.items()]
                heapq.heapify(self._queue)
        elif self.expiries:
            self.expiries.pop((entry.key, entry.sub), None)

    def expired(self, now: Micros) -> list[tuple[str, str]]:
        """Take the places out that have expired, but for those that are being written again."""
        gone, again = [], []
        while self._queue and self._queue[0][0] <= now:
            at, key, sub = heapq.heappop(self._queue)
            if self.expiries.get((key, sub)) != at:
                continue
            if self._is_changed(key, sub):
                again.append((at, key, sub))  # the checkpoint may still fail
            else:
                del self.expiries[key, sub]
                gone.append((key, sub))
        for moment in again:
            heapq.heappush(self._queue, moment)
        return gone

    def ended(self, now: Micros) -> Iterator[tuple[str, str]]:
        """The places that have expired and wait to be taken out; no others are looked at."""
        indexes = [0]
        while indexes:
            index = indexes.pop()
            if index < len(self._queue) and self._queue[index][0] <= now:
                at, key, sub = self._queue[index]
                if self.expiries.get((key, sub)) == at:
                    yield key, sub
                indexes += (2 * index + 1, 2 * index + 2)  # in a heap these are not earlier

    def alive(self, key: str, sub: str = "") -> bool:
        """Whether a kept entry has not expired."""
        return not self.expiries or self.expiries.get((key, sub), self.scope.now + 1) > self.scope.now
