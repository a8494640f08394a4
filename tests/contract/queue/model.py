"""The store contract as a small model in plain Python, written from docs/store-contract.md and knowing no store.

It does what the contract says one entry at a time and without any thought of speed. Where the contract leaves a choice
(which queue a claim serves first, how far it looks for expired entries), the machine asks the store what it did and the
model says whether that was allowed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from penstock.queue.protocol import Ending, NewEntry, Step

KNOWN = 15 * 60 * 1_000_000  # ended ids stay known at least this long
FINAL = ("done", "dead", "cancelled", "expired")


class Refused(Exception):
    """The contract forbids it; carries the name of the error."""

    def __init__(self, error: str) -> None:
        """Take the name of the error that a store has to raise or return."""
        super().__init__(error)
        self.error = error


@dataclass
class Thing:
    """An entry, live or ended."""

    id: str
    queue: str
    seq: int
    payload: bytes
    priority: int
    created: int
    due: int
    first_due: int
    labels: dict[str, str]
    unique: str | None = None
    mode: str | None = None
    expires: int | None = None
    node: str | None = None
    attempt: int = 0
    generation: int = 1
    fence: int = 0
    error: str | None = None
    token: str | None = None
    owner: str | None = None
    claimed: int = 0
    until: int = 0
    bound: int | None = None
    suspect: bool = False
    died_of: str | None = None

    @property
    def leased(self) -> bool:
        """Whether somebody holds it."""
        return self.token is not None

    def shown(self) -> tuple[Any, ...]:
        """What a reader sees of it while it lives."""
        return (
            self.id, self.queue, "leased" if self.leased else "waiting", self.payload, self.priority, self.created,
            self.due, self.first_due, self.attempt, self.generation, self.labels, self.unique, self.expires, self.node,
            self.error,
            (self.token, self.fence, self.owner, self.claimed, self.until) if self.leased else None,
        )  # fmt: skip


@dataclass
class Row:
    """A row of the history."""

    id: str
    queue: str
    generation: int
    attempt: int
    state: str
    started: int | None
    ended: int
    error: str | None
    payload: bytes | None


@dataclass
class Model:
    """All that a space holds."""

    now: int
    fifo: set[str] = field(default_factory=set)
    live: dict[str, Thing] = field(default_factory=dict)
    dead: dict[str, Thing] = field(default_factory=dict)
    ended: dict[str, Thing] = field(default_factory=dict)  # the last ended form of ids that are not dead letters
    rows: list[Row] = field(default_factory=list)
    holds: dict[tuple[str, str], tuple[str, int | None]] = field(default_factory=dict)
    locks: dict[str, dict[str, str]] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)  # the last token of an id that its owner settled
    seq: int = 0

    # --- steps -------------------------------------------------------------------------------------

    def step(self, step: Step) -> list[tuple[str, bool]]:
        """Do a step whole or raise and leave nothing; the id and whether it was created, for each put."""
        if step.repeat and step.endings and all(self.was_settled(one) for one in step.endings):
            return []
        before = copy.deepcopy(self)
        try:
            for ending in step.endings:
                self._end(ending)
            return [self._put(entry, repeat=step.repeat or entry.repeat) for entry in step.puts]
        except Refused:
            self.__dict__ = before.__dict__
            raise

    def current(self, ending: Ending) -> bool:
        """Whether the ending's lease is the current one."""
        thing = self.live.get(ending.lease.entry)
        return thing is not None and thing.token == ending.lease.token

    def was_settled(self, ending: Ending) -> bool:
        """Whether this very lease was settled by its owner, and no later one of the entry."""
        return not self.current(ending) and self.settled.get(ending.lease.entry) == ending.lease.token

    def _end(self, ending: Ending) -> None:
        if not self.current(ending):
            raise Refused("LeaseLost")
        thing = self.live[ending.lease.entry]
        self.settled[thing.id] = ending.lease.token
        started = thing.claimed if ending.started_us is None else ending.started_us
        if ending.outcome in ("done", "dead"):
            self.finish(thing, ending.outcome, started, ending.error)
            return
        if ending.outcome == "retry":
            self._row(thing, "retried", started, ending.error)
        else:
            thing.attempt -= 1
        if ending.outcome != "release":
            thing.due = self.now + ending.delay_us if ending.due_us is None else ending.due_us
            thing.suspect = False
        if ending.error is not None:
            thing.error = ending.error
        self._lay_down(thing)

    def finish(self, thing: Thing, state: str, started: int | None, error: str | None, *, ran: bool = True) -> None:
        """End a live entry; ``ran`` says whether an attempt ended with it."""
        self._row(thing, state, started, error, extra=0 if ran else 1)
        del self.live[thing.id]
        if state == "dead":
            thing.died_of = error
            self.dead[thing.id] = thing
        else:
            self.ended[thing.id] = thing
        if thing.unique is not None and thing.mode != "period":
            self._let_go(thing)
        self._lay_down(thing)

    def _row(self, thing: Thing, state: str, started: int | None, error: str | None, *, extra: int = 0) -> None:
        self.rows.append(
            Row(
                thing.id, thing.queue, thing.generation, thing.attempt + extra, state, started, self.now, error,
                thing.payload,
            )
        )  # fmt: skip

    def _lay_down(self, thing: Thing) -> None:
        thing.token = thing.owner = thing.bound = None
        thing.claimed = thing.until = 0

    def _let_go(self, thing: Thing) -> None:
        key = (thing.queue, thing.unique or "")
        if key in self.holds and self.holds[key] == (thing.id, None):
            del self.holds[key]

    # --- puts --------------------------------------------------------------------------------------

    def _put(self, new: NewEntry, *, repeat: bool) -> tuple[str, bool]:
        known = self.live.get(new.id)
        if known is None and repeat:
            known = self.dead.get(new.id) or self.ended.get(new.id)
        if known is not None:
            if (known.queue, known.payload) != (new.queue, new.payload):
                raise Refused("Conflict")
            return new.id, True
        if new.queue in self.fifo and (new.priority or new.node is not None):
            raise Refused("BadInput")
        due = (self.now if new.due_us is None else new.due_us) + new.delay_us
        expires = self.now + new.expires_in_us if new.expires_in_us is not None else new.expires_us
        if new.unique is not None:
            held = self.holder(new.queue, new.unique.key)
            if held is not None:
                return self._meet(held, new, due, expires)
            until = None if new.unique.period is None else self.now + _micros(new.unique.period)
            self.holds[new.queue, new.unique.key] = (new.id, until)
        self.seq += 1
        unique, mode = (None, None) if new.unique is None else (new.unique.key, new.unique.mode)
        self.live[new.id] = Thing(
            new.id, new.queue, self.seq, new.payload, new.priority, self.now, due, due, dict(new.labels), unique, mode,
            expires, new.node,
        )  # fmt: skip
        return new.id, True

    def holder(self, queue: str, key: str) -> str | None:
        """Who holds a unique id now."""
        id_, until = self.holds.get((queue, key), (None, None))
        return None if until is not None and until <= self.now else id_

    def _meet(self, holder: str, new: NewEntry, due: int, expires: int | None) -> tuple[str, bool]:
        assert new.unique is not None
        if new.unique.on_conflict == "raise":
            raise Refused("UniqueHeld")
        thing = self.live.get(holder)
        if new.unique.on_conflict == "replace" and thing is not None:
            if thing.leased:
                raise Refused("UniqueHeld")
            if thing.attempt:
                thing.generation += 1
            thing.payload, thing.labels, thing.priority = new.payload, dict(new.labels), new.priority
            thing.due = thing.first_due = due
            thing.expires, thing.attempt, thing.error, thing.suspect = expires, 0, None, False
        return holder, False

    # --- claims ------------------------------------------------------------------------------------

    def candidates(self, queue: str, node: str) -> list[list[Thing]]:
        """What a claim may meet in a queue, lane by lane and in order; expired and exhausted ones included."""
        if self.locks.get(queue):
            return []
        mine = [thing for thing in self.live.values() if thing.queue == queue]
        if queue in self.fifo:
            if any(thing.leased for thing in mine):
                return []
            # The head only; those behind it can be met in the same claim when it ends there.
            return [list(takewhile(lambda thing: thing.due <= self.now, sorted(mine, key=lambda thing: thing.seq)))]
        lanes = []
        for lane in (None, node):
            met = [thing for thing in mine if thing.node == lane and not thing.leased and thing.due <= self.now]
            lanes.append(sorted(met, key=lambda thing: (-thing.priority, thing.due, thing.seq)))
        return lanes

    def opens(self, queues: list[str], node: str) -> int | None:
        """The earliest time at which these queues have something to meet, if nothing changes."""
        times = []
        for queue in queues:
            if self.locks.get(queue):
                continue
            mine = [thing for thing in self.live.values() if thing.queue == queue and thing.node in (None, node)]
            if queue in self.fifo:
                if mine and not any(thing.leased for thing in mine):
                    times.append(min(mine, key=lambda thing: thing.seq).due)
            else:
                times += [thing.due for thing in mine if not thing.leased]
        return min(times, default=None)

    def lease(self, id_: str, claim: str, owner: str, lease_us: int, bound: int | None) -> Thing:
        """Hand one out."""
        thing = self.live[id_]
        thing.attempt += 1
        thing.fence += 1
        thing.token, thing.owner = f"{thing.fence}-{claim}", owner
        thing.claimed, thing.until, thing.bound = self.now, self.now + lease_us, bound
        if thing.mode == "started":
            self._let_go(thing)
        return thing

    # --- reaping -----------------------------------------------------------------------------------

    def reap(self, node: str, sticky_us: int) -> dict[str, set[str]]:
        """One round; the ids by what became of them."""
        found: dict[str, set[str]] = {kind: set() for kind in ("reaped", "dead", "expired", "freed", "late")}
        for thing in [one for one in self.live.values() if one.leased and one.until <= self.now]:
            if thing.bound is not None and thing.attempt >= thing.bound:
                self.finish(thing, "dead", thing.claimed, "lease ran out")
                found["dead"].add(thing.id)
            else:
                self._row(thing, "reaped", thing.claimed, "lease ran out")
                self._lay_down(thing)
                thing.due, thing.suspect, thing.error = self.now, True, "lease ran out"
                found["reaped"].add(thing.id)
        for thing in [one for one in self.live.values() if not one.leased and _over(one.expires, self.now)]:
            self.finish(thing, "expired", None, None, ran=False)
            found["expired"].add(thing.id)
        cutoff = self.now - sticky_us
        for thing in self.live.values():
            if thing.node is None or thing.leased or thing.due > cutoff:
                continue
            if thing.node == node:
                found["late"].add(thing.id)
            elif self.heard.get(thing.node, cutoff) <= cutoff:
                thing.node = None
                found["freed"].add(thing.id)
        return found

    # --- changes -----------------------------------------------------------------------------------

    def cancel(self, ids: list[str], *, force: bool) -> int:
        """End as cancelled, all or none; how many were."""
        before, count = copy.deepcopy(self), 0
        try:
            for id_ in ids:
                if id_ not in self.live and self.last_state(id_) == "cancelled":
                    continue
                thing = self._changeable(id_, force)
                running = thing.leased
                self.finish(thing, "cancelled", thing.claimed if running else None, None, ran=running)
                count += 1
        except Refused:
            self.__dict__ = before.__dict__
            raise
        return count

    def update(self, id_: str, changes: dict[str, Any], *, force: bool) -> None:
        """Change what waits; with force take it away first."""
        thing = self._changeable(id_, force)
        if thing.queue in self.fifo and changes.get("priority"):
            raise Refused("BadInput")
        if thing.leased:
            self._row(thing, "retried", thing.claimed, "taken away by an update")
            self._lay_down(thing)
            thing.suspect = False
        if "due" in changes:
            thing.due = thing.first_due = changes["due"]
        for name in ("payload", "labels", "priority"):
            if name in changes:
                setattr(thing, name, changes[name])

    def replay(self, ids: list[str]) -> int:
        """Bring ended ones back, all or none; how many were."""
        before, count = copy.deepcopy(self), 0
        try:
            for id_ in ids:
                if id_ not in self.live:
                    self._revive(id_)
                    count += 1
        except Refused:
            self.__dict__ = before.__dict__
            raise
        return count

    def _revive(self, id_: str) -> None:
        thing = self.dead.pop(id_, None) or self.ended.pop(id_, None)
        if thing is None:
            raise Refused("EntryNotFound")
        if thing.unique is not None and thing.mode != "period":
            if self.holder(thing.queue, thing.unique) is not None:
                raise Refused("UniqueHeld")
            self.holds[thing.queue, thing.unique] = (id_, None)
        self.seq += 1
        thing.seq, thing.generation, thing.attempt = self.seq, thing.generation + 1, 0
        thing.due = thing.first_due = self.now
        thing.expires = thing.error = None
        thing.suspect = False
        self.live[id_] = thing

    def purge(self, queue: str) -> int:
        """Forget the dead letters of a queue, and what the history shows of their payloads."""
        gone = [id_ for id_, thing in self.dead.items() if thing.queue == queue]
        for id_ in gone:
            del self.dead[id_]
        for row in self.rows:
            if row.id in gone:
                row.payload = None
        return len(gone)

    def prune(self, older_us: int) -> int:
        """Forget old rows, never those of the last fifteen minutes; how many."""
        cutoff = self.now - max(older_us, KNOWN)
        gone = [row for row in self.rows if row.ended <= cutoff]
        self.rows = [row for row in self.rows if row.ended > cutoff]
        for row in gone:
            last = self.ended.get(row.id)
            if last is not None and row.state in FINAL and row.generation == last.generation:
                del self.ended[row.id]
        return len(gone)

    def last_state(self, id_: str) -> str | None:
        """The final state an id that does not live was last seen in, while its row is kept."""
        finals = [row.state for row in self.rows if row.id == id_ and row.state in FINAL]
        return finals[-1] if finals and id_ not in self.dead else None

    def _changeable(self, id_: str, force: bool) -> Thing:
        if id_ not in self.live:
            raise Refused("EntryNotFound")
        if self.live[id_].leased and not force:
            raise Refused("EntryLeased")
        return self.live[id_]

    # --- counting ----------------------------------------------------------------------------------

    def counts(self, queue: str) -> tuple[int, int, int, int, int]:
        """Ready, delayed, retrying, leased, dead."""
        mine = [thing for thing in self.live.values() if thing.queue == queue]
        waiting = [thing for thing in mine if not thing.leased]
        later = [thing for thing in waiting if thing.due > self.now]
        return (
            len(waiting) - len(later),
            sum(thing.attempt == 0 for thing in later),
            sum(thing.attempt > 0 for thing in later),
            len(mine) - len(waiting),
            sum(thing.queue == queue for thing in self.dead.values()),
        )


def _over(moment: int | None, now: int) -> bool:
    return moment is not None and moment <= now


def _micros(period: Any) -> int:
    from penstock.clock import duration_micros

    return duration_micros(period)
