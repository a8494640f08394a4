"""Driver: the contract that every kind of queue store fulfils. It is for the authors of stores, not for user code.

The contract is batch-first and small. Its heart is :meth:`Driver.settle`: a list of *steps*, each atomic by itself,
and optionally the next claim, all in one round trip. A put is a step without endings, a worker's completion is a step
with one ending, a unit of work is a step with N endings and K puts: one mechanism, so one place to be right.

Every store must hold to this, and ``tests/contract/queue`` checks it:

- a step whose leases are not all current changes nothing and its result is a ``LeaseLost``;
- a step may be repeated (``repeat=True``) after a lost reply and has one effect;
- times are the store's; only a fake clock (``clock.fixed()``) overrides them.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock, Micros
from penstock.errors import PayloadTooLarge, PenstockError, Unsupported
from penstock.process import this_process
from penstock.queue import refusals, scans
from penstock.queue.announcing import Announcer, operation
from penstock.queue.checking import check_changes, check_connection, check_entry, check_step, check_write
from penstock.queue.entry import Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.forgetting import MINUTE, REMEMBERED
from penstock.queue.protocol import (
    Capabilities,
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
from penstock.queue.space_id import space_id
from penstock.signals import Signals
from penstock.tracing import Tracing

if TYPE_CHECKING:
    from penstock.queue.worker.heartbeat import Heartbeat


class Driver(ABC):
    """What keeps queues in one kind of database: for the authors of stores, not for user code.

    A driver is safe to share between threads. Users hold a :class:`penstock.QueueStore`, which has one.
    """

    capabilities: Capabilities = Capabilities()
    payload_limit: int = 256 * 1024
    unit_limit: int = 10_000  # endings and puts of one step
    unit_bytes: int = 64 * 1024 * 1024
    overlaps_round_trips: bool = False  # whether two at once are quicker than one after the other

    def __init__(self, space: str, clock: Clock, name: str) -> None:
        """Bind the handle to one space and one clock; ``name`` is the masked URL for messages."""
        self.space = space
        self.clock = clock
        self.name = name
        self.signals = Signals()
        self._announcer = Announcer(self.signals)
        self.on_call: Callable[[str, float], None] | None = None  # told which calls the store has answered, in seconds
        self.tracing: Tracing | None = None
        self.closed = False
        # Id, queue and reason of what was cancelled because of others, and not told yet.
        self.cascaded: deque[tuple[str, str, str]] = deque()
        self._process = this_process()
        self._heartbeat: Heartbeat | None = None
        self._heartbeat_lock = threading.Lock()

    # --- its life ---------------------------------------------------------------------------------

    @property
    def heartbeat(self) -> Heartbeat:
        """What keeps this handle's leases alive; started with the first one."""
        self._leave_parents_heartbeat()
        with self._heartbeat_lock:
            if self._heartbeat is None:
                from penstock.queue.worker.heartbeat import Heartbeat

                self._heartbeat = Heartbeat(self)
            return self._heartbeat

    def _leave_parents_heartbeat(self) -> None:
        """In a forked child, forget the parent's heartbeat: its thread does not exist here."""
        if self._process is not this_process():
            self._process, self._heartbeat, self._heartbeat_lock = this_process(), None, threading.Lock()

    def close(self) -> None:
        """Release all resources. Safe to repeat."""
        self.closed = True
        self._leave_parents_heartbeat()
        with self._heartbeat_lock:
            heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.close()

    def __repr__(self) -> str:
        """The URL without its password, and the space."""
        return f"<{type(self).__name__} {self.name} space={self.space}>"

    # --- the calls below tell signals, then do what the store's own method does -------------------

    def put(self, entries: Sequence[NewEntry], *, connection: Any = None) -> tuple[PutResult, ...]:
        """Put entries, all or none."""
        if len(entries) == 1 and connection is None:
            [entry] = entries
            check_entry(self, entry)
            begin = time.perf_counter()
            result = self._put_plain(entry)
            if result is not None:
                if self.on_call is not None:
                    self.on_call("put", time.perf_counter() - begin)
                put_at = result.due_us if entry.due_us is not None else result.due_us - entry.delay_us
                self._announcer.puts((result,), put_at, time.perf_counter() - begin)
                return (result,)
        return self.commit(Step(puts=tuple(entries)), connection=connection).puts

    def commit(self, step: Step, *, connection: Any = None) -> StepDone:
        """Do one step; raises what prevented it."""
        result = self.settle((step,), connection=connection).results[0]
        if isinstance(result, PenstockError):
            raise result
        return result

    def claim(self, request: ClaimRequest) -> Claimed:
        """Take leases on due entries."""
        return self.settle((), request).claimed

    def settle(
        self,
        steps: Sequence[Step],
        claim: ClaimRequest | None = None,
        *,
        connection: Any = None,
        writes: Sequence[DocumentWrite] = (),
    ) -> Settled:
        """Do each step atomically, write documents, then claim, in one round trip. Steps fail independently."""
        for step in steps:
            check_step(self, step)
        for write in writes:
            check_write(self, write, connection)
        check_connection(self, connection)
        begin = time.perf_counter()
        reply = self._settle(steps, claim, connection, writes) if writes else self._settle(steps, claim, connection)
        seconds = time.perf_counter() - begin
        if self.on_call is not None:
            self.on_call(operation(steps, claim), seconds)
        self._announcer.settled(steps, claim, reply, seconds, in_transaction=connection is not None)
        self._announcer.cascaded(self.cascaded, self.now)
        return reply

    def write(self, writes: Sequence[DocumentWrite]) -> list[bool]:
        """Write the documents whose version is still the one given. Returns which were written."""
        return self.settle((), writes=writes).written

    def document(self, name: str) -> Document | None:
        """One document, or None if there is none of that name."""
        return next((document for document in self.documents(name) if document.name == name), None)

    def identity(self) -> str:
        """What tells this space from every other one, even from a later one at its URL. It is stored on first use.

        The same in every process and in a restored backup. Empty where it was never kept and cannot be, as on a
        replica that accepts no writes.
        """
        return space_id(self)

    def extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        """Prolong leases to now + ``lease_us``. Returns the end asked for, for each lease, or None if it is lost."""
        begin = time.perf_counter()
        ends = self._extend(leases, lease_us)
        if self.on_call is not None:
            self.on_call("extend", time.perf_counter() - begin)
        self._announcer.extended(leases, ends, self.now)
        return ends

    def reap(self, *, node: str, sticky_after_us: Micros = 10 * MINUTE, limit: int = 1000) -> Reaped:
        """Take back run-out leases, end what is out of attempts or expired, free sticky entries of vanished nodes."""
        reaped = self._reap(node, sticky_after_us, limit)
        self._announcer.cascaded(self.cascaded, self.now)
        self._announcer.reaped(reaped, node, self.now)
        return reaped

    def cancel(
        self, ids: Sequence[str], *, force: bool = False, connection: Any = None, scope: Scope | None = None
    ) -> int:
        """Cancel waiting entries, all or none. Returns how many were cancelled. ``force`` also cancels leased ones.

        With a ``scope``, entries outside it are not found. This holds for the calls below as well.
        """
        check_connection(self, connection)
        ended = self._cancel(ids, force, connection, scope)
        self._announcer.each_queue("cancelled", ended, self.now)
        self._announcer.cascaded(self.cascaded, self.now)
        return len(ended)

    def update(
        self,
        id_: str,
        changes: Changes,
        *,
        force: bool = False,
        connection: Any = None,
        scope: Scope | None = None,
    ) -> None:
        """Change a waiting entry; ``force`` also a leased one, whose worker then loses it."""
        check_connection(self, connection)
        check_changes(self, changes)
        queue = self._update(id_, changes, force, connection, scope)
        self._announcer.updated(id_, queue, changes, self.now)

    def replay(self, ids: Sequence[str], *, scope: Scope | None = None) -> int:
        """Put ended entries back as a new generation. Returns how many were put back. Repeating changes nothing."""
        replayed = self._replay(ids, scope)
        self._announcer.each_queue("replayed", replayed, self.now)
        return len(replayed)

    def lock(self, queue: str, holder: str, reason: str = "") -> None:
        """Stop claims from a queue on behalf of one holder. Other holders' locks are untouched."""
        self._lock(queue, holder, reason)
        self.signals.tell("locked", queue, (), self.now(), holder=holder, reason=reason)

    def unlock(self, queue: str, holder: str) -> bool:
        """Remove one holder's lock. Returns whether it held one. The queue stays locked while others hold locks."""
        held = self._unlock(queue, holder)
        if held:
            left = len(self.locks(queue))
            self.signals.tell("unlocked", queue, (), self.now(), holder=holder, still_locked=left)
        return held

    def fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None, *, missed: int = 0) -> bool:
        """If nobody else has, move a schedule on and put its entry, in one step. Without an entry, skip this time."""
        fired = self._fire(schedule, next_us, entry)
        if fired:
            ids = () if entry is None else (entry.id,)
            self.signals.tell("fired", schedule.queue, ids, self.now(), schedule=schedule.name, missed=missed)
        return fired

    def prune(self, *, older_than_us: Micros, limit: int = 1000) -> int:
        """Remove up to ``limit`` history rows older than that. Dead letters and entries that have just ended stay."""
        gone = self._prune(max(older_than_us, REMEMBERED), limit)
        if gone:
            self.signals.tell("pruned", "", (), self.now(), rows=gone)
        return gone

    def purge_dead(self, where: Find) -> int:
        """Remove dead letters for good."""
        gone = self._purge_dead(where)
        self._announcer.each_queue("purged", gone, self.now)
        self._announcer.cascaded(self.cascaded, self.now)
        return len(gone)

    # --- what a store implements ------------------------------------------------------------------

    @abstractmethod
    def now(self) -> Micros:
        """The store's time."""

    def _put_plain(self, entry: NewEntry) -> PutResult | None:
        """Put one entry in a shorter way than :meth:`_settle`. Returns None, having done nothing, if there is none."""
        return None

    @abstractmethod
    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, writes: Sequence[DocumentWrite] = ()
    ) -> Settled: ...

    @abstractmethod
    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]: ...

    @abstractmethod
    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped: ...

    @abstractmethod
    def _cancel(
        self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None
    ) -> list[tuple[str, str]]: ...

    @abstractmethod
    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str: ...

    @abstractmethod
    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]: ...

    @abstractmethod
    def _lock(self, queue: str, holder: str, reason: str) -> None: ...

    @abstractmethod
    def _unlock(self, queue: str, holder: str) -> bool: ...

    @abstractmethod
    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool: ...

    @abstractmethod
    def _prune(self, older_than_us: Micros, limit: int) -> int: ...

    @abstractmethod
    def _purge_dead(self, where: Find) -> list[tuple[str, str]]: ...

    @abstractmethod
    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries, by seq; ``states`` narrows to waiting or leased."""

    @abstractmethod
    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters, by seq: in the order of death."""

    @abstractmethod
    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts, by seq."""

    def count_ended(self, since_us: Micros) -> list[EndedCount] | None:
        """How many attempts ended since a time, by queue and outcome, or None if that is too much to count."""
        return scans.count_ended(self, since_us) if self.capabilities.full_history else None

    @abstractmethod
    def ids_like(self, part: str, *, at_end: bool = False, limit: int = 20) -> list[str]:
        """Ids, sorted, of entries of any queue, live or ended, that begin (or end) with a part, up to ``limit``."""

    def ids_with_unique(self, key: str, *, limit: int = 20) -> list[str]:
        """Ids, sorted, of the entries of any queue that hold a unique id, and of recent dead letters that held it."""
        return scans.ids_with_unique(self, key, limit)

    @abstractmethod
    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves. Changing ``fifo`` while the queue holds entries raises ``Conflict``."""

    @abstractmethod
    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold, by name: one, a family, or all."""

    @abstractmethod
    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold, by name; it costs as much as the page, however many there are."""

    @abstractmethod
    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all."""

    @abstractmethod
    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is stored. Returns whether it is kept. An equal one stays."""

    @abstractmethod
    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule. Returns whether it was there."""

    @abstractmethod
    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""

    @abstractmethod
    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription; an event published after this returned reaches it."""

    @abstractmethod
    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription; entries it already has stay. Whether it was there."""

    @abstractmethod
    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""

    @abstractmethod
    def beat(self, node: str) -> None:
        """Tell that a node lives."""

    @abstractmethod
    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""

    @abstractmethod
    def documents(self, prefix: str = "", *, since_us: Micros = 0) -> list[Document]:
        """Documents whose name starts with ``prefix`` and that were written at or after a time, by name."""

    @abstractmethod
    def bell(self) -> int:
        """How often work may have arrived so far. Read it before a claim and pass it to :meth:`wait` afterwards."""

    @abstractmethod
    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until the bell has rung since ``seen``, or the time is over. Returns whether it rang."""

    def hears(self) -> bool:
        """Whether :meth:`wait` hears of everything that becomes claimable, and of every schedule that is set.

        If it does not, whoever waits has to look now and then.
        """
        return False

    @abstractmethod
    def wake(self) -> None:
        """Ring the bell for every :meth:`wait` of this process."""

    # --- moving house ----------------------------------------------------------------------------

    @abstractmethod
    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves, by name; queues that nobody defined may be left out."""

    @abstractmethod
    def holds(self) -> list[Hold]:
        """All unique ids that are held, by queue and key."""

    @abstractmethod
    def export(self, part: Part, after: int = 0, limit: int = 500) -> list[TransferRow]:
        """Waiting entries, dead letters or rows of the history beyond a sequence number, in order."""

    def rows(self, part: Part, where: Find, *, until: int) -> list[tuple[Any, ...]]:
        """Rows with ``where.after < seq <= until``, in order, as plain columns (:data:`penstock.queue.protocol.ROW`).

        Bulk readers split the work by ranges; a queue, states and times narrow it. Fewer rows than ``where.limit``
        means that this is the end."""
        return scans.rows_between(self, part, where, until)

    def mark(self, part: Part, *, after: int = 0) -> int:
        """The highest sequence number below which nothing new can appear; 0 for nothing at all.

        Where writers draw numbers before they commit, this waits for writers that have drawn a lower one. It raises
        ``Conflict`` if one of them takes too long. ``after`` is an earlier mark.
        """
        return scans.last_seq(self, part)

    @abstractmethod
    def load(self, rows: Sequence[TransferRow], holds: Sequence[Hold] = ()) -> None:
        """Take rows of another store in, all or none, after what is there; it takes no unique ids but the holds given.

        The caller sees to it that nobody else writes to the queues and that nothing is loaded twice.
        """

    # --- who waits for whom ----------------------------------------------------------------------

    def waits(self, ids: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Wait]:
        """What entries that wait for others need and have counted, by id; kept until their history is pruned."""
        return []

    def links(self, *, target: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[Link]:
        """Links that are not consumed, by source and target; with ``target`` those of what one entry waits for."""
        return []

    def result(self, id_: str) -> KeptResult | None:
        """What a handler returned for an entry, if it is kept. It may outlive its time."""
        return None

    def results(self, *, batch: str | None = None, after: str = "", limit: int = 1000) -> list[tuple[str, KeptResult]]:
        """What handlers returned, or those of a batch's members, by entry. Some may have outlived their time."""
        return []

    def load_links(
        self, links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]] = ()
    ) -> None:
        """Take in who waited for whom in another store, and what handlers returned there, all or none.

        The entries are loaded before. Loading the same again changes nothing.
        """
        if links or waits or results:
            raise self.unsupported("entries that wait for others")

    @abstractmethod
    def check(self) -> list[Finding]:
        """Look at the store the way ``doctor`` does."""

    # --- shared ------------------------------------------------------------------------------------

    def shares_with(self, other: Driver) -> bool:
        """Whether both handles are on the same space of the same store, so that one step can cover both."""
        return self is other or (type(self), self.name, self.space) == (type(other), other.name, other.space)

    def unsupported(self, what: str) -> Unsupported:
        """The error for an excluded call."""
        return refusals.unsupported(self.name, what)

    def too_large(self, size: int) -> PayloadTooLarge:
        """The error for a payload over the limit."""
        return refusals.too_large(size, self.payload_limit, self.name)
