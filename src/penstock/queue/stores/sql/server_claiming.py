"""Claims on a database with many writers: queues are found from their waiting entries, not from a row of their own.

A put touches no row that another put, a claim or an ending touches, so a long transaction of a user's that puts an
entry holds up nobody. Claims share a lock on the rows of their queues, which a queue lock waits for; only FIFO, rated
and label-limited queues are claimed from by one worker at a time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.rows import family_range
from penstock.queue.entry import Entry
from penstock.queue.store import Claimed, ClaimRequest, Reaped, Source, Step
from penstock.queue.stores.sql.answers import forget_answers
from penstock.queue.stores.sql.claiming import Claiming
from penstock.queue.stores.sql.clocks import FRESH
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.rows import Row
from penstock.queue.stores.sql.steps import Lane, finish_row

SUSPECT_LOOKS, SUSPECT_PAUSE = 3, 0.005
_pause = threading.Event()


class Rounds:
    """What a handle remembers between claims: which lanes of a family come next, and when a lane was last served."""

    def __init__(self) -> None:
        """Start without memory; losing it costs a look, nothing else."""
        self.families: dict[tuple[str, str], deque[int]] = {}
        self.served: dict[int, Micros] = {}


class ServerOperations(Operations):
    """Operations that keep no readiness in the rows of queues; whoever may be claimed from is told by the bell."""

    def _finish_many(self, steps: Sequence[Step]) -> Collection[int]:
        """End those whose lease is current; rows have to be ours before they are copied to the history."""
        rows = [finish_row(step) for step in steps]
        listed = self.sql.dialect.listed([row[0] for row in rows])
        held = set(self.db.execute(self.sql.lock_many, (listed,)).fetchall())
        rows = [row for row in rows if row[:2] in held]
        if not rows:
            return ()
        seqs = [row[0] for row in rows]
        if len(rows) == 1:
            seq, token, started = rows[0]
            self.db.execute(self.sql.finish_one, (started, self.now, seq, token))
        else:
            self.db.execute(self.sql.finish_many, (self.sql.dialect.settled(rows), self.now))
        failpoints.point("finish.recorded")
        self.db.execute(self.sql.delete_many, (self.sql.dialect.listed(seqs),))
        return set(seqs)

    def sooner(self, lane: int, due: Micros, *, fifo: bool) -> None:
        """Something may be claimable: ring."""
        self.rings = True

    def reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        """Take back what vanished workers held, and forget answers that nobody asks for any more."""
        forget_answers(self)
        return super().reap(node, sticky_after_us, limit)

    def fifo_changed(self, lane: int) -> None:
        """Heads are found anew by every claim."""

    def define_lanes(self, queue: str) -> None:
        """Nothing is kept that a new limit could make wrong."""


class ServerClaiming(Claiming):
    """One claim inside one transaction of a server."""

    def __init__(self, work: Operations, request: ClaimRequest, rounds: Rounds) -> None:
        """Begin with no lane looked at."""
        super().__init__(work, request)
        self._rounds = rounds
        self._lanes: list[tuple[Lane, Source]] | None = None
        self._exhausted: set[int] = set()
        self._refilled: set[str] = set()
        self._upcoming: list[Micros] = []

    def run(self) -> Claimed:
        """Claim what is due; the leases begin when all locks are held."""
        return self._begun(super().run())

    def _begun(self, claimed: Claimed) -> Claimed:
        """Begin leases anew that were stamped before something was waited for."""
        now = self.now
        until = now + self.request.lease_us
        late = [] if self.request.repeat else [one for one in claimed.entries if now - _claimed_us(one) > FRESH]
        if late:
            listed = self.sql.dialect.listed([entry.lease.ref.seq for entry in late if entry.lease is not None])
            self.db.execute(self.sql.begin_leases, (now, until, listed))
        for entry in late:
            if entry.lease is not None:
                entry.lease = msgspec.structs.replace(entry.lease, claimed_us=now, until_us=until)
        return claimed

    def _due_suspect(self) -> tuple[Row, Lane, Source] | None:
        """Look again where a reader that only passes by may have hidden it: a suspect is not to be taken for gone."""
        found = super()._due_suspect()
        if self.sql.dialect.locks_what_it_scans:
            for _ in range(SUSPECT_LOOKS):
                if found is not None or not self.db.execute(self.sql.any_suspect, (self.now,)).fetchall():
                    break
                _pause.wait(SUSPECT_PAUSE)
                found = super()._due_suspect()
        return found

    def _ready_lanes(self) -> list[tuple[Lane, Source]]:
        """Lanes that hold something and have not yet been emptied by this claim, the longest unserved first."""
        if self._lanes is None:
            self._lanes = self._held(self._named_lanes())
        lanes = self._open(self._lanes)
        for family in self._families:
            while len(lanes) < self._left and self._room[id(family)] > 0:
                more = self._family_lanes(family, self._left)
                if more is None:
                    break
                self._lanes += self._held(more)
                lanes = self._open(self._lanes)
        self._several = len(lanes) > 1
        return lanes[: self._left]

    def _open(self, lanes: list[tuple[Lane, Source]]) -> list[tuple[Lane, Source]]:
        return [
            (lane, source) for lane, source in lanes if lane.lane not in self._exhausted and self._room[id(source)] > 0
        ]

    def _named_lanes(self) -> list[tuple[Lane, Micros]]:
        """Lanes of the queues asked for by name that hold something, with the due time of their first entry."""
        names = [name for name, source in self._named.items() if self._room[id(source)] > 0]
        if not names:
            return []
        rows = self.db.execute(self.sql.held_named, (self.sql.dialect.listed(names), self.request.node)).fetchall()
        return [(Lane(*values), head) for *values, head in rows if head is not None]

    def _family_lanes(self, family: Source, most: int) -> list[tuple[Lane, Micros]] | None:
        """The next lanes of a family, in turn over all claims of this handle; None when all have had their turn."""
        key = (family.name, self.request.node)
        turn = self._rounds.families.setdefault(key, deque())
        if not turn:
            if family.name in self._refilled:
                return None
            self._refilled.add(family.name)
            bounds = family_range(family.name)
            turn.extend(lane for (lane,) in self.db.execute(self.sql.held_family, (*bounds, key[1])).fetchall())
        picked = [turn.popleft() for _ in range(min(most, len(turn)))]
        if not picked:
            return None
        rows = self.db.execute(self.sql.held_lanes, (self.sql.dialect.listed(picked),)).fetchall()
        return [(Lane(*values), head) for *values, head in rows if head is not None]

    def _held(self, found: list[tuple[Lane, Micros]]) -> list[tuple[Lane, Source]]:
        """Those that are unlocked and ours to claim from, held so until the transaction ends."""
        wide = [lane.queue for lane, _ in found if not _is_narrow(lane)]
        limited = [lane.queue for lane, _ in found if _is_narrow(lane) and not lane.fifo]
        fifo = [lane.queue for lane, _ in found if lane.fifo]
        mine: set[int] = set()
        # A limited queue is worth waiting for; of many FIFO queues, those that another worker is at are passed over.
        ways = ((wide, self.sql.share_lanes), (limited, self.sql.await_lanes), (fifo, self.sql.take_lanes))
        for queues, statement in ways:
            if queues:
                rows = self.db.execute(statement, (self.sql.dialect.listed(sorted(set(queues))),)).fetchall()
                mine.update(lane for (lane,) in rows)
        known = {lane.lane for lane, _ in self._lanes or ()}
        fresh = []
        served = self._rounds.served
        for lane, _ in sorted(found, key=lambda one: max(one[1], served.get(one[0].lane, 0))):
            source = self._source(lane.queue)
            if source is None or lane.lane in known:
                continue
            if lane.lane in mine:
                if _is_narrow(lane):
                    # What was read before the row was ours may be old by now.
                    lane = self.work.lane(lane.queue, lane.node, fresh=True)  # noqa: PLW2901
                fresh.append((lane, source))
        return fresh

    def _take_heads(self, lanes: list[tuple[Lane, Source]]) -> None:
        """The heads of FIFO queues; each queue gives one or nothing."""
        idle = {lane.lane: (lane, source) for lane, source in lanes}
        look = idle
        while look:
            gave, ended = self._take_fifo(look)
            # Behind a head that ended instead of being handed out there is another one.
            look = {lane: idle[lane] for lane in ended}
            idle = {lane: held for lane, held in idle.items() if lane not in gave}
        for lane, _ in lanes:
            self._exhausted.add(lane.lane)
            self._note_rate(lane)
        if idle:
            listed = self.sql.dialect.listed(list(idle))
            dues = self.db.execute(self.sql.fifo_dues, (listed,)).fetchall()
            self._upcoming += [due for (due,) in dues if due > self.now]
            if len(dues) < len(idle):
                self._adopt(listed)

    def _adopt(self, listed: Any) -> None:
        """Line up entries whose put did not know yet that their queue is FIFO; the next claim finds them."""
        lost = [lane for (lane,) in self.db.execute(self.sql.fifo_lost, (listed,)).fetchall()]
        if lost and self.work.changed(self.sql.fifo_adopt, (self.sql.dialect.listed(lost),)):
            self._upcoming.append(self.now)

    def _settle_lane(self, lane: Lane, *, blocked: bool = False) -> None:
        """The lane gives no more in this claim."""
        self._exhausted.add(lane.lane)
        self._note_rate(lane)
        if not lane.fifo:
            dues = [due for _, due in self.db.execute(self.sql.lane_heads, (lane.lane,)).fetchall()]
            self._upcoming += [due for due in dues if due > self.now]

    def _note_rate(self, lane: Lane) -> None:
        if self._rate_room(lane) < 1:
            self._upcoming.append(self._rate_opens(lane))

    def _mark_served(self, lane: Lane) -> None:
        self._rounds.served[lane.lane] = self.now

    def _next(self) -> Micros | None:
        """The earliest time at which the lanes looked at may have more."""
        full = any(self._room[id(source)] < 1 for source in self.request.sources if source.limit > 0)
        if self._left < 1 or full:
            return self.now
        suspects: list[Any] = self.db.execute(self.sql.next_suspect).fetchall()
        later = [due for (due,) in suspects if due is not None and due > self.now]
        return min([*self._upcoming, *later], default=None)


def _claimed_us(entry: Entry[Any]) -> Micros:
    return 0 if entry.lease is None else entry.lease.claimed_us


def _is_narrow(lane: Lane) -> bool:
    """Whether one claim at a time may take from it."""
    return bool(lane.fifo) or lane.rate_count is not None or lane.limit_label is not None
