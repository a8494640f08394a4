"""Which entry of a queue is next, and when."""

from __future__ import annotations

from collections import Counter

from penstock.clock import Micros
from penstock.policy import Rate
from penstock.queue.entry import Lock
from penstock.queue.protocol import Definition
from penstock.queue.rules.ranking import Key, Ranking
from penstock.queue.rules.rows import Claim, ClaimKey, Live


class Order:
    """Waiting entries by priority, due time and position.

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

    def set(self, live: Live, value: str | None, *, waits: bool, full: bool) -> None:
        """Let an entry in or out."""
        values = self._entries.setdefault(live.priority, {})
        ranking = values.get(value)
        if ranking is None:
            ranking = values[value] = Ranking()
        ranking.set(live.body.id, (live.due_us, live.seq) if waits else None)
        self._rank_value(live.priority, value, full)
        if not ranking:
            del values[value]
        if not values:
            del self._entries[live.priority], self._values[live.priority]

    def rank_value(self, value: str | None, *, full: bool) -> None:
        """Show or hide the entries with this value."""
        for priority, values in self._entries.items():
            if value in values:
                self._rank_value(priority, value, full)

    def _rank_value(self, priority: int, value: str | None, full: bool) -> None:
        first = self._entries[priority][value].first()
        ranking = self._values.get(priority)
        if ranking is None:
            ranking = self._values[priority] = Ranking()
        ranking.set(value, None if full or first is None else first[0])

    def opens(self) -> Micros | None:
        """When its earliest entry is due, or None if it shows none."""
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
        self.waiting: dict[str, Live] = {}
        self.claims: dict[ClaimKey, Claim] = {}
        self.leased = 0
        self.dead = 0
        self.lines: list[Line] = []
        self.served: tuple[Micros, int] = (0, 0)  # when it was last taken from, and a number that breaks ties
        self.tat = 0  # GCRA's theoretical arrival time, times rate.count to stay whole
        self._in_flight: Counter[str] = Counter()  # by value of the limited label
        self._orders: dict[tuple[str | None, bool], Order] = {}  # by node and suspicion
        self._by_position: Ranking[str] = Ranking()  # FIFO: instead of orders

    @property
    def live(self) -> int:
        """How many live entries it holds."""
        return len(self.waiting) + self.leased

    @property
    def forgettable(self) -> bool:
        """Whether nothing would be lost with it."""
        return not (self.waiting or self.claims or self.dead or self.locks or self.defined)

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
        if definition.label_limit is not None:
            self.limit_label(definition.label_limit if definition.label_limit[1] else None)

    def limit_label(self, label_limit: tuple[str, int] | None) -> None:
        """Limit what is in flight per value of a label, or nothing any more."""
        if label_limit == self.label_limit:
            return
        waiting = dict(self.waiting)
        for live in waiting.values():
            self.remove(live)
        self.label_limit = label_limit
        self._in_flight.clear()
        for claim in self.claims.values():
            for live in claim.held.values():
                self._count_in_flight(live, 1)
        for live in waiting.values():
            self.add(live)

    # --- following its entries -------------------------------------------------------------------------

    def add(self, live: Live) -> None:
        """An entry waits."""
        self.waiting[live.body.id] = live
        self._line_up(live, waits=True)

    def remove(self, live: Live) -> None:
        """An entry no longer waits."""
        del self.waiting[live.body.id]
        self._line_up(live, waits=False)

    def _line_up(self, live: Live, *, waits: bool) -> None:
        if self.fifo:
            self._by_position.set(live.body.id, (live.seq,) if waits else None)
            return
        key = (live.node, live.suspect)
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = Order()
        value = self._value(live)
        order.set(live, value, waits=waits, full=self._full(value))
        if not order:
            del self._orders[key]

    def hold(self, live: Live) -> None:
        """A claim holds an entry."""
        self.leased += 1
        self._count_in_flight(live, 1)

    def let_go(self, live: Live) -> None:
        """A claim no longer holds an entry."""
        self.leased -= 1
        self._count_in_flight(live, -1)

    def _count_in_flight(self, live: Live, by: int) -> None:
        value = self._value(live)
        if value is None:
            return
        self._in_flight[value] += by
        for order in self._orders.values():
            order.rank_value(value, full=self._full(value))
        if not self._in_flight[value]:
            del self._in_flight[value]

    def _value(self, live: Live) -> str | None:
        return None if self.label_limit is None else live.body.labels.get(self.label_limit[0])

    def _full(self, value: str | None) -> bool:
        return value is not None and self.label_limit is not None and self._in_flight[value] >= self.label_limit[1]

    # --- what is next ----------------------------------------------------------------------------------

    def opens(self, node: str, suspects: bool) -> Micros | None:
        """The earliest time at which it may give this node an entry of that kind; None: only a change can."""
        if self.locks:
            return None
        if self.fifo:
            head = self._head()
            due = head.due_us if head is not None and head.suspect == suspects else None
        else:
            due = min(
                (at for order in self._fitting(node, suspects) if (at := order.opens()) is not None), default=None
            )
        if due is None or self.rate is None:
            return due
        # GCRA with a burst of count: a start may come up to count - 1 intervals before its theoretical time.
        early = self.rate.period * (self.rate.count - 1)
        return max(due, -((early - self.tat) // self.rate.count))

    def place_in_line(self, node: str, suspects: bool) -> tuple[Micros, int] | None:
        """Its place among the queues: waiting counts from its earliest due entry, or from when it was last served."""
        opens = self.opens(node, suspects)
        return None if opens is None else max((opens, 0), self.served)

    def best(self, node: str, suspects: bool, now: Micros) -> Live | None:
        """The due entry to be taken next. Locks and rate are for :meth:`opens` to say."""
        if self.fifo:
            head = self._head()
            return head if head is not None and head.suspect == suspects and head.due_us <= now else None
        firsts = [best for order in self._fitting(node, suspects) if (best := order.best(now))]
        return self.waiting[min(firsts)[1]] if firsts else None

    def start(self, now: Micros, tick: int) -> None:
        """An entry is being taken: that counts for its rate and its place in line."""
        self.served = (now, tick)
        if self.rate is not None:
            self.tat = max(self.tat, now * self.rate.count) + self.rate.period

    def _head(self) -> Live | None:
        first = None if self.leased else self._by_position.first()
        return None if first is None else self.waiting[first[1]]

    def _fitting(self, node: str, suspects: bool) -> list[Order]:
        return [order for on in (None, node) if (order := self._orders.get((on, suspects)))]


class Line(Ranking[str]):
    """The queues of one family that have, or will have, something for one node, by their place in line."""

    __slots__ = ("family", "node", "suspects")

    def __init__(self, family: str, node: str, suspects: bool) -> None:
        """Start empty. Among equals the name decides, so that a claim which is undone and made again is the same."""
        super().__init__(by_member=True)
        self.family = family
        self.node = node
        self.suspects = suspects
