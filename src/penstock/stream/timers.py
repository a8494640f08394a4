"""Keyed timers in event and in processing time: one per key, kind and name; they fire by (time, key)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from penstock.clock import Micros, from_micros

SLACK = 64  # outdated moments that are kept beside twice as many as are valid

Kind = Literal["event", "processing"]


class Timer(msgspec.Struct, frozen=True):
    """A timer that fires: its key, its name, and the time it was set to.

    Key and name are the scalars that they were given as; inside of the engine they are canonical texts.
    """

    key: Any
    name: Any
    time_us: Micros
    kind: Kind = "event"

    @property
    def time(self) -> object:
        """The moment as a datetime."""
        return from_micros(self.time_us)


Place = tuple[Kind, str, str]  # kind, key, name


class Timers:
    """The timers of one task; changes since the last checkpoint can be taken back."""

    def __init__(self) -> None:
        """No timers yet."""
        self._set: dict[Place, Micros] = {}
        self._heaps: dict[Kind, list[tuple[Micros, str, str]]] = {"event": [], "processing": []}
        self._before: dict[Place, Micros | None] = {}

    def set(self, kind: Kind, key: str, name: str, at: Micros) -> None:
        """Set or move a timer."""
        place = (kind, key, name)
        old = self._set.get(place)
        if old == at:
            return
        self._before.setdefault(place, old)
        self._set[place] = at
        heap = self._heaps[kind]
        heapq.heappush(heap, (at, key, name))
        if len(heap) > 2 * len(self._set) + SLACK:
            # Timers that are moved again and again leave their old moments behind.
            heap[:] = [(at, key, name) for (other, key, name), at in self._set.items() if other == kind]
            heapq.heapify(heap)

    def clear(self, kind: Kind, key: str, name: str) -> None:
        """Remove a timer; harmless if there is none."""
        place = (kind, key, name)
        old = self._set.pop(place, None)
        if old is not None:
            self._before.setdefault(place, old)

    def get(self, kind: Kind, key: str, name: str) -> Micros | None:
        """When a timer fires, or None if it is not set."""
        return self._set.get((kind, key, name))

    def next(self, kind: Kind) -> Micros | None:
        """When the first timer of a kind fires, or None."""
        heap = self._heaps[kind]
        while heap and self._set.get((kind, heap[0][1], heap[0][2])) != heap[0][0]:
            heapq.heappop(heap)  # moved or removed meanwhile
        return heap[0][0] if heap else None

    def take(self, kind: Kind, until: Micros) -> Timer | None:
        """Remove and return the first timer that is due."""
        at = self.next(kind)
        if at is None or at > until:
            return None
        _, key, name = heapq.heappop(self._heaps[kind])
        self.clear(kind, key, name)
        return Timer(key, name, at, kind)

    def changes(self) -> Iterator[tuple[Place, Micros | None]]:
        """What was set or removed since the last checkpoint."""
        for place, old in self._before.items():
            new = self._set.get(place)
            if new != old:
                yield place, new

    def apply(self) -> None:
        """Make the changes permanent: their checkpoint was committed."""
        self._before.clear()

    def rollback(self) -> None:
        """Undo the changes since the last checkpoint."""
        for (kind, key, name), old in self._before.items():
            if old is None:
                self._set.pop((kind, key, name), None)
            else:
                self._set[kind, key, name] = old
                heapq.heappush(self._heaps[kind], (old, key, name))
        self._before.clear()

    def load(self, place: Place, at: Micros | None) -> None:
        """Load a stored timer during a restore."""
        if at is None:
            self._set.pop(place, None)
        else:
            self._set[place] = at
            heapq.heappush(self._heaps[place[0]], (at, place[1], place[2]))

    def places(self) -> Iterator[Place]:
        """All timers that are set."""
        return iter(self._set)

    def at(self, place: Place) -> Micros | None:
        """When a timer fires."""
        return self._set.get(place)

    def __len__(self) -> int:
        """How many timers are set."""
        return len(self._set)
