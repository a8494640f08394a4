"""SqlStore: what the SQL stores have in common: the contract in terms of operations inside transactions.

A database's own module says how a transaction is run (:meth:`SqlStore._write`), how one reads
(:meth:`SqlStore._reading`), and how its workers are woken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec

from penstock import failpoints
from penstock.clock import Clock, Micros
from penstock.errors import PenstockError, StoreUnavailable
from penstock.queue.cargo import Cargo, Hold, Part
from penstock.queue.drivers.sql.rows import family_range
from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.store import (
    REMEMBERED,
    Changes,
    Claimed,
    ClaimRequest,
    Definition,
    Document,
    Find,
    NewEntry,
    Note,
    QueueStore,
    Reaped,
    Schedule,
    Scope,
    Settled,
    Step,
    Subscription,
)
from penstock.queue.stores.sql import moving, ranges
from penstock.queue.stores.sql.claiming import Claiming
from penstock.queue.stores.sql.clocks import OneMoment
from penstock.queue.stores.sql.finding import count_page, count_queues, find_ended, find_live
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.statements import Statements

T = TypeVar("T")


class SqlStore(QueueStore):
    """Queues in the tables of one space."""

    claiming = Claiming

    def __init__(self, space: str, clock: Clock, name: str, sql: Statements) -> None:
        """Bind the statements; the database's own class opens the connection."""
        super().__init__(space, clock, name)
        self.sql = sql

    # --- what a database's own module says ----------------------------------------------------------

    @abstractmethod
    def _write(self, work: Callable[[Operations], T], connection: Any = None) -> T:
        """Run work in a write transaction of ours, or in the caller's own; ring if it says so."""

    def _write_once(self, work: Callable[[Operations], T], kind: Any, connection: Any = None) -> T:
        """Run work whose answer, of this kind, cannot be found out again when the reply to a commit was lost."""
        return self._write(work, connection)

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Any]:
        """A connection with one consistent view."""

    @abstractmethod
    def _in_callers(self, connection: Any, run: Callable[[Any], T]) -> T:
        """Run inside the caller's transaction."""

    def _check_not_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"{self.name} is closed.", hint="Open it again.")

    # --- the contract ------------------------------------------------------------------------------

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, notes: Sequence[Note] = ()
    ) -> Settled:
        def work(operations: Operations) -> Settled:
            noted = [operations.write(note, more=bool(steps) or claim is not None) for note in notes]
            if operations.repeat:
                again = [msgspec.structs.replace(step, repeat=True) for step in steps]
                done = self._exchange(operations, again, claim and msgspec.structs.replace(claim, repeat=True))
                return msgspec.structs.replace(done, noted=noted)
            done = self._exchange(operations, steps, claim)
            done.noted = noted
            if connection is not None:
                # The caller's transaction must not go on with half of what it asked for.
                for result in done.results:
                    if isinstance(result, PenstockError):
                        raise result
            return done

        return self._write(work, connection)

    def _exchange(self, operations: Operations, steps: Sequence[Step], claim: ClaimRequest | None) -> Settled:
        """Steps, then a claim, inside a transaction."""
        results = operations.steps(steps) if steps else []
        operations.flush()
        claimed = Claimed() if claim is None else self.claiming(operations, claim).run()
        return Settled(results, claimed, operations.now)

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        def work(operations: Operations) -> list[Micros | None]:
            now = operations.now
            ends = extend_all(operations, now + lease_us)
            # If that waited for somebody's locks, they are ours now, and it does not wait again.
            return ends if operations.now == now else extend_all(operations, operations.now + lease_us)

        def extend_all(operations: Operations, until: Micros) -> list[Micros | None]:
            return [
                until if operations.changed(self.sql.extend, (until, until, lease.ref.seq, lease.token)) else None
                for lease in leases
            ]

        return self._write(work)

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        return self._write_once(lambda operations: operations.reap(node, sticky_after_us, limit), Reaped)

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        return self._write_once(
            lambda operations: operations.cancel(ids, force=force, scope=scope), list[tuple[str, str]], connection
        )

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        return self._write_once(
            lambda operations: operations.update(id_, changes, force=force, scope=scope), str, connection
        )

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        return self._write_once(lambda operations: operations.replay(ids, scope=scope), list[tuple[str, str]])

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        self._write(lambda operations: operations.define(queue, definition))

    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries."""
        if connection is not None:
            return [row.entry() for row in self._in_callers(connection, lambda db: find_live(db, self.sql, where))]
        with self._reading() as db:
            return [row.entry() for row in find_live(db, self.sql, where)]

    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters."""
        with self._reading() as db:
            return [row.dead_letter() for row in find_ended(db, self.sql, "dead", where)]

    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts."""
        with self._reading() as db:
            return [row.history() for row in find_ended(db, self.sql, "history", where)]

    def rows(
        self, part: Part, *, after: int, until: int, queue: str | None = None, limit: int = 10_000
    ) -> list[tuple[Any, ...]]:
        """A range as plain columns."""
        with self._reading() as db:
            return ranges.read_rows(db, self.sql, part, after=after, until=until, queue=queue, limit=limit)

    def mark(self, part: Part, *, after: int = 0) -> int:
        """The last number: who draws one here has the whole database to itself until it commits."""
        with self._reading() as db:
            return ranges.last(db, self.sql, part)

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        def work(operations: Operations) -> int:
            cutoff = operations.now - max(older_than_us, REMEMBERED)
            gone = 0
            for seq, id_, ended in operations.db.execute(self.sql.oldest, (limit,)).fetchall():
                if ended >= cutoff:
                    break
                operations.db.execute(self.sql.delete_history, (seq,))
                if not operations.db.execute(self.sql.known_elsewhere, (id_,)).fetchone()[0]:
                    operations.db.execute(self.sql.drop_labels, (id_,))
                gone += 1
                failpoints.point("prune.row")
            return gone

        return self._write_once(work, int)

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        def work(operations: Operations) -> list[tuple[str, str]]:
            rows = find_ended(operations.db, self.sql, "dead", where)
            for row in rows:
                operations.db.execute(self.sql.delete_dead, (row.seq,))
            return [(row.id, row.queue) for row in rows]

        return self._write_once(work, list[tuple[str, str]])

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold."""
        now = self.now()  # before the connection for the rest is taken: a pool of one has no second one
        with self._reading() as db:
            return count_queues(db, self.sql, now, queue, family)

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold."""
        now = self.now()
        with self._reading() as db:
            return count_page(db, self.sql, now, prefix=prefix, after=after, limit=limit)

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        def work(operations: Operations) -> None:
            operations.lane(queue)
            operations.hold_lanes(queue)
            operations.db.execute(self.sql.set_lock, (queue, holder, reason, operations.now))
            operations.db.execute(self.sql.mark_locked, (queue,))

        self._write(work)

    def _unlock(self, queue: str, holder: str) -> bool:
        def work(operations: Operations) -> bool:
            operations.hold_lanes(queue)
            held = operations.changed(self.sql.drop_lock, (queue, holder))
            operations.db.execute(self.sql.mark_locked, (queue,))
            operations.rings = held
            return held

        return self._write_once(work, bool)

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all."""
        with self._reading() as db:
            rows = db.execute(self.sql.locks) if queue is None else db.execute(self.sql.locks_of, (queue,))
            return [Lock(*values) for values in rows.fetchall()]

    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is there."""

        def work(operations: Operations) -> bool:
            row = operations.db.execute(self.sql.schedule, (schedule.name,)).fetchone()
            if row is not None:
                there = _read_schedule(row[1], row[2])
                if there.version > schedule.version:
                    return False
                if msgspec.structs.replace(schedule, next_us=there.next_us) == there:
                    return True
            operations.rings = True
            definition = msgspec.json.encode(schedule)
            operations.db.execute(
                self.sql.set_schedule, (schedule.name, schedule.version, schedule.next_us, definition)
            )
            return True

        return self._write(work)

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule."""
        return self._write_once(lambda operations: operations.changed(self.sql.drop_schedule, (name,)), bool)

    def schedules(self) -> list[Schedule]:
        """All schedules."""
        with self._reading() as db:
            return [_read_schedule(next_us, text) for next_us, text in db.execute(self.sql.schedules).fetchall()]

    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool:
        def work(operations: Operations) -> bool:
            key = (next_us, schedule.name, schedule.next_us, schedule.version)
            if not operations.changed(self.sql.move_schedule, key):
                return False
            if entry is not None:
                operations.put((entry,))
            return True

        return self._write_once(work, bool)

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        types = msgspec.json.encode(subscription.types).decode()
        self._write(
            lambda operations: operations.db.execute(self.sql.subscribe, (subscription.name, subscription.queue, types))
        )

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription."""
        return self._write_once(lambda operations: operations.changed(self.sql.unsubscribe, (name,)), bool)

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions."""
        with self._reading() as db:
            return Operations(db, self.sql, OneMoment(0)).subscriptions()

    def beat(self, node: str) -> None:
        """Tell that a node lives."""
        self._write(lambda operations: operations.db.execute(self.sql.beat, (node, operations.now)))

    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""
        with self._reading() as db:
            return dict(db.execute(self.sql.nodes).fetchall())

    def documents(self, prefix: str = "", *, since_us: Micros = 0) -> list[Document]:
        """Documents by name."""
        with self._reading() as db:
            rows = db.execute(
                self.sql.documents, (*(family_range(prefix) if prefix else ("", "~")), since_us)
            ).fetchall()
            return [Document(name, bytes(value), version, changed) for name, value, version, changed in rows]

    # --- moving house ------------------------------------------------------------------------------

    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves."""
        with self._reading() as db:
            return moving.read_definitions(db, self.sql)

    def holds(self) -> list[Hold]:
        """All unique ids that are held."""
        with self._reading() as db:
            return moving.read_holds(db, self.sql)

    def cargo(self, part: Part, after: int = 0, limit: int = 500) -> list[Cargo]:
        """Waiting entries, dead letters or rows of the history beyond a sequence number."""
        with self._reading() as db:
            return moving.read_cargo(db, self.sql, part, after, limit)

    def load(self, cargo: Sequence[Cargo], holds: Sequence[Hold] = ()) -> None:
        """Take cargo of another store in."""
        self._write(lambda operations: moving.load(operations, cargo, holds))


def _read_schedule(next_us: Micros, definition: bytes) -> Schedule:
    return msgspec.structs.replace(msgspec.json.decode(definition, type=Schedule), next_us=next_us)
