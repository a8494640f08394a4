"""A dict whose changes can be undone, and which tells those who follow it of each one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Changes(list[tuple["Table[Any, Any]", Any, Any]]):
    """What was changed so far, in order: table, key, and the value that was there before."""

    def undo(self, mark: int = 0) -> None:
        """Take back everything since a mark, the last change first."""
        while len(self) > mark:
            table, key, before = self.pop()
            table.restore(key, before)


class Table(dict[K, V], Generic[K, V]):
    """One collection. Values are never changed in place: a change is a new value."""

    __slots__ = ("_changes", "_follow", "name")

    def __init__(
        self, name: str, changes: Changes, follow: Callable[[K, V | None, V | None], None] | None = None
    ) -> None:
        """Start empty. ``follow`` gets key, old and new value of each change, also of one that is undone."""
        super().__init__()
        self.name = name
        self._changes = changes
        self._follow = follow

    def __setitem__(self, key: K, value: V) -> None:
        """Set, and remember what was there."""
        before = self.get(key)
        self._changes.append((self, key, before))
        super().__setitem__(key, value)
        if self._follow is not None:
            self._follow(key, before, value)

    def __delitem__(self, key: K) -> None:
        """Delete, and remember what was there."""
        before = self[key]
        self._changes.append((self, key, before))
        super().__delitem__(key)
        if self._follow is not None:
            self._follow(key, before, None)

    def set(self, key: K, value: V | None) -> None:
        """Set, or delete where the value is None and something is there."""
        if value is not None:
            self[key] = value
        elif key in self:
            del self[key]

    def restore(self, key: K, value: V | None) -> None:
        """Put a value back that was there before; this is not a change that could be undone."""
        now = self.get(key)
        if value is None:
            self.pop(key, None)
        else:
            super().__setitem__(key, value)
        if self._follow is not None:
            self._follow(key, now, value)
