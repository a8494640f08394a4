"""Announcer: tells the listeners of a store what its calls have done."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.clock import Micros
from penstock.errors import LeaseLost
from penstock.queue.entry import Lease, error_alone
from penstock.queue.protocol import Changes, Claimed, ClaimRequest, PutResult, Reaped, Settled, Step, StepDone
from penstock.signals import Signals


class Announcer:
    """Turns the reply of a call into signals. Where nobody listens, it only counts.

    ``now`` gives the store's time. It may cost a round trip, so it is asked only when there is something to announce.
    """

    def __init__(self, signals: Signals) -> None:
        """Announce to the listeners of these signals."""
        self._signals = signals

    def each_queue(self, kind: str, pairs: Iterable[tuple[str, str]], now: Callable[[], Micros]) -> None:
        """Announce the same of (id, queue) pairs, in one signal for each queue."""
        for queue, ids in _by_queue(pairs).items():
            self._signals.tell(kind, queue, ids, now())

    def puts(self, puts: Sequence[PutResult], now: Micros, seconds: float) -> None:
        """Announce entries that were put."""
        if not self._signals.wants("put"):
            self._signals.count("put", len(puts))
            return
        for queue, ids in _by_queue((put.id, put.queue) for put in puts if put.created).items():
            self._signals.tell("put", queue, ids, now, seconds=seconds)

    def settled(
        self, steps: Sequence[Step], claim: ClaimRequest | None, reply: Settled, seconds: float, *, in_transaction: bool
    ) -> None:
        """Announce what became of steps and of the claim that went with them."""
        plain = 0
        watched = self._signals.wants("settled")
        for step, result in zip(steps, reply.results, strict=True):
            if isinstance(result, StepDone):
                if not watched and not step.puts and not step.events:
                    plain += len(step.endings)
                    continue
                # An ending inside the caller's transaction is announced when the worker repeats it after the commit.
                final = msgspec.structs.replace(step, endings=()) if in_transaction and step.endings else step
                self._step(final, result, reply.now_us, seconds)
            elif isinstance(result, LeaseLost):
                for ending in step.endings:
                    lease, outcome = ending.lease, ending.outcome
                    self._signals.tell("lease_lost", lease.queue, (lease.entry,), reply.now_us, outcome=outcome)
        if plain:
            self._signals.count("settled", plain)
        self._claimed(claim, reply.claimed, reply.now_us, seconds)

    def _step(self, step: Step, result: StepDone, now: Micros, seconds: float) -> None:
        signals = self._signals
        if step.endings:
            if signals.wants("settled"):
                for ending in step.endings:
                    lease = ending.lease
                    signals.tell(
                        "settled", lease.queue, (lease.entry,), now,
                        seconds=seconds, outcome=ending.outcome, error=error_alone(ending.error),
                        started=ending.started_us,
                    )  # fmt: skip
            else:
                signals.count("settled", len(step.endings))
        if result.puts:
            self.puts(result.puts, now, seconds)
        for event, puts in zip(step.events, result.published, strict=True):
            kind = "published" if puts else "unwanted"
            queues = tuple(put.queue for put in puts)
            signals.tell(kind, "", (event.template.id,), now, types=event.types, subscriptions=queues)

    def _claimed(self, claim: ClaimRequest | None, claimed: Claimed, now: Micros, seconds: float) -> None:
        signals = self._signals
        if claimed.dead:
            signals.tell("exhausted", "", claimed.dead, now)
            signals.tell("settled", "", claimed.dead, now, outcome="dead", error="no attempts left", attempt=None)
        entries = claimed.entries
        if entries and claim is not None:
            if signals.wants("claimed"):
                until = entries[0].lease.until_us if entries[0].lease else None
                for queue, ids in _by_queue((entry.id, entry.queue) for entry in entries).items():
                    signals.tell("claimed", queue, ids, now, seconds=seconds, owner=claim.owner, until=until)
            else:
                signals.count("claimed", len(entries))

    def cascaded(self, pending: deque[tuple[str, str, str]], now: Callable[[], Micros]) -> None:
        """Announce what was cancelled because of how others ended, and empty the queue of (id, queue, reason)."""
        by_reason: dict[tuple[str, str], list[str]] = {}
        while pending:
            id_, queue, reason = pending.popleft()
            by_reason.setdefault((queue, reason), []).append(id_)
        for (queue, reason), ids in by_reason.items():
            self._signals.tell("cancelled", queue, tuple(ids), now(), reason=reason)

    def extended(self, leases: Sequence[Lease], ends: Sequence[Micros | None], now: Callable[[], Micros]) -> None:
        """Announce which leases were prolonged and which are lost."""
        if not self._signals.wants("extended") and not self._signals.wants("lease_lost"):
            return
        for lease, end in zip(leases, ends, strict=True):
            kind = "lease_lost" if end is None else "extended"
            self._signals.tell(kind, lease.queue, (lease.entry,), now(), until=end, outcome="extend")

    def reaped(self, reaped: Reaped, node: str, now: Callable[[], Micros]) -> None:
        """Announce what a reaper took back, ended and freed."""
        if not any(msgspec.structs.astuple(reaped)):
            return
        reaped_at = now()
        for kind in ("reaped", "expired", "late"):
            for queue, ids in _by_queue(getattr(reaped, kind)).items():
                self._signals.tell(kind, queue, ids, reaped_at, node=node)
        for queue, ids in _by_queue(reaped.dead).items():
            self._signals.tell("exhausted", queue, ids, reaped_at)
            self._signals.tell("settled", queue, ids, reaped_at, outcome="dead", error="lease ran out", attempt=None)

    def updated(self, id_: str, queue: str, changes: Changes, now: Callable[[], Micros]) -> None:
        """Announce which fields of an entry were changed."""
        if not self._signals.wants("updated"):
            return
        fields = tuple(name for name in changes.__struct_fields__ if getattr(changes, name) is not None)
        self._signals.tell("updated", queue, (id_,), now(), fields=fields)


def operation(steps: Sequence[Step], claim: ClaimRequest | None) -> str:
    """What a call does, in one word."""
    if claim is not None:
        return "round_trip" if steps else "claim"
    if not steps:
        return "write"
    return "settle" if any(step.endings for step in steps) else "put"


def _by_queue(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """(id, queue) pairs as ids by queue."""
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for id_, queue in pairs:
        grouped[queue].append(id_)
    return {queue: tuple(ids) for queue, ids in grouped.items()}
