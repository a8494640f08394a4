"""The cells of one task: a list or a map for each key. That of a value is in :mod:`.value_cell`.

What is committed is bytes. An item is decoded when a checkpoint's work first asks for it, and encoded again with the
checkpoint if it was set; a failed attempt's changes are dropped by forgetting the decoded items. The methods that
computations call speak of the current key, as the work under way has left it.
"""

from __future__ import annotations

import typing
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic

from penstock.clock import Micros
from penstock.errors import BadInput
from penstock.scalars import MARK, Scalar, canonical_text, scalar_of
from penstock.stream.engine.state_store import Cell, Entry
from penstock.stream.state import Declared

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)  # of a state that is asked for by its name
else:
    T = typing.TypeVar("T")

_ABSENT: Any = object()  # there is no value: none is committed, or it was cleared
_UNREAD: Any = object()  # the value was not read yet
_NOTHING: Any = {}  # of a key that has no items


class MapCell(Cell, Generic[T]):
    """The map of the current key; its length and its truth are those of a dict."""

    def __init__(self, declared: Declared[Any]) -> None:
        super().__init__(declared)
        self._committed: dict[str, dict[str, bytes]] = {}
        self._work: dict[str, dict[str, Any]] = {}  # items that were read or changed; _ABSENT if there is none
        self._dirty: dict[str, dict[str, None]] = {}
        self._growth: dict[str, int] = {}  # how many items more than are committed
        self._ended: tuple[Micros, dict[str, set[str]]] | None = None  # kept items that have expired, as of a time
        self._sorted: dict[str, list[str]] = {}  # the keys of maps that are read in ranges
        self._count = 0

    def get(self, name: Scalar, default: Any = None) -> Any:
        """One item, or the default."""
        # Nearly all keys are texts that stand for themselves, and this is asked for every record.
        sub = name if name.__class__ is str and name[:5] != MARK else canonical_text(name)
        key = self.scope.key_text
        work = self._work.get(key)
        if work is None:
            work = self._work[key] = {}
        value = work.get(sub, _UNREAD)
        if value is _UNREAD:
            payload = self._committed.get(key, _NOTHING).get(sub)
            value = _ABSENT if payload is None or not self.alive(key, sub) else self.decode(payload)
            work[sub] = value
        return default if value is _ABSENT else value

    def set(self, name: Scalar, value: T) -> None:
        """Set an item."""
        sub = name if name.__class__ is str and name[:5] != MARK else self._text(name)
        if self.scope.strict:
            self.check(value)
        key = self.scope.key_text
        dirty = self._dirty.get(key)
        if dirty is not None and sub in dirty:
            work = self._work[key]
            if work[sub] is _ABSENT:
                self._grow(key, sub)
            work[sub] = value
            return
        if sub not in self._committed.get(key, _NOTHING):
            self._grow(key, sub)
        self._work.setdefault(key, {})[sub] = value
        self._dirty.setdefault(key, {})[sub] = None

    def _text(self, name: Scalar) -> str:
        try:
            return canonical_text(name)
        except BadInput as cause:
            raise BadInput(f"map state {self.name}: {cause.message}", hint=cause.hint) from cause

    def delete(self, name: Scalar) -> None:
        """Drop an item; harmless if there is none."""
        if name in self:
            sub = canonical_text(name)
            key = self.scope.key_text
            self._shrink(key, sub)
            self._work.setdefault(key, {})[sub] = _ABSENT
            self._dirty.setdefault(key, {})[sub] = None

    def clear(self) -> None:
        """Drop all items."""
        for sub in list(self._subs()):
            self.delete(scalar_of(sub))

    def items(self) -> Mapping[Any, T]:
        """A copy of the whole map, ordered by the canonical texts of its keys.

        As in every dict of Python, 1, 1.0 and True are one key in it; :meth:`pairs` tells them apart.
        """
        return dict(self.pairs())

    def pairs(self) -> list[tuple[Any, Any]]:
        """All keys and values, ordered by the canonical texts of the keys."""
        return [(name, self.get(name)) for name in map(scalar_of, sorted(self._subs()))]

    def between(self, first: Scalar, last: Scalar) -> list[tuple[Any, Any]]:
        """The items with ``first <= key < last``, by their canonical texts; the others are not even read."""
        subs = self._sorted_subs()
        begin, end = (bisect_left(subs, canonical_text(bound)) for bound in (first, last))
        return [(name, self.get(name)) for name in map(scalar_of, subs[begin:end]) if name in self]

    def last_before(self, end: Scalar) -> tuple[Any, Any] | None:
        """The last item with ``key < end``, by their canonical texts; the others are not even read."""
        subs = self._sorted_subs()
        for index in range(bisect_left(subs, canonical_text(end)) - 1, -1, -1):
            name = scalar_of(subs[index])
            if name in self:
                return name, self.get(name)
        return None

    def __contains__(self, name: Scalar) -> bool:
        """Whether there is such an item."""
        sub = canonical_text(name)
        key = self.scope.key_text
        value = self._work.get(key, _NOTHING).get(sub, _UNREAD)
        if value is not _UNREAD:
            return value is not _ABSENT
        return sub in self._committed.get(key, _NOTHING) and self.alive(key, sub)

    def __len__(self) -> int:
        """How many items the current key has."""
        key = self.scope.key_text
        size = len(self._committed.get(key, _NOTHING)) + self._growth.get(key, 0)
        if self.ttl:
            dirty = self._dirty.get(key, _NOTHING)
            size -= sum(1 for sub in self._ended_subs() if sub not in dirty and scalar_of(sub) not in self)
        return size

    def _ended_subs(self) -> Iterable[str]:
        """Items of the current key that have expired and are kept until the next checkpoint."""
        now = self.scope.now
        if self._ended is None or self._ended[0] != now:
            ended: dict[str, set[str]] = {}
            for key, sub in self.ended(now):
                ended.setdefault(key, set()).add(sub)
            self._ended = now, ended
        return self._ended[1].get(self.scope.key_text, ())

    def _subs(self) -> Iterator[str]:
        """The keys of the current key's map, in no order."""
        key = self.scope.key_text
        committed = self._committed.get(key, _NOTHING)
        yield from (sub for sub in committed if scalar_of(sub) in self)
        yield from (sub for sub in self._dirty.get(key, _NOTHING) if sub not in committed and scalar_of(sub) in self)

    def _sorted_subs(self) -> list[str]:
        """The keys of the current key's map in order; those of items that have expired may be among them."""
        key = self.scope.key_text
        subs = self._sorted.get(key)
        if subs is None:
            committed, dirty = self._committed.get(key, _NOTHING), self._dirty.get(key, _NOTHING)
            subs = sorted({*committed, *dirty}.difference(sub for sub in dirty if self._work[key][sub] is _ABSENT))
            if subs:  # a key that has nothing is not remembered
                self._sorted[key] = subs
        return subs

    def _grow(self, key: str, sub: str) -> None:
        self._growth[key] = self._growth.get(key, 0) + 1
        if key in self._sorted:
            insort(self._sorted[key], sub)

    def _shrink(self, key: str, sub: str) -> None:
        self._growth[key] = self._growth.get(key, 0) - 1
        subs = self._sorted.get(key)
        if subs is not None:
            del subs[bisect_left(subs, sub)]

    def load(self, entry: Entry) -> None:
        self._sorted.pop(entry.key, None)
        self._commit(entry)

    def rollback(self) -> None:
        for key in self._dirty:
            self._sorted.pop(key, None)
        super().rollback()

    def apply(self) -> None:
        for key in self._dirty:
            if not self._sorted.get(key, True):
                del self._sorted[key]
        super().apply()

    def places(self) -> Iterator[tuple[str, str]]:
        return ((key, sub) for key, items in self._committed.items() for sub in items)

    def entry(self, key: str, sub: str) -> Entry | None:
        payload = self._committed.get(key, _NOTHING).get(sub)
        return None if payload is None else Entry(self.name, key, sub, payload, self.expiries.get((key, sub), 0))

    def forget(self, key: str, sub: str) -> Entry | None:
        self._sorted.pop(key, None)
        self._ended = None
        return Entry(self.name, key, sub, None) if self._drop(key, sub) else None

    def entry_count(self) -> int:
        return self._count

    def _commit(self, entry: Entry) -> None:
        self._ended = None
        if entry.payload is None:
            self._drop(entry.key, entry.sub)
        else:
            items = self._committed.setdefault(entry.key, {})
            self._count += entry.sub not in items
            items[entry.sub] = entry.payload
        self.note_expiry(entry)

    def _drop(self, key: str, sub: str) -> bool:
        items = self._committed.get(key)
        if items is None or items.pop(sub, None) is None:
            return False
        self._count -= 1
        if not items:
            del self._committed[key]
        return True

    def _changed(self, expires: Micros) -> Iterator[Entry]:
        for key, subs in self._dirty.items():
            work = self._work[key]
            for sub in subs:
                value = work[sub]
                if value is not _ABSENT:
                    yield Entry(self.name, key, sub, self.encode(value), expires)
                elif sub in self._committed.get(key, _NOTHING):
                    yield Entry(self.name, key, sub, None)

    def _forget_work(self) -> None:
        self._work.clear()
        self._dirty.clear()
        self._growth.clear()
        self._ready = []

    def _is_changed(self, key: str, sub: str) -> bool:
        return sub in self._dirty.get(key, _NOTHING)


