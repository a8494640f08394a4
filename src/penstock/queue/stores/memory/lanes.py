"""Which entry of a queue is next, and when: items, rankings, lanes and queues of the memory store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from penstock.clock import Micros
from penstock.policy import Rate
from penstock.queue.entry import Entry, Lock
from penstock.queue.store import Definition, StepDone

M = TypeVar("M")
Key: TypeAlias = tuple[int, ...]

KEPT_SETTLEMENTS = 8


class Receipt(msgspec.Struct):
    """What a step with endings gave, kept with each entry it settled so that a repeat is recognised."""

    settled: dict[str, tuple[str, str]]  # token and outcome by entry: tokens are unique per entry only
    done: StepDone = StepDone()


class Item(Entry[Any]):
    """An entry with what only the store knows of it. Never changed in place: a change is a new item."""

    mode: str = "done"  # of its unique id
    period_us: Micros = 0
    fence: int = 0
    attempts: int | None = None  # that went with the lease
    suspect: bool = False
    settled: tuple[tuple[str, str], ...] = ()  # token and outcome of the ends of earlier generations
    receipt: Receipt | None = None

    def settlements(self) -> tuple[tuple[str, str], ...]:
        """What a repeat of an ending is recognised by when the next generation begins."""
        last = () if self.receipt is None else (self.receipt.settled[self.id],)
        return (*self.settled, *last)[-KEPT_SETTLEMENTS:]


class Ranking(Generic[M]):
    """Members ordered by a key that may change or go at any time.

    A heap with lazy deletion: what lies in it counts only while ``_keys`` says the same of its member.
    """

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
        """Rank a member, anew if need be; None takes it out."""
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
        found: list[tuple[Key, M]] = []
        while len(found) < limit and (first := self.first()) and first[0][0] <= now:
            found.append(first)
            self.set(first[1], None)
        for key, member in found:
            self.set(member, key)
        return [member for _, member in found]


class Lane:
    """The waiting entries of one lane by priority, due time and sequence.

    Per priority the entries are ranked within each value of the limited label, and the values by their first entry. A
    value that is full is left out there, so that its backlog costs a claim nothing. Without a limit the only value
    is None.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[int, dict[str | None, Ranking[str]]] = {}
        self._values: dict[int, Ranking[str | None]] = {}

    def __bool__(self) -> bool:
        """Whether it holds entries."""
        return bool(self._entries)

    def set(self, item: Item, value: str | None, *, waits: bool, full: bool) -> None:
        """Let an entry in or out."""
        values = self._entries.setdefault(item.priority, {})
        ranking = values.setdefault(value, Ranking())
        ranking.set(item.id, (item.due_us, item.seq) if waits else None)
        self._rank_value(item.priority, value, full)
        if not ranking:
            del values[value]
        if not values:
            del self._entries[item.priority], self._values[item.priority]

    def rank_value(self, value: str | None, *, full: bool) -> None:
        """Show or hide the entries with this value."""
        for priority, values in self._entries.items():
            if value in values:
                self._rank_value(priority, value, full)

    def _rank_value(self, priority: int, value: str | None, full: bool) -> None:
        first = self._entries[priority][value].first()
        self._values.setdefault(priority, Ranking()).set(value, None if full or first is None else first[0])

    def opens(self) -> Micros | None:
        """When its earliest entry is due; None if it shows none."""
        firsts = [first for values in self._values.values() if (first := values.first())]
        return min(key[0] for key, _ in firsts) if firsts else None

    def best(self, now: Micros) -> tuple[Key, str] | None:
        """The due entry that goes first, with its place in the order."""
        for priority in sorted(self._values, reverse=True):
            top = self._values[priority].first()
            if top is not None and top[0][0] <= now:
                first = self._entries[priority][top[1]].first()
                return None if first is None else ((-priority, *first[0]), first[1])
        return None


