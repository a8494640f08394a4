"""Breaker: the guard over all circuits of a store: decides, locks and unlocks queues, and answers for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock import failpoints
from penstock.breaker.circuit import CircuitRecord, CircuitView, after_probe, signed, with_permit
from penstock.breaker.guard import CircuitGuard, Ids, Names
from penstock.breaker.ledger import Change, Circuit, Ledger, Stored, write_of
from penstock.breaker.masking import masked
from penstock.breaker.periodic import PeriodicTasks
from penstock.breaker.settings import MILLISECOND, BreakerConfig, BreakerSettings, check_together, read_config
from penstock.breaker.verdicts import Pending, Verdict, short_ids
from penstock.clock import Micros
from penstock.errors import BadInput, CircuitNotFound, Conflict, PenstockError
from penstock.queue.entry import Lock
from penstock.queue.protocol import DocumentWrite
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore

logger = logging.getLogger("penstock.breaker")
config_logger = logging.getLogger("penstock.breaker.config")

LOCKED_A_MOMENT_AGO = 0.2
KEPT_CHANGES = 20


class Breaker:
    """Keeps queues from hammering a far side that is down, and brings them back gently.

    One breaker guards any number of handlers, and any number of processes share it through their store.

    Args:
        store: where it keeps its circuits
        config: gateleen's configuration resource, here with everything switched on unless told otherwise
        settings: what gateleen does not have
        name: several breakers in one store have several names

    Throughout:
        circuit: its name or hash
        by: who does it, for the list of changes
        why: the reason, for the log and the dashboard
    """

    def __init__(
        self,
        store: QueueStore,
        config: BreakerConfig | None = None,
        settings: BreakerSettings | None = None,
        *,
        name: str = "breaker",
    ) -> None:
        """Join the breaker of this name in the store, or start one."""
        if not isinstance(store, QueueStore):
            raise BadInput(f"Breaker({store!r}) names no store.", hint='Open it first: penstock.open_queues("...").')
        self.store = store
        config = BreakerConfig.active() if config is None else read_config(config.resource())
        self.ledger = Ledger(store, name, config, settings or BreakerSettings())
        self.ledger.on_state = self._after_change
        self.periodic = PeriodicTasks(self)
        self._scopes: defaultdict[str, list[Queue[Any]]] = defaultdict(list)  # queues of guards with one circuit
        self._workers = 0
        self._workers_lock = threading.Lock()
        self.refresh()

    def __repr__(self) -> str:
        """Name and store."""
        return f"<breaker {self.ledger.name} in {self.store!r}>"

    # --- guarding ----------------------------------------------------------------------------------

    def guard(self, circuit: Names, *, id: Ids | None = None) -> CircuitGuard:
        """A guard for ``@queue.handler(breaker=…)``.

        Args:
            circuit: its name, or a function that finds it for an entry
            id: a function that finds the id of a request; by default the entry's
        """
        return CircuitGuard(self, circuit, id=id)

    def guards(self, queue: Queue[Any]) -> CircuitGuard:
        """The guard for ``handler(breaker=breaker)``: the circuit is named after the queue or family.

        Args:
            queue: that is guarded
        """
        return CircuitGuard(self, queue.name, queue=queue)

    def uses(self, circuit: Circuit, queue: Queue[Any]) -> None:
        """All of a queue's or a family's entries go through this circuit."""
        self._scopes[circuit.hash].append(queue)

    @property
    def is_configured(self) -> bool:
        """Whether a configuration is stored; it holds for every node, whatever their programs say."""
        return self.ledger.stored.config is not None

    @property
    def is_calm(self) -> bool:
        """Whether all circuits are closed, as far as this process knows."""
        return not self.ledger.troubled

    def enter(self, circuit: Circuit, queue: str, key: str) -> str | bool:
        """Ask to run an entry: the permit under which it runs (empty: it needs none), or whether its queue is locked.

        It refuses only if the circuit is open in the store right now.
        """
        settings = self.ledger.settings
        self.ledger.reload(circuit)
        if circuit.state == "closed":
            return ""
        if circuit.state == "half_open":
            if settings.probes is None:
                return "*"
            most, now = settings.probes, self.ledger.now()
            until = now + settings.permit_ms * MILLISECOND
            if self.ledger.change(
                circuit, lambda record: with_permit(record, key, now, until=until, most=most, by=self.ledger.by)
            ):
                failpoints.point("breaker.permitted")
                return key
            if self._is_closed(circuit):  # meanwhile
                return ""
        return self._lock(circuit, queue)

    def _is_closed(self, circuit: Circuit) -> bool:
        return circuit.state == "closed"

    def _lock(self, circuit: Circuit, queue: str) -> bool:
        """Lock a queue in the name of a circuit. Returns whether it is locked."""
        moment = time.monotonic()
        if moment - circuit.locked.get(queue, 0.0) < LOCKED_A_MOMENT_AGO and self.store.clock.fixed() is None:
            return True
        try:
            self.store.driver.lock(queue, circuit.holder, f"circuit {circuit.name} is {circuit.state}")
        except PenstockError as error:
            logger.error("queue %r of circuit %r could not be locked: %s", queue, circuit.name, error)
            return False
        failpoints.point("breaker.locked")
        circuit.locked[queue] = moment
        return True

    # --- verdicts ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A worker has started: see to the periodic tasks while it runs."""
        with self._workers_lock:
            self._workers += 1
            if self._workers == 1:
                self.periodic.start()

    def end(self) -> None:
        """A worker has stopped."""
        with self._workers_lock:
            self._workers -= 1
            if self._workers == 0:
                self.periodic.stop()

    def writes(self, verdicts: Sequence[Verdict]) -> Pending:
        """What to write with the settle call that ends these attempts."""
        pending = Pending()
        by_circuit: dict[Circuit, list[Verdict]] = {}
        if len({verdict[0] for verdict in verdicts}) == 1:
            # As for most workers: nothing is to be sorted.
            by_circuit[verdicts[0][0]] = list(verdicts)
        else:
            for verdict in verdicts:
                by_circuit.setdefault(verdict[0], []).append(verdict)
        for circuit, some in by_circuit.items():
            with circuit.lock:
                self._add_writes(pending, circuit, some)
        return pending

    def _add_writes(self, pending: Pending, circuit: Circuit, verdicts: list[Verdict]) -> None:
        config, statistics, now = circuit.config, circuit.statistics, self.ledger.now()
        if config.statistics_update_enabled:
            good = short_ids([id_ for _, id_, ok, _, _ in verdicts if ok])
            bad = []
            if len(good) < len(verdicts):
                bad = short_ids([id_ for _, id_, ok, _, _ in verdicts if ok is False])
            if good or bad:
                statistics.add_successes(good, now)
                for id_ in bad:
                    statistics.add(id_, False, now)
                if self.ledger.settings.locking == "eager":
                    for queue in {queue for _, _, _, queue, _ in verdicts}:
                        circuit.saw(queue)
                most, epoch = config.max_queue_sample_count, circuit.record.epoch
                if not statistics.both:
                    statistics.trim(most)
                chunk, writes = circuit.samples.take(
                    (now, good, bad), epoch, most=2 * most, oldest=now - config.max_age_us
                )
                pending.chunks.append((circuit, chunk, epoch))
                pending += self.ledger.introduction(now)
                pending += writes
        after = self._decide(circuit, circuit.record, verdicts)
        if statistics.both:
            # gateleen counts before it trims.
            statistics.trim(config.max_queue_sample_count)
        if after is not circuit.record or not circuit.version:
            pending.changes.append((len(pending), circuit, circuit.record, after, verdicts))
            pending.append(write_of(circuit, after, circuit.version))

    def _decide(self, circuit: Circuit, record: CircuitRecord, verdicts: list[Verdict]) -> CircuitRecord:
        """What becomes of a circuit after these verdicts."""
        now, by, config = self.ledger.now(), self.ledger.by, circuit.config
        for _, _, ok, _, permit in verdicts:
            if permit:
                record = after_probe(record, permit, ok, now, needed=self.ledger.settings.successes, by=by)
        if record.state == "closed" and config.statistics_update_enabled and record.epoch == circuit.record.epoch:
            figures = circuit.statistics.count(now, config.max_age_us)
            if (
                figures.samples >= config.min_queue_sample_count
                and figures.ratio >= config.error_threshold_percentage
                and any(ok is not None for _, _, ok, _, _ in verdicts)
            ):
                why = f"{figures.failures} of {figures.samples} requests failed"
                record = record.moved("open", now, why=why, by=by, ratio=figures.ratio, samples=figures.samples)
        if not record.by:
            record = msgspec.structs.replace(record, by=signed(by))
        return record

    def written(self, writes: Sequence[DocumentWrite], results: Sequence[bool] | None) -> None:
        """The settle call has come back, or (None) has not come through."""
        if not isinstance(writes, Pending):
            return
        for circuit, chunk, epoch in writes.chunks:
            with circuit.lock:
                circuit.samples.give_back(chunk, epoch)
        if results is None:
            return
        failpoints.point("breaker.noted")
        if any(chunk.outcomes[-1][2] for _, chunk, _ in writes.chunks):
            self.periodic.hurry()
        for index, circuit, before, after, verdicts in writes.changes:
            with circuit.lock:
                asked, won = writes[index].version or 0, results[index]
                if not won:
                    # Another node was first: what the probes said has to be weighed on what it left.
                    self.ledger.reload(circuit)
                    won = self.ledger.change(circuit, partial(self._decide, circuit, verdicts=verdicts))
                elif circuit.version == asked:
                    self.ledger.accept(circuit, after, asked + 1, mine=True)
                elif after.since_us != before.since_us or after.state != before.state:
                    # It was read back from the store before this reply came; it is still ours to tell.
                    self._tell_state(circuit, after)
            if won and circuit.state == "open":
                for queue in {queue for _, _, ok, queue, _ in verdicts if ok is False and queue}:
                    self._lock(circuit, queue)

    def tell(self, verdicts: Sequence[Verdict]) -> None:
        """Write verdicts down by themselves."""
        pending = self.writes(verdicts)
        if not pending:
            return
        try:
            results = self.store.driver.write(pending)
        except BaseException:
            self.written(pending, None)
            raise
        self.written(pending, results)

    def forget(self, verdict: Verdict) -> None:
        """The attempt will never be settled: give the permit of a probe back."""
        circuit, id_, _, queue, permit = verdict
        if permit:
            self.tell([(circuit, id_, None, queue, permit)])

    def report(self, circuit: str, id: str, ok: bool, *, queue: str = "") -> CircuitView:
        """Report the outcome of a request that no guard saw.

        Args:
            id: of the request
            ok: whether it succeeded
            queue: that it came from

        Returns:
            the circuit afterwards
        """
        known = self.ledger.circuit(circuit)
        self.ledger.refresh(hear=True)
        permit = "*" if known.state == "half_open" else ""
        self.tell([(known, id, ok, queue, permit)])
        return self._view(known, {})

    def _after_change(self, circuit: Circuit, before: CircuitRecord, mine: bool) -> None:
        """A circuit is in another state than before; ``mine``: by a decision of this process."""
        record = circuit.record
        self.periodic.hurry()
        if record.state == "closed":
            self.periodic.closed_one = True
        if mine:
            self._tell_state(circuit, record)
        if record.state == "open" and before.state == "closed" and self.ledger.settings.locking == "eager":
            for queue in self._queues_of(circuit):
                self._lock(circuit, queue)

    def _tell_state(self, circuit: Circuit, record: CircuitRecord) -> None:
        last = record.transitions[-1]
        level = logging.WARNING if record.state == "open" else logging.INFO
        logger.log(level, "circuit %r is %s: %s", circuit.name, record.state, last.why)
        self.store.signals.tell(
            "circuit", "", (), self.ledger.now(), circuit=circuit.name, hash=circuit.hash, state=record.state,
            why=last.why, by=last.by, ratio=last.ratio, samples=last.samples,
        )  # fmt: skip

    def _queues_of(self, circuit: Circuit) -> list[str]:
        queues = dict.fromkeys(circuit.queues)
        for scope in self._scopes[circuit.hash]:
            counts = self.store.counts(family=scope.name) if scope.is_family else self.store.counts(scope.name)
            queues.update(dict.fromkeys(counted.queue for counted in counts if counted.live))
        return list(queues)

    # --- looking -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Follow what other nodes have done."""
        self.ledger.refresh(all_of_it=True)

    def circuits(self) -> list[CircuitView]:
        """All circuits that were ever used, by name."""
        self.refresh()
        locked = self.locked_queues()
        known = [circuit for circuit in self.ledger.circuits.values() if circuit.version]
        return sorted((self._view(circuit, locked) for circuit in known), key=lambda view: view.circuit)

    def circuit(self, hash_or_name: str) -> CircuitView:
        """One circuit, by its hash or its name.

        Args:
            hash_or_name: of the circuit

        Raises:
            CircuitNotFound: nobody has used it
        """
        self.refresh()
        return self._view(self._known(hash_or_name), self.locked_queues())

    def _known(self, hash_or_name: str) -> Circuit:
        for circuit in list(self.ledger.circuits.values()):
            if circuit.version and hash_or_name.strip() in (circuit.hash, circuit.name):
                return circuit
        raise CircuitNotFound(
            f"there is no circuit {hash_or_name!r} in {self.store.name}.", hint="See: penstock breaker list"
        )

    def _view(self, circuit: Circuit, locked: dict[str, list[Lock]]) -> CircuitView:
        now = self.ledger.now()
        with circuit.lock:
            record, figures = circuit.record, circuit.figures(now)
            return CircuitView(
                circuit.hash, circuit.name, record.state, record.since_us, figures.ratio, figures.successes,
                figures.failures, len(locked.get(circuit.hash, ())),
                sum(ends > now for ends in record.permits.values()), tuple(record.transitions),
            )  # fmt: skip

    def locked_queues(self) -> dict[str, list[Lock]]:
        """The locks that circuits hold, by hash, the one least recently touched first."""
        prefix = f"{self.ledger.name}."
        by_circuit: dict[str, list[Lock]] = {}
        for lock in self.store.locks():
            if lock.holder.startswith(prefix):
                by_circuit.setdefault(lock.holder.removeprefix(prefix), []).append(lock)
        for locks in by_circuit.values():
            locks.sort(key=lambda lock: (lock.since_us, lock.queue))
        return by_circuit

    # --- by hand -----------------------------------------------------------------------------------

    def open(self, circuit: str, *, by: str = "operator", why: str = "opened by hand") -> CircuitView:
        """Open a circuit by name or hash; one that nobody has used yet may be opened by its name."""
        self.refresh()
        if self.is_configured and not self.config.circuit_check_enabled:
            raise Conflict(
                "the breaker is off: an open circuit would keep nothing back.",
                hint="Store a configuration with circuitCheckEnabled first, or lock the queues.",
            )
        try:
            known = self._known(circuit)
        except CircuitNotFound:
            known = self.ledger.circuit(circuit)
        return self._move(known, "open", by, why)

    def half_open(self, circuit: str, *, by: str = "operator", why: str = "half opened by hand") -> CircuitView:
        """Let probes through an open circuit now."""
        self.refresh()
        known = self._known(circuit)
        if known.state == "closed":
            raise Conflict(f"circuit {known.name!r} is closed.", hint="Only an open circuit can be half opened.")
        return self._move(known, "half_open", by, why)

    def close(self, circuit: str, *, by: str = "operator", why: str = "closed by hand") -> CircuitView:
        """Close a circuit: its statistics start over, its queues are unlocked one by one."""
        self.refresh()
        return self._move(self._known(circuit), "closed", by, why)

    def close_all(self, *, by: str = "operator", why: str = "closed by hand") -> int:
        """Close every circuit that is open or half open. Returns how many were closed."""
        self.refresh()
        circuits = [
            circuit for circuit in list(self.ledger.circuits.values()) if circuit.version and circuit.state != "closed"
        ]
        for circuit in circuits:
            self._move(circuit, "closed", by, why)
        return len(circuits)

    def _move(self, circuit: Circuit, state: Any, by: str, why: str) -> CircuitView:
        def rule(record: CircuitRecord) -> CircuitRecord:
            # Closing a closed one begins its statistics again, as gateleen does.
            if record.state == state and state != "closed":
                return record
            return record.moved(
                state, self.ledger.now(), why=why, by=by, ratio=circuit.figures(self.ledger.now()).ratio
            )

        self.ledger.change(circuit, rule)
        return self._view(circuit, {})

    def remove(self, circuit: str, *, by: str = "", why: str = "removed by hand") -> None:
        """Close and forget a circuit, as when its routing rule is gone; its queues are unlocked one by one."""
        self.refresh()
        known = self._known(circuit)
        if known.state != "closed":
            self._move(known, "closed", by or self.ledger.by, why)
        self.ledger.remove(known)
        if self.config.unlock_queues.enabled:
            self.periodic.look_again()
        else:  # nobody else would
            for lock in self.locked_queues().get(known.hash, ()):
                self.store.driver.unlock(lock.queue, lock.holder)

    # --- configuration -----------------------------------------------------------------------------

    @property
    def config(self) -> BreakerConfig:
        """What holds now, as last heard."""
        return self.ledger.config

    @property
    def settings(self) -> BreakerSettings:
        """Our own settings, as last heard."""
        return self.ledger.settings

    def changes(self) -> list[Change]:
        """The last changes of the configuration: who, when, before and after."""
        self.refresh()
        return list(self.ledger.stored.changes)

    def configure(
        self, resource: BreakerConfig | dict[str, Any] | str | bytes, *, by: str = "operator"
    ) -> BreakerConfig:
        """Store a configuration resource for every node: all nine properties, checked, then kept, then in force.

        Args:
            resource: as an object, a dict or JSON

        Raises:
            BadInput: a property is missing, unknown or out of bounds
        """
        config = read_config(resource.resource() if isinstance(resource, BreakerConfig) else resource)
        self._store(lambda stored: msgspec.structs.replace(stored, config=config), "configuration", by)
        return config

    def reset(self, *, by: str = "operator") -> BreakerConfig:
        """Remove the stored configuration resource; the defaults hold again, for every node."""
        self._store(lambda stored: msgspec.structs.replace(stored, config=None), "configuration", by)
        return self.ledger.config

    def adjust(self, settings: BreakerSettings, *, by: str = "operator") -> None:
        """Store settings of our own for every node.

        Args:
            settings: all of them
        """
        self._store(lambda stored: msgspec.structs.replace(stored, settings=settings), "settings", by)

    def _store(self, change: Callable[[Stored], Stored], what: str, by: str) -> None:
        ledger = self.ledger
        for _ in range(30):
            self.refresh()
            before = self._in_words(what)
            stored, version = ledger.stored, ledger.stored_version
            wanted = change(stored)
            ledger_config = wanted.config or ledger.default_config
            settings = wanted.settings or ledger.default_settings
            after = ledger_config.resource() if what == "configuration" else msgspec.to_builtins(settings)
            said = Change(self.store.now(), by, what, masked(before), masked(after))
            wanted = msgspec.structs.replace(wanted, changes=[*stored.changes, said][-KEPT_CHANGES:], by=signed(by))
            if self.store.driver.write(
                [DocumentWrite(f"{ledger.name}.config", msgspec.json.encode(wanted), version)]
            ) == [True]:
                ledger.take_config(wanted, version + 1)
                self._tell_configured(said)
                for problem in check_together(ledger.config, ledger.settings):
                    config_logger.warning("%s", problem)
                return
        raise Conflict("the breaker's configuration is being changed by others.", hint="Try again.")

    def _in_words(self, what: str) -> dict[str, Any]:
        if what == "configuration":
            return self.ledger.config.resource()
        settings: dict[str, Any] = msgspec.to_builtins(self.ledger.settings)
        return settings

    def _tell_configured(self, change: Change) -> None:
        if self.ledger.settings.log_payload:
            payload = msgspec.json.encode(change.after).decode()
            config_logger.info("%s of %r changed by %s: %s", change.what, self, change.by, payload)
        else:
            config_logger.info("%s of %r changed by %s", change.what, self, change.by)
        self.store.signals.tell(
            "configured", "", (), change.at_us, by=change.by, before=change.before, after=change.after
        )

    # --- periodic work -----------------------------------------------------------------------------

    def tick(self) -> Micros:
        """Do the periodic work that is due, as the background thread does. Returns when to call it again."""
        return self.periodic.tick()
