"""Keyed state: a value, a list or a map per key, declared by a computation and kept with its checkpoints.

What is kept is bytes. Values are decoded when a checkpoint's work first asks for them, and encoded again with the
checkpoint if they were set; a failed attempt's changes are dropped by forgetting the decoded ones.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from penstock.clock import Duration, Micros, duration_micros
from penstock.codec import Codec, codec_for
from penstock.errors import BadInput, PayloadTooLarge, Undecodable
from penstock.names import check_name

T = TypeVar("T")


class Entry(NamedTuple):
    """One thing of the state, as it is kept: ``payload`` None means that it is gone."""

    state: str
    key: str
    sub: str
    payload: bytes | None
    expires: Micros = 0


def check_texts(*texts: str) -> None:
    """Refuse keys and names that are no text: records may have such keys, states and timers may not."""
    for text in texts:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as cause:
                raise Undecodable(
                    f"the key {text!r} is not UTF-8 and cannot have state or timers.",
                    hint="Give records of such keys another one first: rekey.",
                ) from cause


class Declared(Generic[T]):
    """A state that a computation keeps per key."""

    kind: ClassVar[str] = ""

    def __init__(self, name: str, type: Any = Any, *, ttl: Duration | None = None) -> None:
        """A state of this name; ``ttl`` drops what was not written for so long (processing time)."""
        self.name = check_name(name, kind="state")
        self.type = type
        self._codec: Codec[Any] | None = codec_for(type)
        self.ttl: Micros = 0 if ttl is None else duration_micros(ttl, name="ttl")

    @property
    def codec(self) -> Codec[Any]:
        """What reads and writes its values; made anew in a process it was sent to."""
        if self._codec is None:
            self._codec = codec_for(self.type)
        return self._codec

    def __getstate__(self) -> dict[str, Any]:
        """Without the codec, which cannot be sent to another process."""
        return {**self.__dict__, "_codec": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Declared[T]:
        """It never changes."""
        return self

    @property
    def shape(self) -> str:
        """What must not change between versions."""
        return f"{self.kind} of {self.codec.type_name}"

    def cell(self) -> Cell:
        """Where it is kept, for one task."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Name and shape."""
        return f"<state {self.name}: {self.shape}>"


class Value(Declared[T]):
    """One value per key; ``default`` is what a key without one has."""

    kind = "value"

    def __init__(self, name: str, type: Any = Any, default: Any = None, *, ttl: Duration | None = None) -> None:
        """See :class:`Declared`."""
        super().__init__(name, type, ttl=ttl)
        self.default = default

    def cell(self) -> ValueCell:
        """Where it is kept."""
        return ValueCell(self, self.default)


class List(Declared[T]):
    """A list per key; appending costs as much as what is appended."""

    kind = "list"

    def cell(self) -> ListCell:
        """Where it is kept."""
        return ListCell(self)


class Map(Declared[T]):
    """A map from text to values per key; a change costs as much as the items changed."""

    kind = "map"

    def cell(self) -> MapCell:
        """Where it is kept."""
        return MapCell(self)


class Scope:
    """What the cells of a task share: the key under work and the time."""

    __slots__ = ("key", "limit", "now", "strict")

    def __init__(self) -> None:
        self.key = ""
        self.limit = LARGEST  # bytes of a value
        self.strict = True  # whether a value of a wrong type is to be found when it is set, not with the checkpoint
        self.now: Micros = 0  # processing time, as of the beginning of this checkpoint's work


_ABSENT: Any = object()
_UNCHANGING = (int, float, str, bytes, type(None))
AROUND = 64 * 1024  # bytes of a record for what is around a value
LARGEST = 8 * 1024 * 1024 - AROUND
SLACK = 64  # out-of-date moments that a heap may hold beside as many as there are true ones


def fresh(value: Any) -> Any:
    """A value that begins something: nobody who changes it changes where others begin."""
    return value if isinstance(value, _UNCHANGING) else copy.deepcopy(value)


