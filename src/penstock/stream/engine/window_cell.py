"""The open windows of a task. All keys of one window are a block: it is filled, written and closed as a whole.

With many keys a window costs as little as a few numbers do. A block of a checkpoint holds the keys that were changed;
one entry says that a window has closed, for all its keys. Windows have no timers of their own: the end of a block says
when they close, in the order that timers would have, by end and key. They can be taken one by one as well, for when
one of them fails.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

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

_NOTHING: Any = {}


class Span(NamedTuple):
    """The time of a window; windows sort by their ends."""

    end: Micros
    start: Micros


class _Change(NamedTuple):
    """What a checkpoint does to a window."""

    window: Span
    is_over: bool  # what was kept of it goes, all of it
    values: dict[str, Kept]
    gone: list[str]


class WindowCell(Cell):
    """The value of every key and open window."""

    def __init__(self, declared: Declared[Any]) -> None:
        """The type declared is a struct of start, end and value."""
        super().__init__(declared)
        self._open: Any = get_origin(declared.type)
        self._plain = plain_of(*get_args(declared.type))
        self._committed: dict[Span, dict[str, Kept]] = {}
        self._work: dict[Span, dict[str, Any]] = {}  # since the last checkpoint; ABSENT if it was deleted
        self._read: dict[Span, dict[str, Any]] = {}  # values that were decoded
        self._closed: set[Span] = set()
        self._taken: dict[Span, set[str]] = {}  # keys whose windows were closed one by one
        self._taking: tuple[Span, list[str]] | None = None  # keys that are taken next, the last one first
        self._live: dict[Span, int] = {}  # how many keys a window has, without those taken
        self._ends: list[Span] = []  # a heap of the same windows
        self._changes: list[_Change] = []

    # --- the current key -------------------------------------------------------------------------------

    def get(self, window: Span, default: Any = None) -> Any:
        """The value of an open window."""
        value = self._value(window, self.scope.key_text)
        return default if value is ABSENT else value

    def set(self, window: Span, value: Any) -> None:
        """Set the value of a window, which opens it."""
        if self.scope.strict:
            self.check(self._open(window.start, window.end, value))
        key = self.scope.key_text
        self._drop_taken(window, (key,))
        if self._value(window, key) is ABSENT:
            self._grow(window, 1)
        self._work.setdefault(window, {})[key] = value

    def delete(self, window: Span) -> None:
        """Drop a window; harmless if it is not open."""
        key = self.scope.key_text
        if self._value(window, key) is ABSENT:
            return
        if key not in self._taken.get(window, ()):
            self._live[window] -= 1
            self._taking = None
        self._work.setdefault(window, {})[key] = ABSENT

    def _value(self, window: Span, key: str) -> Any:
        changed = self._work.get(window)
        if changed is not None and key in changed:
            return changed[key]
        held = self._base(window).get(key, ABSENT)
        if held.__class__ is not bytes:
            return held
        read = self._read.setdefault(window, {})
        if key not in read:
            read[key] = self.decode(held).value
        return read[key]

    def _drop_taken(self, window: Span, keys: Iterable[str]) -> None:
        """Windows that were taken are closed: these keys open them again."""
        taken = self._taken.get(window)
        if taken:
            again = taken.intersection(keys)
            taken -= again
            self._work.setdefault(window, {}).update(dict.fromkeys(again, ABSENT))

    def _base(self, window: Span) -> dict[str, Kept]:
        """What is committed of a window, if it was not closed since."""
        block: dict[str, Kept] = _NOTHING if window in self._closed else self._committed.get(window, _NOTHING)
        return block

    def _grow(self, window: Span, count: int) -> None:
        if window not in self._live:
            self._live[window] = 0
            heapq.heappush(self._ends, window)
        self._live[window] += count
        self._taking = None

    # --- all keys of a window --------------------------------------------------------------------------

    def fold(
        self, window: Span, partials: Mapping[str, Any], initial: Any,
        combined: Callable[[list[Any], Iterable[Any]], list[Any]],
    ) -> None:  # fmt: skip
        """Add to the values of many keys what their records come to."""
        self._drop_taken(window, partials)
        changed = self._work.setdefault(window, {})
        held = held_of(partials, changed, self._base(window), lambda key: self._value(window, key))
        opened = held.count(ABSENT)
        if opened:
            held = [fresh(initial) if value is ABSENT else value for value in held]
        changed.update(zip(partials, combined(held, partials.values()), strict=True))
        self._grow(window, opened)

    def ended_by(self, until: Micros) -> list[Span]:
        """The windows that are open and end by then, by their ends."""
        end = self.next_end()
        if end is None or end > until:
            return []
        return sorted(window for window, count in self._live.items() if count and window.end <= until)

    def values(self, window: Span) -> dict[str, Any]:
        """The values of all keys of a window, by the keys in their order."""
        values: dict[str, Any] = {**self._base(window), **self._work.get(window, _NOTHING)}
        if bytes in set(map(type, values.values())):
            return {key: self._value(window, key) for key in self.keys(window)}
        return {key: values[key] for key in self.keys(window)}

    def keys(self, window: Span) -> list[str]:
        """The keys of a window, in their order."""
        changed = self._work.get(window, _NOTHING)
        keys = [key for key, value in changed.items() if value is not ABSENT]
        keys += [key for key in self._base(window) if key not in changed]
        taken = self._taken.get(window)
        return sorted(keys) if not taken else sorted(key for key in keys if key not in taken)

    def close(self, window: Span) -> None:
        """Drop a window of all keys."""
        self._closed.add(window)
        self._work[window] = {}
        self._live[window] = 0
        self._taking = None

    # --- one window after the other ----------------------------------------------------------------------

    def next_end(self) -> Micros | None:
        """When the first window ends, or None if none is open."""
        while self._ends and not self._live[self._ends[0]]:
            del self._live[heapq.heappop(self._ends)]
        return self._ends[0].end if self._ends else None

    def take(self, until: Micros) -> tuple[str, Span] | None:
        """The first key and window that ends by then; it counts as closed from now on, whatever becomes of it."""
        end = self.next_end()
        if end is None or end > until:
            return None
        window = self._ends[0]
        if self._taking is None or self._taking[0] != window:
            self._taking = window, self.keys(window)[::-1]
        key = self._taking[1].pop()
        self._take(key, window)
        return key, window

    def take_one(self, key: str, window: Span) -> bool:
        """Take this one. Returns whether it was open."""
        if self._value(window, key) is ABSENT or key in self._taken.get(window, ()):
            return False
        if self._taking is not None and self._taking[0] == window:
            self._taking = None
        self._take(key, window)
        return True

    def _take(self, key: str, window: Span) -> None:
        self._taken.setdefault(window, set()).add(key)
        self._live[window] -= 1

    def open_windows(self) -> Iterator[tuple[str, Span]]:
        """Every key and window that is open."""
        return ((key, window) for window, count in sorted(self._live.items()) if count for key in self.keys(window))

    # --- checkpoints -----------------------------------------------------------------------------------

    def changes(self) -> list[Entry]:
        touched = sorted({*self._work, *self._closed, *self._taken})
        self._changes = [self._change(window) for window in touched]
        return [entry for change in self._changes for entry in self._entries(change)]

    def _change(self, window: Span) -> _Change:
        changed, taken, base = self._work.get(window, _NOTHING), self._taken.get(window, ()), self._base(window)
        values = {key: value for key, value in changed.items() if value is not ABSENT and key not in taken}
        gone = [key for key in {*taken, *changed} if key in base and key not in values]
        is_over = window in self._closed or len(gone) == len(base)
        return _Change(window, is_over, self._packed(window, values), [] if is_over else sorted(gone))

    def _packed(self, window: Span, values: dict[str, Any]) -> dict[str, Kept]:
        return packed(values, self._plain, lambda value: self.encode(self._open(window.start, window.end, value)))

    def _entries(self, change: _Change) -> Iterator[Entry]:
        if change.is_over and change.window in self._committed:
            yield Entry(self.name, "", _text(change.window), None, 1)
        yield from block_entries(self.name, _text(change.window), change.values, change.gone)

    def apply(self) -> None:
        for window, is_over, values, gone in self._changes:
            if is_over:
                self._committed.pop(window, None)
            self._keep(window, values, gone)
        self._forget_work()

    def _keep(self, window: Span, values: Mapping[str, Kept], gone: Iterable[str]) -> None:
        block = self._committed.setdefault(window, {})
        keep(block, values, gone)
        if not block:
            del self._committed[window]

    def rollback(self) -> None:
        touched = {*self._work, *self._closed, *self._taken}
        self._taking = None
        self._forget_work()
        for window in touched:
            self._recount(window)

    def _recount(self, window: Span) -> None:
        """Count the committed keys of a window again."""
        self._grow(window, 0)
        self._live[window] = len(self._committed.get(window, _NOTHING))

    def _forget_work(self) -> None:
        self._work, self._read, self._taken, self._closed = {}, {}, {}, set()
        self._changes = []

    # --- what is stored ----------------------------------------------------------------------------------

    def load(self, entry: Entry) -> None:
        window = _window(entry.sub)
        if entry.payload is None:
            self._committed.pop(window, None)
        else:
            self._keep(window, *block_of(entry))
        self._recount(window)

    def probe(self, entry: Entry) -> None:
        probe_block(entry, self.decode)

    def converted(self, entry: Entry, convert: Callable[[str, Any], Any]) -> Entry:
        window = _window(entry.sub)
        return converted_block(
            entry, lambda value: {"start": window.start, "end": window.end, "value": value}, convert, self.encode
        )

    def weight(self, entry: Entry) -> int:
        return entry.expires

    def places(self) -> Iterator[tuple[Any, str]]:
        """Some keys of a window at a time."""
        for window, block in self._committed.items():
            yield from ((some, _text(window)) for some in key_groups(block))

    def entries(self, key: Any, sub: str) -> Iterator[Entry]:
        # What this checkpoint changes comes with it.
        block, changed = self._committed.get(_window(sub), _NOTHING), self._work.get(_window(sub), _NOTHING)
        values = {each: block[each] for each in key if each in block and each not in changed}
        return block_entries(self.name, sub, values, [])

    def entry_count(self) -> int:
        return sum(map(len, self._committed.values()))


def _text(window: Span) -> str:
    return f"{window.start}/{window.end}"


def _window(text: str) -> Span:
    start, _, end = text.partition("/")
    return Span(int(end), int(start))
