"""Copy: move a whole space from one store to another, offline.

The queues of both sides are locked by the holder ``copy`` while it runs, so nothing is handed out on either side; work
in hand is waited for. Everything is carried in the order of its sequence, in small atomic loads, so a copy that was
killed is simply started again: it compares what is there, continues behind it, and opens the target only when both
sides have the same counts and checksums. The source stays locked, for nothing may be done twice.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from penstock import failpoints
from penstock.clock import Duration, Micros, duration, duration_micros
from penstock.errors import BadInput, Conflict, StoreUnavailable, UnitTooLarge, Unsupported
from penstock.queue.driver import Driver
from penstock.queue.entry import Lock
from penstock.queue.protocol import (
    PARTS,
    Definition,
    Document,
    DocumentWrite,
    Find,
    Hold,
    KeptResult,
    Link,
    Part,
    TransferRow,
    Wait,
)
from penstock.queue.queues import QueueStore
from penstock.queue.space_id import IDENTITY
from penstock.queue.worker.presence import is_trace

HOLDER = "copy"
Feature = Literal["history", "labels", "label_limits"]
FEATURES: dict[Feature, str] = {
    "history": "the history of ended attempts",
    "labels": "labels that can be searched for (they are carried, but find() by label is refused there)",
    "label_limits": "limits per label value",
}
PAGE = 500
LOAD_BYTES = 256 * 1024
ROUNDS = 5
NOT_COPIED = (IDENTITY, "penstock.service.")  # services over a copy sign with a secret of their own
_FOUND: dict[Part, Callable[[Driver, Find], Sequence[Any]]] = {
    "live": lambda store, where: store.find(where),
    "dead": lambda store, where: store.dead(where),
    "history": lambda store, where: store.history(where),
}


class Sum(msgspec.Struct, frozen=True):
    """How many there are of something, and what they come to."""

    count: int
    checksum: str


class Copied(msgspec.Struct):
    """What a copy came to: per part the sums of both sides, which are equal, and how much this run carried."""

    sums: dict[str, Sum]
    carried: dict[str, int]
    left_out: tuple[Feature, ...] = ()
    was_done: bool = False  # an earlier run had finished


class Copy:
    """One move from a source to a target."""

    def __init__(
        self,
        source: QueueStore,
        target: QueueStore,
        *,
        leave_out: Collection[str] = (),
        wait: Duration = "5m",
        report: Callable[[str, int, int | None], None] | None = None,
    ) -> None:
        """``wait`` bounds the wait for leases. ``report`` gets (part, copied so far, of how many)."""
        if source.driver.shares_with(target.driver):
            raise BadInput(
                f"{source.name} space {source.space}: source and target are the same space.",
                hint="Name another store or another space.",
            )
        for name in leave_out:
            if name not in FEATURES:
                raise BadInput(f"{name!r} cannot be left out.", hint=f"Known: {', '.join(FEATURES)}.")
        self.source = source.driver
        self.target = target.driver
        self._node = source.node
        self._leave_out: set[Feature] = {name for name in FEATURES if name in leave_out}
        self._wait = duration(wait, name="wait").total_seconds()
        self.report = report or (lambda part, done, total: None)
        self._here = f"copying from {source.name} space {source.space}"
        self._done = f"copied to {target.name} space {target.space}"
        self._carried: dict[str, int] = {}
        self._closed: set[str] = set()  # queues of the target that we have locked

    def check(self) -> bool:
        """Raise what a run would refuse before it changes anything. Returns whether an earlier run had finished."""
        if self._was_done():
            self._refuse_strays()
            return True
        self._check_source()
        self._check_target()
        self._check_features()
        return False

    def run(self) -> Copied:
        """Copy, or continue an interrupted copy. When this returns, the target is open and equal to the source."""
        if self.check():
            self._open_target()
            return Copied({}, {}, tuple(self._leave_out), was_done=True)
        self._lock_source()
        self._wait_for_leases()
        for _ in range(ROUNDS):
            self._lock_source()
            self._prepare_target()
            for part in self._parts():
                self._carry(part)
            self._carry_holds()
            self._carry_links()
            self._carry_plans()
            last = self.source.mark("live")  # what comes later than the sums is a stray
            sums = self._sums(self.source)
            if sums == self._sums(self.target):
                break
        else:
            raise Conflict(
                f"{self.source.name} keeps changing while it is copied.",
                hint="Stop what puts, cancels or prunes there (also the reapers of idle workers); then start again.",
            )
        failpoints.point("copy.verified")
        # First the mark that it is done: once the target is open, this must never be carried again.
        for queue in self._queues(self.source):
            self.source.lock(queue, HOLDER, f"{self._done}, up to {last}")
        failpoints.point("copy.marked")
        self._open_target()
        return Copied(sums, self._carried, tuple(self._leave_out))

    # --- before ------------------------------------------------------------------------------------

    def _was_done(self) -> bool:
        return bool(self._done_locks())

    def _done_locks(self) -> list[Lock]:
        done = f"{self._done}, up to "
        return [lock for lock in self.source.locks() if lock.holder == HOLDER and lock.reason.startswith(done)]

    def _refuse_strays(self) -> None:
        """Raise if somebody put into the source after it was copied. Nothing else would show it."""
        last = max(int(lock.reason.rpartition(" ")[2]) for lock in self._done_locks())
        strays = self.source.export("live", last, PAGE)
        if strays:
            some = ", ".join(sorted({stray.queue for stray in strays})[:3])
            number = f"{PAGE} or more" if len(strays) == PAGE else str(len(strays))
            raise Conflict(
                f"{number} entries were put into {self.source.name} (queues {some}) after it was copied.",
                hint="Point producers to the target, then put these there too and cancel them here.",
            )

    def _check_source(self) -> None:
        """A source that was copied elsewhere, or is being copied there, must not be worked on twice."""
        for lock in self.source.locks():
            if lock.holder == HOLDER and lock.reason != f"being {self._done}":
                raise Conflict(
                    f"queue {lock.queue!r} of {self.source.name} is locked by another copy: {lock.reason}.",
                    hint="Go on with that one; or, if its target is given up, unlock the queues: "
                    f"penstock queue unlock NAME --holder {HOLDER}",
                )

    def _check_target(self) -> None:
        """The target has to be empty, or ours from an interrupted copy."""
        mine = {lock.queue for lock in self.target.locks() if lock.holder == HOLDER and lock.reason == self._here}
        others = [counts.queue for counts in self.target.counts() if counts.queue not in mine]
        used = [queue for queue in others if self._is_used(queue)]
        if used or (not mine and self.target.export("history", limit=1)):
            holds = ", ".join(used[:3]) or "history"
            raise Conflict(
                f"{self.target.name} space {self.target.space} is not empty: it has {holds}.",
                hint="Copy into a fresh space (?space=NAME in the URL); a copy never mixes with what is there.",
            )

    def _is_used(self, queue: str) -> bool:
        counts = self.target.counts(queue)[0]
        return counts.live + counts.dead > 0

    def _check_features(self) -> None:
        able, source = self.target.capabilities, self.source
        in_use: dict[Feature, Callable[[], bool]] = {
            "history": lambda: bool(source.export("history", limit=1)),
            "labels": lambda: any(row.labels for part in ("live", "dead") for row in _all(source, part)),
            "label_limits": lambda: any(definition.label_limit for definition in source.definitions().values()),
        }
        able_to = {"history": able.full_history, "labels": able.label_search, "label_limits": able.label_limits}
        lacking = [
            name for name, used in in_use.items() if not able_to[name] and name not in self._leave_out and used()
        ]
        if lacking:
            raise Unsupported(
                f"{self.target.name} lacks {'; '.join(FEATURES[name] for name in lacking)}: in use in {source.name}.",
                hint=f"Choose another store, or leave it out: {' '.join(f'--leave-out {name}' for name in lacking)}",
            )

    def _lock_source(self) -> None:
        held = {lock.queue for lock in self.source.locks() if lock.holder == HOLDER}
        for queue in self._queues(self.source):
            if queue not in held:
                self.source.lock(queue, HOLDER, f"being {self._done}")

    def _wait_for_leases(self) -> None:
        """Let running handlers end. Entries of vanished workers come back when their leases run out."""
        pause = threading.Event()
        waited = 0.0
        while leased := self.source.find(Find(states=("leased",), limit=1000)):
            if waited >= self._wait:
                owner = leased[0].lease.owner if leased[0].lease else "?"
                raise StoreUnavailable(
                    f"{len(leased)} entries of {self.source.name} are still being worked on, one by {owner}.",
                    hint="The queues stay locked; let the handlers end, or give a longer --wait, and start again.",
                )
            self.report("leases", 0, len(leased))
            self.source.reap(node=self._node)
            pause.wait(0.2)
            waited += 0.2

    # --- carrying ----------------------------------------------------------------------------------

    def _parts(self) -> tuple[Part, ...]:
        return tuple(part for part in PARTS if part != "history" or "history" not in self._leave_out)

    def _prepare_target(self) -> None:
        """Define every queue and lock it before anything is in it."""
        closed = {lock.queue for lock in self.target.locks() if lock.holder == HOLDER}
        known = self.source.definitions()
        for queue in self._queues(self.source):
            if queue not in closed:
                self._close_queue(queue, known.get(queue, Definition()))
        self._closed = {lock.queue for lock in self.target.locks() if lock.holder == HOLDER}

    def _close_queue(self, queue: str, definition: Definition) -> None:
        if "label_limits" in self._leave_out and not self.target.capabilities.label_limits:
            definition = msgspec.structs.replace(definition, label_limit=None)
        self.target.define(queue, definition)
        self.target.lock(queue, HOLDER, self._here)

    def _carry(self, part: Part) -> None:
        """Compare what is there, in order, and load what follows, up to where nothing can come in between any more."""
        last = self.source.mark(part)
        copies = _all(self.target, part)
        load: list[TransferRow] = []
        size = done = 0
        total = self._expected(part)
        for row in _all(self.source, part):
            if row.seq > last:
                break  # the next round carries it, once its number is certain
            copied = next(copies, None)
            done += 1
            if copied is not None:
                if copied.essence() != row.essence():
                    raise Conflict(
                        f"{part} entry {row.id} of queue {row.queue} is not in {self.target.name} what it is in "
                        f"{self.source.name}: the source changed since the copy began.",
                        hint="Copy into a fresh space (?space=NAME in the URL).",
                    )
                continue
            self._check_size(row)
            load.append(row)
            size += len(row.payload or b"") + 500
            if len(load) == PAGE or size > LOAD_BYTES:
                self._load(part, load)
                load, size = [], 0
                self.report(part, done, total)
        self._load(part, load)
        self.report(part, done, total)

    def _check_size(self, row: TransferRow) -> None:
        if row.payload is not None and len(row.payload) > self.target.payload_limit:
            raise self.target.too_large(len(row.payload))

    def _load(self, part: str, rows: list[TransferRow]) -> None:
        if rows:
            for queue in {row.queue for row in rows} - self._closed:
                # Somebody made it since the others were locked: nobody may have anything of it before all is here.
                self._lock_source()
                self._close_queue(queue, self.source.definitions().get(queue, Definition()))
                self._closed.add(queue)
            failpoints.point("copy.before")
            try:
                self.target.load(rows)
            except UnitTooLarge:
                half = len(rows) // 2
                if not half:
                    raise
                self._load(part, rows[:half])
                self._load(part, rows[half:])
                return
            failpoints.point("copy.loaded")
            self._carried[part] = self._carried.get(part, 0) + len(rows)

    def _expected(self, part: Part) -> int | None:
        if part == "history":
            return None
        counts = self.source.counts()
        return sum(counted.dead if part == "dead" else counted.live for counted in counts)

    def _carry_holds(self) -> None:
        existing = set(self._holds(self.target))
        missing = [hold for hold in self._holds(self.source) if hold not in existing]
        for start in range(0, len(missing), PAGE):
            self.target.load((), missing[start : start + PAGE])
        self._carried["unique ids"] = self._carried.get("unique ids", 0) + len(missing)

    def _carry_links(self) -> None:
        """Load who waits for whom, and what handlers returned. Loading it again changes nothing."""
        links, waits = _links(self.source), self._waits(self.source)
        existing = {*_links(self.target), *self._waits(self.target)}
        missing = [*(item for item in links if item not in existing), *(item for item in waits if item not in existing)]
        for start in range(0, len(missing), PAGE):
            page = missing[start : start + PAGE]
            self.target.load_links(
                [item for item in page if isinstance(item, Link)], [item for item in page if isinstance(item, Wait)]
            )
        self._carried["links"] = self._carried.get("links", 0) + len(missing)
        self._carry_results()

    def _carry_results(self) -> None:
        existing = set(self._results(self.target))
        missing = [item for item in self._results(self.source) if item not in existing]
        load: list[tuple[str, KeptResult]] = []
        size = 0
        for item in missing:
            if load and size + len(item[1].value) > LOAD_BYTES:
                self.target.load_links((), (), load)
                load, size = [], 0
            load.append(item)
            size += len(item[1].value) + 200
        if load:
            self.target.load_links((), (), load)
        self._carried["results"] = self._carried.get("results", 0) + len(missing)

    def _results(self, store: Driver) -> list[tuple[str, KeptResult]]:
        """Those that have not run out, by the source's clock on both sides, so that both sides agree."""
        now: Micros = self.source.now() + duration_micros("1m")
        results: list[tuple[str, KeptResult]] = []
        after = ""
        while page := store.results(after=after, limit=PAGE):
            results += [item for item in page if item[1].until_us > now]
            after = page[-1][0]
        return results

    def _waits(self, store: Driver) -> list[Wait]:
        """Of all entries that are carried: of those that still wait, and what the others have waited for."""
        waits: list[Wait] = []
        after = ""
        while page := store.waits(after=after, limit=PAGE):
            carried = {wait.id for wait in page if wait.needs}
            others = Find(ids=tuple(wait.id for wait in page if not wait.needs), limit=100 * PAGE)
            for part in self._parts() if others.ids else ():
                carried |= {entry.id for entry in _FOUND[part](store, others)}
            waits += [wait for wait in page if wait.id in carried]
            after = page[-1].id
        return waits

    def _carry_plans(self) -> None:
        """Copy subscriptions, schedules, documents and others' locks. Copying one again changes nothing."""
        for subscription in self.source.subscriptions():
            self.target.subscribe(subscription)
        for schedule in self.source.schedules():
            if schedule not in self.target.schedules():
                self.target.remove_schedule(schedule.name)
                self.target.set_schedule(schedule)
        for lock in self.source.locks():
            if lock.holder != HOLDER:
                self.target.lock(lock.queue, lock.holder, lock.reason)
        values = {document.name: document.value for document in _documents(self.target)}
        for document in _documents(self.source):
            if values.get(document.name) != document.value:
                self.target.write([DocumentWrite(document.name, document.value)])

    # --- afterwards --------------------------------------------------------------------------------

    def _sums(self, store: Driver) -> dict[str, Sum]:
        sums: dict[str, Sum] = {part: _sum(row.essence() for row in _all(store, part)) for part in self._parts()}
        sums["unique ids"] = _sum(map(_packed, self._holds(store)))
        sums["links"] = _sum(map(_packed, (*_links(store), *self._waits(store))))
        sums["results"] = _sum(map(_packed, self._results(store)))
        sums["subscriptions"] = _sum(map(_packed, store.subscriptions()))
        sums["schedules"] = _sum(map(_packed, store.schedules()))
        sums["documents"] = _sum(_packed((document.name, document.value)) for document in _documents(store))
        locks = sorted((lock.queue, lock.holder, lock.reason) for lock in store.locks() if lock.holder != HOLDER)
        sums["locks"] = _sum(map(_packed, locks))
        return sums

    def _holds(self, store: Driver) -> list[Hold]:
        """Those that have not run out, by the source's clock on both sides, so that both sides agree."""
        now: Micros = self.source.now() + duration_micros("1m")
        return [hold for hold in store.holds() if hold.until_us is None or hold.until_us > now]

    def _open_target(self) -> None:
        for lock in self.target.locks():
            if lock.holder == HOLDER and lock.reason == self._here:
                self.target.unlock(lock.queue, HOLDER)

    def _queues(self, store: Driver) -> list[str]:
        return sorted(
            {counts.queue for counts in store.counts()}
            | store.definitions().keys()
            | {subscription.queue for subscription in store.subscriptions()}
            | {schedule.queue for schedule in store.schedules()}
        )


def _all(store: Driver, part: Part) -> Iterator[TransferRow]:
    after = 0
    while page := store.export(part, after, PAGE):
        yield from page
        after = page[-1].seq


def _links(store: Driver) -> list[Link]:
    links: list[Link] = []
    while page := store.links(after=(links[-1].source, links[-1].target) if links else ("", ""), limit=PAGE):
        links += page
    return links


def _documents(store: Driver) -> list[Document]:
    return [
        document
        for document in store.documents()
        if not document.name.startswith(NOT_COPIED) and not is_trace(document.name)
    ]


def _packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, order="deterministic")


def _sum(parts: Iterable[bytes]) -> Sum:
    digest, count = hashlib.blake2b(digest_size=16), 0
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
        count += 1
    return Sum(count, digest.hexdigest())