class Cell:
    """One state of one task."""

    def __init__(self, declared: Declared[Any]) -> None:
        self.name = declared.name
        self.ttl = declared.ttl
        self.encode = declared.codec.encode
        self.decode = declared.codec.decode
        self.scope = Scope()
        self.expiries: dict[tuple[str, str], Micros] = {}
        self._queue: list[tuple[Micros, str, str]] = []

    def load(self, entry: Entry) -> None:
        """Take what was kept, at a restore."""
        raise NotImplementedError

    def changes(self) -> list[Entry]:
        """What this checkpoint's work changed."""
        raise NotImplementedError

    def apply(self) -> None:
        """The changes are kept now."""
        raise NotImplementedError

    def rollback(self) -> None:
        """The changes never were."""
        raise NotImplementedError

    def places(self) -> Iterator[tuple[str, str]]:
        """Key and sub-key of everything kept."""
        raise NotImplementedError

    def entry(self, key: str, sub: str) -> Entry | None:
        """One of them as it is kept."""
        raise NotImplementedError

    def forget(self, key: str, sub: str) -> Entry | None:
        """Drop what has expired; the entry that says so."""
        raise NotImplementedError

    def __len__(self) -> int:
        """How many entries are kept."""
        raise NotImplementedError

    def check(self, value: Any) -> None:
        """Refuse a value that a checkpoint could not keep, or a key."""
        check_texts(self.scope.key)
        size = len(self.encode(value))
        if size > self.scope.limit:
            raise PayloadTooLarge(
                f"a value of {size:,} bytes for state {self.name} is over the limit of {self.scope.limit:,}.",
                hint="Keep less of it, or spread it over several keys.",
            )

    def _expiry(self) -> Micros:
        return self.scope.now + self.ttl if self.ttl else 0

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
        """Take the places out that have expired."""
        gone = []
        while self._queue and self._queue[0][0] <= now:
            at, key, sub = heapq.heappop(self._queue)
            if self.expiries.get((key, sub)) == at:
                del self.expiries[key, sub]
                gone.append((key, sub))
        return gone

    def alive(self, key: str, sub: str = "") -> bool:
        """Whether a kept entry has not expired."""
        return not self.expiries or self.expiries.get((key, sub), self.scope.now + 1) > self.scope.now


class ValueCell(Cell):
    """The value of the current key."""

    def __init__(self, declared: Declared[Any], default: Any) -> None:
        super().__init__(declared)
        self._default = default
        self._kept: dict[str, bytes] = {}
        self._cache: dict[str, Any] = {}
        self._dirty: dict[str, None] = {}
        self._ready: list[Entry] = []

    def get(self, default: Any = _ABSENT) -> Any:
        """The value, or the default."""
        key = self.scope.key
        value = self._cache.get(key, _MISS)
        if value is _MISS:
            kept = self._kept.get(key)
            value = _ABSENT if kept is None or (self.ttl and not self.alive(key)) else self.decode(kept)
            self._cache[key] = value
        if value is _ABSENT:
            return fresh(self._default) if default is _ABSENT else default
        return value

    def set(self, value: Any) -> None:
        """Keep another value."""
        if self.scope.strict:
            self.check(value)
        key = self.scope.key
        self._cache[key] = value
        self._dirty[key] = None

    def clear(self) -> None:
        """Keep none."""
        self._cache[self.scope.key] = _ABSENT
        self._dirty[self.scope.key] = None

    def load(self, entry: Entry) -> None:
        if entry.payload is None:
            self._kept.pop(entry.key, None)
        else:
            self._kept[entry.key] = entry.payload
        self.note_expiry(entry)

    def changes(self) -> list[Entry]:
        name, cache, encode, expires = self.name, self._cache, self.encode, self._expiry()
        self._ready = [
            Entry(name, key, "", None) if (value := cache[key]) is _ABSENT else Entry(
                name, key, "", encode(value), expires
            )
            for key in self._dirty
        ]  # fmt: skip
        return self._ready

    def apply(self) -> None:
        for entry in self._ready:
            self.load(entry)
        self.rollback()

    def rollback(self) -> None:
        self._cache.clear()
        self._dirty.clear()
        self._ready = []

    def places(self) -> Iterator[tuple[str, str]]:
        return ((key, "") for key in self._kept)

    def entry(self, key: str, sub: str) -> Entry | None:
        kept = self._kept.get(key)
        return None if kept is None else Entry(self.name, key, "", kept, self.expiries.get((key, ""), 0))

    def forget(self, key: str, sub: str) -> Entry | None:
        return None if self._kept.pop(key, None) is None else Entry(self.name, key, "", None)

    def __len__(self) -> int:
        return len(self._kept)


