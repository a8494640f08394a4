"""Members ordered by a key that may change or go at any time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeAlias, TypeVar

from penstock.clock import Micros

M = TypeVar("M")
Key: TypeAlias = tuple[int, ...]


class Ranking(Generic[M]):
    """A heap with lazy deletion: what lies in it counts only while ``_keys`` says the same of its member."""

    __slots__ = ("_by_member", "_heap", "_keys", "_pushed")

    def __init__(self, *, by_member: bool = False) -> None:
        """Start empty. Who was ranked first goes first among equals, or ``by_member`` the lesser member."""
        self._heap: list[tuple[Key, Any, M]] = []
        self._keys: dict[M, Key] = {}
        self._by_member = by_member
        self._pushed = 0

    def __bool__(self) -> bool:
        """Whether it has members."""
        return bool(self._keys)

    def __iter__(self) -> Iterator[M]:
        """The members, in no order."""
        return iter(self._keys)

    def set(self, member: M, key: Key | None) -> None:
        """Rank a member, or rank it again; None takes it out."""
        if key is None:
            self._keys.pop(member, None)
        elif self._keys.get(member) != key:
            self._keys[member] = key
            self._pushed += 1
            heappush(self._heap, (key, member if self._by_member else self._pushed, member))
        if len(self._heap) > 2 * len(self._keys) + 16:
            ranked = enumerate(self._keys.items())
            self._heap = [(key, member if self._by_member else number, member) for number, (member, key) in ranked]
            heapify(self._heap)

    def first(self) -> tuple[Key, M] | None:
        """The lowest key and its member."""
        while self._heap:
            key, _, member = self._heap[0]
            if self._keys.get(member) == key:
                return key, member
            heappop(self._heap)
        return None

    def until(self, now: Micros, limit: int) -> list[M]:
        """Up to ``limit`` members whose time has come, the earliest first; they stay."""
        due: list[tuple[Key, M]] = []
        while len(due) < limit and (first := self.first()) and first[0][0] <= now:
            due.append(first)
            self.set(first[1], None)
        for key, member in due:
            self.set(member, key)
        return [member for _, member in due]
