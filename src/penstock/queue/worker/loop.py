"""Loop: the round trip in which a worker settles what has ended and claims what comes next.

Any idle thread may make the round trip: a slot whose handler has just ended and finds little prepared, or the pump, a
thread that waits for work while all slots idle. So a busy worker hands nothing from thread to thread, and an idle one
sleeps until the store rings. Where a core is free and the store is a server, the pump also fetches ahead.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from penstock import failpoints
from penstock.clock import SECOND, Micros
from penstock.errors import (
    BadInput,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    StoreUnavailable,
    UnitTooLarge,
    Unsupported,
)
from penstock.ids import new_nonce
from penstock.queue.entry import Entry, Lease
from penstock.queue.handling.attempt import Attempt
from penstock.queue.handling.middleware import Middleware
from penstock.queue.handling.outcomes import Ended, call_on_dead, release, step_of_refusal
from penstock.queue.protocol import Claimed, ClaimRequest, Ending, Settled, Source, Step, StepDone
from penstock.queue.queues import QueueStore
from penstock.queue.worker.counting import AttemptCounter, EndedAttempt, count_ended
from penstock.queue.worker.deadlines import Deadline, Deadlines
from penstock.queue.worker.event_loop import HandlerLoop
from penstock.queue.worker.figures import Figures
from penstock.queue.worker.free_core import FreeCore
from penstock.queue.worker.late import log_late
from penstock.queue.worker.outage import Outage
from penstock.queue.worker.pool import HandlerPool, Shared
from penstock.queue.worker.pools.threads import BRIEF, ThreadPool
from penstock.queue.worker.pump import STORE_AWAY_PAUSE, Pulse, Pump
from penstock.queue.worker.registry import Key, PoolRegistry
from penstock.queue.worker.suspects import Suspects
from penstock.queue.worker.verdicts import Verdicts

logger = logging.getLogger("penstock.queue.worker")

SLOW_ROUND_TRIP = 0.002  # seconds
UNSTORABLE = (BadInput, PayloadTooLarge, UnitTooLarge, Unsupported)  # it is about the outcome, not about the store


class RoundTrip:
    """One call to the store: the outcomes to settle, what to claim, and the room that is kept for it."""

    __slots__ = ("claimed", "outcomes", "request", "reserved")

    def __init__(
        self, outcomes: list[Ended], request: ClaimRequest | None, reserved: list[tuple[HandlerPool, int]]
    ) -> None:
        """Nothing was claimed yet."""
        self.outcomes = outcomes
        self.request = request
        self.reserved = reserved
        self.claimed = False


class Loop:
    """Makes the round trips of one worker; pools report to it."""

    def __init__(
        self,
        store: QueueStore,
        chosen: set[Key] | None,
        *,
        owner: str,
        lease_us: Micros,
        batch: int,
        poll: float,
        rng: random.Random | None,
        handler_loop: HandlerLoop,
        middleware: tuple[Middleware, ...],
        figures: Figures,
    ) -> None:
        """Start with nothing in hand."""
        self.store = store
        self.batch = batch
        self.rng = rng
        self.signals = store.signals
        self.handler_loop = handler_loop
        self.counters: list[AttemptCounter] = [figures]
        self.verdicts = Verdicts()
        shared = Shared(around=self, reports=self, loop=handler_loop, middleware=middleware)
        self.pools = PoolRegistry(store, chosen, shared=shared, verdicts=self.verdicts)
        self.suspects = Suspects()
        self._deadlines = Deadlines()
        self.stopping = threading.Event()  # no pause outlasts it
        self.changed = threading.Event()  # for a stop that waits: an attempt or a round trip has ended
        self.under_way = 0  # round trips
        self._owner = owner
        self._lease_us = lease_us
        self._outcomes: deque[Ended] = deque()  # to be settled with the next round trip
        self._unanswered: deque[ClaimRequest] = deque()  # claims whose reply was lost
        self._lock = threading.Lock()
        self.trip_seconds = 0.0  # how long the last round trip took
        self.next_us: Micros | None = None  # when more may be claimable
        self._store_time = (0, 0.0)
        self.pump = Pump(self, poll)
        self._pump_found_no_room = False  # because others were making round trips
        self._outage = Outage()
        self._free_core = FreeCore()

    # --- the round trip ----------------------------------------------------------------------------

    def round_trip(self, *, polite: bool = False) -> bool | None:
        """Settle what has ended and claim what there is room for.

        Returns whether anything was claimed, or None if there was nothing to do.

        Several may be under way at once, each with room of its own: the store commits them together. A ``polite`` one
        that has nothing to claim leaves its outcomes to the one under way.
        """
        # 1. Decide what to settle and what to claim, and keep the room for it.
        trip = self._depart(polite)
        if trip is None:
            return None
        begin = time.perf_counter()
        try:
            # 2. Send both to the store in one call.
            reply = self._exchange(trip)
            if reply is not None:
                failpoints.point("worker.round_trip")
                # 3. Go on with the store's time.
                self._store_time = (reply.now_us, time.perf_counter())
                # 4. Look at what became of each outcome.
                self._look_at(trip.outcomes, reply.results)
                trip.outcomes.clear()
                # 5. Hand the claimed entries to the pools of their handlers.
                if trip.request is not None:
                    self._hand_out(reply.claimed)
                    trip.claimed = bool(reply.claimed.entries)
            return trip.claimed
        except Exception:
            # Whatever the error, outcomes must not be lost while the heartbeat keeps their leases alive.
            self._send_again(trip.outcomes)
            raise
        finally:
            # 6. Give back the room, and wake those who waited for this round trip.
            self._arrive(trip, time.perf_counter() - begin)

    def _depart(self, polite: bool) -> RoundTrip | None:
        with self._lock:
            # A claim whose reply was lost may hold entries for us; only asking again tells.
            ask_again = self._unanswered and not self.stopping.is_set()
            request = self._unanswered.popleft() if ask_again else self._next_claim()
            if request is None:
                # Claims under way may have taken the room, and what woke the pump may have arrived after they looked.
                # The same holds when there are outcomes to settle meanwhile.
                self._pump_found_no_room = self._pump_found_no_room or (not polite and self.under_way > 0)
                if not self._outcomes or (polite and self.under_way):
                    return None
            trip = RoundTrip(self._take_outcomes(), request, self._reserve(request))
            self.under_way += 1
            return trip

    def _next_claim(self) -> ClaimRequest | None:
        """What to claim: the free slots plus a small prefetch, or nothing while a suspect is in hand or waited for."""
        if self.stopping.is_set():
            return None
        self.pools.sync()
        in_hand = self.pools.in_hand() + self.under_way
        if self.suspects.forbid_claims(in_hand):
            return None
        sources, total = self.pools.sources(self.batch)
        if total < 1:
            return None
        return self.claim_request(sources, total, alone=not in_hand or self.suspects.is_overdue())

    def claim_request(self, sources: tuple[Source, ...], limit: int, *, alone: bool) -> ClaimRequest:
        """A claim for this worker."""
        return ClaimRequest(new_nonce(), sources, limit, self._owner, self.store.node, self._lease_us, alone=alone)

    def _reserve(self, request: ClaimRequest | None) -> list[tuple[HandlerPool, int]]:
        """Room that a claim under way may fill is not offered to another one."""
        reserved = []
        for source in () if request is None else request.sources:
            pool = self.pools.of_source(source)
            if pool is not None and source.limit:
                pool.reserved += source.limit
                reserved.append((pool, source.limit))
        return reserved

    def _exchange(self, trip: RoundTrip) -> Settled | None:
        """The store's reply, or None if it did not answer, or had to be given the outcomes one by one."""
        try:
            return self._send(trip.outcomes, trip.request)
        except Exception as error:
            if isinstance(error, PenstockError) and not isinstance(error, UNSTORABLE):
                if trip.request is not None and isinstance(error, StoreUnavailable | OutcomeUnknown):
                    self._unanswered.append(msgspec.structs.replace(trip.request, repeat=True))
                self.store_away(trip.outcomes, error)
                return None
            if not trip.outcomes:
                raise
            self._settle_one_by_one(trip.outcomes, error)
            return None

    def _send(self, outcomes: list[Ended], request: ClaimRequest | None) -> Settled:
        """Settle and claim; what middleware has learnt goes with it."""
        steps = [step for step, _ in outcomes]
        writes = self.verdicts.writes(outcomes)
        if not writes:
            return self.store.driver.settle(steps, request)
        try:
            reply = self.store.driver.settle(steps, request, writes=[write for _, some in writes for write in some])
        except BaseException:
            self.verdicts.not_written(writes)
            raise
        self.verdicts.written(writes, reply, outcomes)
        return reply

    def _look_at(self, outcomes: list[Ended], results: list[StepDone | PenstockError]) -> None:
        """See what became of the outcomes."""
        if not outcomes:
            return
        ended: list[Lease] = []
        counted: list[EndedAttempt] = []
        late: list[tuple[Lease, LeaseLost]] = []
        for (step, context), result in zip(outcomes, results, strict=True):
            ending = step.endings[0]
            if isinstance(result, PenstockError) and not isinstance(result, LeaseLost) and context is not None:
                # The handler succeeded but what it put was refused: that is a failure of this attempt.
                self._outcomes.append((step_of_refusal(context, result, self.rng), context))
                continue
            ended.append(ending.lease)
            if isinstance(result, LeaseLost):
                late.append((ending.lease, result))
            elif context is not None:
                counted.append((ending, context))
                if ending.outcome == "dead":
                    call_on_dead(context, ending.error or "")
        if counted:
            count_ended(self.counters, counted, self._store_time[0])
        if late:
            log_late(self.store, late)
        self._let_go(ended)

    def _hand_out(self, claimed: Claimed) -> None:
        self.next_us = claimed.next_us
        self.suspects.note(claimed)
        entries = claimed.entries
        if not entries:
            return
        if self.stopping.is_set():
            self.give_back(entries)
            return
        if claimed.suspect:
            if (self.pools.in_hand() or self.under_way > 1) and not self.suspects.is_overdue():
                # Another round trip has brought work meanwhile: come back for the suspect when that is done.
                self.suspects.is_waiting = True
                self.give_back(entries)
                return
            self.suspects.start(entries[0].id)
        self.hold(entries)
        with self._lock:
            # A handler may have been replaced while the claim was under way: its successor gets the entries.
            self.pools.sync()
        by_pool, unhandled = self.pools.by_pool(entries)
        self.give_back(unhandled)
        for pool, its_entries in by_pool:
            pool.accept(its_entries)

    def _arrive(self, trip: RoundTrip, seconds: float) -> None:
        with self._lock:
            self.trip_seconds = seconds
            self.under_way -= 1
            self.changed.set()
            for pool, room in trip.reserved:
                pool.reserved -= room
            if self._pump_found_no_room and not trip.claimed:
                # What the pump was woken for may have come after this round trip looked.
                self._pump_found_no_room = False
                self.pump.call()

    # --- outcomes ----------------------------------------------------------------------------------

    def attempt_ended(self, attempt: Attempt, *, hurry: bool) -> None:
        """Keep an outcome for the next round trip; without a step it is settled already."""
        if attempt.step is None:
            count_ended(self.counters, [(Ending(attempt.context.lease, "done"), attempt.context)], self._store_time[0])
            self._let_go([attempt.context.lease])
        else:
            self._outcomes.append((attempt.step, attempt.context))
        if hurry or self.stopping.is_set():
            self.pump.call()
            self.changed.set()

    def give_back(self, entries: list[Entry[Any]]) -> None:
        """Release entries unspent with the next round trip."""
        self._outcomes += [(release(entry), None) for entry in entries]

    def settle_only(self) -> None:
        """Settle what has ended, in the calling thread; what the store refuses or does not answer raises."""
        outcomes = self._take_outcomes()
        if not outcomes:
            return
        try:
            reply = self._send(outcomes, None)
        except BaseException:
            self._send_again(outcomes)
            raise
        self._look_at(outcomes, reply.results)

    def claim_only(self, request: ClaimRequest) -> list[Entry[Any]]:
        """Claim in the calling thread; a claim whose reply was lost before is made again first."""
        if self._unanswered:
            request = self._unanswered.popleft()
        try:
            return self.store.driver.claim(request).entries
        except (StoreUnavailable, OutcomeUnknown):
            self._unanswered.append(msgspec.structs.replace(request, repeat=True))
            raise

    def hold(self, entries: list[Entry[Any]]) -> None:
        """Keep the leases of these alive."""
        leases = [entry.lease for entry in entries if entry.lease is not None]
        self.store.driver.heartbeat.hold(leases, self._lease_us, self.pools.lease_lost, self._give_back_held_up)

    def _give_back_held_up(self) -> None:
        self.give_back(self.pools.take_held_up(self._lease_us / SECOND / 6))
        if self._outcomes:  # also those of attempts that ended before the one that hangs
            self.pump.call()

    def _take_outcomes(self) -> list[Ended]:
        """What has ended so far, taken one by one: slots add more meanwhile, which must not be cleared away."""
        outcomes: list[Ended] = []
        with contextlib.suppress(IndexError):
            while True:
                outcomes.append(self._outcomes.popleft())
        return outcomes

    def _send_again(self, outcomes: list[Ended]) -> None:
        """Send outcomes once more with the next round trip, as what they are: repeats."""
        for step, context in reversed(outcomes):
            self._outcomes.appendleft((msgspec.structs.replace(step, repeat=True), context))
        outcomes.clear()

    def _settle_one_by_one(self, outcomes: list[Ended], error: Exception) -> None:
        """Something about one of the outcomes cannot be stored: the others must not suffer for it."""
        logger.error("outcomes cannot be stored together (%s: %s); each by itself", type(error).__name__, error)
        while outcomes:
            step, context = outcomes[0]
            try:
                reply = self._send([(step, context)], None)
            except Exception as cause:
                if isinstance(cause, PenstockError) and not isinstance(cause, UNSTORABLE):
                    self.store_away(outcomes, cause)
                    return
                lease = step.endings[0].lease
                logger.exception("the outcome of entry %s cannot be stored", lease.entry)
                reason = f"its outcome could not be stored: {type(cause).__name__}"
                step = Step((Ending(lease, "retry", SECOND, error=reason),))
                reply = self.store.driver.settle([step])
            outcomes.pop(0)
            self._look_at([(step, context)], reply.results)

    def _let_go(self, leases: list[Lease]) -> None:
        """These have ended."""
        self.store.driver.heartbeat.drop(leases)
        if self.suspects.end(leases):
            self.pump.call()

    # --- when the store is away --------------------------------------------------------------------

    def store_away(self, outcomes: list[Ended], error: PenstockError) -> None:
        """The store did not answer: keep the outcomes, wait a little, try again."""
        if self.store.closed:
            if not self.stopping.is_set():
                logger.error("%s was closed under a running worker; the worker ends", self.store.name)
            self.stopping.set()
            return
        self._outage.log(error, self.store.name)
        self.signals.tell("store_error", "", (), self.store.clock.micros(), step="round_trip", error=error)
        self._send_again(outcomes)
        self.stopping.wait(STORE_AWAY_PAUSE)
        self.pump.call()  # a claim whose reply was lost is made again, whatever the poll

    # --- who makes the round trips -----------------------------------------------------------------

    def slot_runs_low(self, pool: ThreadPool) -> None:
        """Make the round trip in this slot's thread; or leave it to the pump, if slots have better things to do."""
        if self._slots_have_work(pool):
            if not self.under_way:
                self.pump.call()
            return
        if not pool.runs_low():
            return
        try:
            while self.round_trip(polite=True) is not None and self._outcomes and not self.under_way:
                # Outcomes that came meanwhile and whose slots relied on us.
                if self._slots_have_work(pool):
                    self.pump.call()
                    return
        except Exception:
            # The slot has to live on: entries may be prepared for it. The pump comes back to the round trip.
            logger.exception("a round trip failed; will try again")
            self.pump.call()

    def half_is_done(self) -> None:
        """Let the pump make the next round trip while the slots continue, where that wins time.

        The store is a server that works on several at once, and this machine has a core for the pump. With one for
        everything, the slots are quicker alone.
        """
        if not self.under_way and self.store.driver.overlaps_round_trips and self._free_core.is_free():
            self.pump.call()

    def late_one_returned(self) -> None:
        """There is room again."""
        self.pump.call()

    def slots_are_held_up(self) -> None:
        """Outcomes that a slot left for its next round trip must not wait until a long handler ends."""
        if self._outcomes:
            self.pump.call()

    def _slots_have_work(self, pool: ThreadPool) -> bool:
        """Whether slots should not wait for a round trip: it takes long, and so do the entries that are prepared."""
        return (pool.mean_seconds or 0) > BRIEF and self.is_slow() and pool.prepared() > 0

    def is_slow(self) -> bool:
        """Whether the last round trip took long."""
        return self.trip_seconds > SLOW_ROUND_TRIP

    def stop_claiming(self) -> None:
        """No round trip claims any more; those that were about to are under way when this returns."""
        self.stopping.set()
        with self._lock:
            pass

    def start(self) -> None:
        """Start the pump in its thread."""
        self.stopping.clear()
        self.pools.in_background = True
        with self._lock:
            self.pools.sync()  # so that the worker can say at once what it serves
        self.pump.start()

    def close(self) -> None:
        """Let go of all pools."""
        self.pools.close()
        self.pools.in_background = False
        self.verdicts.close()
        self.handler_loop.close()
        self._deadlines.close()

    def has_outcomes(self) -> bool:
        """Whether something waits to be settled."""
        return bool(self._outcomes)

    def has_room(self) -> bool:
        """Whether anything may be claimed now."""
        return not self.suspects.leave_no_room(self.pools.in_hand()) and self.pools.has_room()

    # --- what attempts share -----------------------------------------------------------------------

    def now(self) -> Micros:
        """The store's time, carried on by this host's monotonic clock since the last reply."""
        fixed = self.store.clock.fixed()
        if fixed is not None:
            return fixed
        at, then = self._store_time
        return at + int((time.perf_counter() - then) * SECOND)

    def set_time(self, now: Micros) -> None:
        """This is the store's time now."""
        self._store_time = (now, time.perf_counter())

    def pulse(self) -> Pulse:
        """How it goes."""
        at_us, answered = self._store_time
        since_start = time.monotonic() - (time.perf_counter() - answered) if at_us else 0.0
        return Pulse(self.pump.passed, self.pump.asks_store, since_start, at_us, self.stopping.is_set())

    def after(self, seconds: float, call: Callable[[], None]) -> Deadline:
        """Call a function after this time, in a thread of its own."""
        return self._deadlines.after(seconds, call)

    def run_async(self, coroutine: Any) -> Any:
        """Run a coroutine in the event loop of the handlers, from a thread."""
        return self.handler_loop.run(coroutine)
