"""ZookeeperDriver: the contract's calls, run on the mirror of a space and committed to ZooKeeper as one multi each.

The URL is ``zookeeper://[user:password@]host[:2181][,host2…]/chroot``. Its options:

- ``space`` as for every store; ``durability`` is accepted, for the server alone decides it;
- ``session``: the session timeout (10s): so long after a process died its claims are given back;
- ``timeout``: how long a call waits for the servers to answer or to come back (10s);
- ``payload_limit``: the largest payload in bytes (262144, at most 524288).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.clock import Clock, Micros
from penstock.errors import BadInput, PenstockError, UnitTooLarge
from penstock.location import Location
from penstock.process import tell_of_forks
from penstock.queue.checking import check_connection
from penstock.queue.driver import Driver
from penstock.queue.drivers.zookeeper import certainty, server_checks, sweeping
from penstock.queue.drivers.zookeeper.connection import PACKET, Address, Connection
from penstock.queue.drivers.zookeeper.layout import Layout
from penstock.queue.drivers.zookeeper.mirror import Mirror
from penstock.queue.drivers.zookeeper.mirrored_space import MirroredSpace
from penstock.queue.drivers.zookeeper.optimistic import Optimistic
from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.protocol import (
    Capabilities,
    Changes,
    Claimed,
    ClaimRequest,
    Definition,
    Document,
    DocumentWrite,
    Find,
    Finding,
    Hold,
    KeptResult,
    Link,
    NewEntry,
    Part,
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
from penstock.queue.rules import claim as claims
from penstock.queue.rules import put, read, reap, registry, settle, transfer
from penstock.queue.rules.state import State

T = TypeVar("T")
logger = logging.getLogger("penstock.queue.zookeeper")

_OPTIONS = frozenset({"payload_limit", "session", "timeout"})
LARGEST_PAYLOAD = 512 * 1024
_PART = 500  # rows or letters removed at once
SWEEPS = 50  # commits of one reap that remove old pages
FRESH_SECONDS = 0.25  # nothing due is passed over for longer because a claim did not read the log


def open_driver(location: Location, clock: Clock) -> ZookeeperDriver:
    """Open ``zookeeper://…``."""
    location.reject_unknown_options(_OPTIONS)
    limit = location.options.get("payload_limit", str(ZookeeperDriver.payload_limit))
    if not limit.isdecimal() or not 1 <= int(limit) <= LARGEST_PAYLOAD:
        raise BadInput(
            f"payload_limit {limit!r} in {location.masked} is not a size that ZooKeeper takes.",
            hint=f"Give a number of bytes up to {LARGEST_PAYLOAD}.",
        )
    return ZookeeperDriver(location, clock, payload_limit=int(limit))


def is_there(location: Location) -> bool:
    """Whether the space was ever opened; looks, and writes nothing."""
    location.reject_unknown_options(_OPTIONS)
    address = Address(location)
    connection = Connection(address, lambda: None)
    try:
        return connection.read_many([Layout(address.chroot, location.space).schema]) != [None]
    finally:
        connection.close()


