"""Which queue is next: all queues, and their places in line for being claimed from.

This is derived from the ready entries and the claims, and follows each change of one. It decides nothing about them.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush

from penstock.clock import Micros
from penstock.queue.protocol import ClaimRequest, Source
from penstock.queue.rules.queue_order import Line, LiveQueue
from penstock.queue.rules.ranking import Key, Ranking
from penstock.queue.rules.rows import Claim, ClaimKey, Live


class ReadyQueues:
    """All queues, the lines of the families in use, and what the reaper has to look at."""

    def __init__(self) -> None:
        """Start empty."""
        self.queues: dict[str, LiveQueue] = {}
        self.claim_ends: Ranking[ClaimKey] = Ranking()
        self.expiries: Ranking[str] = Ranking()  # of waiting entries
        self.sticky: dict[str, Ranking[str]] = {}  # waiting entries by node, by due time
        self._lines: dict[tuple[str, str, bool], Line] = {}
        self._suspects = 0  # waiting ones
        self._served = 0

    def queue(self, name: str) -> LiveQueue:
        """The queue of that name, made if it is not there."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = LiveQueue(name)
            queue.lines = [line for line in self._lines.values() if name.startswith(line.family)]
        return queue

    def line(self, family: str, node: str, suspects: bool) -> Line:
        """The queues of that family in line; kept from its first use on."""
        line = self._lines.get((family, node, suspects))
        if line is None:
            line = self._lines[family, node, suspects] = Line(family, node, suspects)
            for queue in self.queues.values():
                if queue.name.startswith(family):
                    queue.lines.append(line)
                    line.set(queue.name, queue.place_in_line(node, suspects))
        return line

    # --- following entries, claims and settings ------------------------------------------------------------

    def follow_ready(self, old: Live | None, new: Live | None) -> None:
        """Follow a waiting entry to its next form. Returns None before and after it waits."""
        live = new or old
        if live is None:
            return
        queue = self.queue(live.body.queue)
        if old is not None:
            queue.remove(old)
            self._suspects -= old.suspect
            if old.expires_us is not None:
                self.expiries.set(old.body.id, None)
            if old.node is not None:
                self._unstick(old.node, old.body.id)
        if new is not None:
            queue.add(new)
            self._suspects += new.suspect
            if new.expires_us is not None:
                self.expiries.set(new.body.id, (new.expires_us,))
            if new.node is not None:
                self.sticky.setdefault(new.node, Ranking()).set(new.body.id, (new.due_us,))
        self.note(queue)

    def _unstick(self, node: str, id_: str) -> None:
        self.sticky[node].set(id_, None)
        if not self.sticky[node]:
            del self.sticky[node]

    def follow_claim(self, key: ClaimKey, old: Claim | None, new: Claim | None) -> LiveQueue:
        """Follow a claim to its next form. Returns None before it is made and after its end."""
        self.claim_ends.set(key, None if new is None else (new.until_us,))
        queue = self.queue(key[0])
        before = {} if old is None else old.held
        after = {} if new is None else new.held
        if before is not after:
            for id_, live in before.items():
                if id_ not in after:
                    queue.let_go(live)
            for id_, live in after.items():
                if id_ not in before:
                    queue.hold(live)
        if new is None:
            queue.claims.pop(key, None)
        else:
            queue.claims[key] = new
        self.note(queue)
        return queue

    def note(self, queue: LiveQueue) -> None:
        """Let the lines know this queue's next place; forget the queue if nothing is left of it."""
        for line in queue.lines:
            line.set(queue.name, queue.place_in_line(line.node, line.suspects))
        if queue.forgettable:
            self.queues.pop(queue.name, None)

    def start(self, name: str, now: Micros) -> None:
        """An entry is being taken from this queue."""
        self._served += 1
        self.queues[name].start(now, self._served)

    def clock_went_back(self) -> None:
        """Forget who was served when: a queue served in what is now the future would seem to have no place."""
        for queue in list(self.queues.values()):
            queue.served = (0, 0)
            self.note(queue)

    # --- what a claim may take ---------------------------------------------------------------------------

    def offers(
        self, request: ClaimRequest, room: dict[Source, int], suspects: bool, now: Micros
    ) -> Generator[tuple[Live, Source], None, None]:
        """What a claim may take, one entry per queue in turn, the queue waiting longest first.

        The caller takes or ends each entry before it asks for the next, counts down the room of its source, and closes
        the generator when it has enough.
        """
        if suspects and not self._suspects:
            return
        rotation = _Rotation(self, request, suspects, now)
        try:
            while (name := rotation.next(room)) is not None:
                source = rotation.sources[name]
                live = self.queues[name].best(request.node, suspects, now) if room[source] > 0 else None
                if live is not None:
                    yield live, source
                    rotation.join(name, source)
        finally:
            rotation.end()

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
        """When the family's next queue opens, those aside that a closer source without room answers for."""
        line = self.line(source.name, request.node, suspects)
        aside = []
        while (first := line.first()) is not None and _source_of(first[1], request.sources).limit <= 0:
            aside.append(self.queues[first[1]])
            line.set(first[1], None)
        for queue in aside:
            self.note(queue)
        return None if first is None else first[0][0]


class _Rotation:
    """The queues of one claim, in turn. Those asked for by name take part from the start.

    Those of a family join when their place in line is due, for there may be thousands; meanwhile they are out of line.
    """

    def __init__(self, ready_queues: ReadyQueues, request: ClaimRequest, suspects: bool, now: Micros) -> None:
        self._ready_queues = ready_queues
        self._request = request
        self._suspects = suspects
        self._now = now
        self._heap: list[tuple[Key, str]] = []
        self.sources: dict[str, Source] = {}  # of the queues that have joined
        for source in request.sources:
            if not source.family:
                self.join(source.name, source)
        self._families = [
            (source, ready_queues.line(source.name, request.node, suspects))
            for source in request.sources
            if source.family
        ]

    def join(self, name: str, source: Source) -> None:
        """Let a queue take part again, if it is open by now."""
        self.sources[name] = source
        queue = self._ready_queues.queues.get(name)
        place = None if queue is None else queue.place_in_line(self._request.node, self._suspects)
        if place is not None and place[0] <= self._now:
            heappush(self._heap, (place, name))

    def next(self, room: dict[Source, int]) -> str | None:
        """The queue that comes next."""
        for source, line in self._families:
            while room[source] > 0 and (first := line.first()) and first[0][0] <= self._now:
                if self._heap and self._heap[0] < first:
                    break
                name = first[1]
                line.set(name, None)
                if name not in self.sources:
                    self.join(name, _source_of(name, self._request.sources))
        return heappop(self._heap)[1] if self._heap else None

    def end(self) -> None:
        """Put the queues back in line."""
        for name in self.sources:
            if name in self._ready_queues.queues:
                self._ready_queues.note(self._ready_queues.queues[name])


def _source_of(queue: str, sources: tuple[Source, ...]) -> Source:
    """The source that counts for a queue: its own before a family, a longer family before a shorter one."""
    covering = [source for source in sources if source.covers(queue)]
    return max(covering, key=lambda source: (not source.family, len(source.name)))
