"""How due entries are found and leased: cost per ready queue and entry taken, never per queue or per backlog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.rows import family_range, read_map
from penstock.queue.entry import Entry, Lease, no_attempts_left
from penstock.queue.store import Claimed, ClaimRequest, Source
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.rows import Ref, Row
from penstock.queue.stores.sql.schema import LEASED
from penstock.queue.stores.sql.steps import Lane

Candidate: TypeAlias = tuple[Any, ...]
MOST_ATTEMPTS = 2**31
MOST_NAMES = 50
SUSPECTS = 100  # looked at together
FIRST = (-(2**62), 0)  # before every (due, seq)


class Claiming:
    """One claim inside one transaction."""

    def __init__(self, work: Operations, request: ClaimRequest) -> None:
        """Sort the sources: a name wins over a family, a longer family over a shorter one."""
        self.work = work
        self.db = work.db
        self.sql = work.sql
        self.request = request
        self._named = {source.name: source for source in request.sources if not source.family}
        self._families = sorted((one for one in request.sources if one.family), key=lambda one: -len(one.name))
        self._room = {id(source): source.limit for source in request.sources}
        self._left = request.limit
        self._several = False  # whether lanes compete
        self._given: set[int] = set()  # lanes that have given all they can; a suspect in one may make it look ready
        self._entries: list[Entry[Any]] = []
        self._dead: list[str] = []

    @property
    def now(self) -> Micros:
        """The store's time, after whatever has been waited for so far."""
        return self.work.now

    def run(self) -> Claimed:
        """Claim what is due."""
        request = self.request
        if request.repeat:
            rows = self.db.execute(self.sql.leased_by, (request.owner, f"%-{request.id}")).fetchall()
            if rows:
                return Claimed([Row(*values).entry() for values in rows], self.now)
        suspect = self._due_suspect()
        if suspect is None:
            return self._take_ready()
        if request.alone:
            self._take([suspect[0]], suspect[1], suspect[2], most=1)
            self._settle_lane(suspect[1])
            self.work.flush()
            return Claimed(self._entries, self.now, suspect=bool(self._entries), dead=tuple(self._dead))
        return Claimed(suspect_waits=True)

    def _take_ready(self) -> Claimed:
        """All that there is room for, of what is no suspect."""
        while self._left > 0 and (lanes := self._ready_lanes()):
            self._round(lanes)
        self.work.flush()
        return Claimed(self._entries, self._next(), dead=tuple(self._dead))

    # --- finding -----------------------------------------------------------------------------------

    def _due_suspect(self) -> tuple[Row, Lane, Source] | None:
        after = FIRST
        while True:
            found = self.db.execute(
                self.sql.suspects, (self.now, self.request.node, after[0], after[0], after[1])
            ).fetchall()
            for values in found:
                row = Row(*values)
                source = self._source(row.queue)
                if source is None or self._room[id(source)] < 1:
                    continue
                lane = self.work.lane(row.queue, row.node)
                if self._rate_room(lane) > 0 and self._label_room(lane, row, {}):
                    return row, lane, source
            if len(found) < SUSPECTS:
                return None
            # Others' may come first, any number of them: ours must not be hidden behind them.
            after = (row.due, row.seq)

    def _ready_lanes(self) -> list[tuple[Lane, Source]]:
        """Lanes with something due and room to take it, the one that has waited longest first."""
        # One more than can be served tells whether lanes compete.
        node, most, found = self.request.node, self._left + 1 + len(self._given), []
        names = [name for name, source in self._named.items() if self._room[id(source)] > 0]
        if names:
            # A list of bound names is found by index faster than a JSON list is read; sqlite3 caches both statements.
            if len(names) <= MOST_NAMES:
                mark = self.sql.dialect.mark
                statement = self.sql.ready_named.replace("<names>", ", ".join([mark] * len(names)))
                bound: list[Any] = list(names)
            else:
                statement, bound = self.sql.ready_listed, [self.sql.dialect.listed(names)]
            found += self.db.execute(statement, (*bound, node, self.now, most)).fetchall()
        for family in self._families:
            if self._room[id(family)] > 0:
                bounds = family_range(family.name)
                statement, others = self._without(self.sql.ready_family, family, lambda one: self._room[id(one)] < 1)
                found += self.db.execute(statement, (self.now, node, *bounds, *others, most)).fetchall()
        ready: dict[int, tuple[Lane, Source]] = {}
        for values in found:
            lane = Lane(*values)
            source = self._source(lane.queue)
            if source is not None and self._room[id(source)] > 0 and lane.lane not in self._given:
                ready[lane.lane] = (lane, source)
        self._several = len(ready) > 1
        return sorted(ready.values(), key=lambda one: one[0].next_due or 0)[: self._left]

    def _round(self, lanes: list[tuple[Lane, Source]]) -> None:
        """Give every ready lane its share; each gives entries or stops being ready, so rounds come to an end."""
        share = max(1, self._left // len(lanes))
        fifo = [one for one in lanes if one[0].fifo]
        if fifo:
            self._take_heads(fifo)
        for lane, source in lanes:
            if self._left < 1:
                return
            if not lane.fifo and self._room[id(source)] > 0:
                self._take_from(lane, source, min(share, self._left, self._room[id(source)]))

    def _take_heads(self, lanes: list[tuple[Lane, Source]]) -> None:
        """The heads of many FIFO queues; then each has nothing to give until its head has ended."""
        by_lane = {lane.lane: (lane, source) for lane, source in lanes}
        _, ended = self._take_fifo(by_lane)
        # Behind a head that ended instead of being handed out there is another one.
        self._given.update(by_lane.keys() - ended)
        for lane_id in by_lane:
            self.work.fifo_changed(lane_id)
        self.work.flush()
        for lane, _ in by_lane.values():
            if self._rate_room(lane) < 1:
                self.db.execute(self.sql.lane_next, (self._rate_opens(lane), lane.lane))

    def _take_fifo(self, by_lane: dict[int, tuple[Lane, Source]]) -> tuple[set[int], set[int]]:
        """Lease the heads, found in one statement; the lanes that gave theirs, and those whose head ended instead."""
        plain: dict[int, tuple[Source, list[Row]]] = {}
        gave: set[int] = set()
        ended: set[int] = set()
        for values in self.db.execute(
            self.sql.fifo_heads, (self.sql.dialect.listed(list(by_lane)), self.now)
        ).fetchall():
            row = Row(*values)
            lane, source = by_lane[row.lane]
            if self._left < 1 or self._room[id(source)] < 1 or self._rate_room(lane) < 1:
                continue
            if self._is_plain(row, lane, source):
                plain.setdefault(id(source), (source, []))[1].append(row)
                self._spent(lane, source, 1)
                gave.add(row.lane)
            elif self._take([row], lane, source, most=1):
                gave.add(row.lane)
            elif self._is_over(row, source):
                ended.add(row.lane)
        for source, rows in plain.values():
            self._lease(rows, source)
        return gave, ended

    def _take_from(self, lane: Lane, source: Source, quota: int) -> None:
        """Up to ``quota`` due entries of one lane, by priority, due, sequence."""
        wanted, got = min(quota, self._rate_room(lane)), 0
        if wanted > 0:
            heads = self.db.execute(self.sql.lane_heads, (lane.lane,)).fetchall()
            for priority, due in heads:
                after, more = FIRST, due <= self.now
                # Expired entries and those whose label has no room are passed over: then the look goes on behind them.
                while more and got < wanted:
                    reach = wanted - got if lane.limit_label is None else max(wanted * 4, 200)
                    rows = self._candidates(lane, priority, after, reach)
                    got += self._take_candidates(rows, lane, source, most=wanted - got)
                    more = len(rows) == reach
                    after = (rows[-1][5], rows[-1][0]) if more else after
        if got < quota:
            self._given.add(lane.lane)
            self._settle_lane(lane, blocked=lane.limit_label is not None and got == 0)
        elif self._several:
            self._mark_served(lane)

    def _mark_served(self, lane: Lane) -> None:
        now = self.now
        self.db.execute(self.sql.lane_served, (now, lane.lane, now))

    def _candidates(self, lane: Lane, priority: int, after: tuple[Micros, int], most: int) -> list[Candidate]:
        """Due entries of one priority in order, those after the given (due, seq)."""
        key = (lane.lane, priority, self.now, *after, most)
        return list(self.db.execute(self.sql.candidates, key).fetchall())

    def _settle_lane(self, lane: Lane, *, blocked: bool = False) -> None:
        """Write down when the lane is to be looked at next; ``blocked``: not for what is due already."""
        if lane.fifo:
            self.work.fifo_changed(lane.lane)
            return
        if self._rate_room(lane) < 1:
            upcoming: Micros | None = self._rate_opens(lane)
        else:
            dues = [due for _, due in self.db.execute(self.sql.lane_heads, (lane.lane,)).fetchall()]
            dues += [
                due for (due,) in self.db.execute(self.sql.lane_suspect, (lane.lane,)).fetchall() if due is not None
            ]
            upcoming = min((due for due in dues if not blocked or due > self.now), default=None)
        self.db.execute(self.sql.lane_next, (upcoming, lane.lane))

    # --- taking ------------------------------------------------------------------------------------

    def _take_candidates(self, rows: list[Candidate], lane: Lane, source: Source, *, most: int) -> int:
        """Lease candidates by the hundred; those with anything unusual about them go the longer way, in order."""
        attempts = MOST_ATTEMPTS if source.attempts is None else source.attempts
        if lane.limit_label is None and not any(
            expires is not None or attempt >= attempts or mode == "started"
            for _, _, _, _, _, _, _, attempt, _, _, _, _, _, mode, expires, _, _, _ in rows
        ):
            self._lease_plain(rows, lane, source)
            return len(rows)
        full = (self.db.execute(self.sql.by_seq, (row[0],)).fetchone() for row in rows)
        return self._take([Row(*values) for values in full], lane, source, most=most)

    def _lease_plain(self, rows: list[Candidate], lane: Lane, source: Source) -> None:
        if not rows:
            return
        request, now = self.request, self.now
        seqs = self.sql.dialect.listed([row[0] for row in rows])
        until = now + request.lease_us
        self.db.execute(self.sql.lease, (request.id, request.owner, now, until, source.attempts, seqs))
        failpoints.point("claim.leased")
        self._spent(lane, source, len(rows))
        self._hand_over(rows, lane, now)

    def _hand_over(self, rows: list[Candidate], lane: Lane, now: Micros) -> None:
        """Rows as they were before they were leased by this claim, as entries."""
        request = self.request
        until, nonce, owner = now + request.lease_us, request.id, request.owner
        queue, node, lane_id = lane.queue, lane.node or None, lane.lane
        entries = self._entries
        for (
            seq, id_, generation, priority, created, due, first_due, attempt, fence, error, labels, headers,
            unique_key, _, expires, codec, type_, payload,
        ) in rows:  # fmt: skip
            fence += 1  # noqa: PLW2901 - the lease statement counted it up
            ref = Ref(seq, lane_id, False, unique_key is None)
            entries.append(
                Entry(
                    id_, queue, "leased", payload, codec, type_, seq, priority, created, due, first_due, attempt + 1,
                    generation, {} if labels is None else read_map(labels), {} if headers is None else
                    read_map(headers), unique_key, expires, node, error, Lease(id_, queue, f"{fence}-{nonce}", fence,
                    owner, now, until, ref),
                )
            )  # fmt: skip

    def _spent(self, lane: Lane, source: Source, leased: int) -> None:
        self._left -= leased
        self._room[id(source)] -= leased
        self._rate_spend(lane, leased)

    def _is_plain(self, row: Row, lane: Lane, source: Source) -> bool:
        """Nothing about the entry needs a second look before it is handed out."""
        exhausted = source.attempts is not None and row.attempt >= source.attempts
        return row.expires is None and lane.limit_label is None and not exhausted

    def _is_over(self, row: Row, source: Source) -> bool:
        """Whether the entry ends instead of being handed out."""
        expired = row.expires is not None and row.expires <= self.now
        return expired or (source.attempts is not None and row.attempt >= source.attempts)

    def _take(self, rows: list[Row], lane: Lane, source: Source, *, most: int) -> int:
        """Lease what may be handed out, end what may not; how many were leased."""
        handed: list[Row] = []
        in_flight: dict[str, int] = {}
        for row in rows:
            if len(handed) == most:
                break
            if row.expires is not None and row.expires <= self.now:
                self.work.end(row, "expired", ran=False)
            elif self._is_over(row, source):
                self.work.end(row, "dead", error=no_attempts_left(row.error), ran=False)
                self._dead.append(row.id)
            elif lane.limit_label is None or self._label_room(lane, row, in_flight):
                handed.append(row)
        if handed:
            self._lease(handed, source, limited=lane.limit_label is not None)
            self._spent(lane, source, len(handed))
        return len(handed)

    def _lease(self, rows: list[Row], source: Source, *, limited: bool = False) -> None:
        request, now = self.request, self.now
        until = now + request.lease_us
        seqs = self.sql.dialect.listed([row.seq for row in rows])
        self.db.execute(self.sql.lease, (request.id, request.owner, now, until, source.attempts, seqs))
        for row in rows:
            if row.unique_mode == "started":
                self.db.execute(self.sql.unique_release, (row.queue, row.unique_key, row.id))
            row.state, row.attempt, row.fence = LEASED, row.attempt + 1, row.fence + 1
            row.token, row.owner, row.claimed, row.until = f"{row.fence}-{request.id}", request.owner, now, until
            self._entries.append(row.entry(limited=limited))

    # --- limits ------------------------------------------------------------------------------------

    def _label_room(self, lane: Lane, row: Row, in_flight: dict[str, int]) -> bool:
        """Whether the entry's label value has room; ``in_flight`` remembers the counts of this claim."""
        if lane.limit_label is None or lane.limit_count is None:
            return True
        value = read_map(row.labels).get(lane.limit_label)
        if value is None:
            return True
        if value not in in_flight:
            key = (lane.limit_label, value, lane.queue)
            in_flight[value] = self.db.execute(self.sql.label_in_flight, key).fetchone()[0]
        if in_flight[value] >= lane.limit_count:
            return False
        in_flight[value] += 1
        return True

    def _rate_room(self, lane: Lane) -> int:
        """How many starts the queue's rate allows now (GCRA with a burst of the full count)."""
        if lane.rate_count is None and not lane.node:
            return self.request.limit
        base = self.work.lane(lane.queue)
        if base.rate_count is None or base.rate_period is None:
            return self.request.limit
        now = self.now
        spent_until = max(base.rate_next or 0, now)
        return max(0, (now + base.rate_period - spent_until) * base.rate_count // base.rate_period)

    def _rate_spend(self, lane: Lane, starts: int) -> None:
        base = self.work.lane(lane.queue) if lane.rate_count is not None or lane.node else None
        if base is None or base.rate_count is None or base.rate_period is None:
            return
        # Rounded up, so that no fraction of a start is ever given away.
        cost = -(-starts * base.rate_period // base.rate_count)
        base.rate_next = max(base.rate_next or 0, self.now) + cost
        self.db.execute(self.sql.lane_rate, (base.rate_next, lane.queue))

    def _rate_opens(self, lane: Lane) -> Micros:
        """When the next start is allowed."""
        base = self.work.lane(lane.queue)
        period, count = base.rate_period or 0, base.rate_count or 1
        return (base.rate_next or self.now) - period - (-period // count)

    # --- inside ------------------------------------------------------------------------------------

    def _source(self, queue: str) -> Source | None:
        named = self._named.get(queue)
        if named is not None:
            return named
        for family in self._families:
            if queue.startswith(family.name):
                return family
        return None

    def _without(self, statement: str, family: Source, full: Callable[[Source], bool]) -> tuple[str, list[str]]:
        """Leave out queues that a closer source without room answers for: they must not crowd the others out."""
        closer = [one for one in (*self._named.values(), *self._families) if one is not family and full(one)]
        closer = [one for one in closer if one.name.startswith(family.name)]
        if not closer:
            return statement, []
        names = self.sql.dialect.listed([one.name for one in closer if not one.family])
        ranges = [family_range(one.name) for one in closer if one.family]
        text = self.sql.fill("AND NOT (<texts queue ?>)" + " AND NOT (queue >= ? AND queue < ?)" * len(ranges)) + " "
        return statement.replace("ORDER BY", f"{text}ORDER BY"), [names, *(bound for pair in ranges for bound in pair)]

    def _next(self) -> Micros | None:
        """The earliest time at which the sources may have more."""
        if self._left < 1:
            return self.now
        found = []
        if self._named:
            names = self.sql.dialect.listed([name for name, source in self._named.items() if source.limit > 0])
            found += self.db.execute(self.sql.next_named, (names, self.request.node)).fetchall()
        for family in self._families:
            if family.limit > 0:
                bounds = family_range(family.name)
                statement, others = self._without(self.sql.next_family, family, lambda one: one.limit < 1)
                found += self.db.execute(statement, (self.request.node, *bounds, *others)).fetchall()
        return min((due for (due,) in found if due is not None), default=None)
