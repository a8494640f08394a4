"""Claim: find due entries and lease them; the cost is per ready queue and entry taken, never per queue or backlog.

This is the general way; a worker's round trip on one plain queue is one statement (``round_trip.py``). Here are several
queues, families, FIFO, limits, sticky and suspect entries, those that have expired or have no attempt left. A put
touches no row that another put, a claim or an ending touches; claims share a lock on the rows of their queues, and only
FIFO and limited queues are claimed from by one worker at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.endings import Endings, release_unique
from penstock.queue.drivers.sql.registry import queue_row
from penstock.queue.drivers.sql.round_trip import Hint
from penstock.queue.drivers.sql.rows import Live, QueueRow, family_range, read_map, unique_mode
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import Entry, no_attempts_left
from penstock.queue.protocol import Claimed, ClaimRequest, Source

SUSPECTS = 100  # looked at together
START: tuple[Micros, int] = (-(2**62), 0)  # before every (due, seq)


class Rotation:
    """What a handle remembers between claims: which queues of a family come next, and when each was last served."""

    def __init__(self) -> None:
        """Start without memory. Losing it costs one look."""
        self.families: dict[tuple[str, str], deque[int]] = {}
        self.served: dict[int, Micros] = {}
        self.hints: dict[str, Hint] = {}  # where the last claim from a plain queue ended


class Claim:
    """One claim inside one transaction."""

    def __init__(self, session: Session, request: ClaimRequest, rotation: Rotation) -> None:
        """Sort the sources: a name wins over a family, a longer family over a shorter one."""
        self.session = session
        self.request = request
        self._rotation = rotation
        self._named = {source.name: source for source in request.sources if not source.family}
        self._families = sorted(
            (source for source in request.sources if source.family), key=lambda source: -len(source.name)
        )
        self._room = {id(source): source.limit for source in request.sources}
        self._left = request.limit
        self._several = False  # whether queues compete
        self._queues: list[tuple[QueueRow, Source]] | None = None  # locked for this claim
        self._candidates_by_number: dict[int, tuple[QueueRow, Micros]] = {}  # not looked into yet, with their heads
        self._exhausted: set[int] = set()  # numbers of queues that give no more in this claim
        self._refilled: set[str] = set()  # families whose rotation was begun again by this claim
        self._taken: list[tuple[Live, QueueRow, Source]] = []
        self._dead: list[str] = []
        self._upcoming: list[Micros] = []  # when queues that gave less than wanted may have more

    def run(self) -> Claimed:
        """Claim what is due."""
        request, session = self.request, self.session
        # 1. A repeated claim returns the entries of the first one.
        if request.repeat:
            rows = session.rows("claimed_before", claim=request.id, owner=request.owner)
            if rows:
                return Claimed([Live(*row).entry() for row in rows], session.now)
        # 2. A suspect is handed out by itself, to a worker that has nothing else in hand.
        suspect = self._due_suspect()
        if suspect is not None and not request.alone:
            return Claimed(suspect_waits=True)
        if suspect is not None:
            self._take([suspect[0]], suspect[1], suspect[2], most=1)
            entries = self._lease()
            return Claimed(entries, session.now, suspect=bool(entries), dead=tuple(self._dead))
        # 3. Otherwise every ready queue gives its share until the worker has all it wants.
        while self._left > 0 and (queues := self._ready_queues()):
            self._give_shares(queues)
        self._give_turns_back()
        # 4. The next time to ask, then one record per queue for what was taken.
        next_us = self._next()
        return Claimed(self._lease(), next_us, dead=tuple(self._dead))

    # --- which queues -----------------------------------------------------------------------------------------------

    def _due_suspect(self) -> tuple[Live, QueueRow, Source] | None:
        after = START
        while True:
            rows = self.session.rows(
                "due_suspects", moment=self.session.now, node=self.request.node, after_due=after[0], after_seq=after[1]
            )
            for live in (Live(*row) for row in rows):
                after = (live.due, live.seq)
                source = self._source(live.queue)
                if source is None or self._room[id(source)] < 1:
                    continue
                row = queue_row(self.session, live.queue, live.node)
                if row.exclusive and not self._lock("take_free_queues", [row.queue]):
                    continue
                row = queue_row(self.session, live.queue, live.node, fresh=True)
                if self._rate_room(row) > 0 and self._label_room(row, live, {}) and self._is_head(row, live):
                    return live, row, source
            if len(rows) < SUSPECTS:
                return None

    def _is_head(self, row: QueueRow, live: Live) -> bool:
        """In a FIFO queue only the first entry may be handed out."""
        if not row.fifo:
            return True
        heads = self.session.rows("fifo_heads", numbers=[row.number])
        return bool(heads) and heads[0][1] == live.seq

    def _ready_queues(self) -> list[tuple[QueueRow, Source]]:
        """Queues that hold something and have not been emptied by this claim, the longest unserved first."""
        if self._queues is None:
            self._queues = []
            self._candidates_by_number.update((row.number, (row, head)) for row, head in self._waiting_by_name())
        queues = self._open(self._queues)
        while len(queues) < self._left and (chosen := self._longest_unserved(self._left - len(queues))):
            self._queues += self._locked(chosen)
            queues = self._open(self._queues)
        self._several = len(queues) + len(self._candidates_by_number) > 1
        return queues[: self._left]

    def _longest_unserved(self, most: int) -> list[tuple[QueueRow, Micros]]:
        """Up to ``most`` queues that this claim has not looked into yet, whether asked for by name or by family."""
        for family in self._families:
            self._look_for_members(family)
        served = self._rotation.served
        in_turn = sorted(
            self._candidates_by_number.values(), key=lambda queue: max(queue[1], served.get(queue[0].number, 0))
        )
        chosen: list[tuple[QueueRow, Micros]] = []
        for row, _ in in_turn:
            source = self._source(row.queue)
            if len(chosen) < most and source is not None and self._room[id(source)] > 0:
                chosen.append(self._candidates_by_number.pop(row.number))
        return chosen

    def _look_for_members(self, family: Source) -> None:
        """Have as many queues of a family among the candidates as this claim could want.

        Queues that belong to a closer source are candidates of that source.
        """
        members = sum(self._source(row.queue) is family for row, _ in self._candidates_by_number.values())
        while members < self._left and self._room[id(family)] > 0:
            more = self._waiting_in_family(family, self._left - members)
            if more is None:
                return
            own = {row.number: (row, head) for row, head in more if self._source(row.queue) is family}
            self._candidates_by_number.update(own)
            members += len(own)

    def _give_turns_back(self) -> None:
        """Let the next claim begin with the queues of families that this one did not reach."""
        for number, (row, _) in reversed(self._candidates_by_number.items()):
            source = self._source(row.queue)
            if source is not None and source.family:
                self._rotation.families[source.name, self.request.node].appendleft(number)

    def _open(self, queues: list[tuple[QueueRow, Source]]) -> list[tuple[QueueRow, Source]]:
        return [
            (row, source)
            for row, source in queues
            if row.number not in self._exhausted and self._room[id(source)] > 0
        ]  # fmt: skip

    def _waiting_by_name(self) -> list[tuple[QueueRow, Micros]]:
        names = [name for name, source in self._named.items() if self._room[id(source)] > 0]
        if not names:
            return []
        return _with_heads(self.session.rows("waiting_by_name", queues=names, node=self.request.node))

    def _waiting_in_family(self, family: Source, most: int) -> list[tuple[QueueRow, Micros]] | None:
        """The next queues of a family, in turn over all claims of this handle, or None when all have had their turn."""
        key = (family.name, self.request.node)
        waiting = self._rotation.families.setdefault(key, deque())
        if not waiting:
            if family.name in self._refilled:
                return None
            self._refilled.add(family.name)
            first, last = family_range(family.name)
            waiting.extend(
                number for (number,) in self.session.rows("waiting_in_family", first=first, last=last, node=key[1])
            )
        picked = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        if not picked:
            return None
        return _with_heads(self.session.rows("waiting_by_number", numbers=picked))

    def _locked(self, candidates: list[tuple[QueueRow, Micros]]) -> list[tuple[QueueRow, Source]]:
        """Those that are unlocked and ours to claim from. They stay so until the transaction ends."""
        shared = [row.queue for row, _ in candidates if not row.exclusive]
        limited = [row.queue for row, _ in candidates if row.exclusive and not row.fifo]
        fifo = [row.queue for row, _ in candidates if row.fifo]
        # A limited queue is worth waiting for; of many FIFO queues, those that another worker is at are passed over.
        mine = self._lock("share_queues", shared) | self._lock("wait_for_queues", limited)
        mine |= self._lock("take_free_queues", fifo)
        known = {row.number for row, _ in self._queues or ()}
        served = self._rotation.served
        locked = []
        for row, _ in sorted(candidates, key=lambda candidate: max(candidate[1], served.get(candidate[0].number, 0))):
            source = self._source(row.queue)
            if source is None or row.number in known or row.number not in mine:
                continue
            if row.exclusive:
                # What was read before the row was ours may be old by now.
                row = queue_row(self.session, row.queue, row.node, fresh=True)  # noqa: PLW2901
            locked.append((row, source))
        return locked

    def _lock(self, statement: str, queues: Iterable[str]) -> set[int]:
        names = sorted(set(queues))
        return {number for (number,) in self.session.rows(statement, queues=names)} if names else set()

    def _source(self, queue: str) -> Source | None:
        named = self._named.get(queue)
        if named is not None:
            return named
        return next((family for family in self._families if queue.startswith(family.name)), None)

    # --- which entries ----------------------------------------------------------------------------------------------

    def _give_shares(self, queues: list[tuple[QueueRow, Source]]) -> None:
        """Take a share from every ready queue. A queue that gives none is exhausted, so this ends."""
        share = max(1, self._left // len(queues))
        fifo = [(row, source) for row, source in queues if row.fifo]
        if fifo:
            self._take_heads(fifo)
        for row, source in queues:
            if self._left < 1:
                return
            if not row.fifo and self._room[id(source)] > 0:
                self._take_from(row, source, min(share, self._left, self._room[id(source)]))
                if self._several:
                    self._rotation.served[row.number] = self.session.now

    def _take_from(self, row: QueueRow, source: Source, quota: int) -> None:
        """Up to ``quota`` due entries of one queue, by priority, due, sequence."""
        wanted, got = min(quota, self._rate_room(row)), 0
        heads = self.session.rows("heads", number=row.number) if wanted > 0 else []
        for priority, head_due in heads:
            after, more = START, head_due <= self.session.now
            # Expired entries and those whose label has no room are passed over: the search continues after them.
            while more and got < wanted:
                reach = wanted - got if row.limit_label is None else max(wanted * 4, 200)
                rows = self._candidates(row, priority, after, reach)
                got += self._take(rows, row, source, most=wanted - got)
                more = len(rows) == reach
                after = (rows[-1].due, rows[-1].seq) if more else after
        if got < quota:
            self._exhausted.add(row.number)
            self._note_rate(row)
            dues = [due for _, due in self.session.rows("heads", number=row.number)]
            self._upcoming += [due for due in dues if due > self.session.now]

    def _candidates(self, row: QueueRow, priority: int, after: tuple[Micros, int], most: int) -> list[Live]:
        rows = self.session.rows(
            "candidates", number=row.number, priority=priority, moment=self.session.now, after_due=after[0],
            after_seq=after[1], limit=most,
        )  # fmt: skip
        return [_waiting(row, values) for values in rows]

    def _take_heads(self, queues: list[tuple[QueueRow, Source]]) -> None:
        """The first entries of FIFO queues: one for each queue, or none."""
        look = {row.number: (row, source) for row, source in queues}
        gave: set[int] = set()
        while look:
            ended = self._take_fifo(look, gave)
            # Behind a head that ended instead of being handed out there is another one.
            look = {number: look[number] for number in ended}
        for row, _ in queues:
            self._exhausted.add(row.number)
            self._note_rate(row)
        idle = [row.number for row, _ in queues if row.number not in gave]
        if idle:
            heads = self.session.rows("fifo_heads", numbers=idle)
            self._upcoming += [head[6] for head in heads if head[6] > self.session.now]
            if len(heads) < len(idle) and self.session.change("adopt_fifo", numbers=idle):
                self._upcoming.append(self.session.now)

    def _take_fifo(self, queues: dict[int, tuple[QueueRow, Source]], gave: set[int]) -> set[int]:
        """Take the heads that are due. Returns the numbers of queues whose head ended instead."""
        ended: set[int] = set()
        for number, *values in self._locked_heads(list(queues)):
            row, source = queues[number]
            live = _waiting(row, values)
            if live.suspect or live.due > self.session.now:
                continue
            if self._left < 1 or self._room[id(source)] < 1 or self._rate_room(row) < 1:
                continue
            if self._take([live], row, source, most=1):
                gave.add(number)
            elif self._is_over(live, source):
                ended.add(number)
        return ended

    def _locked_heads(self, numbers: list[int]) -> list[tuple[Any, ...]]:
        """The heads of FIFO queues, read when they are locked: somebody may have changed them while we waited."""
        session = self.session
        if not session.knows("lock_heads"):  # one transaction writes at a time
            return session.rows("fifo_heads", numbers=numbers)
        places = [seq for (seq,) in session.rows("fifo_places", numbers=numbers)]
        here = {seq for (seq,) in session.rows("lock_heads", seqs=places)} if places else set()
        return [head for head in session.rows("fifo_heads", numbers=numbers) if head[1] in here] if here else []

    def _take(self, rows: list[Live], row: QueueRow, source: Source, *, most: int) -> int:
        """Hand out entries that may run, end those that may not. Returns how many were handed out."""
        handed: list[Live] = []
        endings = Endings(self.session)
        in_flight: dict[str, int] = {}
        for live in rows:
            if len(handed) == most:
                break
            if live.expires is not None and live.expires <= self.session.now:
                endings.end(live, "expired", ran=False)
            elif self._is_over(live, source):
                endings.end(live, "dead", error=no_attempts_left(live.error), ran=False)
                self._dead.append(live.id)
            elif self._label_room(row, live, in_flight):
                handed.append(live)
        endings.apply()
        if handed:
            self.session.change("take", seqs=[live.seq for live in handed])
            self._taken += [(live, row, source) for live in handed]
            self._left -= len(handed)
            self._room[id(source)] -= len(handed)
            self._rate_spend(row, len(handed))
        return len(handed)

    def _is_over(self, live: Live, source: Source) -> bool:
        """Whether the entry ends instead of being handed out."""
        expired = live.expires is not None and live.expires <= self.session.now
        return expired or (source.attempts is not None and live.attempt >= source.attempts)

    # --- leasing ----------------------------------------------------------------------------------------------------

    def _lease(self) -> list[Entry[Any]]:
        """Write one record per queue for all that was taken. The lease starts now, when all locks are held."""
        now, request = self.session.now, self.request
        by_record: dict[tuple[int, int | None], list[Live]] = {}
        rows = {row.number: row for _, row, _ in self._taken}
        for live, row, source in self._taken:
            by_record.setdefault((row.number, source.attempts), []).append(live)
        for (number, attempts), held in by_record.items():
            self._write_record(rows[number], held, attempts, now)
        release_unique(self.session, [live for live, _, _ in self._taken if unique_mode(live.unique_mode) == "started"])
        fifo = [(row.number, live.seq) for live, row, _ in self._taken if row.fifo]
        if fifo:
            numbers, seqs = zip(*fifo, strict=True)
            self.session.change("set_in_flight", numbers=list(numbers), seqs=list(seqs))
        failpoints.point("claim.leased")
        entries = []
        for live, _, _ in self._taken:
            live.claim, live.owner, live.claimed, live.until = request.id, request.owner, now, now + request.lease_us
            live.attempt, live.fence = live.attempt + 1, live.fence + 1
            entries.append(live.entry())
        return entries

    def _write_record(self, row: QueueRow, held: list[Live], attempts: int | None, now: Micros) -> None:
        request = self.request
        limited = row.limit_label is not None
        seqs = [live.seq for live in held]
        self.session.change(
            "lease", claim=request.id, number=row.number, owner=request.owner, claimed=now,
            until=now + request.lease_us, max_attempts=attempts, low=min(seqs), high=max(seqs), seqs=seqs,
            bodies=[live.body for live in held],
            dues=[live.due for live in held],
            generations=[live.generation for live in held],
            attempts=[live.attempt + 1 for live in held],
            fences=[live.fence + 1 for live in held],
            suspects=[live.suspect for live in held],
            errors=[live.error for live in held],
            limit_values=[read_map(live.labels).get(row.limit_label or "") for live in held] if limited else None,
        )  # fmt: skip

    def _next(self) -> Micros | None:
        """The earliest time at which the queues looked at may have more."""
        full = any(self._room[id(source)] < 1 for source in self.request.sources if source.limit > 0)
        if self._left < 1 or full:
            return self.session.now
        suspect = self.session.row("next_suspect", moment=self.session.now)
        return min([*self._upcoming, *(suspect or ())], default=None)

    # --- limits -----------------------------------------------------------------------------------------------------

    def _label_room(self, row: QueueRow, live: Live, in_flight: dict[str, int]) -> bool:
        """Whether the entry's label value has room; ``in_flight`` has the counts of this look."""
        if row.limit_label is None or row.limit_count is None:
            return True
        value = read_map(live.labels).get(row.limit_label)
        if value is None:
            return True
        if not in_flight:
            in_flight.update(self.session.rows("label_values_in_flight", queue=row.queue))
            for taken, its_row, _ in self._taken:
                if its_row.queue == row.queue:
                    held = read_map(taken.labels).get(row.limit_label)
                    if held is not None:
                        in_flight[held] = in_flight.get(held, 0) + 1
        if in_flight.get(value, 0) >= row.limit_count:
            return False
        in_flight[value] = in_flight.get(value, 0) + 1
        return True

    def _base(self, row: QueueRow) -> QueueRow:
        """The row that keeps the queue's rate."""
        return queue_row(self.session, row.queue) if row.node else row

    def _rate_room(self, row: QueueRow) -> int:
        """How many starts the queue's rate allows now (GCRA with a burst of the full count)."""
        if row.rate_count is None and not row.node:
            return self.request.limit
        base = self._base(row)
        if base.rate_count is None or base.rate_period is None:
            return self.request.limit
        now = self.session.now
        spent_until = max(base.rate_next or 0, now)
        return max(0, (now + base.rate_period - spent_until) * base.rate_count // base.rate_period)

    def _rate_spend(self, row: QueueRow, starts: int) -> None:
        base = self._base(row) if row.rate_count is not None or row.node else None
        if base is None or base.rate_count is None or base.rate_period is None:
            return
        # Rounded up, so that no fraction of a start is ever given away.
        cost = -(-starts * base.rate_period // base.rate_count)
        base.rate_next = max(base.rate_next or 0, self.session.now) + cost
        self.session.change("spend_rate", rate_next=base.rate_next, queue=row.queue)

    def _note_rate(self, row: QueueRow) -> None:
        if self._rate_room(row) < 1:
            base = self._base(row)
            period, count = base.rate_period or 0, base.rate_count or 1
            self._upcoming.append((base.rate_next or self.session.now) - period - (-period // count))


def _with_heads(rows: Sequence[tuple[Any, ...]]) -> list[tuple[QueueRow, Micros]]:
    """Rows of queues that hold something, with the due time of their first entry."""
    return [(QueueRow(*values), head) for *values, head in rows if head is not None]


def _waiting(row: QueueRow, values: Sequence[Any]) -> Live:
    """A candidate as a live entry."""
    (
        seq, body, id_, priority, created, due, first_due, generation, attempt, fence, suspect, error, labels, headers,
        unique_key, mode, expires, codec, type_, payload,
    ) = values  # fmt: skip
    return Live(
        seq=seq, body=body, id=id_, queue=row.queue, node=row.node, number=row.number, fifo=row.fifo,
        generation=generation, priority=priority, created=created, due=due, first_due=first_due, attempt=attempt,
        fence=fence, suspect=suspect, error=error, labels=labels, headers=headers, unique_key=unique_key,
        unique_mode=mode, expires=expires, codec=codec, type=type_, payload=payload,
        limited=row.limit_label is not None,
    )  # fmt: skip
