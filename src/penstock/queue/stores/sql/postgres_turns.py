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
from penstock.queue.store import Claimed, ClaimRequest, Settled, Step
from penstock.queue.stores.sql.server_claiming import ServerClaiming, ServerOperations
from penstock.queue.stores.sql.statements import FREE, MOVED
from penstock.queue.stores.sql.steps import Lane, finish_row, is_plain

# ?1 settled, ?2 now, ?3 queue, ?4 node, ?5 limit, ?6 claim, ?7 owner, ?8 until, ?9 attempts.
# The lane's lock comes first: who locks the queue has either been seen or waits for us. The lane and its first priority
# stand in scalar subqueries, so that the rows come from the index in their order and no others are read.
_LEASED = f"""
    lane AS (
        SELECT l.lane FROM <s>_lanes l
        WHERE l.queue = ?3 AND l.node = '' AND l.fifo = 0 AND l.rate_count IS NULL AND l.limit_label IS NULL AND {FREE}
        AND NOT EXISTS (SELECT 1 FROM <s> x WHERE x.state = 2 AND x.due <= ?2 AND x.queue = ?3 AND x.node IN ('', ?4))
        AND NOT EXISTS (SELECT 1 FROM <s>_lanes n JOIN <s> x ON x.lane = n.lane AND x.state = 0
                        WHERE n.queue = ?3 AND n.node = ?4 AND n.node <> '')
        <sharing>),
    picked AS (
        SELECT e.seq, coalesce(e.expires <= ?2, FALSE) OR coalesce(e.attempt >= ?9::bigint, FALSE)
                      OR coalesce(e.unique_mode = 'started', FALSE) AS odd
        FROM <s> e
        WHERE e.lane = (SELECT lane FROM lane) AND e.state = 0 AND e.due <= ?2
        AND e.priority = (SELECT x.priority FROM <s> x WHERE x.lane = (SELECT lane FROM lane) AND x.state = 0
                          ORDER BY x.priority DESC LIMIT 1)
        ORDER BY e.due, e.seq LIMIT ?5 <skipping e>),
    leased AS (
        UPDATE <s> e SET state = 1, attempt = attempt + 1, token = <token ?6>, fence = fence + 1, owner = ?7,
                         claimed = ?2, until = ?8, max_attempts = ?9
        FROM picked p WHERE e.seq = p.seq AND NOT EXISTS (SELECT 1 FROM picked WHERE odd)
        RETURNING e.seq, e.id, e.generation, e.priority, e.created, e.due, e.first_due, e.attempt - 1, e.fence - 1,
                  e.error, e.labels, e.headers, e.unique_key, e.unique_mode, e.expires, e.codec, e.type, e.payload)"""

# The lane if it is a plain one, whether anything odd was in the way, which were ended; then the rows that were leased.
_TOLD = "(SELECT lane FROM lane), EXISTS (SELECT 1 FROM picked WHERE odd)"
_ROWS = "e.* FROM (SELECT 1) one LEFT JOIN leased e ON TRUE ORDER BY e.due, e.seq"

TURNS = {
    "finish_many": f"WITH {MOVED} SELECT seq FROM gone",
    "plain_turn": f"WITH {MOVED}, {_LEASED} SELECT {_TOLD}, (SELECT array_agg(seq) FROM gone), {_ROWS}",
    "plain_claim": f"WITH {_LEASED} SELECT {_TOLD}, NULL, {_ROWS}",
    # What the lane still holds, by priority, and when the next suspect is due.
    "plain_rest": """
        WITH RECURSIVE hop(priority) AS (
            SELECT (SELECT priority FROM <s> WHERE lane = ?1 AND state = 0 ORDER BY priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT e.priority FROM <s> e WHERE e.lane = ?1 AND e.state = 0 AND e.priority < hop.priority
                    ORDER BY e.priority DESC LIMIT 1) FROM hop WHERE hop.priority IS NOT NULL)
        SELECT (SELECT e.due FROM <s> e WHERE e.lane = ?1 AND e.state = 0 AND e.priority = hop.priority
                ORDER BY e.due LIMIT 1), FALSE
        FROM hop WHERE hop.priority IS NOT NULL
        UNION ALL SELECT min(due), TRUE FROM <s> WHERE state = 2""",
}


class PostgresOperations(ServerOperations):
    """Operations that end many entries in one statement."""

    def _finish_many(self, steps: Sequence[Step]) -> Collection[int]:
        settled = self.sql.dialect.settled([finish_row(step) for step in steps])
        seqs = {seq for (seq,) in self.db.execute(self.sql.finish_many, (settled, self.now)).fetchall()}
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
        rows = self.db.execute(
            self.sql.plain_turn if steps else self.sql.plain_claim,
            (
                settled, self.now, source.name, request.node, min(request.limit, source.limit), request.id,
                request.owner, self.now + request.lease_us, source.attempts,
            ),
        ).fetchall()  # fmt: skip
        lane, odd, ended = rows[0][:3]
        if steps:
            chaos.point("finish.recorded")
        results = self.work.after_finish(steps, set(ended or ())) if steps else []
        if lane is None or odd:
            claimed = self.run()
        else:
            claimed = self._go_on([row[3:] for row in rows if row[3] is not None], lane)
        return Settled(results, claimed, self.now)

    def _go_on(self, rows: list[tuple[Any, ...]], lane_id: int) -> Claimed:
        [source] = self.request.sources
        lane = Lane(lane_id, source.name, "", None, 0, None, None, None, None, None)
        if rows:
            chaos.point("claim.leased")
            self._spent(lane, source, len(rows))
            self._hand_over(rows, lane)
        if self._left < 1 or self._room[id(source)] < 1:
            return Claimed(self._entries, self.now)
        rest = self.db.execute(self.sql.plain_rest, (lane_id,)).fetchall()
        if any(due <= self.now for due, suspect in rest if not suspect):
            return self.run()  # of a lower priority, or just put, or being taken by somebody else
        later = (due for due, _ in rest if due is not None and due > self.now)
        return Claimed(self._entries, min(later, default=None))
