"""SqlDriver: the contract of a queue store, in terms of what calls do inside their transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.clock import Clock, Micros
from penstock.errors import OutcomeUnknown, PenstockError, StoreUnavailable
from penstock.process import tell_of_forks
from penstock.queue.driver import Driver
from penstock.queue.drivers.sql import put, read, reap, registry, settle, transfer
from penstock.queue.drivers.sql.claim import Claim, Rotation
from penstock.queue.drivers.sql.migrations import Version
from penstock.queue.drivers.sql.repeats import Answered
from penstock.queue.drivers.sql.round_trip import Trip, is_plain
from penstock.queue.drivers.sql.server import PlainEnding, Server
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.protocol import (
    Changes,
    Claimed,
    ClaimRequest,
    Definition,
    Document,
    DocumentWrite,
    EndedCount,
    Find,
    Finding,
    Hold,
    KeptResult,
    Link,
    NewEntry,
    Part,
    PutResult,
    Reaped,
    Schedule,
    Scope,
    Settled,
    Step,
    StepDone,
    Subscription,
    TransferRow,
    Wait,
)
from penstock.queue.scans import NEWEST_DEAD

T = TypeVar("T")


class SqlDriver(Driver):
    """Queues in the tables of one space."""

    def __init__(self, server: Server, space: str, clock: Clock, name: str) -> None:
        """Bind the server, which is connected."""
        super().__init__(space, clock, name)
        self.server = server
        self.payload_limit = server.payload_limit
        self.overlaps_round_trips = server.overlaps_round_trips
        self._transactions = server.transactions
        self._bell = server.bell
        self._rotation = Rotation()
        self._forget_clock = clock.on_change(self._bell.ring)
        tell_of_forks(self)

    # --- transactions -----------------------------------------------------------------------------------------------

    def _write(self, work: Callable[[Session], T], connection: Any = None, *, repeat: bool = False) -> T:
        """Do work in a transaction of ours, or in the caller's; wake who waits if something became claimable."""
        self._check_not_closed()
        sessions: list[Session] = []

        def run(session: Session) -> T:
            sessions.append(session)
            return work(session)

        if connection is not None:
            result, rings = self._transactions.in_callers(connection, run), False
        else:
            result, rings = self._transactions.write(run, repeat=repeat)
        if rings:
            self._bell.ring()
        self.cascaded += sessions[-1].cascaded
        return result

    def _write_once(self, work: Callable[[Session], T], kind: Any, connection: Any = None) -> T:
        """Do work whose answer, of this kind, could not be found out again if the reply to its commit were lost."""
        if connection is not None:
            return self._write(work, connection)
        answer: T = self._write(Answered(work, kind))
        return answer

    def _read(self, work: Callable[[Session], T]) -> T:
        self._check_not_closed()
        with self._transactions.reading() as session:
            return work(session)

    def _check_not_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"{self.name} is closed.", hint="Open it again.")

    def now(self) -> Micros:
        """The server's clock, or the fake one."""
        return self._read(lambda session: session.now)

    # --- put, claim, settle -----------------------------------------------------------------------------------------

    def _put_plain(self, entry: NewEntry) -> PutResult | None:
        self._check_not_closed()
        if not self.server.works_alone or not put.is_plain(entry):
            return None
        try:
            result = self._transactions.alone(lambda session: self.server.put_plain(session, entry))
        except OutcomeUnknown:
            # It is sent again as a repeat of itself, which finds out whether it happened.
            return self._write(lambda session: put.put(session, (entry,), repeat=True), repeat=True)[0]
        if result is not None:
            self._bell.ring()
        return result

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, writes: Sequence[DocumentWrite] = ()
    ) -> Settled:
        self._check_not_closed()
        if connection is not None:
            return self._settle_in_callers(steps, claim, connection)
        if not writes and self.server.works_alone and self._has_short_way(steps, claim):
            successes = settle.successes(steps)
            if successes is not None:
                return self._go_short_way(steps, claim, successes)
        return self._write(lambda session: self._exchange(session, steps, claim, writes))

    def _has_short_way(self, steps: Sequence[Step], claim: ClaimRequest | None) -> bool:
        """Whether there is one for successes with such a claim, or without one."""
        return bool(steps) and isinstance(self.server, PlainEnding) if claim is None else is_plain(claim)

    def _go_short_way(self, steps: Sequence[Step], claim: ClaimRequest | None, successes: settle.Successes) -> Settled:
        """Successes and a claim in one statement, or with what follows from the successes in one transaction."""
        server = self.server
        keeps = server.trips_keep_results or not successes.results
        consumes = server.trips_consume_links or not successes.links
        if not (keeps and consumes):
            return self._write(lambda session: self._trip_and_follow(session, steps, claim))
        try:
            return self._in_one_statement(steps, claim)
        except OutcomeUnknown:
            # It is sent again as a repeat of itself, which finds out whether it happened.
            return self._write(lambda session: self._exchange(session, steps, claim, ()), repeat=True)

    def _trip_and_follow(self, session: Session, steps: Sequence[Step], claim: ClaimRequest | None) -> Settled:
        """Settle and claim the shortest way, then do what follows from the successes, in one transaction."""
        if session.repeat:
            return self._exchange(session, steps, claim, ())
        server = self.server
        if claim is not None:
            trip = server.round_trip(session, steps, claim, self._rotation.hints, self._bell.rings)
        else:
            assert isinstance(server, PlainEnding)  # noqa: S101 - looked at above
            trip = Trip(server.end_plain(session, steps), Claimed(), session.now)
        results = self._follow(session, steps, trip.settled)
        claimed = trip.claimed or Claimed()
        # What these successes have released may be for this very claim.
        if claim is not None and (trip.claimed is None or (session.rings and not claimed.entries)):
            claimed = self._claim(session, claim, plain=trip.claimed is not None)
        return Settled(results, claimed, session.now)

    def _follow(self, session: Session, steps: Sequence[Step], done: set[int] | None) -> list[StepDone | PenstockError]:
        """What follows from those that are done, or from all; the others are settled one by one."""
        if done is None:
            settle.follow_successes(session, steps)
            return [StepDone()] * len(steps)
        is_open = [step.endings[0].lease.ref.body not in done for step in steps]
        settle.follow_successes(session, [step for step, left in zip(steps, is_open, strict=True) if not left])
        rest = iter(settle.settle(session, [step for step, left in zip(steps, is_open, strict=True) if left]))
        return [next(rest) if left else StepDone() for left in is_open]

    def _in_one_statement(self, steps: Sequence[Step], claim: ClaimRequest | None) -> Settled:
        """What one statement can do needs no transaction around it."""
        server = self.server
        if claim is None:
            assert isinstance(server, PlainEnding)  # noqa: S101 - looked at above
            return self._end_plain(server, steps)
        trip = self._transactions.alone(
            lambda session: server.round_trip(session, steps, claim, self._rotation.hints, self._bell.rings),
            look=not steps,  # a worker that settles has just used its connection, and finds out by repeating
        )
        if trip.rings:
            self._bell.ring()
            if trip.claimed is not None and not trip.claimed.entries:
                trip.claimed = None  # what these successes have released may be for this very claim
        if trip.settled is None and trip.claimed is not None:
            return Settled([StepDone()] * len(steps), trip.claimed, trip.now)
        return self._finish_trip(trip, steps, claim)

    def _end_plain(self, server: PlainEnding, steps: Sequence[Step]) -> Settled:
        trip = self._transactions.alone(lambda session: Trip(server.end_plain(session, steps), Claimed(), session.now))
        if trip.settled is None:
            return Settled([StepDone()] * len(steps), Claimed(), trip.now)
        return self._finish_trip(trip, steps, None)

    def _finish_trip(self, trip: Trip, steps: Sequence[Step], claim: ClaimRequest | None) -> Settled:
        """What the one statement left: endings that were not current, or a claim that is not plain."""
        done = trip.settled
        open_steps = [] if done is None else [step for step in steps if step.endings[0].lease.ref.body not in done]
        wanted = claim if trip.claimed is None else None
        try:
            rest = self._write(lambda session: self._exchange(session, open_steps, wanted, (), plain=False))
        except StoreUnavailable as error:
            if len(open_steps) == len(steps):
                raise  # nothing that was to be settled has been
            raise OutcomeUnknown(
                f"{self.name} was lost when a part of the call had happened: {error}.",
                hint="When it is back, repeat the call with the same ids.",
            ) from error
        results = iter(rest.results)
        return Settled(
            [next(results) if step in open_steps else StepDone() for step in steps],
            rest.claimed if trip.claimed is None else trip.claimed,
            rest.now_us,
        )

    def _exchange(
        self,
        session: Session,
        steps: Sequence[Step],
        claim: ClaimRequest | None,
        writes: Sequence[DocumentWrite],
        *,
        plain: bool = True,
    ) -> Settled:
        """Documents, then steps, then a claim, inside a transaction; ``plain=False``: the short way has led nowhere."""
        if session.repeat:
            steps = [msgspec.structs.replace(step, repeat=True) for step in steps]
            claim = claim and msgspec.structs.replace(claim, repeat=True)
        written = [registry.write_document(session, write) for write in writes]
        results = settle.settle(session, steps) if steps else []
        claimed = Claimed()
        if claim is not None:
            claimed = self._claim(session, claim, plain=plain)
        return Settled(results, claimed, session.now, written)

    def _claim(self, session: Session, claim: ClaimRequest, *, plain: bool) -> Claimed:
        if plain and is_plain(claim):
            trip = self.server.round_trip(session, (), claim, self._rotation.hints, self._bell.rings)
            if trip.claimed is not None:
                return trip.claimed
        return Claim(session, claim, self._rotation).run()

    def _settle_in_callers(self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any) -> Settled:
        """Steps that live and die with the caller's transaction."""
        refs = [ending.lease.ref for step in steps for ending in step.endings]
        if refs:
            # Apart from those they were claimed with, whose heartbeats must not wait for the caller.
            self._transactions.ahead_of_callers(lambda session: settle.split_off(session, refs))

        def work(session: Session) -> Settled:
            done = self._exchange(session, steps, claim, ())
            # The caller's transaction must not continue with half of what it asked for.
            for result in done.results:
                if isinstance(result, PenstockError):
                    raise result
            return done

        return self._write(work, connection)

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        return self._write(lambda session: settle.extend(session, leases, lease_us))

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        return self._write_once(
            lambda session: settle.cancel(session, ids, force=force, scope=scope), list[tuple[str, str]], connection
        )

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        return self._write_once(
            lambda session: put.update(session, id_, changes, force=force, scope=scope), str, connection
        )

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        return self._write_once(lambda session: put.replay(session, ids, scope=scope), list[tuple[str, str]])

    # --- reap -------------------------------------------------------------------------------------------------------

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        return self._write_once(lambda session: reap.reap(session, node, sticky_after_us, limit), Reaped)

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        return self._write_once(lambda session: reap.prune(session, older_than_us, limit), int)

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        return self._write_once(lambda session: reap.purge_dead(session, where), list[tuple[str, str]])

    # --- read -------------------------------------------------------------------------------------------------------

    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries."""
        self._check_not_closed()
        if connection is not None:
            entries = self._transactions.in_callers(connection, lambda session: read.find_live(session, where))
        else:
            entries = self._read(lambda session: read.find_live(session, where))
        return [live.entry() for live in entries]

    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters."""
        return [row.dead_letter() for row in self._read(lambda session: read.find_ended(session, "dead", where))]

    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts."""
        return [row.history() for row in self._read(lambda session: read.find_ended(session, "history", where))]

    def count_ended(self, since_us: Micros) -> list[EndedCount] | None:
        """Ended attempts since a time, by queue and outcome."""
        return self._read(lambda session: read.count_ended(session, since_us))

    def rows(self, part: Part, where: Find, *, until: int) -> list[tuple[Any, ...]]:
        """A range as plain columns."""
        return self._read(lambda session: read.read_rows(session, part, where, until))

    def mark(self, part: Part, *, after: int = 0) -> int:
        """The last number below which nothing new can appear."""
        return self._read(lambda session: self.server.mark(session, part, after))

    def ids_like(self, part: str, *, at_end: bool = False, limit: int = 20) -> list[str]:
        """Ids that begin or end with a part; what begins with it is found in the index."""
        return self._read(lambda session: read.ids_like(session, part, at_end, limit))

    def ids_with_unique(self, key: str, *, limit: int = 20) -> list[str]:
        """Ids of entries that hold a unique id, and of dead letters that held it."""
        rows = self._read(lambda session: session.rows("ids_with_unique", key=key, limit=limit, dead=NEWEST_DEAD))
        return [id_ for (id_,) in rows]

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold."""
        return self._read(lambda session: read.count_queues(session, session.now, queue, family))

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold."""
        return self._read(
            lambda session: read.count_page(session, session.now, prefix=prefix, after=after, limit=limit)
        )

    # --- what a space keeps besides entries -------------------------------------------------------------------------

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        self._write(lambda session: registry.define(session, queue, definition))

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        self._write(lambda session: registry.lock(session, queue, holder, reason))

    def _unlock(self, queue: str, holder: str) -> bool:
        return self._write_once(lambda session: registry.unlock(session, queue, holder), bool)

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all."""
        return self._read(lambda session: registry.locks(session, queue))

    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is there."""
        return self._write(lambda session: registry.set_schedule(session, schedule))

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule."""
        return self._write_once(lambda session: registry.remove_schedule(session, name), bool)

    def schedules(self) -> list[Schedule]:
        """All schedules."""
        return self._read(registry.schedules)

    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool:
        def work(session: Session) -> bool:
            if not registry.move_schedule(session, schedule, next_us):
                return False
            session.rings = True
            if entry is not None:
                put.put(session, (entry,))
            return True

        return self._write_once(work, bool)

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        self._write(lambda session: registry.subscribe(session, subscription))

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription."""
        return self._write_once(lambda session: session.change("unsubscribe", name=name) > 0, bool)

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions."""
        return self._read(registry.subscriptions)

    def beat(self, node: str) -> None:
        """Tell that a node lives."""
        self._check_not_closed()
        self._transactions.alone(lambda session: session.change("beat", node=node, seen=session.fixed_now))

    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""
        return dict(self._read(lambda session: session.rows("nodes")))

    def documents(self, prefix: str = "", *, since_us: Micros = 0) -> list[Document]:
        """Documents by name."""
        return self._read(lambda session: registry.documents(session, prefix, since_us))

    # --- transfer ---------------------------------------------------------------------------------------------------

    def waits(self, ids: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Wait]:
        """What entries that wait for others need and have counted, by id."""
        return self._read(lambda session: read.waits(session, ids, after, limit))

    def links(self, *, target: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[Link]:
        """Links that are not consumed, by source and target."""
        return self._read(lambda session: read.links(session, target, after, limit))

    def results(self, *, batch: str | None = None, after: str = "", limit: int = 1000) -> list[tuple[str, KeptResult]]:
        """What handlers returned, by the ids of the entries."""
        return self._read(lambda session: read.results(session, batch, after, limit))

    def load_links(
        self, links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]] = ()
    ) -> None:
        """Take in who waits for whom and what handlers returned, all or none."""
        self._write(lambda session: transfer.load_links(session, links, waits, results))

    def result(self, id_: str) -> KeptResult | None:
        """What a handler returned for an entry, if it is kept."""
        return self._read(lambda session: read.result(session, id_))

    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves."""
        return self._read(transfer.definitions)

    def holds(self) -> list[Hold]:
        """All unique ids that are held."""
        return self._read(transfer.holds)

    def export(self, part: Part, after: int = 0, limit: int = 500) -> list[TransferRow]:
        """Waiting entries, dead letters or rows of the history beyond a sequence number."""
        return self._read(lambda session: transfer.export(session, part, after, limit))

    def load(self, rows: Sequence[TransferRow], holds: Sequence[Hold] = ()) -> None:
        """Take in what another store exported."""
        self._write(lambda session: transfer.load(session, rows, holds))

    # --- waking and closing -----------------------------------------------------------------------------------------

    def bell(self) -> int:
        """How often this handle has heard that something may be claimable."""
        return self._bell.rings

    def wake(self) -> None:
        """Ring for every wait of this process."""
        self._bell.ring()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until the bell rings or the time is over."""
        if not self.closed:
            self.server.listen()
        return self._bell.wait(seen, seconds)

    def hears(self) -> bool:
        """Whether the server announces other processes' puts at the moment."""
        return self.server.hears()

    def forked(self) -> None:
        """In a child: the connections and threads are the parent's."""
        self.server.forked()
        self._bell.forked()
        self._rotation = Rotation()

    def schema_version(self) -> Version:
        """How far the tables of the space have come."""
        return self.server.schema_version()

    def migrate(self, phase: Any) -> list[str]:
        """Bring the tables to this version. Returns what was done."""
        return self.server.migrate(phase)

    def check(self) -> list[Finding]:
        """What doctor says about the server."""
        return self._read(self.server.check)

    def close(self) -> None:
        """Close all connections; safe to repeat."""
        if self.closed:
            return
        super().close()
        self._forget_clock()
        self._bell.close()
        self.server.close()