_MISS: Any = object()


class MapCell(Cell):
    """The map of the current key."""

    def __init__(self, declared: Declared[Any]) -> None:
        super().__init__(declared)
        self._kept: dict[str, dict[str, bytes]] = {}
        self._cache: dict[str, dict[str, Any]] = {}
        self._dirty: dict[str, dict[str, None]] = {}
        self._ready: list[Entry] = []
        self._count = 0

    def _items(self) -> dict[str, Any]:
        key = self.scope.key
        found = self._cache.get(key)
        if found is None:
            kept = self._kept.get(key)
            found = self._cache[key] = (
                {sub: self.decode(one) for sub, one in kept.items() if self.alive(key, sub)} if kept else {}
            )
        return found

    def get(self, sub: str, default: Any = None) -> Any:
        """One item, or the default."""
        return self._items().get(sub, default)

    def set(self, sub: str, value: Any) -> None:
        """Keep an item."""
        if not isinstance(sub, str):
            raise BadInput(f"map state {self.name} was given the key {sub!r}.", hint="Keys of a map state are text.")
        if self.scope.strict:
            self.check(value)
        self._items()[sub] = value
        self._dirty.setdefault(self.scope.key, {})[sub] = None

    def delete(self, sub: str) -> None:
        """Drop an item; harmless if there is none."""
        if self._items().pop(sub, _ABSENT) is not _ABSENT:
            self._dirty.setdefault(self.scope.key, {})[sub] = None

    def clear(self) -> None:
        """Drop all items."""
        for sub in list(self._items()):
            self.delete(sub)

    def items(self) -> Mapping[str, Any]:
        """A copy of the whole map."""
        return dict(self._items())

    def __contains__(self, sub: object) -> bool:
        """Whether there is such an item."""
        return sub in self._items()

    def __bool__(self) -> bool:
        """Whether there are items."""
        return bool(self._items())

    def load(self, entry: Entry) -> None:
        if entry.payload is None:
            self.forget(entry.key, entry.sub)
        else:
            kept = self._kept.setdefault(entry.key, {})
            self._count += entry.sub not in kept
            kept[entry.sub] = entry.payload
        self.note_expiry(entry)

    def changes(self) -> list[Entry]:
        expires = self._expiry()
        self._ready = []
        for key, subs in self._dirty.items():
            held = self._cache[key]
            for sub in subs:
                if sub in held:
                    self._ready.append(Entry(self.name, key, sub, self.encode(held[sub]), expires))
                else:
                    self._ready.append(Entry(self.name, key, sub, None))
        return self._ready

    def apply(self) -> None:
        for entry in self._ready:
            self.load(entry)
        self.rollback()

    def rollback(self) -> None:
        self._cache.clear()
        self._dirty.clear()
        self._ready = []

    def places(self) -> Iterator[tuple[str, str]]:
        return ((key, sub) for key, held in self._kept.items() for sub in held)

    def entry(self, key: str, sub: str) -> Entry | None:
        kept = self._kept.get(key, {}).get(sub)
        return None if kept is None else Entry(self.name, key, sub, kept, self.expiries.get((key, sub), 0))

    def forget(self, key: str, sub: str) -> Entry | None:
        held = self._kept.get(key)
        if held is None or held.pop(sub, None) is None:
            return None
        self._count -= 1
        if not held:
            del self._kept[key]
        return Entry(self.name, key, sub, None)

    def __len__(self) -> int:
        return self._count