class LiveQueue:
    """One queue: its definition, its locks, its live entries and what limits its claims."""

    def __init__(self, name: str) -> None:
        """Start empty and undefined."""
        self.name = name
        self.defined = False
        self.fifo = False
        self.rate: Rate | None = None
        self.label_limit: tuple[str, int] | None = None
        self.locks: dict[str, Lock] = {}
        self.items: dict[str, Item] = {}
        self.dead = 0
        self.rosters: list[Roster] = []
        self.served: tuple[Micros, int] = (0, 0)  # when it was last taken from, and a number that breaks ties
        self._leased = 0
        self._in_flight: Counter[str] = Counter()
        self._lanes: dict[tuple[str | None, bool], Lane] = {}  # by node and suspicion
        self._by_seq: Ranking[str] = Ranking()  # FIFO: instead of lanes
        self.tat = 0  # GCRA's theoretical arrival time, times rate.count to stay whole

    @property
    def forgettable(self) -> bool:
        """Whether nothing would be lost with it."""
        return not (self.items or self.dead or self.locks or self.defined)

    @property
    def narrow(self) -> bool:
        """Whether the end of one entry may open the way for another."""
        return self.fifo or self.label_limit is not None

    def define(self, definition: Definition) -> None:
        """Take over what the definition sets."""
        self.defined = True
        if definition.fifo is not None:
            self.fifo = definition.fifo
        if definition.rate is not None:
            if self.rate is not None:
                self.tat = self.tat * definition.rate.count // self.rate.count
            self.rate = definition.rate if definition.rate.count else None
        if definition.label_limit is not None and definition.label_limit != self.label_limit:
            items = dict(self.items)
            for id_, item in items.items():
                self.change(id_, item, None)
            self.label_limit = definition.label_limit if definition.label_limit[1] else None
            for id_, item in items.items():
                self.change(id_, None, item)

    def change(self, id_: str, old: Item | None, new: Item | None) -> None:
        """Follow an entry of this queue from one form to the next."""
        if old is not None:
            del self.items[id_]
            self._count(old, -1)
        if new is not None:
            self.items[id_] = new
            self._count(new, 1)

    def _count(self, item: Item, by: int) -> None:
        value = item.labels.get(self.label_limit[0]) if self.label_limit else None
        if item.lease is not None:
            self._leased += by
            if value is not None:
                self._in_flight[value] += by
                for lane in self._lanes.values():
                    lane.rank_value(value, full=self._full(value))
                if not self._in_flight[value]:
                    del self._in_flight[value]
        elif self.fifo:
            self._by_seq.set(item.id, (item.seq,) if by > 0 else None)
        else:
            key = (item.node, item.suspect)
            lane = self._lanes.setdefault(key, Lane())
            lane.set(item, value, waits=by > 0, full=self._full(value))
            if not lane:
                del self._lanes[key]

    def _full(self, value: str | None) -> bool:
        return value is not None and self.label_limit is not None and self._in_flight[value] >= self.label_limit[1]

    def opens(self, node: str, suspects: bool) -> Micros | None:
        """The earliest time at which it may give this node an entry of that kind; None: only a change can."""
        if self.locks:
            return None
        if self.fifo:
            head = self._head()
            due = head.due_us if head is not None and head.suspect == suspects else None
        else:
            due = min((at for lane in self._fitting(node, suspects) if (at := lane.opens()) is not None), default=None)
        if due is None or self.rate is None:
            return due
        # GCRA with a burst of count: a start may come up to count - 1 intervals before its theoretical time.
        early = self.rate.period * (self.rate.count - 1)
        return max(due, -((early - self.tat) // self.rate.count))

    def turn(self, node: str, suspects: bool) -> tuple[Micros, int] | None:
        """Its place among the queues: waiting counts from its earliest due entry, or from when it was last served."""
        opens = self.opens(node, suspects)
        return None if opens is None else max((opens, 0), self.served)

    def best(self, node: str, suspects: bool, now: Micros) -> Item | None:
        """The due entry to be taken next. Locks and rate are for :meth:`opens` to say."""
        if self.fifo:
            head = self._head()
            return head if head is not None and head.suspect == suspects and head.due_us <= now else None
        found = [best for lane in self._fitting(node, suspects) if (best := lane.best(now))]
        return self.items[min(found)[1]] if found else None

    def start(self, now: Micros, tick: int) -> None:
        """Note that an entry was taken."""
        self.served = (now, tick)
        if self.rate is not None:
            self.tat = max(self.tat, now * self.rate.count) + self.rate.period

    def _head(self) -> Item | None:
        first = None if self._leased else self._by_seq.first()
        return None if first is None else self.items[first[1]]

    def _fitting(self, node: str, suspects: bool) -> list[Lane]:
        return [lane for on in (None, node) if (lane := self._lanes.get((on, suspects)))]


class Roster(Ranking[str]):
    """The queues of one family that have, or will have, something for one node, by turn."""

    __slots__ = ("family", "node", "suspects")

    def __init__(self, family: str, node: str, suspects: bool) -> None:
        """Start empty."""
        super().__init__()
        self.family = family
        self.node = node
        self.suspects = suspects
