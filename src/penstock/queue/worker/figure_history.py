"""Figures for those who look again and again: a page that is open, a view in a terminal.

A document is read again only after it was written again, and a block of minutes is added up again only then. Sums over
a block are kept with it, so that a day of many handlers costs little more than its last minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND
from penstock.queue.protocol import Document
from penstock.queue.worker.figures import (
    BLOCK,
    HOURS_BLOCK,
    HOURS_PREFIX,
    MINUTE,
    PREFIX,
    Tally,
    added_up,
    tallies_of,
)

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

HandlerName = tuple[str, bool]  # of a queue, or of a family

OVERLAP = 60 * SECOND  # a write that was under way at the last look has an earlier time
SETTLED = 60 * MINUTE  # after its end a block is written only if the store was away for as long


class Block:
    """What all workers did in the minutes of one block, by handler."""

    def __init__(self, documents: Iterable[bytes]) -> None:
        """Add up the documents of all workers."""
        joined: dict[HandlerName, dict[int, Tally]] = {}
        for document in documents:
            for tally in tallies_of(document):
                minutes = joined.setdefault((tally.queue, tally.is_family), {})
                known = minutes.get(tally.minute)
                if known is None:
                    minutes[tally.minute] = tally
                else:
                    known.join(tally)
        self.handlers = {
            handler: sorted(minutes.values(), key=lambda tally: tally.minute) for handler, minutes in joined.items()
        }
        self._by_minute: dict[str, list[Tally]] = {}
        self._by_handler: dict[str, list[Tally]] = {}

    def tallies(self, prefix: str) -> Iterator[Tally]:
        """Of handlers whose name starts with a prefix."""
        for handler, tallies in self.handlers.items():
            if handler[0].startswith(prefix):
                yield from tallies

    def by_minute(self, prefix: str) -> list[Tally]:
        """One tally per minute, for all handlers together."""
        if prefix not in self._by_minute:
            self._by_minute[prefix] = minute_by_minute(self.tallies(prefix))
        return self._by_minute[prefix]

    def by_handler(self, prefix: str) -> list[Tally]:
        """One tally per handler, for all minutes together."""
        if prefix not in self._by_handler:
            self._by_handler[prefix] = added_up(self.tallies(prefix))
        return self._by_handler[prefix]


class Series:
    """The blocks of some time, as they were at one look."""

    def __init__(self, blocks: dict[int, Block], size: int) -> None:
        """``blocks`` by number; each has so many minutes."""
        self._blocks = sorted(blocks.items())
        self._size = size

    def since(self, first: int, prefix: str = "") -> list[Tally]:
        """One tally per minute and handler, from a minute on."""
        return [
            tally
            for number, block in self._from(first)
            for tally in block.tallies(prefix)
            if number * self._size >= first or tally.minute >= first
        ]

    def by_minute(self, first: int, prefix: str = "") -> list[Tally]:
        """One tally per minute, from a minute on."""
        return [tally for _, block in self._from(first) for tally in block.by_minute(prefix) if tally.minute >= first]

    def by_handler(self, first: int, prefix: str = "") -> list[Tally]:
        """One tally per handler, from a minute on."""
        whole: list[Tally] = []
        for number, block in self._from(first):
            if number * self._size >= first:
                whole += block.by_handler(prefix)
            else:
                whole += [tally for tally in block.tallies(prefix) if tally.minute >= first]
        return added_up(whole)

    def of_queue(self, queue: str, first: int) -> list[Tally]:
        """One tally per minute of one queue, or of the family that it belongs to."""
        blocks = [block for _, block in self._from(first)]
        handler = handler_of(queue, {handler for block in blocks for handler in block.handlers})
        if handler is None:
            return []
        return [tally for block in blocks for tally in block.handlers.get(handler, ()) if tally.minute >= first]

    def _from(self, first: int) -> Iterator[tuple[int, Block]]:
        return ((number, block) for number, block in self._blocks if (number + 1) * self._size > first)


class FigureHistory:
    """Looks at the figures of a store, by the minute or by the hour."""

    def __init__(self, store: QueueStore, *, by_hour: bool = False) -> None:
        """Nothing is read yet."""
        self._store = store
        self._prefix, self._size = (HOURS_PREFIX, HOURS_BLOCK * 60) if by_hour else (PREFIX, BLOCK)
        self._lock = threading.Lock()
        self._back = 0  # how many minutes the furthest look went back
        self._read_until = 0
        self._blocks: dict[int, Block] = {}
        self._known: dict[int, dict[str, Document]] = {}
        self._settled: set[int] = set()  # blocks whose documents are known without their values

    def look(self, minutes: int) -> Series:
        """What was done in the last minutes, and perhaps before."""
        with self._lock:
            if minutes > self._back:
                self._back = minutes
                self._forget()
            now = self._store.now()
            if not self._take_in(now // MINUTE, self._read_until - OVERLAP):
                self._forget()
                self._take_in(now // MINUTE, 0)
            self._read_until = now
            return Series(self._blocks, self._size)

    def _forget(self) -> None:
        self._read_until = 0
        self._blocks, self._known, self._settled = {}, {}, set()

    def _take_in(self, minute: int, since_us: int) -> bool:
        """Read what was written since a time. Returns False if that concerns a block that was taken for settled."""
        first = (minute - self._back) // self._size
        changed = set()
        since_us = max(since_us, first * self._size * MINUTE)
        for document in self._store.driver.documents(self._prefix, since_us=since_us):
            number = int(document.name.rpartition(".")[2])
            if number < first:
                continue
            known = self._known.setdefault(number, {})
            before = known.get(document.name)
            if before is not None and (before.version, before.changed_us) == (document.version, document.changed_us):
                continue
            if number in self._settled:
                return False
            known[document.name] = document
            changed.add(number)
        added = {number: Block(document.value for document in self._known[number].values()) for number in changed}
        # A series that was given away keeps its own blocks.
        self._blocks = {number: block for number, block in {**self._blocks, **added}.items() if number >= first}
        self._known = {number: known for number, known in self._known.items() if number >= first}
        for number in self._known.keys() - self._settled:
            if (number + 1) * self._size + SETTLED // MINUTE < minute:
                self._settle(number)
        self._settled &= self._known.keys()
        return True

    def _settle(self, number: int) -> None:
        """Let go of what its documents say: the block has it."""
        self._settled.add(number)
        known = self._known[number]
        for name, document in known.items():
            known[name] = msgspec.structs.replace(document, value=b"")


def handler_of(queue: str, handlers: Iterable[HandlerName]) -> HandlerName | None:
    """The handler of a queue among these: its own, or else that of the longest family it belongs to."""
    names = set(handlers)
    if (queue, False) in names:
        return queue, False
    families = [handler for handler in names if handler[1] and queue.startswith(handler[0])]
    return max(families, key=lambda handler: len(handler[0]), default=None)


def minute_by_minute(tallies: Iterable[Tally]) -> list[Tally]:
    """Tallies of many handlers added up to one per minute."""
    joined: dict[int, Tally] = {}
    for tally in tallies:
        known = joined.get(tally.minute)
        if known is None:
            known = joined[tally.minute] = Tally(tally.minute, "", False, durations=[])
        known.join(tally)
    return [joined[minute] for minute in sorted(joined)]
