"""Members ordered by a key that may change or go at any time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from penstock.clock import Micros

M = TypeVar("M")
Key: TypeAlias = tuple[int, ...]


class Ranking(Generic[M]):
    """A heap with lazy deletion: what lies in it counts only while ``_keys`` says the same of its member."""

    __slots__ = ("_heap", "_keys", "_pushed")

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[Key, int, M]] = []
        self._keys: dict[M, Key] = {}
        self._pushed = 0  # breaks ties: members need not have an order

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
            heappush(self._heap, (key, self._pushed, member))
        if len(self._heap) > 2 * len(self._keys) + 16:
            self._heap = [(key, number, member) for number, (member, key) in enumerate(self._keys.items())]
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
