"""ZookeeperStore: the contract's calls, run on the mirror of a space and committed to ZooKeeper as one multi each.

The URL is ``zookeeper://[user:password@]host[:2181][,host2…]/chroot``. Its options:

- ``space`` as for every store; ``durability`` is accepted, for the server alone decides it;
- ``session``: the session timeout (10s): so long after a process died its locks are gone;
- ``timeout``: how long a call waits for the servers to answer or to come back (10s);
- ``payload_limit``: the largest payload in bytes (262144, at most 524288).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.clock import Clock, Micros
from penstock.errors import BadInput, CannotOpen, OutcomeUnknown, PenstockError, StoreUnavailable, UnitTooLarge
from penstock.location import Location
from penstock.queue.cargo import Cargo, Hold
from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.store import (
    Capabilities,
    Changes,
    Claimed,
    ClaimRequest,
    Definition,
    Document,
    Find,
    Finding,
    NewEntry,
    Note,
    QueueStore,
    Reaped,
    Schedule,
    Scope,
    Settled,
    Step,
    StepDone,
    Subscription,
)
from penstock.queue.stores.memory.state import MemoryState
from penstock.queue.stores.memory.store import MemoryStore
from penstock.queue.stores.version import check_version
from penstock.queue.stores.zookeeper import server, sweeping
from penstock.queue.stores.zookeeper.bell import Bell
from penstock.queue.stores.zookeeper.layout import Layout
from penstock.queue.stores.zookeeper.mirror import Mirror
from penstock.queue.stores.zookeeper.payloads import Payloads
from penstock.queue.stores.zookeeper.session import PACKET, Address, Session
from penstock.queue.stores.zookeeper.trials import Trials

T = TypeVar("T")

VERSION = 2  # of the nodes and what is in them; 2 brought documents
_OPTIONS = frozenset({"payload_limit", "session", "timeout"})
LARGEST_PAYLOAD = 512 * 1024
_PART = 500  # rows or letters removed at once


def open_store(location: Location, clock: Clock) -> ZookeeperStore:
    """Open ``zookeeper://…``."""
    location.reject_unknown_options(_OPTIONS)
    limit = location.options.get("payload_limit", str(ZookeeperStore.payload_limit))
    if not limit.isdecimal() or not 1 <= int(limit) <= LARGEST_PAYLOAD:
        raise BadInput(
            f"payload_limit {limit!r} in {location.masked} is not a size that ZooKeeper takes.",
            hint=f"Give a number of bytes up to {LARGEST_PAYLOAD}.",
        )
    return ZookeeperStore(location, clock, payload_limit=int(limit))


def is_there(location: Location) -> bool:
    """Whether the space was ever opened; looks, and writes nothing."""
    location.reject_unknown_options(_OPTIONS)
    where = Address(location)
    session = Session(where, lambda: None)
    try:
        return session.read_many([Layout(where.chroot, location.space).schema]) != [None]
    finally:
        session.close()


