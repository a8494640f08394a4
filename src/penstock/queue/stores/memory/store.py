"""The memory store's handle: the contract's calls on a state that may be shared, and the doorbell."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest, nsmallest
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import BadInput, StoreUnavailable
from penstock.queue import refusals
from penstock.queue.cargo import Cargo, Hold, Part
from penstock.queue.entry import FINAL, LIVE, Counts, Entry, HistoryRow, Lease, Lock
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
    Subscription,
)
from penstock.queue.stores.memory import moving
from penstock.queue.stores.memory.claims import claim as take_leases
from penstock.queue.stores.memory.claims import extend, reap
from penstock.queue.stores.memory.lanes import Item, LiveQueue
from penstock.queue.stores.memory.state import Hold as Held
from penstock.queue.stores.memory.state import MemoryState, handed_out
from penstock.queue.stores.memory.steps import check_place, fire, take_step, write_notes

if TYPE_CHECKING:
    from penstock.location import Location

R = TypeVar("R", Item, HistoryRow)

# The only place where two handles of a process can find each other.
_shared: dict[tuple[str, str], MemoryState] = {}
_shared_lock = threading.Lock()


def open_store(location: Location, clock: Clock) -> MemoryStore:
    """Open ``memory://``, a store of its own, or ``memory://NAME``, shared within the process."""
    location.reject_unknown_options(frozenset({"payload_limit"}))
    limit = location.options.get("payload_limit", str(MemoryStore.payload_limit))
    if not limit.isdecimal() or int(limit) < 1:
        raise BadInput(f"payload_limit {limit!r} in {location.masked} is not a size.", hint="Give a number of bytes.")
    return MemoryStore(location.path, location.space, clock, location.masked, payload_limit=int(limit))