class ListCell(Cell):
    """The list of the current key; kept as one entry per item, numbered."""

    def __init__(self, declared: Declared[Any]) -> None:
        super().__init__(declared)
        # By number: after a compaction the items of a restored list need not come in order.
        self._kept: dict[str, dict[int, bytes]] = {}
        self._cache: dict[str, list[Any]] = {}
        self._dirty: dict[str, int] = {}  # how many items at the beginning are as they are kept
        self._ready: list[Entry] = []
        self._count = 0

    def _held(self) -> list[Any]:
        key = self.scope.key
        found = self._cache.get(key)
        if found is None:
            kept = self._kept.get(key)
            found = self._cache[key] = []
            if kept and self.alive(key, str(len(kept) - 1)):
                found += [self.decode(kept[index]) for index in range(len(kept))]
            elif kept:
                self._dirty[key] = 0
        return found

    def append(self, value: Any) -> None:
        """Add an item."""
        if self.scope.strict:
            self.check(value)
        held = self._held()
        self._dirty.setdefault(self.scope.key, len(held))
        held.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        """Add items."""
        for value in values:
            self.append(value)

    def replace(self, values: Iterable[Any]) -> None:
        """Keep these items instead."""
        self._held()
        items = list(values)
        if self.scope.strict:
            for value in items:
                self.check(value)
        self._cache[self.scope.key] = items
        self._dirty[self.scope.key] = 0

    def clear(self) -> None:
        """Keep no items."""
        if self._held():
            self.replace(())

    def items(self) -> list[Any]:
        """A copy of the whole list."""
        return list(self._held())

    def __iter__(self) -> Iterator[Any]:
        """The items of the current key."""
        return iter(self.items())

    def load(self, entry: Entry) -> None:
        index = int(entry.sub)
        held = self._kept.setdefault(entry.key, {})
        before = len(held)
        if entry.payload is None:
            for gone in [one for one in held if one >= index]:
                del held[gone]
        else:
            held[index] = entry.payload
        self._count += len(held) - before
        if not held:
            del self._kept[entry.key]
        self.note_expiry(entry)

    def changes(self) -> list[Entry]:
        expires = self._expiry()
        self._ready = []
        for key, same in self._dirty.items():
            held = self._cache[key]
            if len(self._kept.get(key, ())) > len(held):
                self._ready.append(Entry(self.name, key, str(len(held)), None))
            for index in range(same, len(held)):
                self._ready.append(Entry(self.name, key, str(index), self.encode(held[index]), expires))
        return self._ready

    def apply(self) -> None:
        for entry in self._ready:
            self.load(entry)
        self.rollback()

    def rollback(self) -> None:
        self._cache.clear()
        self._dirty.clear()
        self._ready = []

    def places(self) -> Iterator[tuple[str, str]]:
        return ((key, str(index)) for key, held in self._kept.items() for index in held)

    def entry(self, key: str, sub: str) -> Entry | None:
        kept = self._kept.get(key, {}).get(int(sub))
        return None if kept is None else Entry(self.name, key, sub, kept, self.expiries.get((key, sub), 0))

    def forget(self, key: str, sub: str) -> Entry | None:
        held = self._kept.get(key)
        if held is None or int(sub) != len(held) - 1:
            return None  # items of a list end together: with the newest of them
        self._count -= len(held)
        del self._kept[key]
        return Entry(self.name, key, "0", None)

    def __len__(self) -> int:
        return self._count
