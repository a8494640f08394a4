"""Everything that happens inside Penstock, told once: logs, metrics, traces and tests subscribe to the same signals.

A signal is emitted after the store has agreed, for a whole batch at a time, so that nobody listening costs nothing and
somebody listening costs little.

=============  ======================================================  ==================================
kind           told when                                               data
=============  ======================================================  ==================================
put            entries were put                                        created, delayed, queues
claimed        a worker got leases                                     owner, until, alone
started        a handler starts                                        attempt
settled        an attempt ended                                        outcome, attempt, error
lease_lost     a late owner was refused                                outcome
extended       leases were prolonged                                   until
reaped         leases ran out and were taken back                      attempts
exhausted      leases ran out at the last attempt: dead letters now     -
late           entries of this node wait longer than the threshold     node
expired        entries passed their expiry unclaimed                   -
cancelled      entries were cancelled                                  reason (with what they waited for)
updated        an entry was changed or rescheduled                     fields
replayed       ended entries went back to their queue                  generation
locked         a holder locked a queue                                 holder, reason
unlocked       a holder let go of a queue                              holder, still_locked
circuit        a circuit changed its state                             circuit, hash, state, why, by, ratio, samples
configured     a breaker's configuration was changed                   by, before, after
unrouted       a queued request waits: no route here leads to it       path
fired          a schedule put its entry                                schedule, missed
published      an event was published                                  subscriptions
unwanted       an event was published that no subscription wants       types
pruned         old history was removed                                 -
purged         dead letters were removed                               -
store_error    a background step failed and will be tried again        step, error
appended       records were appended to a log                          partition, offset
committed      a group committed offsets                               group, offsets
assigned       a tailer got partitions                                 group, partitions
revoked        a tailer gave partitions back                           group, partitions
lost           partitions of a silent tailer were taken                group, partitions
skipped        a tailer passed over records that are gone              group, partition, offset
truncated      recovery cut what was never acknowledged                partition, offset
retained       retention removed the oldest records                    partition, offset
=============  ======================================================  ==================================
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.errors import BadInput

logger = logging.getLogger("penstock.signals")

KINDS = frozenset(
    ("put", "claimed", "started", "settled", "lease_lost", "extended", "reaped", "exhausted", "late", "expired",
     "cancelled", "updated", "replayed", "locked", "unlocked", "circuit",
     "configured", "unrouted", "fired", "published", "unwanted", "pruned", "purged", "store_error",
     "appended", "committed", "assigned", "revoked", "lost", "skipped", "truncated", "retained")
)  # fmt: skip


class Signal(msgspec.Struct, frozen=True):
    """Something that happened: what, where, to which ids, at which store time, in how many seconds."""

    kind: str
    queue: str
    ids: tuple[str, ...]
    at: Micros
    seconds: float = 0.0
    count: int = 0
    data: dict[str, Any] = {}


class Signals:
    """The hub of one store: subscribe here; Penstock emits."""

    def __init__(self) -> None:
        """Start with nobody listening."""
        self._listeners: dict[str, tuple[Callable[[Signal], None], ...]] = {}
        self._totals: defaultdict[str, int] = defaultdict(int)

    def subscribe(self, listener: Callable[[Signal], None], *kinds: str) -> Callable[[], None]:
        """Call a function when something happens.

        Args:
            listener: called with each :class:`Signal`
            *kinds: these only; all by default

        Returns:
            a function that ends the subscription
        """
        for kind in kinds:
            if kind not in KINDS:
                raise BadInput(f"signal kind {kind!r} is unknown.", hint=f"Known: {', '.join(sorted(KINDS))}.")
        wanted = kinds or tuple(KINDS)
        for kind in wanted:
            self._listeners[kind] = (*self._listeners.get(kind, ()), listener)

        def end() -> None:
            for kind in wanted:
                left = tuple(other for other in self._listeners.get(kind, ()) if other is not listener)
                self._listeners[kind] = left

        return end

    def wants(self, kind: str) -> bool:
        """Whether anybody listens: the hot path asks before it builds a signal."""
        return bool(self._listeners.get(kind))

    def tell(
        self,
        kind: str,
        queue: str,
        ids: tuple[str, ...],
        at: Micros,
        *,
        seconds: float = 0.0,
        **data: Any,
    ) -> None:
        """Count, and call the listeners. A listener that fails is logged, and the others are called."""
        self._totals[kind] += len(ids) or 1
        for listener in self._listeners.get(kind, ()):
            try:
                listener(Signal(kind, queue, ids, at, seconds, len(ids) or 1, data))
            except Exception:
                logger.exception("a listener of the signal %r failed", kind)

    def count(self, kind: str, number: int) -> None:
        """Count what nobody listens to."""
        self._totals[kind] += number

    @property
    def totals(self) -> dict[str, int]:
        """How often each kind was emitted since the store was opened."""
        return dict(self._totals)
