"""Ledger: what the nodes of a cluster share of one breaker, read and written through the store's documents.

===========================================  ==================================================================
document                                     what it holds
===========================================  ==================================================================
<breaker>.config                             the configuration resource and our settings, with their last changes
<breaker>.circuit.<hash>                     a circuit: state, probes under way, transitions
<breaker>.writer.<process>                   that a process has written samples
<breaker>.samples.<process>.<hash>.<epoch>.N outcomes that it has seen
<breaker>.task.<name>                        when a periodic task may run next
===========================================  ==================================================================

Everything but samples is compared and set, so one node wins and the others look again. The queues that a circuit holds
are not a document: they are the locks themselves, held in the name of the circuit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from penstock import failpoints
from penstock.breaker.circuit import CircuitRecord, CircuitState
from penstock.breaker.hashing import circuit_hash
from penstock.breaker.samples import Samples, read_outcomes
from penstock.breaker.settings import BreakerConfig, BreakerSettings
from penstock.breaker.statistics import SampleCounts, Statistics
from penstock.clock import SECOND, Micros
from penstock.codec import prepared
from penstock.errors import BadInput, StoreUnavailable
from penstock.ids import new_nonce
from penstock.names import check_name
from penstock.queue.protocol import Document, DocumentWrite
from penstock.queue.queues import QueueStore

logger = logging.getLogger("penstock.breaker")

OVERLAP: Micros = 2 * SECOND  # a document may be seen a little after its time: commits take a while
LOOK_AT_ALL: Micros = 30 * SECOND
HEAR_EVERY: Micros = SECOND
INTRODUCED: Micros = 300 * SECOND
TRIES = 30
MOST_QUEUES = 20_000


class Change(msgspec.Struct, frozen=True):
    """One change of the configuration: by whom, when, and what it was before."""

    at_us: Micros
    by: str
    what: str
    before: dict[str, Any]
    after: dict[str, Any]


@prepared
class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The configuration as it is kept."""

    config: BreakerConfig | None = None
    settings: BreakerSettings | None = None
    changes: list[Change] = []
    by: str = ""


class Circuit:
    """What this process knows of one circuit."""

    def __init__(self, ledger: Ledger, name: str, hash_: str) -> None:
        """Start closed, as every circuit does."""
        self.hash = hash_
        self.document = f"{ledger.name}.circuit.{hash_}"
        self.holder = f"{ledger.name}.{hash_}"
        self.record = CircuitRecord(name)
        self.is_closed = True  # what its record says, for those who ask often
        self.version = 0  # 0: not stored yet
        self.lock = threading.RLock()
        self.statistics = Statistics(both=ledger.settings.statistics == "gateleen")
        self.samples = Samples(f"{ledger.name}.samples.{ledger.writer}.{hash_}")
        self.queues: dict[str, None] = {}  # that were seen to use it, the latest last
        self.locked: dict[str, float] = {}  # queues that this process locked a moment ago
        self.config = ledger.config  # as it holds for this circuit

    @property
    def name(self) -> str:
        """The routing rule's pattern, or the name that a guard gave."""
        return self.record.circuit

    @property
    def state(self) -> CircuitState:
        """Its state as last heard."""
        return self.record.state

    def figures(self, now: Micros) -> SampleCounts:
        """What its statistics say now."""
        with self.lock:
            return self.statistics.count(now, self.config.max_age_us)

    def saw(self, queue: str) -> None:
        """Remember that a queue uses it."""
        self.queues.pop(queue, None)
        self.queues[queue] = None
        if len(self.queues) > MOST_QUEUES:
            del self.queues[next(iter(self.queues))]


