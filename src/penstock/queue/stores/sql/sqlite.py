"""SqliteStore: the embedded store. Durable by default, several processes at once, no server."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from penstock import chaos
from penstock.clock import Clock, Micros
from penstock.errors import BadInput, Conflict, EntryNotFound, LeaseLost, PenstockError, StoreUnavailable
from penstock.location import Location
from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.store import (
    REMEMBERED,
    Changes,
    Claimed,
    ClaimRequest,
    Definition,
    Find,
    Finding,
    NewEntry,
    QueueStore,
    Reaped,
    Schedule,
    Scope,
    Settled,
    Step,
    StepDone,
    Subscription,
)
from penstock.queue.stores.sql.claiming import Claiming
from penstock.queue.stores.sql.dialect import Dialect
from penstock.queue.stores.sql.finding import count_queues, find_ended, find_live
from penstock.queue.stores.sql.migrations import check_version, migrate, stored_version
from penstock.queue.stores.sql.operations import Operations, is_plain_put
from penstock.queue.stores.sql.sqlite_file import SqliteFile, Together, adopt, needs_guard, translated
from penstock.queue.stores.sql.statements import Statements

T = TypeVar("T")

# How often a waiting worker asks whether another process has written: eagerly while things happen, lazily when idle.
EAGER, LAZY, EAGER_FOR = 0.002, 0.02, 1.0

_OPTIONS = frozenset({"payload_limit", "busy_timeout"})


def open_store(location: Location, clock: Clock) -> SqliteStore:
    """Open ``sqlite:///relative.db`` or ``sqlite:////absolute.db``."""
    location.reject_unknown_options(_OPTIONS)
    if not location.path.startswith("/") or len(location.path) < 2:
        raise BadInput(
            f"{location.masked} names no file.",
            hint='Write three slashes for a relative path ("sqlite:///shop.db"), four for an absolute one; '
            "for a store without a file use memory://.",
        )
    return SqliteStore(location, clock)


