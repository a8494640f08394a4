"""PeriodicTasks: the breaker's periodic work, done by any node and once per interval in the whole cluster.

A task's document says when it may run next. The node that advances this time runs the task; the others see that it has
moved. Where the interval is short, one node takes all the runs of a second at once, so a pace of a hundred per second
costs one write per second. A node that dies loses at most one second of runs, and the other nodes are not blocked.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock import failpoints
from penstock.breaker.circuit import CircuitRecord, signed
from penstock.breaker.ledger import INTRODUCED
from penstock.breaker.settings import MILLISECOND, Task
from penstock.clock import SECOND, Micros
from penstock.errors import PenstockError, StoreUnavailable
from penstock.queue.entry import Lock
from penstock.queue.protocol import DocumentWrite

if TYPE_CHECKING:
    from penstock.breaker.breaker import Breaker
    from penstock.breaker.ledger import Circuit

logger = logging.getLogger("penstock.breaker")

POLL: Micros = SECOND // 2
SOON: Micros = SECOND // 10
SWEEP = Task(True, 60_000)
LIST_AGE = 1.0  # seconds for which a list of samples is good enough
RECONCILE = 15.0  # seconds between two looks for locks that nobody wants, when nothing has closed
MOST_LOOKED_AT = 50
MOST_AT_ONCE = 1024


class NextRun(msgspec.Struct, frozen=True):
    """When a task may run next, how far a ramp-up has come, and who wrote this."""

    next_us: Micros
    ramp: int = 0
    by: str = ""


class PeriodicTasks:
    """Half opens circuits, unlocks samples and queues, sweeps old samples."""

    def __init__(self, breaker: Breaker) -> None:
        """Start with nothing in hand."""
        self.breaker = breaker
        self.ledger = breaker.ledger
        self._granted: dict[str, deque[Micros]] = {}  # runs in hand, by task
        self._next: dict[str, Micros] = {}  # when a task may run next, as last heard
        self._ramp: dict[str, int] = {}
        self._config = self.ledger.config
        self._to_unlock: deque[Lock] = deque()
        self._looked_at = 0.0  # for locks to take away
        self.closed_one = True  # a circuit has closed since
        self._polled_us: Micros = 0
        self._samples: dict[str, deque[Lock]] = {}
        self._sampled_at = 0.0
        self._stopping = False
        self._wake = threading.Event()
        self._hurried = False
        self._thread: threading.Thread | None = None

    # --- running -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Work in the background."""
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._run, name="penstock-breaker", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the background thread."""
        thread, self._thread = self._thread, None
        self._stopping = True
        self._wake.set()
        if thread is not None:
            thread.join(timeout=10)

    def hurry(self) -> None:
        """Look at what other nodes have written sooner than usual, because something failed or changed."""
        if not self._hurried:
            self._hurried = True
            self._wake.set()

    def _run(self) -> None:
        store = self.breaker.store
        while not self._stopping:
            self._wake.clear()
            pause = POLL / SECOND
            try:
                pause = min(pause, max(0.001, (self.tick() - self.ledger.now()) / SECOND))
            except PenstockError as error:
                if store.closed:
                    return
                logger.warning("the breaker's periodic work failed and will be tried again: %s", error)
                store.signals.tell("store_error", "", (), store.clock.micros(), step="breaker", error=error)
            except Exception:
                logger.exception("the breaker's periodic work failed and will be tried again")
            self._wake.wait(min(pause, 0.05) if store.clock.fixed() is not None else pause)

    def tick(self) -> Micros:
        """Do what is due. Returns when the next task is due."""
        now = self.ledger.now()
        hurried = self._hurried
        if now - self._polled_us >= (SOON if hurried else POLL) or now < self._polled_us:
            self._hurried = False
            self.ledger.refresh(hear=hurried)
            now = self.ledger.now()
            self._polled_us = now
        config = self.ledger.config
        if config is not self._config:
            self._config = config
            self.look_again()
        times: list[Micros | None] = [self._polled_us + (SOON if self._hurried else POLL)]
        if config.open_to_half_open.enabled:
            times.append(self._half_open_due(now))
        for name, task, run in (
            ("unlock_sample_queues", config.unlock_sample_queues, self._sample),
            ("unlock_queues", config.unlock_queues, self._unlock_some),
            ("sweep", SWEEP, self.sweep),
        ):
            if task.enabled or (name == "unlock_queues" and self._is_off):
                times.append(self._run_due(name, task.interval * MILLISECOND, run, now))
            else:
                self._granted.pop(name, None)
        return min(moment for moment in times if moment is not None)

    def look_again(self) -> None:
        """Look soon for locks that no circuit needs any more."""
        self.closed_one = True
        self.hurry()

    @property
    def _is_off(self) -> bool:
        """Whether the check is switched off for all nodes, so that no circuit needs its locks.

        If no configuration is stored, other nodes' programs may have switched it on for themselves.
        """
        return not self.ledger.config.circuit_check_enabled and self.ledger.stored_version > 0

    # --- which node runs a task --------------------------------------------------------------------------

    def _run_due(self, name: str, interval: Micros, run: Callable[[], object], now: Micros) -> Micros | None:
        """Run a task if it is due and ours to run. Returns when to look again, or None to wait for a change."""
        granted = self._granted.setdefault(name, deque())
        if not granted:
            known = self._next.get(name, 0)
            if now < known <= now + max(interval, SECOND):
                return known
            if not self._is_wanted(name):
                return None
            self._take_runs(name, interval, now, granted)
        if granted and granted[0] <= now:
            # Missed runs are not made up for: all that are late run once.
            while granted and granted[0] <= now:
                granted.popleft()
            try:
                run()
            except BaseException:
                self._give_runs_back(name, now)
                raise
        return granted[0] if granted else self._next.get(name)

    def _is_wanted(self, name: str) -> bool:
        if name == "unlock_sample_queues":
            return any(circuit.state == "half_open" for circuit in list(self.ledger.circuits.values()))
        return name != "unlock_queues" or bool(self._orphans())

    def _take_runs(self, name: str, interval: Micros, now: Micros, granted: deque[Micros]) -> None:
        """Move a task's time on. If this node wins, it does the runs until then."""
        document = self.ledger.store.driver.document(self._document(name))
        next_run = NextRun(0) if document is None else msgspec.json.decode(document.value, type=NextRun)
        version = 0 if document is None else document.version
        # A time too far ahead was written under a longer interval, or by a clock that was set back since.
        if now < next_run.next_us <= now + max(interval, SECOND):
            self._next[name] = next_run.next_us
            return
        runs = max(1, SECOND // interval)
        following = now + runs * interval
        if self._write(name, NextRun(following, next_run.ramp + runs, signed(self.ledger.by)), version):
            failpoints.point("breaker.next_run")
            self._ramp[name] = next_run.ramp if now - next_run.next_us < max(SECOND, 2 * interval) else 0
            granted.extend(now + index * interval for index in range(runs))
            self._next[name] = following
        else:
            self._next[name] = now + min(interval, POLL)

    def _give_runs_back(self, name: str, now: Micros) -> None:
        """A run failed: let any node try again at once instead of an interval later."""
        self._granted.pop(name, None)
        self._next.pop(name, None)
        with contextlib.suppress(PenstockError):
            document = self.ledger.store.driver.document(self._document(name))
            if document is not None:
                self._write(name, NextRun(now, 0, signed(self.ledger.by)), document.version)

    def _write(self, name: str, next_run: NextRun, version: int) -> bool:
        return self.ledger.store.driver.write(
            [DocumentWrite(self._document(name), msgspec.json.encode(next_run), version)]
        ) == [True]

    def _document(self, name: str) -> str:
        return f"{self.ledger.name}.task.{name}"

    # --- half open ---------------------------------------------------------------------------------

    def _half_open_due(self, now: Micros) -> Micros | None:
        """Half open each circuit that has been open for an interval. Compare-and-set lets one node do it."""
        interval = self.ledger.config.open_to_half_open.interval * MILLISECOND
        soonest = None
        for circuit in list(self.ledger.circuits.values()):
            if circuit.state == "open":
                due = circuit.record.since_us + interval
                # A circuit that opened in the future did so before the clock was set back.
                if due <= now or circuit.record.since_us > now + SECOND:
                    self._half_open(circuit)
                else:
                    soonest = due if soonest is None else min(due, soonest)
        return soonest

    def half_open_all(self) -> int:
        """Half open every open circuit now. Returns how many were open."""
        self.ledger.refresh(all_of_it=True)
        return sum(self._half_open(circuit) for circuit in list(self.ledger.circuits.values()))

    def _half_open(self, circuit: Circuit) -> bool:
        def rule(record: CircuitRecord) -> CircuitRecord | None:
            if record.state != "open":
                return None
            why, now = "time to try", self.ledger.now()
            return record.moved("half_open", now, why=why, by=self.ledger.by, ratio=record.ratio)

        return self.ledger.change(circuit, rule)

    # --- samples -----------------------------------------------------------------------------------

    def unlock_samples(self) -> int:
        """Unlock, for every half-open circuit, its least recently touched queue. Returns how many were unlocked."""
        self.ledger.refresh(all_of_it=True)
        self._sampled_at = 0.0
        return self._sample()

    def _sample(self) -> int:
        half_open = [circuit for circuit in list(self.ledger.circuits.values()) if circuit.state == "half_open"]
        if half_open and time.monotonic() - self._sampled_at > LIST_AGE:
            self._samples = {hash_: deque(locks) for hash_, locks in self.breaker.locked_queues().items()}
            self._sampled_at = time.monotonic()
        unlocked, failed = 0, []
        for circuit in half_open:
            try:
                unlocked += self._unlock_sample(circuit)
            except PenstockError as error:  # told in the end: the samples of the others are theirs
                failed.append(f"{circuit.name}: {error.message}")
        if failed:
            self._sampled_at = 0.0
            raise StoreUnavailable(f"samples could not be unlocked: {'; '.join(failed)}", hint="It is tried again.")
        return unlocked

    def _unlock_sample(self, circuit: Circuit) -> bool:
        """Unlock one queue that has something to try, and all the empty queues before it."""
        locks, store = self._samples.get(circuit.hash, deque()), self.ledger.store
        waiting: Lock | None = None
        for _ in range(min(len(locks), MOST_LOOKED_AT)):
            lock = locks.popleft()
            [counts] = store.counts(lock.queue)
            if counts.ready or not counts.live:
                store.driver.unlock(lock.queue, lock.holder)
                circuit.locked.pop(lock.queue, None)
                if counts.ready:
                    failpoints.point("breaker.sampled")
                    return True
            else:
                # Its head waits for its due time; unlocked it would say nothing now.
                waiting = waiting or lock
        if waiting is not None:
            store.driver.unlock(waiting.queue, waiting.holder)
            circuit.locked.pop(waiting.queue, None)
        return waiting is not None

    # --- unlocking ---------------------------------------------------------------------------------

    def unlock_next(self) -> str | None:
        """Unlock one queue that is locked in the name of a circuit that is closed or gone. Returns its name."""
        if not self._to_unlock:
            self._looked_at = 0.0
        unlocked = self._unlock(1)
        return unlocked[0] if unlocked else None

    def _unlock_some(self) -> None:
        closed = all(circuit.state == "closed" for circuit in list(self.ledger.circuits.values()))
        faster = self._is_off or (self.ledger.settings.ramp_up and closed)
        ramp = self._ramp.get("unlock_queues", 0) if faster else 0
        self._ramp["unlock_queues"] = ramp + 1
        self._unlock(min(2**ramp, MOST_AT_ONCE) if ramp < 30 else MOST_AT_ONCE)

    def _unlock(self, most: int) -> list[str]:
        unlocked: list[str] = []
        while len(unlocked) < most and self._orphans():
            lock = self._to_unlock[0]
            if self._is_held(lock):
                self._to_unlock.popleft()
                continue
            # First done, then forgotten: a failure leaves it to the next run, of this node or another.
            failpoints.point("breaker.unlocking")
            held = self.ledger.store.driver.unlock(lock.queue, lock.holder)
            failpoints.point("breaker.unlocked")
            self._to_unlock.popleft()
            if held:  # and not another node's by now
                unlocked.append(lock.queue)
        return unlocked

    def _orphans(self) -> deque[Lock]:
        """Locks that no open circuit needs any more, listed now and then, and at once when a circuit has closed.

        This also finds locks set too late, by a node that died or had not heard of the closing.
        """
        age = time.monotonic() - self._looked_at
        if not self._to_unlock and (age > RECONCILE or self.closed_one):
            self._looked_at, self.closed_one = time.monotonic(), False
            per_circuit = self.breaker.locked_queues().values()
            fair = [lock for some in itertools.zip_longest(*per_circuit) for lock in some if lock is not None]
            self._to_unlock.extend(lock for lock in fair if not self._is_held(lock))
            # What comes while these are unlocked is found by the next look.
            self.closed_one = bool(self._to_unlock)
        return self._to_unlock

    def _is_held(self, lock: Lock) -> bool:
        circuit = self.ledger.circuits.get(lock.holder.rpartition(".")[2])
        return circuit is not None and circuit.state != "closed" and not self._is_off

    # --- sweeping ----------------------------------------------------------------------------------

    def sweep(self) -> int:
        """Remove samples that no longer count: of earlier epochs, of removed circuits, or older than the window."""
        ledger, store, now = self.ledger, self.ledger.store, self.ledger.now()
        old, writers = [], set()
        for document in store.driver.documents(f"{ledger.name}.samples."):
            *_, writer, hash_, epoch, _ = document.name.split(".")
            circuit = ledger.circuits.get(hash_)
            over = circuit is None or int(epoch) < circuit.record.epoch
            if over or (circuit is not None and document.changed_us < now - circuit.config.max_age_us):
                old.append(document.name)
            else:
                writers.add(f"{ledger.name}.writer.{writer}")
        # One that lives on introduces itself again well before this.
        silent = [
            document
            for document in store.driver.documents(f"{ledger.name}.writer.")
            if document.changed_us < now - 3 * INTRODUCED
        ]
        old += [document.name for document in silent if document.name not in writers]
        for start in range(0, len(old), 100):
            store.driver.write([DocumentWrite(name, None) for name in old[start : start + 100]])
        return len(old)