class _ListWork:
    """The changes of one key's list since the last checkpoint: committed items at its beginning, then new ones."""

    __slots__ = ("added", "begun", "is_changed", "same")

    def __init__(self, same: int) -> None:
        self.same = same  # how many items at the beginning are as they are committed
        self.begun: list[Any] | None = None if same else []  # those items, once they were read
        self.added: list[Any] = []
        self.is_changed = False


class ListCell(Cell, Generic[T]):
    """The list of the current key, kept as one entry per item, numbered; length and truth are those of a list."""

    def __init__(self, declared: Declared[Any]) -> None:
        super().__init__(declared)
        # By number: after a compaction the items of a restored list need not come in order.
        self._committed: dict[str, dict[int, bytes]] = {}
        self._work: dict[str, _ListWork] = {}
        self._count = 0

    def append(self, value: T) -> None:
        """Add an item."""
        if self.scope.strict:
            self.check(value)
        work = self._current()
        work.added.append(value)
        work.is_changed = True

    def extend(self, values: Iterable[T]) -> None:
        """Add items."""
        for value in values:
            self.append(value)

    def replace(self, values: Iterable[T]) -> None:
        """Replace all items."""
        items = list(values)
        if self.scope.strict:
            for value in items:
                self.check(value)
        work = self._work[self.scope.key_text] = _ListWork(0)
        work.added = items
        work.is_changed = True

    def clear(self) -> None:
        """Remove all items."""
        if self:
            self.replace(())

    def items(self) -> list[T]:
        """A copy of the whole list."""
        work = self._current()
        if work.begun is None:
            committed = self._committed[self.scope.key_text]
            work.begun = [self.decode(committed[index]) for index in range(work.same)]
        return [*work.begun, *work.added]

    def __iter__(self) -> Iterator[T]:
        """The items of the current key."""
        return iter(self.items())

    def __len__(self) -> int:
        """How many items the current key has."""
        work = self._current()
        return work.same + len(work.added)

    def _current(self) -> _ListWork:
        key = self.scope.key_text
        work = self._work.get(key)
        if work is None:
            same = len(self._committed.get(key, _NOTHING))
            # Items of a list end together, with the newest of them.
            work = self._work[key] = _ListWork(same if self.alive(key, str(same - 1)) else 0)
        return work

    def places(self) -> Iterator[tuple[str, str]]:
        return ((key, str(index)) for key, items in self._committed.items() for index in items)

    def entry(self, key: str, sub: str) -> Entry | None:
        payload = self._committed.get(key, _NOTHING).get(int(sub))
        return None if payload is None else Entry(self.name, key, sub, payload, self.expiries.get((key, sub), 0))

    def forget(self, key: str, sub: str) -> Entry | None:
        items = self._committed.get(key)
        if items is None or int(sub) != len(items) - 1:
            return None  # a newer item keeps the list
        self._count -= len(items)
        del self._committed[key]
        return Entry(self.name, key, "0", None)

    def entry_count(self) -> int:
        return self._count

    def _commit(self, entry: Entry) -> None:
        index = int(entry.sub)
        items = self._committed.setdefault(entry.key, {})
        before = len(items)
        if entry.payload is None:
            for gone in [other for other in items if other >= index]:
                del items[gone]
        else:
            items[index] = entry.payload
        self._count += len(items) - before
        if not items:
            del self._committed[entry.key]
        self.note_expiry(entry)

    def _changed(self, expires: Micros) -> Iterator[Entry]:
        for key, work in self._work.items():
            if work.is_changed:
                length = work.same + len(work.added)
                if len(self._committed.get(key, _NOTHING)) > length:
                    yield Entry(self.name, key, str(length), None)
                for index, value in enumerate(work.added, work.same):
                    yield Entry(self.name, key, str(index), self.encode(value), expires)

    def _forget_work(self) -> None:
        self._work.clear()
        self._ready = []

    def _is_changed(self, key: str, sub: str) -> bool:
        work = self._work.get(key)
        return work is not None and work.is_changed
