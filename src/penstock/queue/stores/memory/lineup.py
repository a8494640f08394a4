"""Which queue of a memory store is next: all queues, and the turns they take at being claimed from.

The line-up is derived from the live entries and follows each change of one (:meth:`Lineup.change`). It decides nothing
about them.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush

from penstock.clock import Micros
from penstock.queue.store import ClaimRequest, Source
from penstock.queue.stores.memory.lanes import Item, Key, LiveQueue, Ranking, Roster


class Lineup:
    """All queues, the rosters of the families in use, and what the reaper has to look at."""

    def __init__(self) -> None:
        """Start empty."""
        self.queues: dict[str, LiveQueue] = {}
        self.leases: Ranking[str] = Ranking()  # by their end
        self.expiries: Ranking[str] = Ranking()  # of waiting entries
        self.sticky: dict[str, Ranking[str]] = {}  # waiting entries by node, by due time
        self._rosters: dict[tuple[str, str, bool], Roster] = {}
        self._suspects = 0  # waiting ones
        self._served = 0

    def queue(self, name: str) -> LiveQueue:
        """The queue of that name, made if need be."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = LiveQueue(name)
            queue.rosters = [roster for roster in self._rosters.values() if name.startswith(roster.family)]
        return queue

    def roster(self, family: str, node: str, suspects: bool) -> Roster:
        """The queues of that family by turn; kept from its first use on."""
        roster = self._rosters.get((family, node, suspects))
        if roster is None:
            roster = self._rosters[family, node, suspects] = Roster(family, node, suspects)
            for queue in self.queues.values():
                if queue.name.startswith(family):
                    queue.rosters.append(roster)
                    roster.set(queue.name, queue.turn(node, suspects))
        return roster

    def change(self, name: str, id_: str, old: Item | None, new: Item | None) -> LiveQueue:
        """Follow an entry of the named queue to its next form; None before its put and after its end."""
        for item, by in ((old, -1), (new, 1)):
            if item is not None and item.suspect and item.lease is None:
                self._suspects += by
        waiting = new if new is not None and new.lease is None else None
        self.leases.set(id_, (new.lease.until_us,) if new is not None and new.lease is not None else None)
        self.expiries.set(id_, (waiting.expires_us,) if waiting and waiting.expires_us is not None else None)
        if old is not None and old.node is not None and old.node in self.sticky:
            self.sticky[old.node].set(id_, None)
            if not self.sticky[old.node]:
                del self.sticky[old.node]
        if waiting is not None and waiting.node is not None:
            self.sticky.setdefault(waiting.node, Ranking()).set(id_, (waiting.due_us,))
        queue = self.queue(name)
        queue.change(id_, old, new)
        self.note(queue)
        return queue

    def note(self, queue: LiveQueue) -> None:
        """Let the rosters know when this queue's next turn is; forget the queue if nothing is left of it."""
        for roster in queue.rosters:
            roster.set(queue.name, queue.turn(roster.node, roster.suspects))
        if queue.forgettable:
            self.queues.pop(queue.name, None)

    def start(self, name: str, now: Micros) -> None:
        """Note that an entry is being taken from this queue."""
        self._served += 1
        self.queues[name].start(now, self._served)

    def clock_went_back(self) -> None:
        """Forget who was served when: a queue served in what is now the future would seem not to have a turn."""
        for queue in list(self.queues.values()):
            queue.served = (0, 0)
            self.note(queue)

    def offers(
        self, request: ClaimRequest, room: dict[Source, int], suspects: bool, now: Micros
    ) -> Generator[tuple[Item, Source], None, None]:
        """What a claim may take, one entry per turn of a queue, the queue waiting longest first.

        The caller takes or ends each entry before it asks for the next, counts down the room of its source, and closes
        the generator when it has enough.
        """
        if suspects and not self._suspects:
            return
        turns = _Turns(self, request, suspects, now)
        try:
            while (name := turns.next(room)) is not None:
                source = turns.sources[name]
                item = self.queues[name].best(request.node, suspects, now) if room[source] > 0 else None
                if item is not None:
                    yield item, source
                    turns.join(name, source)
        finally:
            turns.end()

    def next_us(self, request: ClaimRequest, now: Micros) -> Micros | None:
        """The earliest time at which the request's queues may have more."""
        times: list[Micros | None] = []
        for source in request.sources:
            for suspects in (False, True):
                if source.limit <= 0:
                    continue
                if source.family:
                    times.append(self._family_opens(source, request, suspects))
                elif source.name in self.queues:
                    times.append(self.queues[source.name].opens(request.node, suspects))
        known = [at for at in times if at is not None]
        return max(now, min(known)) if known else None

    def _family_opens(self, source: Source, request: ClaimRequest, suspects: bool) -> Micros | None:
        """When the family's next queue has its turn, those aside that a closer source without room answers for."""
        roster = self.roster(source.name, request.node, suspects)
        aside = []
        while (first := roster.first()) is not None and _source_of(first[1], request.sources).limit <= 0:
            aside.append(self.queues[first[1]])
            roster.set(first[1], None)
        for queue in aside:
            self.note(queue)
        return None if first is None else first[0][0]


class _Turns:
    """The turns of one claim. Queues asked for by name take part from the start.

    Those of a family join when their turn has come, for there may be thousands; meanwhile they are off the roster.
    """

    def __init__(self, lineup: Lineup, request: ClaimRequest, suspects: bool, now: Micros) -> None:
        self._lineup = lineup
        self._request = request
        self._suspects = suspects
        self._now = now
        self._heap: list[tuple[Key, str]] = []
        self.sources: dict[str, Source] = {}  # of the queues that have joined
        for source in request.sources:
            if not source.family:
                self.join(source.name, source)
        self._families = [
            (source, lineup.roster(source.name, request.node, suspects)) for source in request.sources if source.family
        ]

    def join(self, name: str, source: Source) -> None:
        """Give a queue its next turn, if it has one by now."""
        self.sources[name] = source
        queue = self._lineup.queues.get(name)
        turn = None if queue is None else queue.turn(self._request.node, self._suspects)
        if turn is not None and turn[0] <= self._now:
            heappush(self._heap, (turn, name))

    def next(self, room: dict[Source, int]) -> str | None:
        """The queue whose turn it is."""
        for source, roster in self._families:
            while room[source] > 0 and (first := roster.first()) and first[0][0] <= self._now:
                if self._heap and self._heap[0] < first:
                    break
                name = first[1]
                roster.set(name, None)
                if name not in self.sources:
                    self.join(name, _source_of(name, self._request.sources))
        return heappop(self._heap)[1] if self._heap else None

    def end(self) -> None:
        """Put the queues back on their rosters."""
        for name in self.sources:
            if name in self._lineup.queues:
                self._lineup.note(self._lineup.queues[name])


def _source_of(queue: str, sources: tuple[Source, ...]) -> Source:
    """The source that counts for a queue: its own before a family, a longer family before a shorter one."""
    covering = [source for source in sources if source.covers(queue)]
    return max(covering, key=lambda source: (not source.family, len(source.name)))
