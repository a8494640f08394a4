"""Figures: what workers did, minute by minute, kept in the store so that a chart shows all of them.

Each worker adds up its own ended attempts and writes them to documents of its own, one per ten minutes and one per six
hours with a tally per hour, so that no two workers write the same one. The figures are for charts; exact totals come
from the history.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import SECOND, Micros
from penstock.queue.protocol import DocumentWrite, Ending

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context
    from penstock.queue.queues import QueueStore

PREFIX = "penstock.figures."
MINUTE: Micros = 60 * SECOND
BLOCK = 10  # minutes in one document
KEPT: Micros = 24 * 60 * MINUTE
HOURS_PREFIX = "penstock.hours."
HOURS_BLOCK = 6  # hours in one document
HOURS_KEPT: Micros = 30 * 24 * 60 * MINUTE
MOST_PENDING = 200  # attempts that are noted before they are added up
MOST_HANDLERS = 200  # that a document tells apart; the others are added up under one name
OTHERS = "(others)"

# The upper ends of the classes of a handler's run time, in seconds; the last class has none.
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class Tally(msgspec.Struct, array_like=True):
    """What one handler did in one minute. ``failed`` attempts include those that made dead letters."""

    minute: int
    queue: str
    is_family: bool
    done: int = 0
    failed: int = 0
    dead: int = 0
    seconds: float = 0.0
    durations: list[int] = []  # attempts by class of run time, without the empty classes at the end

    def add(self, outcome: str, seconds: float | None) -> None:
        """Count one ended attempt."""
        if outcome == "done":
            self.done += 1
        elif outcome == "retry":
            self.failed += 1
        elif outcome == "dead":
            self.failed += 1
            self.dead += 1
        else:
            return
        if seconds is not None:
            self.seconds += seconds
            place = bisect_left(BOUNDS, seconds)
            try:
                self.durations[place] += 1
            except IndexError:
                self.durations += [0] * (place - len(self.durations)) + [1]

    def join(self, other: Tally) -> None:
        """Add another one to this."""
        self.done += other.done
        self.failed += other.failed
        self.dead += other.dead
        self.seconds += other.seconds
        self.durations += [0] * (len(other.durations) - len(self.durations))
        for place, count in enumerate(other.durations):
            self.durations[place] += count

    def quantile(self, share: float) -> float | None:
        """The run time within which this share of the attempts ended, to the accuracy of the classes."""
        wanted, seen = share * sum(self.durations), 0
        for place, count in enumerate(self.durations):
            seen += count
            if count and seen >= wanted:
                return BOUNDS[min(place, len(BOUNDS) - 1)]
        return None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Tally])


class Figures:
    """What one worker has to tell; filled by its round trips, written by its :class:`Presence`."""

    def __init__(self, name: str) -> None:
        """``name`` is the worker's part of the documents' names."""
        self._name = name
        self._lock = threading.Lock()
        self._minute = 0
        self._pending: list[tuple[Any, str, float | None]] = []  # of this minute: all that the hot path touches
        self._current: dict[Any, Tally] = {}  # of this minute, by handler
        self._blocks: dict[int, dict[tuple[int, str, bool], Tally]] = {}
        self._hours: dict[int, list[Tally]] = {}  # of this worker's last hours, one tally per handler
        self._unwritten: set[int] = set()

    def count(self, ended: Iterable[tuple[Ending, Context[Any]]], now: Micros) -> None:
        """Count attempts whose outcomes the store has accepted."""
        minute = now // MINUTE
        with self._lock:
            if minute != self._minute:
                self._fold()
                self._minute = minute
            pending = self._pending
            for ending, context in ended:  # often one alone, for which a comprehension would cost more
                pending.append((context.handler, ending.outcome, context.seconds))
            if len(pending) >= MOST_PENDING:
                self._add_up()

    def _add_up(self) -> None:
        """Add the attempts that were noted to their tallies: many at once cost half of what they cost one by one."""
        current, pending = self._current, self._pending
        for handler, outcome, seconds in pending:
            tally = current.get(handler)
            if tally is None:
                tally = current[handler] = self._tally_of(handler.queue, self._minute)
            tally.add(outcome, seconds)
        pending.clear()

    def _tally_of(self, queue: Any, minute: int) -> Tally:
        block = self._blocks.setdefault(minute // BLOCK, {})
        key = (minute, queue.name, queue.is_family)
        if len(block) >= MOST_HANDLERS * BLOCK and key not in block:
            key = (minute, OTHERS, False)
        return block.setdefault(key, Tally(*key, durations=[]))

    def _fold(self) -> None:
        """What was counted since the last time is to be written."""
        self._add_up()
        if self._current:
            self._unwritten.add(self._minute // BLOCK)
            self._current.clear()

    def notes(self) -> tuple[list[DocumentWrite], set[int]]:
        """What to write now, and what to tell :meth:`written` once it is."""
        with self._lock:
            self._fold()
            blocks, self._unwritten = self._unwritten, set()
            notes = [
                DocumentWrite(f"{PREFIX}{self._name}.{block}", _encoder.encode(list(self._blocks[block].values())))
                for block in sorted(blocks)
            ]
            return notes + self._notes_of_hours({block * BLOCK // 60 for block in blocks}), blocks

    def _notes_of_hours(self, hours: set[int]) -> list[DocumentWrite]:
        """The documents that these hours are in; an hour is added up from its minutes, which are still here."""
        for hour in hours:
            minutes = [
                tally for block, tallies in self._blocks.items() if block * BLOCK // 60 == hour
                for tally in tallies.values()
            ]  # fmt: skip
            self._hours[hour] = added_up(minutes, hour * 60)
        notes = []
        for block in sorted({hour // HOURS_BLOCK for hour in hours}):
            some = [tally for hour, tallies in self._hours.items() if hour // HOURS_BLOCK == block for tally in tallies]
            notes.append(DocumentWrite(f"{HOURS_PREFIX}{self._name}.{block}", _encoder.encode(some)))
        return notes

    def written(self, blocks: set[int]) -> None:
        """These are in the store; those of hours that have ended are not needed any more."""
        with self._lock:
            hour = self._minute // 60
            for block in set(self._blocks) - self._unwritten:
                if block * BLOCK // 60 < hour:
                    del self._blocks[block]
            for old in [block for block in self._hours if block // HOURS_BLOCK < hour // HOURS_BLOCK]:
                del self._hours[old]

    def not_written(self, blocks: set[int]) -> None:
        """These go with the next ones."""
        with self._lock:
            self._unwritten |= blocks


def read_figures(store: QueueStore, *, since_us: Micros) -> list[Tally]:
    """What all workers did from the minute of a time on: one tally per minute and handler, by time."""
    return _read(store, PREFIX, since_us)


def read_hours(store: QueueStore, *, since_us: Micros) -> list[Tally]:
    """The same by the hour, for up to 30 days: ``minute`` is the first of the hour."""
    return _read(store, HOURS_PREFIX, since_us - since_us % (60 * MINUTE))


def tallies_of(document: bytes) -> list[Tally]:
    """The tallies in a document."""
    return _decoder.decode(document)


def _read(store: QueueStore, prefix: str, since_us: Micros) -> list[Tally]:
    joined: dict[tuple[int, str, bool], Tally] = {}
    first = since_us // MINUTE
    for document in store.driver.documents(prefix, since_us=since_us):
        for tally in tallies_of(document.value):
            if tally.minute < first:
                continue
            known = joined.get((tally.minute, tally.queue, tally.is_family))
            if known is None:
                joined[tally.minute, tally.queue, tally.is_family] = tally
            else:
                known.join(tally)
    return sorted(joined.values(), key=lambda tally: (tally.minute, tally.queue))


def added_up(tallies: Iterable[Tally], minute: int = 0) -> list[Tally]:
    """One tally per handler, as of one minute."""
    joined: dict[tuple[str, bool], Tally] = {}
    for tally in tallies:
        key = (tally.queue, tally.is_family)
        known = joined.get(key)
        if known is None:
            known = joined[key] = Tally(minute, *key, durations=[])
        known.join(tally)
    return list(joined.values())


def total(tallies: Iterable[Tally]) -> Tally:
    """All of these as one."""
    joined = Tally(0, "", False, durations=[])
    for tally in tallies:
        joined.minute = max(joined.minute, tally.minute)
        joined.join(tally)
    return joined