class ZookeeperDriver(Driver):
    """Small queues in one space of a ZooKeeper ensemble. The rules are the memory store's, run on a mirror."""

    capabilities = Capabilities(transactional=False, full_history=False)
    unit_bytes = PACKET

    def __init__(self, location: Location, clock: Clock, *, payload_limit: int) -> None:
        """Connect and make what is not there yet."""
        super().__init__(location.space, clock, location.masked)
        self.payload_limit = payload_limit
        self._space = MirroredSpace(location, clock, self.cascaded)
        self._forget_clock = clock.on_change(self.wake)
        tell_of_forks(self._space)

    @property
    def address(self) -> Address:
        """Where the ensemble is."""
        return self._space.address

    @property
    def connection(self) -> Connection:
        """The session of this process."""
        return self._space.connection

    @property
    def optimistic(self) -> Optimistic:
        """What drafts calls on the mirror and sends them."""
        return self._space.optimistic

    @property
    def mirror(self) -> Mirror:
        """The space as this handle knows it."""
        return self.optimistic.mirror

    def now(self) -> Micros:
        """The servers' time as learnt from our writes, or the fake one."""
        return self._space.now()

    # --- put, claim, settle ----------------------------------------------------------------------------

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, writes: Sequence[DocumentWrite] = ()
    ) -> Settled:
        with self._space.using():
            payloads = self.optimistic.payloads
            payloads.begin()
            settled = self._settle_parts(payloads.take_steps(steps), claim, writes)
            self._space.resume()
            entries = settled.claimed.entries
            if entries:
                bodies = [self.mirror.state.entries[entry.id] for entry in entries]
                settled.claimed.entries = payloads.fill(entries, bodies)
            return settled

    def _settle_parts(
        self, steps: Sequence[Step], claim: ClaimRequest | None, writes: Sequence[DocumentWrite] = ()
    ) -> Settled:
        """All of it in one multi; what is too large for one, step by step."""
        try:
            return self._settle_once(steps, claim, writes)
        except UnitTooLarge as cause:
            if len(steps) == 1 and claim is None and not writes:
                return Settled([cause], Claimed(), self.now())
            if not steps and claim is not None and not writes:
                return self._claim_fewer(claim, cause)
            if len(writes) == 1 and not steps and claim is None:
                raise
        results: list[StepDone | PenstockError] = []
        for step in steps:
            results += self._settle_parts([step], None).results
        written = [done for write in writes for done in self._settle_parts([], None, [write]).written]
        last = Settled([], Claimed(), self.now()) if claim is None else self._settle_parts([], claim)
        return Settled(results, last.claimed, last.now_us, written)

    def _settle_once(
        self, steps: Sequence[Step], claim: ClaimRequest | None, writes: Sequence[DocumentWrite]
    ) -> Settled:
        def work(state: State) -> Settled:
            now = self.now()
            self.mirror.publishes = any(step.events for step in steps)
            results = settle.settle(state, steps, now)
            written = registry.write_documents(state, writes, now)
            claimed = Claimed() if claim is None else claims.claim(state, claim, now)
            return Settled(results, claimed, now, written)

        certain: Callable[[Settled], bool] = partial(certainty.is_certain, claim)
        is_old = claim is not None and self.optimistic.changelog.is_older_than(FRESH_SECONDS)
        reads_first = is_old or certainty.is_repeat(steps, claim)
        return self._space.write(work, certain=None if reads_first else certain, binds=claim is not None)

    def _claim_fewer(self, claim: ClaimRequest, cause: UnitTooLarge) -> Settled:
        if claim.limit > 1:
            return self._settle_parts([], replace(claim, limit=claim.limit // 2))
        # The one entry is not too large; the expired ones before it are too many to end at once.
        before = len(self.mirror.state.ready)
        self._reap_fewer(claim.node, 10**18, _PART)
        if len(self.mirror.state.ready) == before:
            raise cause
        return self._settle_parts([], claim)

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        def work(state: State) -> list[Micros | None]:
            self.mirror.only_extends = True
            return settle.extend(state, leases, self.now() + lease_us)

        try:
            return self._space.write(work, certain=lambda ends: None not in ends)
        except UnitTooLarge:
            half = len(leases) // 2
            if not half:
                raise
            return self._extend(leases[:half], lease_us) + self._extend(leases[half:], lease_us)

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        with self._space.using():
            cancelled = self._space.write(lambda state: settle.cancel(state, ids, self.now(), force=force, scope=scope))
            self._space.resume()
            return cancelled

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        with self._space.using():
            payloads = self.optimistic.payloads
            payloads.begin()
            if changes.payload is not None:
                changes = replace(changes, payload=payloads.take(changes.payload))

            def work(state: State) -> str:
                live = state.live(id_)
                if live is not None and changes.payload is None:
                    payloads.fetch(live[0].body)
                with state.atomic():
                    return put.update(state, id_, changes, self.now(), force=force, scope=scope)

            return self._space.write(work)

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        def work(state: State) -> list[tuple[str, str]]:
            with state.atomic():
                return put.replay(state, ids, self.now(), scope=scope)

        return self._space.write(work)

    # --- reap ------------------------------------------------------------------------------------------

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        with self._space.using():
            self._space.follow()
            self.optimistic.find_vanished()
            for _ in range(SWEEPS):
                if not self._space.write(lambda state: sweeping.sweep(self.mirror, self.now())):
                    break
            heard = sweeping.heard_nodes(self.connection, self._space.layout)
            self.mirror.state.nodes = {name: at for name, (at, _) in heard.items()}
            sweeping.forget_nodes(self.connection, self._space.layout, heard, sticky_after_us, self.now())
            self._space.resume()
            reaped = self._reap_fewer(node, sticky_after_us, limit)
            self._space.resume()
            early, self.optimistic.taken_back = self.optimistic.taken_back, Reaped([], [], [], [], [])
            reaped.reaped = early.reaped + reaped.reaped
            reaped.dead = early.dead + reaped.dead
            return reaped

    def _reap_fewer(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        """Reap as many at once as one multi takes; the next round has the rest, and what is too large by itself."""
        most, too_large = limit, set[str]()
        drafted: list[Reaped] = []

        def work(state: State) -> Reaped:
            drafted[:] = [reap.reap(state, node, sticky_after_us, limit, self.now(), without=too_large)]
            return drafted[0]

        while True:
            try:
                return self._space.write(work)
            except UnitTooLarge as error:
                if limit > 1:
                    limit //= 2
                    continue
                ids = {id_ for id_, _ in drafted[0].reaped + drafted[0].dead + drafted[0].expired}
                if not ids:
                    raise
                # Those that others wait for are the larger ones.
                too_large |= ids & self.mirror.state.links.keys() or ids
                logger.error("entries %s of %s cannot be reaped: %s", sorted(too_large), self.name, error)
                limit = most

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        gone = 0
        while gone < limit:
            most = min(_PART, limit - gone)
            pruned = self._space.write(partial(reap.prune, older_than_us=older_than_us, limit=most, now=self.now()))
            gone += pruned
            if pruned < most:
                break
        return gone

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        gone: list[tuple[str, str]] = []
        while len(gone) < where.limit:
            part = replace(where, limit=min(_PART, where.limit - len(gone)))
            purged = self._space.write(partial(reap.purge_dead, where=part, now=self.now()))
            self._space.resume()
            gone += purged
            if len(purged) < part.limit:
                break
        return gone

    # --- read ------------------------------------------------------------------------------------------

    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries."""
        check_connection(self, connection)
        return self._filled(lambda state: read.find(state, where))

    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters."""
        return self._filled(lambda state: [letter.entry() for letter in read.dead_letters(state, where)])

    def _filled(self, look: Callable[[State], list[Entry[Any]]]) -> list[Entry[Any]]:
        """What is found, with payloads, as of one moment: if something of it went meanwhile, look again."""
        deadline = time.monotonic() + self.address.patience
        with self._space.using():
            while True:
                entries = self._space.read(look)
                bodies = [self.mirror.state.entries[entry.id] for entry in entries]
                filled = self.optimistic.payloads.fill(entries, bodies)
                if len(filled) == len(entries) or time.monotonic() > deadline:
                    return filled

    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts; of each queue those of the last 100 ends."""
        with self._space.using():
            rows = self._space.read(
                lambda state: [(state.shown(row), row.live.body) for row in read.attempts(state, where)]
            )
            return self.optimistic.payloads.fill_rows([row for row, _ in rows], [body for _, body in rows])

    def ids_like(self, part: str, *, at_end: bool = False, limit: int = 20) -> list[str]:
        """Ids that begin or end with a part."""
        return self._space.read(lambda state: read.ids_like(state, part, at_end, limit))

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold, by name; a queue asked for by name is counted even if nobody ever used it."""
        return self._space.read(lambda state: read.counts(state, self.now(), queue, family))

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold."""
        return self._space.read(lambda state: read.page(state, self.now(), prefix=prefix, after=after, limit=limit))

    # --- what a space keeps besides entries ------------------------------------------------------------

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        self._space.write(lambda state: registry.define(state, queue, definition), queue=queue)

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        self._space.write(lambda state: registry.lock(state, queue, holder, reason, self.now()), queue=queue)

    def _unlock(self, queue: str, holder: str) -> bool:
        return self._space.write(lambda state: registry.unlock(state, queue, holder), queue=queue)

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all."""
        return self._space.read(lambda state: registry.locks(state, queue))

    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is there."""
        return self._space.write(lambda state: registry.set_schedule(state, schedule))

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule. Returns whether it was there."""
        return self._space.write(lambda state: registry.remove_schedule(state, name))

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        return self._space.read(lambda state: [schedule for _, schedule in sorted(state.schedules.items())])

    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool:
        with self._space.using():
            self.optimistic.payloads.begin()
            written = None if entry is None else self.optimistic.payloads.take_entry(entry)
            return self._space.write(lambda state: registry.fire(state, schedule, next_us, written, self.now()))

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        self._space.write(lambda state: registry.subscribe(state, subscription))

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription. Returns whether it was there."""
        return self._space.write(lambda state: registry.unsubscribe(state, name))

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        return self._space.read(lambda state: [subscription for _, subscription in sorted(state.subscriptions.items())])

    def beat(self, node: str) -> None:
        """Tell that a node lives."""
        with self._space.using():
            self.connection.write(self._space.layout.node(node), str(self.now()).encode())

    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""
        with self._space.using():
            heard = sweeping.heard_nodes(self.connection, self._space.layout)
            return {name: at for name, (at, _) in heard.items()}

    def documents(self, prefix: str = "", *, since_us: Micros = 0) -> list[Document]:
        """Documents by name."""
        return self._space.read(lambda state: registry.documents(state, prefix, since_us))

    # --- transfer --------------------------------------------------------------------------------------

    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves, by name."""
        return self._space.read(transfer.definitions)

    def holds(self) -> list[Hold]:
        """All unique ids that are held, by queue and key."""
        return self._space.read(transfer.holds)

    def export(self, part: Part, after: int = 0, limit: int = 500) -> list[TransferRow]:
        """Waiting entries, dead letters or rows of the history beyond a sequence number, in order."""
        with self._space.using():
            exported = self._space.read(lambda state: transfer.export(state, part, after, limit))
            return self.optimistic.payloads.fill_transfer_rows(
                [item for item, _ in exported], [body for _, body in exported]
            )

    def load(self, rows: Sequence[TransferRow], holds: Sequence[Hold] = ()) -> None:
        """Take in what another store exported, all or none; the history of ended entries is not for here."""
        if any(item.part == "history" for item in rows):
            raise self.unsupported("a history that is carried over")
        with self._space.using():
            payloads = self.optimistic.payloads
            payloads.begin()
            written = [replace(item, payload=payloads.take(item.payload or b"")) for item in rows]
            self._space.write(lambda state: transfer.load(state, written, holds))

    def waits(self, ids: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Wait]:
        """What entries that wait for others need and have counted, by id."""
        return self._space.read(lambda state: read.waits(state, ids, after, limit))

    def links(self, *, target: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[Link]:
        """Links that are not consumed, by source and target."""
        with self._space.using():
            self._space.follow()
            self._space.resume()
            return self._space.read(lambda state: read.links(state, target, after, limit))

    def result(self, id_: str) -> KeptResult | None:
        """What a handler returned for an entry, if it is kept."""
        return self._space.read(lambda state: state.results.get(id_))

    def results(self, *, batch: str | None = None, after: str = "", limit: int = 1000) -> list[tuple[str, KeptResult]]:
        """What handlers returned, by the ids of the entries."""
        return self._space.read(lambda state: read.results(state, batch, after, limit))

    def load_links(
        self, links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]] = ()
    ) -> None:
        """Take in who waits for whom and what handlers returned, all or none."""
        self._space.write(lambda state: transfer.load_links(state, links, waits, results))

    # --- waking and closing ----------------------------------------------------------------------------

    def shares_with(self, other: Driver) -> bool:
        """Two handles share what they share in the ensemble, whoever they are there."""
        if not isinstance(other, ZookeeperDriver):
            return False
        mine, theirs = self.address, other.address
        return (mine.hosts, mine.chroot, self.space) == (theirs.hosts, theirs.chroot, other.space)

    def bell(self) -> int:
        """How often it has rung here; rings of others count from the first call on."""
        self._space.open_after_fork()
        return self._space.doorbell.listen(self.connection, self._space.layout.bell)

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until this process or another one rings, or the time is over."""
        self._space.check_not_closed()
        return self._space.doorbell.wait(seen, seconds)

    def wake(self) -> None:
        """Ring for every wait of this process."""
        self._space.doorbell.ring()

    def check(self) -> list[Finding]:
        """What doctor says about the servers."""
        with self._space.using():
            self._space.follow()
            return server_checks.findings(self.connection, self.mirror, self._space.layout.handles, self.payload_limit)

    def close(self) -> None:
        """End the session, and with it every claim of this handle; safe to repeat."""
        if self.closed:
            return
        self._space.closed = True  # from now on calls are refused, also those of the heartbeat
        super().close()
        self._forget_clock()
        self._space.close()
