"""The cell of a value per key. Those of many keys are written to the state log in blocks.

Values that end by themselves are written one by one, as those of older versions are: each has its own end.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic

from penstock.clock import Micros
from penstock.stream.engine.blocks import (
    ABSENT,
    Kept,
    block_entries,
    block_of,
    converted_block,
    held_of,
    keep,
    key_groups,
    packed,
    plain_of,
    probe_block,
)
from penstock.stream.engine.state_store import Cell, Entry
from penstock.stream.state import Declared, fresh

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)  # of a state that is asked for by its name
else:
    T = typing.TypeVar("T")

BLOCK = "*"  # sub-key of blocks; values that are written one by one have none
_UNREAD: Any = object()  # the value was not read yet


class ValueCell(Cell, Generic[T]):
    """The value of the current key; it is true if there is one, whatever it is."""

    def __init__(self, declared: Declared[Any], default: Any) -> None:
        super().__init__(declared)
        self._default = default
        self._plain = plain_of(declared.type)
        self._committed: dict[str, Kept] = {}
        self._work: dict[str, Any] = {}  # since the last checkpoint; ABSENT if it was cleared
        self._read: dict[str, Any] = {}  # values that were decoded
        self._ready_block: tuple[dict[str, Kept], list[str]] = {}, []

    # --- the current key -------------------------------------------------------------------------------

    def get(self, default: T = ABSENT) -> T:
        """The value, or the default."""
        key = self.scope.key_text
        value: Any = self._work.get(key, _UNREAD)
        if value is _UNREAD:
            value = self._committed_value(key)
        if value is ABSENT:
            value = fresh(self._default) if default is ABSENT else default
        answer: T = value
        return answer

    def set(self, value: T) -> None:
        """Set the value."""
        if self.scope.strict:
            self.check(value)
        self._work[self.scope.key_text] = value

    def clear(self) -> None:
        """Remove the value."""
        self._work[self.scope.key_text] = ABSENT

    def __bool__(self) -> bool:
        """Whether the current key has a value; a default is none."""
        key = self.scope.key_text
        value = self._work.get(key, _UNREAD)
        return key in self._committed and self.alive(key) if value is _UNREAD else value is not ABSENT

    def _committed_value(self, key: str) -> Any:
        held = self._committed.get(key, ABSENT)
        if self.ttl and not self.alive(key):
            return ABSENT
        if held.__class__ is not bytes:
            return held
        value = self._read.get(key, _UNREAD)
        if value is _UNREAD:
            value = self._read[key] = self.decode(held)
        return value

    # --- many keys -------------------------------------------------------------------------------------

    def fold(
        self, keys: list[str], partials: Iterable[Any], initial: Any,
        combined: Callable[[list[Any], Iterable[Any]], list[Any]],
    ) -> None:  # fmt: skip
        """Add to the values of many keys what their records come to."""
        base = {key: self._committed_value(key) for key in keys} if self.ttl else self._committed
        held = held_of(keys, self._work, base, self._committed_value)
        if not {type(ABSENT), type(None)}.isdisjoint(map(type, held)):
            held = [fresh(initial) if value is ABSENT or value is None else value for value in held]
        self._work.update(zip(keys, combined(held, partials), strict=True))

    def values_of(self, keys: Iterable[str]) -> list[Any]:
        """The values of keys that were set since the last checkpoint."""
        return list(map(self._work.__getitem__, keys))

    # --- checkpoints -----------------------------------------------------------------------------------

    def changes(self) -> list[Entry]:
        if self.ttl:
            return super().changes()
        values = {key: value for key, value in self._work.items() if value is not ABSENT}
        gone = [key for key in self._work if key not in values and key in self._committed]
        self._ready_block = packed(values, self._plain, self.encode), gone
        return list(block_entries(self.name, BLOCK, *self._ready_block))

    def apply(self) -> None:
        keep(self._committed, *self._ready_block)
        super().apply()

    def _changed(self, expires: Micros) -> Iterator[Entry]:
        for key, value in self._work.items():
            if value is ABSENT:
                yield Entry(self.name, key, "", None)
            else:
                yield Entry(self.name, key, "", self.encode(value), expires)

    def _forget_work(self) -> None:
        self._work, self._read, self._ready, self._ready_block = {}, {}, [], ({}, [])

    def _is_changed(self, key: str, sub: str) -> bool:
        return key in self._work

    # --- what is stored ----------------------------------------------------------------------------------

    def _commit(self, entry: Entry) -> None:
        if entry.sub == BLOCK:
            self._commit_block(*block_of(entry))
            return
        if entry.payload is None:
            self._committed.pop(entry.key, None)
        else:
            self._committed[entry.key] = entry.payload
        if self.ttl:
            self.note_expiry(entry)

    def _commit_block(self, values: dict[str, Kept], gone: list[str]) -> None:
        keep(self._committed, values, gone)
        if self.expiries:  # what was written in blocks has no end
            for key in (*values, *gone):
                self.expiries.pop((key, ""), None)

    def places(self) -> Iterator[tuple[Any, str]]:
        """Each key, or some keys at a time if they are written in blocks."""
        if self.ttl:
            return ((key, "") for key in self._committed)
        return ((some, BLOCK) for some in key_groups(self._committed))

    def entries(self, key: Any, sub: str) -> Iterator[Entry]:
        if sub != BLOCK:
            return super().entries(key, sub)
        # What this checkpoint changes comes with it.
        block, work = self._committed, self._work
        values = {each: block[each] for each in key if each in block and each not in work}
        return block_entries(self.name, BLOCK, values, [])

    def entry(self, key: str, sub: str) -> Entry | None:
        held = self._committed.get(key, ABSENT)
        if held is ABSENT:
            return None
        payload = held if isinstance(held, bytes) else self.encode(held)
        return Entry(self.name, key, "", payload, self.expiries.get((key, ""), 0))

    def forget(self, key: str, sub: str) -> Entry | None:
        return None if self._committed.pop(key, ABSENT) is ABSENT else Entry(self.name, key, "", None)

    def entry_count(self) -> int:
        return len(self._committed)

    def weight(self, entry: Entry) -> int:
        return entry.expires if entry.sub == BLOCK else 1

    def probe(self, entry: Entry) -> None:
        if entry.sub == BLOCK:
            probe_block(entry, self.decode)
        else:
            super().probe(entry)

    def converted(self, entry: Entry, convert: Callable[[str, Any], Any]) -> Entry:
        if entry.sub == BLOCK:
            return converted_block(entry, lambda value: value, convert, self.encode)
        return super().converted(entry, convert)
