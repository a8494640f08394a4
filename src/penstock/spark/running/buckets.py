"""State and timers of a task in Spark's state store.

A call to the store is a round trip to the JVM, so keys are kept together in buckets: a bucket is read when one of its
keys comes up or one of its timers is due, and written once per turn if something in it changed. The head says when the
first timers of every bucket are due, so that no others have to be read. As keys become more, so do buckets.

A worker keeps the tasks it has worked on. The head carries a mark that is new with every turn: a kept task whose mark
is that of the head has exactly the state that the store has, and nothing is read again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.errors import PenstockError
from penstock.ids import new_id
from penstock.log.record import key_bytes
from penstock.stream.computation import Computation
from penstock.stream.engine.cells import ListCell
from penstock.stream.engine.changelog import KINDS, upgraded
from penstock.stream.engine.state_store import Cell, Entry
from penstock.stream.engine.watermark import LOWEST, Watermark
from penstock.stream.timers import Kind, Timers

FIRST = 16  # buckets of a new task
FULL = 512  # entries of a bucket, on average, that are too many
GROWTH = 4
SHIFT = 12  # partitions are chosen by the low bits of the same hash

Places = dict[tuple[str, str, str], tuple[bytes, Micros]]  # state, key, sub: payload, expires


class Kept(Protocol):
    """Spark's state store, as far as one task sees it."""

    def head(self) -> bytes | None:
        """What is known of the task itself."""

    def put_head(self, blob: bytes) -> None:
        """Keep it."""

    def bucket(self, number: int) -> bytes | None:
        """One bucket."""

    def put_bucket(self, number: int, blob: bytes) -> None:
        """Keep it."""


class Content(msgspec.Struct, array_like=True, gc=False):
    """What the head knows of a bucket."""

    entries: int = 0
    event: Micros | None = None  # when its first timers are due
    processing: Micros | None = None

    def due(self, kind: Kind) -> Micros | None:
        """When the first timer of a kind is due."""
        return self.event if kind == "event" else self.processing


@prepared
class Head(msgspec.Struct):
    """What is known of a task without reading its buckets."""

    mark: str = ""
    version: int = 1
    buckets: int = FIRST
    contents: dict[int, Content] = {}
    low: Micros = LOWEST
    highs: dict[str, Micros] = {}
    heard: dict[str, Micros] = {}
    swept: int = 0
    offsets: dict[str, int] = {}  # by log: what all this has seen


class Buckets:
    """The buckets of one task that a worker has read, and which of them changed."""

    def __init__(self, version: int) -> None:
        """Nothing is read yet; ``version`` is the computation's."""
        self._kept: Kept | None = None
        self._head = Head(version=version)
        self._read: dict[int, Places] = {}
        self._unread: set[int] = set()
        self._dirty: set[int] = set()

    @property
    def kept(self) -> Kept:
        """The state store; only within a turn."""
        assert self._kept is not None  # noqa: S101 - opened by every turn
        return self._kept

    @staticmethod
    def mark_of(kept: Kept) -> str:
        """The mark of what the state store has now."""
        blob = kept.head()
        return "" if blob is None else msgspec.msgpack.decode(blob, type=Head).mark

    @staticmethod
    def offsets_of(kept: Kept) -> dict[str, int]:
        """By log: up to where records are in what the state store has now."""
        blob = kept.head()
        return {} if blob is None else msgspec.msgpack.decode(blob, type=Head).offsets

    @property
    def mark(self) -> str:
        """The mark of what is here."""
        return self._head.mark

    def open(self, kept: Kept) -> None:
        """Begin a turn."""
        self._kept = kept

    def restore(self, watermark: Watermark) -> None:
        """Read the head."""
        blob = self.kept.head()
        if blob is None:
            return
        head = self._head = msgspec.msgpack.decode(blob, type=Head)
        self._unread = set(head.contents)
        watermark.load(head.low, head.highs)
        watermark.heard.update({one: at for one, at in head.heard.items() if one in watermark.heard})

    @property
    def version(self) -> int:
        """Of which version of the computation all this is."""
        return self._head.version

    # --- reading -------------------------------------------------------------------------------------

    def places(self, number: int) -> Places:
        """What a bucket holds."""
        found = self._read.get(number)
        if found is None:
            if number in self._unread:
                self._load(number)
                return self._read[number]
            found = self._read[number] = {}
        return found

    def due(self, kind: Kind, until: Micros) -> list[int]:
        """The buckets that have timers up to a time."""
        found = ((number, one.due(kind)) for number, one in self._head.contents.items())
        return sorted(number for number, at in found if at is not None and at <= until)

    def next(self, kind: Kind) -> Micros | None:
        """When the first timer of a kind is due, as of the last save."""
        found = (one.due(kind) for one in self._head.contents.values())
        return min((at for at in found if at is not None), default=None)

    def number(self, key: str) -> int:
        """The bucket of a key."""
        return (zlib.crc32(key_bytes(key)) >> SHIFT) % self._head.buckets

    def _all(self) -> None:
        for number in sorted(self._unread):
            self._load(number)

    def _load(self, number: int) -> None:
        self._read[number] = {(state, key, sub): (payload, at) for state, key, sub, payload, at in self._fetch(number)}

    def _fetch(self, number: int) -> list[tuple[str, str, str, bytes, int]]:
        self._unread.discard(number)
        blob = self.kept.bucket(number)
        return [] if blob is None else msgspec.msgpack.decode(blob, type=list[tuple[str, str, str, bytes, int]])

    # --- writing -------------------------------------------------------------------------------------

    def touch(self, number: int, event: Micros | None = None) -> None:
        """A bucket was changed; with a new timer of event time, perhaps."""
        self._dirty.add(number)
        if event is not None:
            content = self._head.contents.setdefault(number, Content())
            if content.event is None or event < content.event:
                content.event = event

    def save(self, watermark: Watermark, offsets: Mapping[str, int]) -> None:
        """Give it all to the state store, with how far the records have come."""
        head = self._head
        self._grow()
        for number in sorted(self._dirty):
            places = self._read[number]
            self.kept.put_bucket(number, msgspec.msgpack.encode([(*place, *held) for place, held in places.items()]))
            head.contents[number] = _content(places)
        self._dirty.clear()
        head.low, head.highs = watermark.position()
        head.heard = dict(watermark.heard)
        head.offsets = {**head.offsets, **offsets}
        head.mark = new_id()
        self.kept.put_head(msgspec.msgpack.encode(head))
        self._kept = None

    def _grow(self) -> None:
        """More buckets, if they have become too full."""
        head = self._head
        total = sum(head.contents[number].entries for number in self._unread)
        total += sum(map(len, self._read.values()))
        if total <= FULL * head.buckets:
            return
        self._all()
        before = self._read
        while total > FULL * head.buckets:
            head.buckets *= GROWTH
        self._read = {number: {} for number in {*range(head.buckets)}}
        for places in before.values():
            for place, held in places.items():
                self._read[self.number(place[1])][place] = held
        self._dirty = set(self._read)

    def __len__(self) -> int:
        """How many entries are here."""
        return sum(map(len, self._read.values()))


