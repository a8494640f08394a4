"""Queues in the memory of one process: for tests, for trying out, and as the contract in its plainest form.

What a call does is in :mod:`penstock.queue.rules`; here are the handles, the lock around the state they share, and the
bell.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import BadInput, StoreUnavailable
from penstock.queue.checking import check_connection
from penstock.queue.driver import Driver
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
    Subscription,
    TransferRow,
    Wait,
)
from penstock.queue.rules import claim as claims
from penstock.queue.rules import put, read, reap, registry, settle, transfer
from penstock.queue.rules.state import State
from penstock.queue.wakeup import Bell

if TYPE_CHECKING:
    from penstock.location import Location


class Shared:
    """What the handles on one space share."""

    def __init__(self) -> None:
        """Start empty."""
        self.state = State()
        self.lock = threading.RLock()
        self.bell = Bell()
        self.handles = 0


# The only place where two handles of a process can find each other.
_spaces: dict[tuple[str, str], Shared] = {}
_spaces_lock = threading.Lock()


def open_driver(location: Location, clock: Clock) -> MemoryDriver:
    """Open ``memory://``, a store of its own, or ``memory://NAME``, shared within the process."""
    location.reject_unknown_options(frozenset({"payload_limit"}))
    limit = location.options.get("payload_limit", str(MemoryDriver.payload_limit))
    if not limit.isdecimal() or int(limit) < 1:
        raise BadInput(f"payload_limit {limit!r} in {location.masked} is not a size.", hint="Give a number of bytes.")
    return MemoryDriver(location.path, location.space, clock, location.masked, payload_limit=int(limit))