class SqliteStore(QueueStore):
    """Queues in one SQLite file."""

    def __init__(self, location: Location, clock: Clock) -> None:
        """Open the file, bring its schema up to date, and listen for the clock."""
        path = Path(location.path[1:])
        super().__init__(location.space, clock, f"sqlite:///{path.absolute()}")
        self.durability = location.durability
        self.payload_limit = _number(location, "payload_limit", self.payload_limit)
        self.sql = Statements(location.space, Dialect())
        self.file = SqliteFile(
            path.absolute(),
            synchronous="FULL" if location.durability == "durable" else "NORMAL",
            busy_seconds=_number(location, "busy_timeout", 30),
        )
        try:
            self._prepare()
        except BaseException:
            self.file.close()
            raise
        self._bell = threading.Condition()
        self._rings = 0
        self._last_ring = time.monotonic()
        self._forget_clock = clock.on_change(self.wake)

    def _prepare(self) -> None:
        with self.file.reading() as db:
            version = stored_version(db, self.space)
        check_version(version, self.space)
        if version == 0:
            self.file.write(lambda db: migrate(db, self.space, sqlite_dialect()))
            self._sync_folder()

    def _sync_folder(self) -> None:
        """A new file is only safe when its folder's entry is on the disk too."""
        handle = os.open(self.file.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def now(self) -> Micros:
        """The host's clock, or the fake one."""
        fixed = self.clock.fixed()
        return self.clock.micros() if fixed is None else fixed

    # --- running operations ------------------------------------------------------------------------

    def _write(self, work: Callable[[Operations], T], connection: Any = None, *, together: Together | None = None) -> T:
        """Run work in a write transaction of ours, or in the caller's own."""
        if self.closed:
            raise StoreUnavailable(f"{self.name} is closed.", hint="Open it again.")

        # Calls that are run together put something, so the bell rings unless the work says otherwise.
        rings = True

        def run(db: Any) -> T:
            nonlocal rings
            operations = Operations(db, self.sql, self.now())
            result = work(operations)
            operations.flush()
            rings = operations.rings
            return result

        own = connection is None
        result = self.file.write(run, together=together) if own else self._in_callers(connection, run)
        if rings:
            self.wake()
        return result

    def _in_callers(self, connection: Any, run: Callable[[Any], T]) -> T:
        db = self._driver_connection(connection)
        try:
            adopt(db)
            if not db.in_transaction:
                if db.isolation_level is None:
                    raise BadInput(
                        "connection= is outside a transaction and commits every statement by itself.",
                        hint="Execute BEGIN IMMEDIATE on it first.",
                    )
                db.execute("BEGIN IMMEDIATE")
            db.execute("SAVEPOINT penstock")
            try:
                result = run(db)
            except BaseException:
                db.execute("ROLLBACK TO penstock")
                db.execute("RELEASE penstock")
                raise
            db.execute("RELEASE penstock")
        except sqlite3.Error as cause:
            raise translated(cause, self.file.path) from cause
        return result

    def _driver_connection(self, connection: Any) -> sqlite3.Connection:
        """The sqlite3 connection inside what the caller gave: itself, or SQLAlchemy's Connection or Session."""
        if hasattr(connection, "connection") and callable(connection.connection):  # a Session
            connection = connection.connection()
        inner = getattr(connection, "connection", connection)
        db = getattr(inner, "driver_connection", inner)
        if not isinstance(db, sqlite3.Connection):
            raise BadInput(
                f"connection= was given a {type(connection).__name__}, which is no SQLite connection.",
                hint="Pass a sqlite3.Connection, or SQLAlchemy's Connection or Session.",
            )
        files = [row[2] for row in db.execute("PRAGMA database_list") if row[1] == "main"]
        if not files or not files[0] or not os.path.samefile(files[0], self.file.path):
            raise BadInput(
                f"connection= is open on {files[0] if files and files[0] else 'memory'}, not on {self.file.path}.",
                hint="What is committed together has to be in one file.",
            )
        return db

    # --- the contract ------------------------------------------------------------------------------

    def _settle(self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any) -> Settled:
        if len(steps) == 1 and claim is None and connection is None:
            return self._settle_one(steps[0])

        def work(operations: Operations) -> Settled:
            results: list[Any] = operations.steps(steps) if steps else []
            if connection is not None:
                # The caller's transaction must not go on with half of what it asked for.
                for result in results:
                    if isinstance(result, PenstockError):
                        raise result
            operations.flush()
            claimed = Claiming(operations, claim).run() if claim is not None else Claimed()
            return Settled(results, claimed, operations.now)

        return self._write(work, connection)

    def _settle_one(self, step: Step) -> Settled:
        """A step by itself needs no savepoint of its own, and plain puts of several callers become one statement."""

        def work(operations: Operations) -> Settled:
            return Settled([operations.step(step)], Claimed(), operations.now)

        together = Together(self._put_together, step.puts) if is_plain_put(step) else None
        try:
            return self._write(work, together=together)
        except (LeaseLost, Conflict, BadInput, EntryNotFound) as error:
            return Settled([error], Claimed(), self.now())

    def _put_together(self, db: Any, puts: list[tuple[NewEntry, ...]]) -> list[Settled]:
        operations = Operations(db, self.sql, self.now())
        results = operations.put([entry for entries in puts for entry in entries])
        operations.flush()
        replies, start = [], 0
        for entries in puts:
            mine = tuple(results[start : start + len(entries)])
            replies.append(Settled([StepDone(mine)], Claimed(), operations.now))
            start += len(entries)
        return replies

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        def work(operations: Operations) -> list[Micros | None]:
            until = operations.now + lease_us
            return [
                until if operations.db.execute(self.sql.extend, (until, lease.ref.seq, lease.token)).rowcount else None
                for lease in leases
            ]

        return self._write(work)

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        return self._write(lambda operations: operations.reap(node, sticky_after_us, limit))

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        return self._write(lambda operations: operations.cancel(ids, force=force, scope=scope), connection)

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        return self._write(lambda operations: operations.update(id_, changes, force=force, scope=scope), connection)

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        return self._write(lambda operations: operations.replay(ids, scope=scope))

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

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        def work(operations: Operations) -> int:
            cutoff = operations.now - max(older_than_us, REMEMBERED)
            gone = 0
            for seq, id_, ended in operations.db.execute(self.sql.oldest, (limit,)).fetchall():
                if ended > cutoff:
                    break
                operations.db.execute(self.sql.delete_history, (seq,))
                if not operations.db.execute(self.sql.known_elsewhere, (id_,)).fetchone()[0]:
                    operations.db.execute(self.sql.drop_labels, (id_,))
                gone += 1
                chaos.point("prune.row")
            return gone

        return self._write(work)

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        def work(operations: Operations) -> list[tuple[str, str]]:
            rows = find_ended(operations.db, self.sql, "dead", where)
            for row in rows:
                operations.db.execute(self.sql.delete_dead, (row.seq,))
            return [(row.id, row.queue) for row in rows]

        return self._write(work)

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold."""
        with self._reading() as db:
            return count_queues(db, self.sql, self.now(), queue, family)

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        def work(operations: Operations) -> None:
            operations.lane(queue)
            operations.db.execute(self.sql.set_lock, (queue, holder, reason, operations.now))
            operations.db.execute(self.sql.mark_locked, (queue,))

        self._write(work)

    def _unlock(self, queue: str, holder: str) -> bool:
        def work(operations: Operations) -> bool:
            held = operations.changed(self.sql.drop_lock, (queue, holder))
            operations.db.execute(self.sql.mark_locked, (queue,))
            operations.rings = held
            return held

        return self._write(work)

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
        return self._write(lambda operations: operations.changed(self.sql.drop_schedule, (name,)))

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

        return self._write(work)

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        types = msgspec.json.encode(subscription.types).decode()
        self._write(
            lambda operations: operations.db.execute(self.sql.subscribe, (subscription.name, subscription.queue, types))
        )

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription."""
        return self._write(lambda operations: operations.changed(self.sql.unsubscribe, (name,)))

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions."""
        with self._reading() as db:
            return Operations(db, self.sql, 0).subscriptions()

    def beat(self, node: str) -> None:
        """Tell that a node lives."""
        self._write(lambda operations: operations.db.execute(self.sql.beat, (node, operations.now)))

    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""
        with self._reading() as db:
            return dict(db.execute(self.sql.nodes).fetchall())

    # --- waiting -----------------------------------------------------------------------------------

    def bell(self) -> int:
        """How often this process has rung."""
        return self._rings

    def wake(self) -> None:
        """Ring for every wait of this process."""
        with self._bell:
            self._rings += 1
            self._last_ring = time.monotonic()
            self._bell.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until this process rings, another one writes, or the time is over."""
        deadline = time.monotonic() + seconds
        while not self.closed:
            if self.file.others_wrote():
                self.wake()
            now = time.monotonic()
            pause = EAGER if now - self._last_ring < EAGER_FOR else LAZY
            with self._bell:
                if self._rings != seen:
                    return True
                if now >= deadline:
                    return False
                self._bell.wait(min(pause, deadline - now))
        return True

    # --- looking after it --------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """What doctor says about the file."""
        with self._reading() as db:
            integrity = [row[0] for row in db.execute("PRAGMA integrity_check(10)").fetchall()]
            version = stored_version(db, self.space)
        wal = Path(f"{self.file.path}-wal")
        size = wal.stat().st_size if wal.exists() else 0
        return [
            Finding("good" if integrity == ["ok"] else "bad", "integrity", "; ".join(integrity)),
            Finding("good", "schema", f"space {self.space!r} has version {version}"),
            Finding(
                "good" if self.durability == "durable" else "warning",
                "durability",
                "an acknowledged put survives a power cut (synchronous=FULL)"
                if self.durability == "durable"
                else "fast: the last commits can be lost in a power cut (synchronous=NORMAL)",
            ),
            Finding(
                "warning" if needs_guard() else "good",
                "sqlite library",
                f"{sqlite3.sqlite_version}"
                + (
                    " has the WAL-reset bug (mended in 3.51.3); Penstock's guarded checkpoints avoid it, "
                    "other programs that write this file must not checkpoint"
                    if needs_guard()
                    else ""
                ),
            ),
            Finding(
                "good" if size < 64 * 1024 * 1024 else "warning",
                "write-ahead log",
                f"{size / 1024 / 1024:.1f} MiB"
                + ("" if size < 64 * 1024 * 1024 else ": a long reader keeps it from shrinking"),
            ),
        ]

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if self.closed:
            return
        super().close()
        self._forget_clock()
        self.wake()
        self.file.close()

    def _reading(self) -> Any:
        if self.closed:
            raise StoreUnavailable(f"{self.name} is closed.", hint="Open it again.")
        return self.file.reading()


def _read_schedule(next_us: Micros, definition: bytes) -> Schedule:
    return msgspec.structs.replace(msgspec.json.decode(definition, type=Schedule), next_us=next_us)


def _number(location: Location, option: str, default: int) -> int:
    text = location.options.get(option, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise BadInput(f"{option} {text!r} in {location.masked} is not a number.", hint="Use a whole number from 1 on.")
    return int(text)