class MemoryStore(QueueStore):
    """Queues in the memory of this process, gone with it."""

    capabilities = Capabilities(durable=False, transactional=False)

    def __init__(self, path: str, space: str, clock: Clock, name: str, *, payload_limit: int) -> None:
        """Join the state at ``path`` and ``space``, or start one; an empty path is shared with nobody."""
        super().__init__(space, clock, name)
        self.payload_limit = payload_limit
        self._address = (path, space) if path else None
        with _shared_lock:
            self._state = _shared.setdefault(self._address, MemoryState()) if self._address else MemoryState()
            self._state.handles += 1
        self._end_watch = clock.on_change(self.wake)

    @contextmanager
    def _using(self) -> Iterator[MemoryState]:
        """One call at a time, and none after the end."""
        with self._state.bell:
            self._check_open()
            yield self._state

    def _check_open(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"{self.name} was closed.", hint="Open it again to go on.")

    def now(self) -> Micros:
        """The clock's time if it is a fake one, else this host's."""
        self._check_open()
        fixed = self.clock.fixed()
        return SystemClock().micros() if fixed is None else fixed

    # --- work ----------------------------------------------------------------------------------------

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, notes: Sequence[Note] = ()
    ) -> Settled:
        with self._using() as state:
            now = self.now()
            results = [take_step(state, step, now) for step in steps]
            noted = write_notes(state, notes, now)
            claimed = Claimed() if claim is None else take_leases(state, claim, now)
            return Settled(results, claimed, now, noted)

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        with self._using() as state:
            return extend(state, leases, self.now() + lease_us)

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        with self._using() as state:
            return reap(state, node, sticky_after_us, limit, self.now())

    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool:
        with self._using() as state:
            return fire(state, schedule, next_us, entry, self.now())

    # --- what people do to entries -------------------------------------------------------------------

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        cancelled = []
        with self._using() as state, state.atomic():
            for id_ in ids:
                if id_ not in state.live and id_ in state.ended and state.ended[id_].state == "cancelled":
                    continue
                item = self._changeable(id_, force, scope)
                state.finish(item, "cancelled", self.now())
                cancelled.append((id_, item.queue))
        return cancelled

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        with self._using() as state, state.atomic():
            item = self._changeable(id_, force, scope)
            if changes.priority is not None:
                check_place(state, item.queue, changes.priority)
            fields: dict[str, Any] = {
                name: value
                for name in ("payload", "codec", "type", "labels", "priority")
                if (value := getattr(changes, name)) is not None
            }
            if changes.labels is not None:
                fields["labels"] = dict(changes.labels)
            if changes.due_us is not None or changes.delay_us is not None:
                due = self.now() if changes.due_us is None else changes.due_us
                fields["due_us"] = fields["first_due_us"] = due + (changes.delay_us or 0)
            if item.lease is not None:
                state.record(item, "retried", self.now(), error="taken away by an update")
                fields["suspect"] = False  # its last lease did not run out, it was taken away
            state.wait(item, **fields)
            return item.queue

    def _changeable(self, id_: str, force: bool, scope: Scope | None) -> Item:
        item = self._state.live.get(id_)
        if item is None or (scope is not None and not scope.covers(item.queue)):
            raise refusals.not_live(id_)
        if item.lease is not None and not force:
            raise refusals.entry_leased(id_, item.queue, item.lease.owner)
        return item

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        replayed = []
        with self._using() as state, state.atomic():
            for id_ in ids:
                if id_ not in state.live:
                    replayed.append((id_, self._replay_one(id_, scope)))
        return replayed

    def _replay_one(self, id_: str, scope: Scope | None) -> str:
        state = self._state
        item = state.dead.get(id_) or state.ended.get(id_)
        # A dead entry's payload is the dead letter's: purged is purged, though its row is still there.
        purged = item is not None and item.state == "dead" and id_ not in state.dead
        if item is None or purged or (scope is not None and not scope.covers(item.queue)):
            raise refusals.not_ended(id_)
        now = self.now()
        # A period counts from the put, whatever happens to the entry afterwards.
        holds_again = item.unique is not None and item.mode != "period"
        hold = state.holder(item.queue, str(item.unique), now) if holds_again else None
        if hold is not None and hold.id != id_:
            raise refusals.unique_held(item.queue, str(item.unique), hold.id)
        if id_ in state.dead:
            del state.dead[id_]
        if id_ in state.ended:
            del state.ended[id_]
        if holds_again:
            state.hold(item, now)
        # Its old expiry has passed or soon will; who replays it wants it done now.
        state.wait(
            item, seq=next(state.seqs), generation=item.generation + 1, attempt=0, due_us=now, first_due_us=now,
            expires_us=None, ended_us=None, error=None, settled=item.settlements(),
        )  # fmt: skip
        return item.queue

    # --- reading ---------------------------------------------------------------------------------------

    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries, by seq."""
        self._check_connection(connection)
        if unknown := set(where.states or ()).difference(LIVE):
            raise BadInput(
                f"a live entry is never {unknown.pop()!r}.", hint="Use 'waiting' or 'leased'; see history()."
            )
        with self._using() as state:
            items: Iterable[Item] = state.live.values()
            if where.ids is not None:
                items = [state.live[id_] for id_ in dict.fromkeys(where.ids) if id_ in state.live]
            elif where.queue is not None:
                queue = state.lineup.queues.get(where.queue)
                items = () if queue is None else queue.items.values()
            return [handed_out(item) for item in _matching(items, where)]

    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters, by seq."""
        with self._using() as state:
            return [handed_out(item) for item in _matching(state.dead.values(), where)]

    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts, by seq."""
        with self._using() as state:
            rows: Iterable[HistoryRow] = state.history.values()
            if where.ids is not None:
                rows = [state.history[seq] for id_ in set(where.ids) for seq in state.rows_of.get(id_, ())]
            return [replace(row, labels=dict(row.labels), headers=dict(row.headers)) for row in _matching(rows, where)]

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold, by name; a queue asked for by name is told of even if nobody ever used it."""
        with self._using() as state:
            queues = state.lineup.queues
            names = sorted(queues) if queue is None else [queue]
            now = self.now()
            return [
                _count(queues.get(name) or LiveQueue(name), now)
                for name in names
                if family is None or name.startswith(family)
            ]

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold."""
        with self._using() as state:
            queues = state.lineup.queues
            names = (name for name in queues if name > after and name.startswith(prefix))
            now = self.now()
            return [_count(queues[name], now) for name in heapq.nsmallest(limit, names)]

    # --- cleaning up -------------------------------------------------------------------------------------

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        with self._using() as state, state.atomic():
            before = self.now() - older_than_us
            old = list(islice(takewhile(lambda row: row.ended_us < before, state.history.values()), limit))
            for row in old:
                del state.history[row.seq]
                ended = state.ended.get(row.id)
                if ended is not None and row.state in FINAL and ended.generation == row.generation:
                    del state.ended[row.id]
            return len(old)

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        with self._using() as state, state.atomic():
            gone = _matching(state.dead.values(), where)
            for item in gone:
                del state.dead[item.id]
            return [(item.id, item.queue) for item in gone]

    # --- queues --------------------------------------------------------------------------------------------

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        with self._using() as state:
            known = state.lineup.queue(queue)
            if definition.fifo is not None and definition.fifo != known.fifo and known.items:
                raise refusals.fifo_fixed(queue)
            if not definition.empty:
                known.define(definition)
            state.lineup.note(known)
            state.ring()

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        with self._using() as state:
            known = state.lineup.queue(queue)
            before = known.locks.get(holder)
            known.locks[holder] = Lock(queue, holder, reason, before.since_us if before else self.now())
            state.lineup.note(known)

    def _unlock(self, queue: str, holder: str) -> bool:
        with self._using() as state:
            known = state.lineup.queues.get(queue)
            if known is None or known.locks.pop(holder, None) is None:
                return False
            state.lineup.note(known)
            state.ring()
            return True

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all, by queue and holder."""
        with self._using() as state:
            found = [lock for known in state.lineup.queues.values() for lock in known.locks.values()]
            return sorted(
                (lock for lock in found if queue in (None, lock.queue)), key=lambda lock: (lock.queue, lock.holder)
            )

    # --- schedules, subscriptions, nodes -------------------------------------------------------------------

    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is there."""
        with self._using() as state:
            stored = state.schedules.get(schedule.name)
            if stored is not None and stored.version > schedule.version:
                return False
            if stored is None or replace(stored, next_us=schedule.next_us) != schedule:
                with state.atomic():
                    state.schedules[schedule.name] = schedule
            return True

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule; whether it was there."""
        with self._using() as state, state.atomic():
            known = name in state.schedules
            if known:
                del state.schedules[name]
            return known

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        with self._using() as state:
            return [schedule for _, schedule in sorted(state.schedules.items())]

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        with self._using() as state:
            state.subscriptions[subscription.name] = subscription

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription; whether it was there."""
        with self._using() as state:
            return state.subscriptions.pop(name, None) is not None

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
            found = state.documents.values()
            mine = [one for one in found if one.name.startswith(prefix) and one.changed_us >= since_us]
            return sorted(mine, key=lambda one: one.name)

    # --- moving house --------------------------------------------------------------------------------------

    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves, by name."""
        with self._using() as state:
            return {
                name: Definition(queue.fifo, queue.rate, queue.label_limit)
                for name, queue in sorted(state.lineup.queues.items())
            }

    def holds(self) -> list[Hold]:
        """All unique ids that are held, by queue and key."""
        with self._using() as state:
            return [Hold(*scope, hold.id, hold.until_us) for scope, hold in sorted(state.holds.items())]

    def cargo(self, part: Part, after: int = 0, limit: int = 500) -> list[Cargo]:
        """Waiting entries, dead letters or rows of the history beyond a sequence number, in order."""
        with self._using() as state:
            where = Find(after=after, limit=limit)
            if part == "history":
                return [moving.of_row(row, state.ended.get(row.id)) for row in self.history(where)]
            if part == "dead":
                return [moving.of_entry(entry, state.dead[entry.id]) for entry in self.dead(where)]
            found = self.find(replace(where, states=("waiting",)))
            return [moving.of_entry(entry, state.live[entry.id]) for entry in found]

    def load(self, cargo: Sequence[Cargo], holds: Sequence[Hold] = ()) -> None:
        """Take cargo of another store in, all or none."""
        with self._using() as state, state.atomic():
            for one in cargo:
                moving.load(state, one)
            for hold in holds:
                state.holds[hold.queue, hold.key] = Held(hold.id, hold.until_us)

    def shares_with(self, other: QueueStore) -> bool:
        """Two handles share what they share in memory, whatever they are called."""
        return isinstance(other, MemoryStore) and other._state is self._state  # noqa: SLF001

    # --- the handle ------------------------------------------------------------------------------------------

    def bell(self) -> int:
        """How often the bell of this state has rung."""
        with self._using() as state:
            return state.rings

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until the bell is no longer at ``seen`` or the time is over; whether it rang."""
        with self._using() as state:
            return state.bell.wait_for(lambda: state.rings != seen, max(0.0, seconds))

    def wake(self) -> None:
        """Ring the bell. Harmless after the end, when nobody waits any more."""
        with self._state.bell:
            self._state.ring()

    def check(self) -> list[Finding]:
        """Say what everybody should know who uses this store."""
        with self._using():
            return [Finding("warning", "durability", "entries are lost when the process ends")]

    def close(self) -> None:
        """Leave the state; it goes with its last handle."""
        with _shared_lock, self._state.bell:
            if not self.closed:
                self.closed = True
                self._end_watch()
                self._state.ring()
                self._state.handles -= 1
                if self._address is not None and self._state.handles == 0:
                    del _shared[self._address]
        super().close()


def _matching(rows: Iterable[R], where: Find) -> list[R]:
    """The rows asked for, in order and cut to the limit."""

    def fits(row: R) -> bool:
        at = row.due_us if row.state in LIVE else row.ended_us or 0
        return (
            (not where.after or (row.seq < where.after if where.newest_first else row.seq > where.after))
            and where.queue in (None, row.queue)
            and (where.family is None or row.queue.startswith(where.family))
            and (where.ids is None or row.id in where.ids)
            and (where.states is None or row.state in where.states)
            and (where.from_us is None or at >= where.from_us)
            and (where.before_us is None or at < where.before_us)
            and where.labels.items() <= row.labels.items()
        )

    pick = nlargest if where.newest_first else nsmallest
    return pick(where.limit, filter(fits, rows), key=lambda row: row.seq)


def _count(queue: LiveQueue, now: Micros) -> Counts:
    waiting = [item for item in queue.items.values() if item.lease is None]
    due = [item.due_us for item in waiting if item.due_us <= now]
    retrying = sum(item.due_us > now and item.attempt > 0 for item in waiting)
    return Counts(
        queue=queue.name,
        ready=len(due),
        delayed=len(waiting) - len(due) - retrying,
        retrying=retrying,
        leased=len(queue.items) - len(waiting),
        dead=queue.dead,
        oldest_ready_us=min(due, default=None),
        locks=tuple(sorted(queue.locks.values(), key=lambda lock: lock.holder)),
        fifo=queue.fifo,
    )