class MemoryDriver(Driver):
    """Queues in the memory of this process, gone with it."""

    capabilities = Capabilities(durable=False, transactional=False)

    def __init__(self, path: str, space: str, clock: Clock, name: str, *, payload_limit: int) -> None:
        """Join what is at ``path`` and ``space``, or start it; an empty path is shared with nobody."""
        super().__init__(space, clock, name)
        self.payload_limit = payload_limit
        self._address = (path, space) if path else None
        with _spaces_lock:
            self._shared = _spaces.setdefault(self._address, Shared()) if self._address else Shared()
            self._shared.handles += 1
        self._end_watch = clock.on_change(self.wake)

    @contextmanager
    def _using(self) -> Iterator[State]:
        """One call at a time, and none after the end; whoever waits is woken when something became claimable."""
        shared = self._shared
        with shared.lock:
            self._check_open()
            try:
                yield shared.state
            finally:
                rang, shared.state.rang = shared.state.rang, False
                self.cascaded += shared.state.take_cascaded()
        if rang:
            shared.bell.ring()

    def _check_open(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"{self.name} was closed.", hint="Open it again to continue.")

    def now(self) -> Micros:
        """The clock's time if it is a fake one, else this host's."""
        self._check_open()
        fixed = self.clock.fixed()
        return SystemClock().micros() if fixed is None else fixed

    # --- put, claim, settle ----------------------------------------------------------------------------

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, writes: Sequence[DocumentWrite] = ()
    ) -> Settled:
        with self._using() as state:
            now = self.now()
            results = settle.settle(state, steps, now)
            written = registry.write_documents(state, writes, now)
            claimed = Claimed() if claim is None else claims.claim(state, claim, now)
            return Settled(results, claimed, now, written)

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        with self._using() as state:
            return settle.extend(state, leases, self.now() + lease_us)

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        with self._using() as state:
            return settle.cancel(state, ids, self.now(), force=force, scope=scope)

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        with self._using() as state, state.atomic():
            return put.update(state, id_, changes, self.now(), force=force, scope=scope)

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        with self._using() as state, state.atomic():
            return put.replay(state, ids, self.now(), scope=scope)

    # --- reap ------------------------------------------------------------------------------------------

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        with self._using() as state:
            return reap.reap(state, node, sticky_after_us, limit, self.now())

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        with self._using() as state:
            return reap.prune(state, older_than_us, limit, self.now())

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        with self._using() as state:
            return reap.purge_dead(state, where, self.now())

    # --- read ------------------------------------------------------------------------------------------

    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries."""
        check_connection(self, connection)
        with self._using() as state:
            return read.find(state, where)

    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters."""
        with self._using() as state:
            return [letter.entry() for letter in read.dead_letters(state, where)]

    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts."""
        with self._using() as state:
            return read.history(state, where)

    def ids_like(self, part: str, *, at_end: bool = False, limit: int = 20) -> list[str]:
        """Ids that begin or end with a part."""
        with self._using() as state:
            return read.ids_like(state, part, at_end, limit)

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold, by name; a queue asked for by name is counted even if nobody ever used it."""
        with self._using() as state:
            return read.counts(state, self.now(), queue, family)

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold."""
        with self._using() as state:
            return read.page(state, self.now(), prefix=prefix, after=after, limit=limit)

    # --- what a space keeps besides entries ------------------------------------------------------------

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        with self._using() as state:
            registry.define(state, queue, definition)

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        with self._using() as state:
            registry.lock(state, queue, holder, reason, self.now())

    def _unlock(self, queue: str, holder: str) -> bool:
        with self._using() as state:
            return registry.unlock(state, queue, holder)

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all."""
        with self._using() as state:
            return registry.locks(state, queue)

    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is there."""
        with self._using() as state:
            return registry.set_schedule(state, schedule)

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule. Returns whether it was there."""
        with self._using() as state:
            return registry.remove_schedule(state, name)

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        with self._using() as state:
            return [schedule for _, schedule in sorted(state.schedules.items())]

    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool:
        with self._using() as state:
            return registry.fire(state, schedule, next_us, entry, self.now())

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        with self._using() as state:
            registry.subscribe(state, subscription)

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription. Returns whether it was there."""
        with self._using() as state:
            return registry.unsubscribe(state, name)

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        with self._using() as state:
            return [subscription for _, subscription in sorted(state.subscriptions.items())]

    def beat(self, node: str) -> None:
        """Tell that a node lives."""
        with self._using() as state:
            state.nodes[node] = self.now()

    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""
        with self._using() as state:
            return dict(state.nodes)

    def documents(self, prefix: str = "", *, since_us: Micros = 0) -> list[Document]:
        """Documents by name."""
        with self._using() as state:
            return registry.documents(state, prefix, since_us)

    # --- transfer --------------------------------------------------------------------------------------

    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves, by name."""
        with self._using() as state:
            return transfer.definitions(state)

    def holds(self) -> list[Hold]:
        """All unique ids that are held, by queue and key."""
        with self._using() as state:
            return transfer.holds(state)

    def export(self, part: Part, after: int = 0, limit: int = 500) -> list[TransferRow]:
        """Waiting entries, dead letters or rows of the history beyond a sequence number, in order."""
        with self._using() as state:
            return [row for row, _ in transfer.export(state, part, after, limit)]

    def load(self, rows: Sequence[TransferRow], holds: Sequence[Hold] = ()) -> None:
        """Take in what another store exported, all or none."""
        with self._using() as state:
            transfer.load(state, rows, holds)

    def waits(self, ids: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Wait]:
        """What entries that wait for others need and have counted, by id."""
        with self._using() as state:
            return read.waits(state, ids, after, limit)

    def links(self, *, target: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[Link]:
        """Links that are not consumed, by source and target."""
        with self._using() as state:
            return read.links(state, target, after, limit)

    def result(self, id_: str) -> KeptResult | None:
        """What a handler returned for an entry, if it is kept."""
        with self._using() as state:
            return state.results.get(id_)

    def results(self, *, batch: str | None = None, after: str = "", limit: int = 1000) -> list[tuple[str, KeptResult]]:
        """What handlers returned, by the ids of the entries."""
        with self._using() as state:
            return read.results(state, batch, after, limit)

    def load_links(
        self, links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]] = ()
    ) -> None:
        """Take in who waits for whom and what handlers returned, all or none."""
        with self._using() as state:
            transfer.load_links(state, links, waits, results)

    # --- waking and closing ----------------------------------------------------------------------------

    @property
    def shared(self) -> Shared:
        """What this handle shares with others on the same space."""
        return self._shared

    def shares_with(self, other: Driver) -> bool:
        """Two handles share what they share in memory, whatever they are called."""
        return isinstance(other, MemoryDriver) and other.shared is self._shared

    def bell(self) -> int:
        """How often something may have become claimable."""
        self._check_open()
        return self._shared.bell.rings

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until the bell rings or the time is over. Returns whether it rang."""
        self._check_open()
        return self._shared.bell.wait(seen, max(0.0, seconds))

    def wake(self) -> None:
        """Ring for every wait of this process. Harmless after the end, when nobody waits any more."""
        self._shared.bell.ring()

    def check(self) -> list[Finding]:
        """Say what everybody should know who uses this store."""
        self._check_open()
        return [Finding("warning", "durability", "entries are lost when the process ends")]

    def close(self) -> None:
        """Leave the space; it goes with its last handle."""
        with _spaces_lock:
            if not self.closed:
                self.closed = True
                self._end_watch()
                self._shared.handles -= 1
                if self._address is not None and self._shared.handles == 0:
                    del _spaces[self._address]
        self._shared.bell.ring()
        super().close()