class StateBuckets(Buckets):
    """The same for the states and timers of any computation."""

    def __init__(self, computation: Computation, cells: Mapping[str, Cell], timers: Timers) -> None:
        """Nothing is read yet."""
        super().__init__(computation.version)
        self._computation = computation
        self._cells = cells
        self._timers = timers
        self._older = computation.version

    def restore(self, watermark: Watermark) -> None:
        """Read the head."""
        super().restore(watermark)
        head = self._head
        if head.version != self._computation.version:
            # Everything is converted at once: a bucket has one version.
            self._older, head.version = head.version, self._computation.version
            self._all()
            self._dirty.update(self._read)
            self._older = head.version

    def need(self, keys: Iterable[str | None]) -> None:
        """These keys come up."""
        if not self._unread:
            return
        for number in {self.number(key or "") for key in {*keys, ""}} & self._unread:
            self._load(number)

    def need_timers(self, kind: Kind, until: Micros) -> None:
        """Timers up to a time come up."""
        for number in sorted(self._unread):
            at = self._head.contents[number].due(kind)
            if at is not None and at <= until:
                self._load(number)

    def sweep(self) -> None:
        """Read one more bucket, each in its turn: what has expired in it is found then."""
        number = self._head.swept = (self._head.swept + 1) % self._head.buckets
        if number in self._unread:
            self._load(number)

    def next(self, kind: Kind) -> Micros | None:
        """When the first timer of a kind is due, wherever it is."""
        found = [at for number in self._unread if (at := self._head.contents[number].due(kind)) is not None]
        here = self._timers.next(kind)
        return min(found if here is None else [*found, here], default=None)

    def _load(self, number: int) -> None:
        places: Places = {}
        self._read[number] = places
        cells, timers = self._cells, self._timers
        for state, key, sub, payload, expires in self._fetch(number):
            kind = KINDS.get(state)
            if kind is not None:
                timers.load((kind, key, sub), expires)
            else:
                cell = cells.get(state)
                if cell is None:
                    continue  # a state that this version no longer has
                entry = Entry(state, key, sub, payload, expires)
                if self._older != self._computation.version:
                    entry = upgraded(self._computation, entry, cell, self._older)
                    if entry.payload is None:
                        continue
                    payload = entry.payload  # noqa: PLW2901
                cell.load(entry)
            places[state, key, sub] = (payload, expires)

    def note(self, changes: Iterable[Entry]) -> None:
        """What a checkpoint changed; its keys were needed before."""
        read, dirty, count = self._read, self._dirty, self._head.buckets
        for state, key, sub, payload, expires in changes:
            number = (zlib.crc32(key_bytes(key)) >> SHIFT) % count
            places = read.get(number)
            if places is None:
                if number in self._unread:
                    raise PenstockError(f"state of key {key!r} was changed and never read.", hint="Report this.")
                places = read[number] = {}
            dirty.add(number)
            if payload is not None:
                places[state, key, sub] = (payload, expires)
            elif places.pop((state, key, sub), None) is not None and sub.isdecimal():
                # The end of a list: what is behind it is gone too.
                self._cut(places, state, key, int(sub) + 1)

    def _cut(self, places: Places, state: str, key: str, index: int) -> None:
        if isinstance(self._cells.get(state), ListCell):
            while places.pop((state, key, str(index)), None) is not None:
                index += 1


def _content(places: Places) -> Content:
    first: dict[Kind, Micros] = {}
    for (state, _, _), (_, at) in places.items():
        kind = KINDS.get(state)
        if kind is not None and at < first.get(kind, at + 1):
            first[kind] = at
    return Content(len(places), first.get("event"), first.get("processing"))
