"""Worker: the loop that claims entries, runs their handlers and settles the outcomes.

Settling finished entries and claiming the next ones is one round trip, a *turn*. Whoever has time takes the turn: a
slot whose handler has just ended and finds nothing prepared, or the pump, a thread that waits for work while all
slots idle. So a busy worker hands nothing from thread to thread, and an idle one sleeps until the store rings.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock import chaos
from penstock.clock import SECOND, Duration, Micros, duration
from penstock.errors import (
    BadInput,
    Conflict,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    StoreUnavailable,
    UnitTooLarge,
    Unsupported,
)
from penstock.ids import new_nonce
from penstock.queue.entry import Entry, Lease, check_lease
from penstock.queue.event_loop import HandlerLoop
from penstock.queue.guard import Watch
from penstock.queue.handler import Context
from penstock.queue.queue import Queue
from penstock.queue.reaper import Reaper
from penstock.queue.station import AsyncStation, ExecutorStation, SlotStation, Station
from penstock.queue.stopping import between_handlers, until_asked
from penstock.queue.store import Claimed, ClaimRequest, Ending, Note, QueueStore, Settled, Source, Step, StepDone

logger = logging.getLogger("penstock.queue.worker")

MOST_PER_CLAIM = 100
TOLD_AGAIN = 30.0  # seconds between two lines about the same outage
STORE_AWAY_PAUSE = 0.5
BURST_PAUSE = 0.001
SLOW_TURN = 0.002
MOST_PATIENCE = 0.02
LAST_TURN_SECONDS = 5.0
SUSPECT_PATIENCE = 5.0
UNSTORABLE = (BadInput, PayloadTooLarge, UnitTooLarge, Unsupported)  # it is about the outcome, not about the store


class Worker:
    """Handles the queues of a store: all that have a handler, or those given.

    Handlers may be added and removed while it runs. ``run`` blocks until SIGTERM or SIGINT; ``start`` and
    ``stop`` are for programs of their own; ``drain`` handles what is due now in the calling thread, for tests
    and scripts.
    """

    def __init__(
        self,
        store: QueueStore,
        queues: Iterable[Queue[Any]] | None = None,
        *,
        lease: Duration = "60s",
        grace: Duration = "15s",
        poll: Duration = "1s",
        batch: int = MOST_PER_CLAIM,
        reaper: Reaper | None = None,
        rng: random.Random | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``batch`` bounds a claim, ``grace`` is what running handlers get on shutdown, ``poll`` the fallback wait.

        Async handlers share one event loop: the running ``loop`` given, or one in a thread of the worker's own.
        """
        if not isinstance(store, QueueStore):
            raise BadInput(f"Worker({store!r}) names no store.", hint='Open it first: penstock.open_queues("...").')
        if not isinstance(batch, int) or not 1 <= batch <= MOST_PER_CLAIM:
            raise BadInput(f"Worker(batch={batch!r}) is out of range.", hint=f"Use 1 to {MOST_PER_CLAIM}.")
        self.store = store
        self.owner = f"{store.node}/{os.getpid()}-{new_nonce()}"
        self._only = None if queues is None else _keys(queues)
        self._lease_us = check_lease(lease)
        self._grace = duration(grace, name="grace").total_seconds()
        self._poll = duration(poll, name="poll").total_seconds()
        self._batch = batch
        self._rng = rng
        self._reaper = reaper or Reaper(store)
        self.loop = HandlerLoop(loop)
        self._stations: dict[tuple[str, bool], Station] = {}
        self._retired: list[Station] = []  # their handlers were removed, their work goes on
        self._finished: deque[tuple[Step, Context | None]] = deque()
        self._unanswered: deque[ClaimRequest] = deque()
        self._told_away = -TOLD_AGAIN
        self._turn_lock = threading.Lock()
        self._turning = 0  # turns under way
        self._turn_seconds = 0.0  # how long the last one took
        self._kicked = False
        self._next_us: Micros | None = None
        self._suspect_waits = False
        self._suspect_in_hand = ""
        self._suspect_since: float | None = None  # when a suspect was first told to wait
        self._store_time = (0, 0.0)
        self._pump: threading.Thread | None = None
        self._stopping = False
        self._halt = threading.Event()  # set while stopping, so that no pause outlasts it
        self._quiet = threading.Event()
        self._watches: list[Watch] = []  # of guarded handlers
        self._begun: list[Watch] = []
        self._passed = False  # the pump wanted a turn and found no room because others were at theirs

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work in the background."""
        if self._pump is not None:
            raise Conflict("this worker is already running.", hint="Stop it first, or make another one.")
        self._stopping = False
        self._halt.clear()
        self._reaper.start()
        self._pump = threading.Thread(target=self._run_pump, name="penstock-pump", daemon=True)
        self._pump.start()

    def stop(self, grace: Duration | None = None) -> bool:
        """Stop claiming, give running handlers ``grace`` to end, release the rest unspent; whether all ended."""
        if self._pump is None:
            return True
        self._stopping = True
        self._halt.set()
        self._wake_all()
        self._release_prepared()
        deadline = time.monotonic() + (self._grace if grace is None else duration(grace).total_seconds())
        while self._in_hand() and time.monotonic() < deadline:
            self._quiet.clear()
            self._quiet.wait(0.05)
            self._release_prepared()  # a claim that was under way may have brought more
            self._turn()
        left = self._release_running()
        self._turn()
        # A slot may be at its last turn: what it settles, and what it was given, belongs to this stop.
        while self._turning and time.monotonic() < deadline + LAST_TURN_SECONDS:
            self._quiet.clear()
            self._quiet.wait(0.01)
        self._release_prepared()
        self._turn()
        self._pump.join(timeout=5)
        self._pump = None
        self._reaper.stop()
        self._close_stations()
        if left:
            logger.warning("stopped while %d handlers were still running; their entries were released", left)
        return left == 0

    def run(self) -> bool:
        """Work until SIGTERM or SIGINT, then stop in order; whether all handlers ended by themselves."""
        with until_asked(self._grace) as ended:
            self.start()
            # Waiting in short steps lets the interpreter deliver signals to the main thread.
            while not ended.wait(0.5) and not self._halt.is_set():
                continue
            return self.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._halt.is_set()

    def drain(self, *, limit: int | None = None) -> int:
        """Handle all that is due, one after the other in this thread, until nothing is; how many handler runs.

        Limits hold: what a rate does not allow now is left. In the main thread a first SIGINT or SIGTERM lets the
        running handler end, gives back the rest unspent and raises ``KeyboardInterrupt`` or ``SystemExit``; a second
        ends the process at once.
        """
        try:
            with between_handlers() as asked:
                return self._drain(limit, asked)
        finally:
            if self._pump is None:
                self._close_stations()

    def _drain(self, limit: int | None, asked: threading.Event) -> int:
        self._settle_only()  # what an earlier drain could not
        runs = 0
        while (limit is None or runs < limit) and not asked.is_set():
            self._reaper.once()
            entries = self._claim_to_drain()
            if not entries:
                break
            runs += self._run_here(entries, None if limit is None else limit - runs, asked)
        return runs

    def _claim_to_drain(self) -> list[Entry[Any]]:
        self._sync_stations()
        stations = self._stations.values()
        # What may be tried once only must not wait behind an entry that may kill this process.
        most = 1 if any(station.handler.retry.attempts == 1 for station in stations) else self._batch
        sources = tuple(station.source(most) for station in stations)
        if not sources:
            return []
        request = self._unanswered.popleft() if self._unanswered else self._request(sources, most, alone=True)
        try:
            return self.store.claim(request).entries
        except (StoreUnavailable, OutcomeUnknown):
            self._unanswered.append(msgspec.structs.replace(request, repeat=True))
            raise

    def _run_here(self, entries: list[Entry[Any]], most: int | None, asked: threading.Event) -> int:
        """Handle entries one after the other, up to ``most``; what is left goes back unspent. How many were run."""
        self.store.heartbeat.hold((entry.lease for entry in entries if entry.lease), self._lease_us)
        waiting, runs = deque(entries), 0
        try:
            self._store_time = (self.store.now(), time.perf_counter())
            while waiting and runs != most and not asked.is_set():
                entry = waiting.popleft()
                station = self._station_of(entry.queue)
                if station is None:  # its handler was removed a moment ago
                    self._finished.append((_release(entry), None))
                    continue
                step, context = station.run_here(entry)
                self.finished(step, context, hurry=False)
                runs += 1
                self._settle_only()
            self._finished += [(_release(entry), None) for entry in waiting]
            waiting.clear()
            self._settle_only()
        except BaseException:
            # The next drain settles and gives back; if there is none, the leases run out.
            self._finished += [(_release(entry), None) for entry in waiting]
            self.store.heartbeat.drop([entry.lease for entry in entries if entry.lease is not None])
            raise
        return runs

    # --- turns -------------------------------------------------------------------------------------

    def offer_turn(self, station: SlotStation) -> None:
        """Take a turn if there is room to claim or nobody else is at it; called by slots with little prepared.

        Where turns take long, the pump takes them while the slots have something to do.
        """
        if station.has_better_to_do():
            if not self._turning:
                self._kick()
            return
        try:
            self._take_turns(station)
        except Exception:
            # The slot has to live on: entries may be prepared for it. The pump comes back to the turn.
            logger.exception("a turn failed; will try again")
            self._kick()

    def _take_turns(self, station: SlotStation) -> None:
        while self._turn(polite=True) is not None and self._finished and not self._turning:
            # Outcomes that came while we were at it and whose slots relied on us.
            if station.has_better_to_do():
                self._kick()
                return

    def is_slow(self) -> bool:
        """Whether a turn takes longer than it is worth to wait for one."""
        return self._turn_seconds > SLOW_TURN

    def _turn(self, *, polite: bool = False) -> bool | None:
        """Settle what is finished, claim what there is room for; whether anything was claimed, None without a turn.

        Several turns may be under way at once, each with room of its own: the store commits them together. A ``polite``
        one that has nothing to claim leaves its outcomes to the one under way.
        """
        with self._turn_lock:
            # A claim whose reply was lost may hold entries for us; only asking again tells.
            unanswered = self._unanswered and not self._stopping
            request = self._unanswered.popleft() if unanswered else self._wish()
            if request is None:
                # It may be for claims under way that there is no room, and what the pump was woken for may have come
                # after they looked. So it is also if there are outcomes to settle meanwhile.
                self._passed = self._passed or (not polite and self._turning > 0)
                if not self._finished or (polite and self._turning):
                    return None
            finished = list(self._finished)
            self._finished.clear()
            self._turning += 1
            reserved = self._reserve(request)
        claimed = False
        begin = time.perf_counter()
        try:
            claimed = self._exchange(finished, request)
            return claimed
        except Exception:
            # Whatever it was, what slots have done must not be forgotten while their leases are kept alive.
            self._again(finished)
            raise
        finally:
            with self._turn_lock:
                self._turn_seconds = time.perf_counter() - begin
                self._turning -= 1
                self._quiet.set()
                for station, room in reserved:
                    station.reserved -= room
                if self._passed and not claimed:
                    # What the pump was woken for may have come after this turn looked.
                    self._passed = False
                    self._kick()

    def _exchange(self, finished: list[tuple[Step, Context | None]], request: ClaimRequest | None) -> bool:
        try:
            reply = self._send(finished, request)
        except Exception as error:
            if isinstance(error, PenstockError) and not isinstance(error, UNSTORABLE):
                if request is not None and isinstance(error, StoreUnavailable | OutcomeUnknown):
                    self._unanswered.append(msgspec.structs.replace(request, repeat=True))
                self._store_away(finished, error)
                return False
            if not finished:
                raise
            self._one_by_one(finished, error)
            return False
        chaos.point("worker.turned")
        self._store_time = (reply.now_us, time.perf_counter())
        if finished:
            self._settled(finished, reply.results)
            finished.clear()
        if request is None:
            return False
        self._hand_out(reply.claimed)
        return bool(reply.claimed.entries)

    def _send(self, finished: list[tuple[Step, Context | None]], request: ClaimRequest | None) -> Settled:
        """Settle and claim; what guards have learnt goes with it."""
        steps = [step for step, _ in finished]
        told = self._notes(finished) if self._watches else ()
        if not told:
            return self.store.settle(steps, request)
        try:
            reply = self.store.settle(steps, request, notes=[note for _, notes in told for note in notes])
        except BaseException:
            for watch, notes in told:
                watch.noted(notes, None)
            raise
        kept = iter(reply.noted)
        for watch, notes in told:
            watch.noted(notes, [next(kept) for _ in notes])
        for _, context in finished:
            if context is not None:
                context.verdict = None  # told; what is settled in a second try says nothing new
        return reply

    def _notes(self, finished: list[tuple[Step, Context | None]]) -> list[tuple[Watch, Sequence[Note]]]:
        verdicts: dict[int, tuple[Watch, list[Any]]] = {}
        if len(self._watches) == 1:
            some = [one.verdict for _, one in finished if one is not None and one.verdict is not None]
            return [(self._watches[0], self._watches[0].notes(some))] if some else []
        for _, context in finished:
            if context is not None and context.verdict is not None and context.handler.guard is not None:
                watch = context.handler.guard.watch
                verdicts.setdefault(id(watch), (watch, []))[1].append(context.verdict)
        return [(watch, watch.notes(some)) for watch, some in verdicts.values()]

    def _one_by_one(self, finished: list[tuple[Step, Context | None]], error: Exception) -> None:
        """Something about one of the outcomes cannot be stored: the others must not suffer for it."""
        logger.error("outcomes cannot be stored together (%s: %s); each by itself", type(error).__name__, error)
        while finished:
            step, context = finished[0]
            try:
                reply = self._send([(step, context)], None)
            except Exception as cause:
                if isinstance(cause, PenstockError) and not isinstance(cause, UNSTORABLE):
                    self._store_away(finished, cause)
                    return
                lease = step.endings[0].lease
                logger.exception("the outcome of entry %s cannot be stored", lease.entry)
                why = f"its outcome could not be stored: {type(cause).__name__}"
                step = Step((Ending(lease, "retry", SECOND, error=why),))
                reply = self.store.settle([step])
            finished.pop(0)
            self._settled([(step, context)], reply.results)

    def _reserve(self, request: ClaimRequest | None) -> list[tuple[Station, int]]:
        """Room that a claim under way may fill is not offered to another one."""
        reserved = []
        for source in () if request is None else request.sources:
            if source.limit:
                station = self._stations[source.name, source.family]
                station.reserved += source.limit
                reserved.append((station, source.limit))
        return reserved

    def _settle_only(self) -> None:
        finished = list(self._finished)
        self._finished.clear()
        if finished:
            try:
                reply = self._send(finished, None)
            except BaseException:
                self._again(finished)
                raise
            self._settled(finished, reply.results)

    def _wish(self) -> ClaimRequest | None:
        """What to claim: the free slots plus a small prefetch; nothing while a suspect is in hand or waited for."""
        if self._stopping:
            return None
        self._sync_stations()
        in_hand = self._in_hand() + self._turning
        if self._suspect_in_hand or (self._suspect_waits and in_hand and not self._is_overdue()):
            return None
        rooms = [(station, max(0, min(station.room(), self._batch))) for station in self._stations.values()]
        limit = min(self._batch, sum(room for _, room in rooms))
        if limit < 1:
            return None
        # Beside a family also those without room are named: their queues must not come through the family.
        families = any(station.handler.queue.is_family for station, _ in rooms)
        sources = tuple(station.source(room) for station, room in rooms if room > 0 or families)
        if families and self._only is not None:
            # Nor may those come through it that have a handler of their own which is not this worker's.
            others = [handler for key, handler in list(self.store.handlers.items()) if key not in self._stations]
            sources += tuple(handler.queue.source(0, handler.retry.attempts) for handler in others)
        return self._request(sources, limit, alone=not in_hand or self._is_overdue())

    def _is_overdue(self) -> bool:
        """Whether a suspect has waited long enough for the others to end: then it is run beside them.

        One handler that takes long, or never ends, must not keep a whole worker from its work.
        """
        return self._suspect_since is not None and time.monotonic() - self._suspect_since > SUSPECT_PATIENCE

    def _request(self, sources: tuple[Source, ...], limit: int, *, alone: bool) -> ClaimRequest:
        return ClaimRequest(new_nonce(), sources, limit, self.owner, self.store.node, self._lease_us, alone=alone)

    def _hand_out(self, claimed: Claimed) -> None:
        self._next_us = claimed.next_us
        self._suspect_waits = claimed.suspect_waits
        if not claimed.suspect_waits:
            self._suspect_since = None if not claimed.suspect else self._suspect_since
        elif self._suspect_since is None:
            self._suspect_since = time.monotonic()
        entries = claimed.entries
        if not entries:
            return
        if self._stopping:
            self._finished += [(_release(entry), None) for entry in entries]
            return
        if claimed.suspect:
            if (self._in_hand() or self._turning > 1) and not self._is_overdue():
                # Another turn has got work meanwhile: give the suspect back and come again when that is done.
                self._suspect_waits = True
                self._finished += [(_release(entry), None) for entry in entries]
                return
            self._suspect_in_hand = entries[0].id
            self._suspect_since = None
        self.store.heartbeat.hold([entry.lease for entry in entries if entry.lease is not None], self._lease_us)
        with self._turn_lock:
            # A handler may have been replaced while the claim was under way: its successor gets the entries.
            self._sync_stations()
        by_station: dict[int, tuple[Station, list[Entry[Any]]]] = {}
        for entry in entries:
            station = self._station_of(entry.queue)
            if station is None:  # its handler was removed a moment ago
                self._finished.append((_release(entry), None))
                continue
            by_station.setdefault(id(station), (station, []))[1].append(entry)
        for station, mine in by_station.values():
            station.accept(mine)

    def _settled(self, finished: list[tuple[Step, Context | None]], results: list[StepDone | PenstockError]) -> None:
        """Look at what became of the outcomes."""
        gone: list[Lease] = []
        for (step, context), result in zip(finished, results, strict=True):
            ending = step.endings[0]
            if isinstance(result, PenstockError) and not isinstance(result, LeaseLost) and context is not None:
                # The handler succeeded but what it put was refused: that is a failure of this attempt.
                self._finished.append((context.failure(result, self._rng), context))
                continue
            gone.append(ending.lease)
            if isinstance(result, LeaseLost):
                logger.warning("an outcome came too late: %s", result)
            elif ending.outcome == "dead" and context is not None:
                context.gave_up(ending.error or "")
        self._let_go(gone)

    def _let_go(self, leases: list[Lease]) -> None:
        """These have ended."""
        self.store.heartbeat.drop(leases)
        if self._suspect_in_hand and any(lease.entry == self._suspect_in_hand for lease in leases):
            self._suspect_in_hand = ""
            self._kick()

    def _store_away(self, finished: list[tuple[Step, Context | None]], error: PenstockError) -> None:
        """The store did not answer: keep the outcomes, and send them again as what they are, repeats."""
        if self.store.closed:
            if not self._stopping:
                logger.error("%s was closed under a running worker; the worker ends", self.store.name)
            self._stopping = True
            self._halt.set()
            return
        self._tell_away(error)
        self.store.signals.tell("store_error", "", (), self.store.clock.micros(), step="turn", error=error)
        self._again(finished)
        self._halt.wait(STORE_AWAY_PAUSE)
        self._kick()  # a claim whose reply was lost is asked for again, whatever the poll

    def _tell_away(self, error: PenstockError) -> None:
        """An outage is told when it begins and then every half minute: the first line says all there is to say."""
        now = time.monotonic()
        level = logging.WARNING if now - self._told_away > TOLD_AGAIN else logging.DEBUG
        if level == logging.WARNING:
            self._told_away = now
        logger.log(level, "%s did not answer; will try again: %s", self.store.name, error)

    def _again(self, finished: list[tuple[Step, Context | None]]) -> None:
        """Send outcomes once more with the next turn."""
        for step, context in reversed(finished):
            self._finished.appendleft((msgspec.structs.replace(step, repeat=True), context))
        finished.clear()

    # --- for stations ------------------------------------------------------------------------------

    def finished(self, step: Step | None, context: Context, *, hurry: bool) -> None:
        """An attempt ended, without a step if it is settled already; ``hurry`` when no slot comes to take a turn."""
        if step is None:
            self._let_go([context.lease])
        else:
            self._finished.append((step, context))
        if hurry or self._stopping:
            self._kick()
            self._quiet.set()

    def store_now(self) -> Micros:
        """The store's time, carried on by this host's monotonic clock since the last reply."""
        fixed = self.store.clock.fixed()
        if fixed is not None:
            return fixed
        at, then = self._store_time
        return at + int((time.perf_counter() - then) * SECOND)

    @property
    def rng(self) -> random.Random | None:
        """Where jitter comes from."""
        return self._rng

    # --- inside ------------------------------------------------------------------------------------

    def _run_pump(self) -> None:
        seen = 0
        while not self._stopping:
            try:
                seen = self.store.bell()
                # Not before: the bell may take its time, and a kick that it has counted must not silence the next one.
                self._kicked = False
                if self._finished and self.is_slow() and not self._has_room():
                    # So that slow turns, which other workers may be waiting for, do not follow each other endlessly.
                    self._halt.wait(min(2 * self._turn_seconds, MOST_PATIENCE))
                self._turn()
                pause = self._pause()
            except PenstockError as error:
                self._store_away([], error)
                pause = STORE_AWAY_PAUSE
            except Exception:
                logger.exception("a turn failed; will try again")
                pause = STORE_AWAY_PAUSE
            if self._stopping:
                return
            if self._finished:
                # Asynchronous outcomes come in bursts: a moment's patience settles many at once.
                self._halt.wait(BURST_PAUSE)
            elif pause > 0:
                self.store.wait(seen, pause)

    def _pause(self) -> float:
        """How long to sleep if nothing rings: to the next due time, at most the fallback; 0: there is more now."""
        if self._next_us is None or not self._has_room():
            return self._poll
        return min(self._poll, max(0.0, (self._next_us - self.store.now()) / SECOND))

    def _kick(self) -> None:
        """Bring the pump to its next turn; once is enough until it comes."""
        if not self._kicked:
            self._kicked = True
            self.store.wake()

    def _has_room(self) -> bool:
        if self._suspect_in_hand or (self._suspect_waits and self._in_hand()):
            return False
        return not self._stations or any(station.room() > 0 for station in self._stations.values())

    def _sync_stations(self) -> None:
        """Follow the handlers: a new one gets a station, a removed one loses it once its work is done."""
        handlers = self.store.handlers
        if (
            not self._retired
            and len(handlers) == len(self._stations)
            and all(key in handlers and station.handler is handlers[key] for key, station in self._stations.items())
        ):
            return
        for key, handler in list(handlers.items()):
            if self._only is not None and key not in self._only:
                continue
            there = self._stations.get(key)
            if there is None or there.handler is not handler:
                if there is not None:
                    self._retired.append(there)
                self._stations[key] = self._make_station(handler)
        self._retired += [self._stations.pop(key) for key in list(self._stations) if key not in handlers]
        for station in [one for one in self._retired if not one.in_hand() and not one.reserved]:
            self._retired.remove(station)
            station.close()

    def _close_stations(self) -> None:
        for station in self._all_stations():
            station.close()
        self._stations.clear()
        self._retired.clear()
        self._watches.clear()
        while self._begun:
            self._begun.pop().end()
        self.loop.close()

    def _all_stations(self) -> list[Station]:
        return [*self._stations.values(), *self._retired]

    def _make_station(self, handler: Any) -> Station:
        if handler.guard is not None and handler.guard.watch not in self._watches:
            self._watches.append(handler.guard.watch)
            if self._pump is not None:
                handler.guard.watch.begin()
                self._begun.append(handler.guard.watch)
        if handler.executor is not None:
            return ExecutorStation(self, handler)
        return AsyncStation(self, handler) if handler.is_async else SlotStation(self, handler)

    def _station_of(self, queue: str) -> Station | None:
        """Where an entry of this queue runs; None if its handler was removed or replaced while it was being claimed."""
        key = (queue, False)
        if key not in self._stations:
            families = [one for one in list(self._stations) if one[1] and queue.startswith(one[0])]
            key = max(families, key=lambda one: len(one[0]), default=key)
        station = self._stations.get(key)
        return station if station is not None and self.store.handlers.get(key) is station.handler else None

    def _in_hand(self) -> int:
        return sum(station.in_hand() for station in self._all_stations())

    def _wake_all(self) -> None:
        self.store.wake()
        for station in self._all_stations():
            station.wake()

    def _release_prepared(self) -> None:
        for station in self._all_stations():
            for entry in station.take_back():
                self._finished.append((_release(entry), None))

    def _release_running(self) -> int:
        running = [entry for station in self._all_stations() for entry in station.abandon()]
        for entry in running:
            self._finished.append((_release(entry), None))
        return len(running)


def _release(entry: Entry[Any]) -> Step:
    if entry.lease is None:
        raise LeaseLost(f"entry {entry.id} is not leased.")
    return Step((Ending(entry.lease, "release"),))


def _keys(queues: Iterable[Queue[Any]]) -> set[tuple[str, bool]]:
    chosen = set()
    for queue in queues:
        if not isinstance(queue, Queue):
            raise BadInput(
                f"Worker(queues=...) got {queue!r}, which is no queue.", hint="Pass queues: [store.queue(name)]."
            )
        chosen.add((queue.name, queue.is_family))
    return chosen