class ZookeeperStore(MemoryStore):
    """Small queues in one space of a ZooKeeper ensemble. The rules are the memory store's, run on a mirror."""

    capabilities = Capabilities(transactional=False, full_history=False, label_search=False, label_limits=False)
    unit_bytes = PACKET

    def __init__(self, location: Location, clock: Clock, *, payload_limit: int) -> None:
        """Connect and make what is not there yet."""
        self._where = Address(location)
        self._layout = Layout(self._where.chroot, location.space)
        self._rings = Bell()
        super().__init__("", location.space, clock, location.masked, payload_limit=payload_limit)
        self._open()

    def _open(self) -> None:
        """Open a session of this process."""
        self._opened_in = os.getpid()
        self._session = Session(self._where, self._rings.flapped)
        self._state = self._mirror = Mirror()
        self._payloads = Payloads(self._session, self._layout)
        self._trials = Trials(self._session, self._layout, self._mirror, self._payloads, bell=self._rings, now=self.now)
        try:
            [noted] = self._session.read_many([self._layout.schema])
            version = 0 if noted is None else int(noted[0])
            check_version(version, self.space, VERSION)
            if version < VERSION:
                self._session.make(self._layout.root, self._layout.folders)
                self._session.write(self._layout.schema, str(VERSION).encode())  # last: it says that all is there
            self._session.write(self._layout.handles, b"")  # tells the server's time
            self._mirror.ticks.handle = self._session.own_number(self._layout.handles)
        except BaseException as error:
            self._session.close()
            if isinstance(error, StoreUnavailable | OutcomeUnknown):
                raise CannotOpen(str(error)) from error
            raise

    @contextmanager
    def _using(self) -> Iterator[MemoryState]:
        self._check_open()
        if self._opened_in != os.getpid():
            # A forked child has none of its parent's threads, and the parent's session is not its own.
            self._rings = Bell()
            self._open()
        with self._mirror.bell:
            self._check_open()
            yield self._mirror

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Look at what is stored now."""
        with self._using():
            self._trials.follow(time.monotonic() + self._where.patience)
            yield

    def now(self) -> Micros:
        """The servers' time as learnt from our writes, or the fake one."""
        self._check_open()
        fixed = self.clock.fixed()
        return self._session.now() if fixed is None else fixed

    def _transact(self, work: Callable[[], T]) -> T:
        """Run a call on the mirror and commit what it changed."""
        with self._using():
            return self._trials.run(work)

    # --- work ----------------------------------------------------------------------------------------

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, notes: Sequence[Note] = ()
    ) -> Settled:
        with self._using():
            self._payloads.begin()
            settled = self._settle_parts(self._payloads.in_steps(steps), claim, notes)
            settled.claimed.entries = self._payloads.fill(settled.claimed.entries, remember=True)
            return settled

    def _settle_parts(self, steps: Sequence[Step], claim: ClaimRequest | None, notes: Sequence[Note] = ()) -> Settled:
        """All of it in one multi; what is too large for one, step by step."""
        try:
            return self._transact(partial(self._work, steps, claim, notes))
        except UnitTooLarge as cause:
            if len(steps) == 1 and claim is None and not notes:
                return Settled([cause], Claimed(), self.now())
            if not steps and claim is not None and not notes:
                return self._claim_fewer(claim, cause)
            if len(notes) == 1 and not steps and claim is None:
                raise
        results: list[StepDone | PenstockError] = []
        for step in steps:
            results += self._settle_parts([step], None).results
        noted = [kept for note in notes for kept in self._settle_parts([], None, [note]).noted]
        last = Settled([], Claimed(), self.now()) if claim is None else self._settle_parts([], claim)
        return Settled(results, last.claimed, last.now_us, noted)

    def _claim_fewer(self, claim: ClaimRequest, cause: UnitTooLarge) -> Settled:
        if claim.limit > 1:
            return self._settle_parts([], replace(claim, limit=claim.limit // 2))
        # The one entry is not too large; the expired ones before it are too many to end at once.
        before = len(self._mirror.live)
        self._reap_fewer(claim.node, 10**18, _PART)
        if len(self._mirror.live) == before:
            raise cause
        return self._settle_parts([], claim)

    def _work(self, steps: Sequence[Step], claim: ClaimRequest | None, notes: Sequence[Note]) -> Settled:
        self._mirror.publishes = any(step.events for step in steps)
        return super()._settle(steps, claim, None, notes)

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        with self._using():
            try:
                return self._transact(partial(super()._extend, leases, lease_us))
            except UnitTooLarge:
                half = len(leases) // 2
                if not half:
                    raise
                return self._extend(leases[:half], lease_us) + self._extend(leases[half:], lease_us)

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        with self._using():
            self._trials.follow(time.monotonic() + self._where.patience)
            sweeping.find_vanished(self._mirror, self._layout, self._session)
            self._transact(lambda: sweeping.sweep(self._mirror, self.now()))

            self._mirror.nodes = self._heard()
            found = self._reap_fewer(node, sticky_after_us, limit)
            early, self._trials.found_early = self._trials.found_early, Reaped()
            found.reaped = early.reaped + found.reaped
            found.dead = early.dead + found.dead
            return found

    def _reap_fewer(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        """Reap as many at once as one multi takes; the next round has the rest."""
        while True:
            try:
                return self._transact(partial(super()._reap, node, sticky_after_us, limit))
            except UnitTooLarge:
                if limit == 1:
                    raise
                limit //= 2

    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool:
        with self._using():
            self._payloads.begin()
            written = None if entry is None else self._payloads.in_entry(entry)
            return self._transact(partial(super()._fire, schedule, next_us, written))

    # --- what people do to entries -------------------------------------------------------------------

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        with self._using():
            self._payloads.begin()
            return self._transact(partial(super()._cancel, ids, force, None, scope))

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        with self._using():
            self._payloads.begin()
            if changes.payload is not None:
                changes = replace(changes, payload=self._payloads.taken(changes.payload))
            return self._transact(partial(super()._update, id_, changes, force, None, scope))

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        with self._using():
            self._payloads.begin()
            return self._transact(partial(super()._replay, ids, scope))

    # --- reading ---------------------------------------------------------------------------------------

    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries, by seq."""
        self._check_connection(connection)
        with self._using():
            return self._filled(partial(super().find, where), dead=False)

    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters, by seq."""
        with self._using():
            return self._filled(partial(super().dead, where), dead=True)

    def _filled(self, look: Callable[[], list[Entry[Any]]], *, dead: bool) -> list[Entry[Any]]:
        """What is found, with payloads, as of one moment: if somebody changed it meanwhile, look again."""
        deadline = time.monotonic() + self._where.patience
        while True:
            self._trials.follow(deadline)
            found = look()
            filled = self._payloads.fill(found, dead=dead)
            if len(filled) == len(found) or time.monotonic() > deadline:
                return filled

    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts, by seq; of each queue those of the last 100 ends."""
        with self._looking():
            return self._payloads.fill_rows(super().history(where), self._mirror)

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold, by name; a queue asked for by name is told of even if nobody ever used it."""
        with self._looking():
            return super().counts(queue, family)

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold."""
        with self._looking():
            return super().page(prefix=prefix, after=after, limit=limit)

    # --- cleaning up -------------------------------------------------------------------------------------

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        with self._using():
            gone = 0
            while gone < limit:
                some = self._transact(partial(super()._prune, older_than_us, min(_PART, limit - gone)))
                gone += some
                if some < _PART:
                    break
            return gone

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        with self._using():
            gone: list[tuple[str, str]] = []
            while len(gone) < where.limit:
                some = replace(where, limit=min(_PART, where.limit - len(gone)))
                part = self._transact(partial(super()._purge_dead, some))
                gone += part
                if len(part) < _PART:
                    break
            return gone

    # --- queues ------------------------------------------------------------------------------------------

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        if definition.label_limit is not None and definition.label_limit[1]:
            raise self.unsupported("limits per label value")
        self._change_queue(queue, partial(super().define, queue, replace(definition, label_limit=None)))

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        self._change_queue(queue, partial(super()._lock, queue, holder, reason))

    def _unlock(self, queue: str, holder: str) -> bool:
        return self._change_queue(queue, partial(super()._unlock, queue, holder))

    def _change_queue(self, queue: str, change: Callable[[], T]) -> T:
        def work() -> T:
            self._mirror.touched.add(queue)
            return change()

        return self._transact(work)

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all, by queue and holder."""
        with self._looking():
            return super().locks(queue)

    # --- schedules, subscriptions, nodes -------------------------------------------------------------------

    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is there."""
        return self._transact(partial(super().set_schedule, schedule))

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule; whether it was there."""
        return self._transact(partial(super().remove_schedule, name))

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        with self._looking():
            return super().schedules()

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        self._transact(partial(super().subscribe, subscription))

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription; whether it was there."""
        return self._transact(partial(super().unsubscribe, name))

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        with self._looking():
            return super().subscriptions()

    def beat(self, node: str) -> None:
        """Tell that a node lives."""
        with self._using():
            self._session.write(self._layout.node(node), str(self.now()).encode())

    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""
        with self._using():
            return self._heard()

    def _heard(self) -> dict[str, Micros]:
        [names] = self._session.list_many([self._layout.nodes])
        found = self._session.read_many([self._layout.node(name) for name in names or ()])
        return {name: int(one[0]) for name, one in zip(names or (), found, strict=True) if one and one[0]}

    def documents(self, prefix: str = "", *, since_us: Micros = 0) -> list[Document]:
        """Documents by name."""
        with self._looking():
            return super().documents(prefix, since_us=since_us)

    # --- moving house --------------------------------------------------------------------------------------

    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves, by name."""
        with self._looking():
            return super().definitions()

    def holds(self) -> list[Hold]:
        """All unique ids that are held, by queue and key."""
        with self._looking():
            return super().holds()

    def load(self, cargo: Sequence[Cargo], holds: Sequence[Hold] = ()) -> None:
        """Take cargo of another store in, all or none; the history of ended entries is not for here."""
        if any(one.part == "history" for one in cargo):
            raise self.unsupported("a history that is carried over")
        with self._using():
            self._payloads.begin()
            written = [replace(one, payload=self._payloads.taken(one.payload or b"")) for one in cargo]
            self._transact(partial(super().load, written, holds))

    # --- the handle ------------------------------------------------------------------------------------------

    def shares_with(self, other: QueueStore) -> bool:
        """Two handles share what they share in the ensemble, whoever they are there."""
        if not isinstance(other, ZookeeperStore):
            return False
        mine, theirs = self._where, other._where  # noqa: SLF001
        return (mine.hosts, mine.chroot, self.space) == (theirs.hosts, theirs.chroot, other.space)

    def bell(self) -> int:
        """How often it has rung here; rings of others count from the first call on."""
        self._check_open()
        return self._rings.listen(self._session, self._layout.bell)

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until this process or another one rings, or the time is over."""
        self._check_open()
        return self._rings.wait(seen, seconds)

    def wake(self) -> None:
        """Ring for every wait of this process."""
        self._rings.ring()

    def check(self) -> list[Finding]:
        """What doctor says about the servers."""
        with self._looking():
            return server.findings(self._session, self._mirror, self._layout.handles, self.payload_limit)

    def close(self) -> None:
        """End the session, and with it every lock that this handle holds; safe to repeat."""
        if self.closed:
            return
        QueueStore.close(self)
        self._end_watch()
        self._rings.close()
        if self._opened_in == os.getpid():
            self._session.close()
