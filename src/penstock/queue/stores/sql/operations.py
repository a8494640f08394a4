"""Operations: everything a call may do inside its transaction: steps, and what people and the reaper do to entries."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue import refusals
from penstock.queue.drivers.sql.rows import write_map
from penstock.queue.store import Changes, Reaped, Scope
from penstock.queue.stores.sql.rows import Ended, Row
from penstock.queue.stores.sql.schema import LEASED
from penstock.queue.stores.sql.steps import Steps

RAN_OUT = "lease ran out"


class Operations(Steps):
    """One transaction's worth of work on one connection."""

    def cancel(self, ids: Sequence[str], *, force: bool, scope: Scope | None) -> list[tuple[str, str]]:
        """End entries as cancelled, all or none."""
        ended = []
        for id_ in ids:
            row = self._within(scope, id_)
            if row is None:
                if self.db.execute(self.sql.was_cancelled, (id_,)).fetchone():
                    continue
                raise refusals.not_live(id_)
            self._check_leased(row, force)
            running = row.state == LEASED
            self.end(row, "cancelled", started=row.claimed, ran=running)
            ended.append((id_, row.queue))
        return ended

    def update(self, id_: str, changes: Changes, *, force: bool, scope: Scope | None) -> str:
        """Change an entry; its queue's name."""
        row = self._within(scope, id_)
        if row is None:
            raise refusals.not_live(id_)
        self._check_leased(row, force)
        if changes.priority and row.fifo:
            raise refusals.not_for_fifo(row.queue)
        if row.state == LEASED:
            self.db.execute(self.sql.void, (row.seq,))
            self.record(row, "retried", row.claimed, "taken away by an update")
            self.give_back(row, row.due, error=None, unspent=False)
        due = row.due
        if changes.due_us is not None or changes.delay_us is not None:
            due = changes.due_us if changes.due_us is not None else self.now + (changes.delay_us or 0)
        self.db.execute(
            self.sql.update,
            (
                row.payload if changes.payload is None else changes.payload,
                changes.codec or row.codec,
                changes.type or row.type,
                row.labels if changes.labels is None else write_map(changes.labels),
                row.priority if changes.priority is None else changes.priority,
                due,
                row.first_due if changes.due_us is None and changes.delay_us is None else due,
                row.seq,
            ),
        )
        if changes.labels is not None:
            self.add_labels(id_, changes.labels)
        self.sooner(row.lane, due, fifo=bool(row.fifo))
        return row.queue

    def replay(self, ids: Sequence[str], *, scope: Scope | None) -> list[tuple[str, str]]:
        """Put ended entries back as a new generation, all or none."""
        replayed = []
        for id_ in ids:
            if self.row(self.sql.by_id, id_) is not None:
                continue
            found = self.db.execute(self.sql.dead_by_id, (id_,)).fetchone()
            if found is not None:
                self.db.execute(self.sql.delete_dead, (found[0],))
            else:
                found = self.db.execute(self.sql.last_by_id, (id_,)).fetchone()
            if found is None or (scope is not None and not scope.covers(found[2])):
                raise refusals.not_ended(id_)
            failpoints.point("replay.taken")
            self._revive(Ended(*found))
            replayed.append((id_, found[2]))
        return replayed

    def _revive(self, ended: Ended) -> None:
        if ended.unique_key is not None and ended.unique_mode != "period":
            holder = self.hold(ended.queue, ended.unique_key, ended.id, None)
            if holder is not None:
                raise refusals.unique_held(ended.queue, ended.unique_key, holder)
        lane = self.lane(ended.queue, ended.node)
        now = self.now
        self.db.execute(
            self.sql.insert,
            (ended.id, lane.queue, lane.node, lane.lane, lane.fifo, ended.generation + 1, ended.priority, ended.created,
             now, now, ended.fence, ended.labels, ended.headers, ended.unique_key, ended.unique_mode, None,
             ended.codec, ended.type, ended.payload),
        )  # fmt: skip
        self.sooner(lane.lane, now, fifo=bool(lane.fifo))

    # --- reaping -----------------------------------------------------------------------------------

    def reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        """Take back what vanished workers held, end what is out of time, free what vanished nodes kept."""
        found = Reaped([], [], [], [], [])
        for row in self.rows(self.sql.run_out, (self.now, limit)):
            self.db.execute(self.sql.void, (row.seq,))
            if row.max_attempts is not None and row.attempt >= row.max_attempts:
                self.end(row, "dead", started=row.claimed, error=RAN_OUT)
                found.dead.append((row.id, row.queue))
            else:
                self.record(row, "reaped", row.claimed, RAN_OUT)
                failpoints.point("reap.recorded")
                self.give_back(row, self.now, error=RAN_OUT, unspent=False, suspect=True)
                found.reaped.append((row.id, row.queue))
        for row in self.rows(self.sql.expired, (self.now, limit)):
            self.end(row, "expired", ran=False)
            found.expired.append((row.id, row.queue))
        cutoff = self.now - sticky_after_us
        for id_, queue, owner, seq, due in self.db.execute(self.sql.overdue_sticky, (cutoff, limit, node)).fetchall():
            if owner == node:
                found.late.append((id_, queue))
            else:
                base = self.lane(queue)
                self.db.execute(self.sql.move_lane, (base.lane, seq))
                self.sooner(base.lane, due, fifo=False)
                found.freed.append((id_, queue))
        self.db.execute(self.sql.unique_sweep, (self.now,))
        return found

    def _within(self, scope: Scope | None, id_: str) -> Row | None:
        row = self.row(self.sql.by_id, id_)
        return row if row is None or scope is None or scope.covers(row.queue) else None

    def _check_leased(self, row: Row, force: bool) -> None:
        if row.state == LEASED and not force:
            raise refusals.entry_leased(row.id, row.queue, row.owner)