class Ledger:
    """This process's view of a breaker, and the way to change what is shared."""

    def __init__(self, store: QueueStore, name: str, config: BreakerConfig, settings: BreakerSettings) -> None:
        """``config`` and ``settings`` hold until some are stored."""
        self.store = store
        if "." in check_name(name, kind="breaker"):
            raise BadInput(f"breaker name {name!r} has a dot, which ends names of breakers.", hint="Use '-' or '_'.")
        self.name = name
        self.writer = new_nonce()
        self.by = store.node
        self.circuits: dict[str, Circuit] = {}
        self.troubled: set[str] = set()  # circuits that are not closed
        self.stored = Stored()
        self.stored_version = 0
        self.config = self.default_config = config
        self.settings = self.default_settings = settings
        self.on_state: Callable[[Circuit, CircuitRecord, bool], None] = lambda circuit, before, mine: None
        self._lock = threading.Lock()  # of the dict of circuits
        self._refreshing = threading.Lock()
        self._applied: dict[str, int] = {}  # outcomes taken over, by other processes' documents
        self._writers: set[str] = set()
        self._introduced_us: Micros = 0
        self._heard_us: Micros = 0
        self._seen_us: Micros = 0
        self._all_us: Micros = 0
        self._time: tuple[Micros, float] | None = None

    # --- time --------------------------------------------------------------------------------------

    def now(self) -> Micros:
        """The store's time, carried on by this host's clock since it was last asked."""
        fixed = self.store.clock.fixed()
        if fixed is not None:
            return fixed
        if self._time is None:
            self._time = (self.store.now(), time.perf_counter())
        at, then = self._time
        return at + int((time.perf_counter() - then) * SECOND)

    # --- looking -----------------------------------------------------------------------------------

    def circuit(self, name: str) -> Circuit:
        """The circuit of this name, known here from now on."""
        name = name.strip()
        hash_ = circuit_hash(name)
        known = self.circuits.get(hash_)
        return known if known is not None else self._know(name, hash_)

    def _know(self, name: str, hash_: str) -> Circuit:
        with self._lock:
            circuit = self.circuits.get(hash_)
            if circuit is None:
                circuit = self.circuits[hash_] = Circuit(self, name, hash_)
                circuit.config = self.settings.applied_to(name, self.config)
            return circuit

    def refresh(self, *, all_of_it: bool = False, hear: bool = False) -> None:
        """Follow what other nodes have written. ``hear`` also reads their latest samples, usually postponed."""
        with self._refreshing:
            now = self.store.now()
            self._time = (now, time.perf_counter())
            if all_of_it or now - self._all_us >= LOOK_AT_ALL or now < self._seen_us:
                self._all_us, since = now, 0
            else:
                since = self._seen_us - OVERLAP
            documents = self.store.driver.documents(f"{self.name}.c", since_us=since)
            for document in documents:
                self._follow(document)
            if since == 0:
                names = {document.name for document in documents}
                for circuit in list(self.circuits.values()):
                    if circuit.version and circuit.document not in names:
                        self._forget(circuit)
                if self.stored_version and f"{self.name}.config" not in names:
                    self.take_config(Stored(), 0)
            if hear or since == 0 or now - self._heard_us >= HEAR_EVERY:
                self._hear_others(now, since)
            self._seen_us = now

    def _follow(self, document: Document) -> None:
        if document.name == f"{self.name}.config":
            if document.version != self.stored_version:
                self.take_config(msgspec.json.decode(document.value, type=Stored), document.version)
            return
        hash_ = document.name.rpartition(".")[2]
        record = msgspec.json.decode(document.value, type=CircuitRecord)
        circuit = self.circuits.get(hash_) or self._know(record.circuit, hash_)
        with circuit.lock:
            if document.version > circuit.version:
                self.accept(circuit, record, document.version, mine=False)
            elif (document.version, record.by) != (circuit.version, circuit.record.by):
                # Read before our own last write, or removed and created again: only a fresh look can tell.
                self.reload(circuit)

    def _forget(self, circuit: Circuit) -> None:
        with circuit.lock:
            circuit.record, circuit.version = CircuitRecord(circuit.name), 0
            circuit.statistics.clear()
            self._note_trouble(circuit)

    def _note_trouble(self, circuit: Circuit) -> None:
        circuit.is_closed = circuit.record.state == "closed"
        if circuit.is_closed:
            self.troubled.discard(circuit.hash)
        else:
            self.troubled.add(circuit.hash)

    def _hear_others(self, now: Micros, since: Micros) -> None:
        """Take over the samples that other processes have written."""
        prefix = f"{self.name}.writer."
        for introduced in self.store.driver.documents(prefix):
            writer = introduced.name.removeprefix(prefix)
            # Of one that was not known yet, everything.
            since_us = self._heard_us - OVERLAP if since and writer in self._writers else 0
            if writer != self.writer:
                for document in self.store.driver.documents(f"{self.name}.samples.{writer}.", since_us=since_us):
                    self._take_over(document)
            self._writers.add(writer)
        self._heard_us = now

    def introduction(self, now: Micros) -> list[DocumentWrite]:
        """The document that makes other processes read this one's samples. It is renewed now and then."""
        if 0 <= now - self._introduced_us < INTRODUCED:
            return []
        self._introduced_us = now
        return [DocumentWrite(f"{self.name}.writer.{self.writer}", self.by.encode())]

    def _take_over(self, document: Document) -> None:
        """Take over another process's outcomes, as far as they are new in its document."""
        *_, hash_, epoch, _ = document.name.split(".")
        circuit = self.circuits.get(hash_)
        if circuit is None:
            return
        with circuit.lock:
            if int(epoch) != circuit.record.epoch:
                self._applied.pop(document.name, None)
                return
            outcomes, add = read_outcomes(document.value), circuit.statistics.add
            for at, succeeded, failed in outcomes[self._applied.get(document.name, 0) :]:
                for id_ in succeeded:
                    add(id_, True, at)
                for id_ in failed:
                    add(id_, False, at)
            self._applied[document.name] = len(outcomes)
            circuit.statistics.trim(circuit.config.max_queue_sample_count)
        while len(self._applied) > 5000:
            del self._applied[next(iter(self._applied))]

    # --- changing ----------------------------------------------------------------------------------

    def reload(self, circuit: Circuit) -> None:
        """Read one circuit again."""
        with circuit.lock:
            document = self.store.driver.document(circuit.document)
            if document is None:
                if circuit.version:
                    self._forget(circuit)
                return
            record = msgspec.json.decode(document.value, type=CircuitRecord)
            if (document.version, record.by) != (circuit.version, circuit.record.by):
                self.accept(circuit, record, document.version, mine=False)

    def change(self, circuit: Circuit, rule: Callable[[CircuitRecord], CircuitRecord | None]) -> bool:
        """Change a circuit by a rule, and again if another node was first. Returns whether it changed."""
        for _ in range(TRIES):
            with circuit.lock:
                before, version = circuit.record, circuit.version
                after = rule(before)
                if after is None or after is before:
                    return False
                if self.store.driver.write([write_of(circuit, after, version)]) == [True]:
                    failpoints.point("breaker.changed")
                    self.accept(circuit, after, version + 1, mine=True)
                    return True
                self.reload(circuit)
        raise StoreUnavailable(
            f"circuit {circuit.name!r} was changed by others {TRIES} times in a row.", hint="Try again."
        )

    def accept(self, circuit: Circuit, record: CircuitRecord, version: int, *, mine: bool) -> None:
        """Take what the store has now. ``mine`` says that this process wrote it."""
        with circuit.lock:
            before, circuit.record, circuit.version = circuit.record, record, version
            self._note_trouble(circuit)
            if record.epoch != before.epoch:
                circuit.statistics.clear()
            if record.state != before.state:
                circuit.locked.clear()
                self.on_state(circuit, before, mine)

    def remove(self, circuit: Circuit) -> None:
        """Forget a circuit everywhere. The queues it held are unlocked at the usual pace."""
        self.store.driver.write([DocumentWrite(circuit.document, None)])
        samples = [
            document.name
            for document in self.store.driver.documents(f"{self.name}.samples.")
            if f".{circuit.hash}." in document.name
        ]
        self.store.driver.write([DocumentWrite(name, None) for name in samples])
        with self._lock:
            self.circuits.pop(circuit.hash, None)
            self.troubled.discard(circuit.hash)

    def take_config(self, stored: Stored, version: int) -> None:
        """Use this configuration from now on."""
        self.stored, self.stored_version = stored, version
        self.config = stored.config or self.default_config
        self.settings = stored.settings or self.default_settings
        for circuit in list(self.circuits.values()):
            circuit.config = self.settings.applied_to(circuit.name, self.config)
            circuit.statistics.both = self.settings.statistics == "gateleen"


def write_of(circuit: Circuit, record: CircuitRecord, version: int) -> DocumentWrite:
    """A circuit's record on its way to the store."""
    return DocumentWrite(circuit.document, msgspec.json.encode(record), version)
