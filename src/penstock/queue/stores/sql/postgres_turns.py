"""The plain turn on PostgreSQL: what a worker of one ordinary queue settles and claims, in one statement.

Every statement is a round trip, and a turn of the general kind takes ten. One statement that ends the finished entries
and leases the next ones does the same where nothing is unusual: one queue without limits, successes without a unique
id, entries that are neither expired nor out of attempts, and nothing suspect or sticky waiting. It tells when something
is; then the general claim goes on in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from penstock import chaos
from penstock.clock import Micros
from penstock.queue.store import Claimed, ClaimRequest, Settled, Step
from penstock.queue.stores.sql.server_claiming import ServerClaiming, ServerOperations
from penstock.queue.stores.sql.statements import FREE, moved
from penstock.queue.stores.sql.steps import Lane, finish_row, is_plain

# ?1 settled, ?2 now, ?3 queue, ?4 node, ?5 limit, ?6 claim, ?7 owner, ?8 until, ?9 attempts, ?10 how many are settled,
# ?11 the time of a fake clock.
# The lane's lock comes first: who locks the queue has either been seen or waits for us. The lane and its first priority
# stand in scalar subqueries, so that the rows come from the index in their order and no others are read. Whether a
# sticky lane has any is asked in the index's order too: as a join it is a scan of all that wait.
_LEASED = f"""
    lane AS (
        SELECT l.lane FROM <s>_lanes l
        WHERE l.queue = ?3 AND l.node = '' AND l.fifo = 0 AND l.rate_count IS NULL AND l.limit_label IS NULL AND {FREE}
        AND NOT EXISTS (SELECT 1 FROM <s> x WHERE x.state = 2 AND x.due <= ?2 AND x.queue = ?3 AND x.node IN ('', ?4))
        AND NOT EXISTS (SELECT 1 FROM <s>_lanes n WHERE n.queue = ?3 AND n.node = ?4 AND n.node <> '' AND (
                            SELECT x.priority FROM <s> x WHERE x.lane = n.lane AND x.state = 0
                            ORDER BY x.priority DESC LIMIT 1) IS NOT NULL)
        <sharing>),
    top AS (
        SELECT x.priority FROM <s> x WHERE x.lane = (SELECT lane FROM lane) AND x.state = 0
        ORDER BY x.priority DESC LIMIT 1),
    picked AS (
        SELECT e.seq, coalesce(e.expires <= ?2, FALSE) OR coalesce(e.attempt >= ?9::bigint, FALSE)
                      OR coalesce(e.unique_mode = 'started', FALSE) AS odd
        FROM <s> e
        WHERE e.lane = (SELECT lane FROM lane) AND e.state = 0 AND e.due <= ?2
        AND e.priority = (SELECT priority FROM top)
        ORDER BY e.due, e.seq LIMIT ?5 <skipping e>),
    leased AS (
        UPDATE <s> e SET state = 1, attempt = attempt + 1, token = <token ?6>, fence = fence + 1, owner = ?7,
                         claimed = ?2, until = ?8, max_attempts = ?9
        FROM picked p WHERE e.seq = p.seq AND NOT EXISTS (SELECT 1 FROM picked WHERE odd)
        RETURNING e.seq, e.id, e.generation, e.priority, e.created, e.due, e.first_due, e.attempt - 1, e.fence - 1,
                  e.error, e.labels, e.headers, e.unique_key, e.unique_mode, e.expires, e.codec, e.type, e.payload)"""

# The lane if it is a plain one, whether anything odd was in the way, which were ended if not all; then the rows leased.
# If they are fewer than wanted: whether there is any of lower priority, and when the next entry and suspect are due.
_FEWER = "CASE WHEN (SELECT count(*) FROM picked) < ?5 THEN"
_AFTER = "FROM <s> x WHERE x.lane = (SELECT lane FROM lane) AND x.state = 0 AND x.priority"
_TOLD = f"""
    (SELECT lane FROM lane), EXISTS (SELECT 1 FROM picked WHERE odd),
    {_FEWER} (SELECT x.priority {_AFTER} < (SELECT priority FROM top) ORDER BY x.priority DESC LIMIT 1) IS NOT NULL END,
    {_FEWER} (SELECT x.due {_AFTER} = (SELECT priority FROM top) AND x.due > ?2 ORDER BY x.due LIMIT 1) END,
    {_FEWER} (SELECT min(x.due) FROM <s> x WHERE x.state = 2 AND x.due > ?2) END"""
_ENDED = "CASE WHEN (SELECT count(*) FROM gone) < ?10 THEN (SELECT coalesce(array_agg(seq), '{}') FROM gone) END"
_ROWS = "e.* FROM (SELECT 1) one LEFT JOIN leased e ON TRUE ORDER BY e.due, e.seq"

TURNS = {
    "finish_many": f"WITH {moved('?2')} SELECT seq FROM gone",
    "plain_turn": f"WITH {moved('?11')}, {_LEASED} SELECT {_TOLD}, {_ENDED}, {_ROWS}",
    "plain_claim": f"WITH {_LEASED} SELECT {_TOLD}, NULL, {_ROWS}",
}


class PostgresOperations(ServerOperations):
    """Operations that end many entries in one statement."""

    def _finish_many(self, steps: Sequence[Step]) -> Collection[int]:
        settled = self.sql.dialect.settled([finish_row(step) for step in steps])
        seqs = {seq for (seq,) in self.db.execute(self.sql.finish_many, (settled, self.clock.fixed)).fetchall()}
        chaos.point("finish.recorded")
        return seqs


def is_plain_turn(steps: Sequence[Step], claim: ClaimRequest) -> bool:
    """Whether one statement may do: a claim from one queue by name, after successes and nothing else."""
    return (
        len(claim.sources) == 1
        and not claim.repeat
        and not claim.sources[0].family
        and min(claim.limit, claim.sources[0].limit) > 0
        and all(map(is_plain, steps))
        and len({step.endings[0].lease.ref.seq for step in steps}) == len(steps)
    )


class PlainTurn(ServerClaiming):
    """One turn that begins with the one statement."""

    def exchange(self, steps: Sequence[Step]) -> Settled:
        """Settle and claim."""
        request, [source] = self.request, self.request.sources
        settled = self.sql.dialect.settled([finish_row(step) for step in steps])
        now = self.now
        rows = self.db.execute(
            self.sql.plain_turn if steps else self.sql.plain_claim,
            (
                settled, now, source.name, request.node, min(request.limit, source.limit), request.id,
                request.owner, now + request.lease_us, source.attempts, len(steps), self.work.clock.fixed,
            ),
        ).fetchall()  # fmt: skip
        lane, odd, lower, later, suspect, ended = rows[0][:6]
        if steps:
            chaos.point("finish.recorded")
            finished = {step.endings[0].lease.ref.seq for step in steps} if ended is None else set(ended)
        results = self.work.after_finish(steps, finished) if steps else []
        if lane is None or odd:
            return Settled(results, self.run(), self.now)
        if rows[0][6] is not None:
            self._hand_over_leased([row[6:] for row in rows], lane, now)
        if lower:
            return Settled(results, self._begun(self._take_ready()), self.now)
        full = self._left < 1 or self._room[id(source)] < 1
        next_us = self.now if full else min((due for due in (later, suspect) if due is not None), default=None)
        return Settled(results, self._begun(Claimed(self._entries, next_us)), self.now)

    def _hand_over_leased(self, rows: list[tuple[Any, ...]], lane_id: int, now: Micros) -> None:
        chaos.point("claim.leased")
        [source] = self.request.sources
        lane = Lane(lane_id, source.name, "", None, 0, None, None, None, None, None)
        self._spent(lane, source, len(rows))
        self._hand_over(rows, lane, now)
