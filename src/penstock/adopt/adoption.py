"""Adoption: what lives in a seed system becomes entries of a store.

The queues of the target are locked by the holder ``adopt`` until both sides have the same counts and checksums. Ids are
derived from what the seed calls its things, and everything is carried in one fixed order in small atomic loads; so an
adoption that was killed is started again, compares what is there, and continues behind it. The source is only read:
stop its own workers first, for a source that changes meanwhile is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator

import msgspec

from penstock import failpoints
from penstock.adopt.source import SeedLock, Source
from penstock.clock import Micros
from penstock.errors import BadInput, Conflict, NothingToAdopt, UnitTooLarge, Unsupported
from penstock.ids import new_nonce
from penstock.queue.entry import Counts
from penstock.queue.protocol import PARTS, Definition, DocumentWrite, Find, Hold, Part, TransferRow
from penstock.queue.queues import QueueStore

HOLDER = "adopt"
PAGE = 500
LOAD_BYTES = 256 * 1024


class QueuePlan(msgspec.Struct):
    """What one queue gets: how many of what, and checksums of the bodies and of all that is carried."""

    queue: str
    ready: int = 0
    delayed: int = 0
    retrying: int = 0
    dead: int = 0
    history: int = 0
    bodies: str = ""
    checksum: str = ""

    @property
    def live(self) -> int:
        """Everything that has not ended."""
        return self.ready + self.delayed + self.retrying


class Plan(msgspec.Struct):
    """What an adoption takes over, or would."""

    queues: list[QueuePlan]
    locks: list[SeedLock]
    notes: list[str] = []


class Adopted(msgspec.Struct):
    """What an adoption came to; both sides have it."""

    plan: Plan
    carried: int = 0  # by this run
    was_done: bool = False  # an earlier run had finished


class _State(msgspec.Struct):
    """What the target remembers of an adoption."""

    seed: str
    source: str
    began_us: Micros
    parts: tuple[str, ...]
    runner: str = ""  # whose turn it is
    step: int = 0
    finished: str | None = None  # the checksum of all queues


class Adoption:
    """One seed system's data on its way into a store.

    Args:
        source: made with :func:`open_source`
        target: where to
        leave_out: may hold ``"history"``
        report: called with the number of rows compared or copied
    """

    def __init__(
        self,
        source: Source,
        target: QueueStore,
        *,
        leave_out: Collection[str] = (),
        report: Callable[[int], None] | None = None,
    ) -> None:
        """Read how far an earlier run came."""
        for name in leave_out:
            if name != "history":
                raise BadInput(f"{name!r} cannot be left out.", hint="Only history can.")
        self.source = source
        self.target = target.driver
        self._parts = tuple(part for part in PARTS if part not in leave_out)
        self.report = report or (lambda rows: None)
        self._reason = f"taking over {source.seed} at {source.name}"
        self._document = f"adopt.{source.id_of('state')}"
        self._runner = new_nonce()
        self._version, self._state = self._read_state()

    # --- before ------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """What would be taken over; raises what a run would refuse before it changes anything."""
        if self._state.parts != self._parts:
            how = "with" if "history" in self._state.parts else "without"
            raise Conflict(
                f"{self.source.name} was begun to be taken over {how} its history.",
                hint="Go on as it was begun, or choose a fresh space (?space=NAME in the URL).",
            )
        plan = self._planned()
        if self._state.finished is not None:
            self._refuse_changes(plan)
            return plan
        if not plan.queues:
            raise NothingToAdopt(
                f"{self.source.seed} at {self.source.name} holds nothing to take over.",
                hint="Check the URL, and the names of tables or the prefix of keys.",
            )
        self._check_target(plan)
        return plan

    @property
    def was_done(self) -> bool:
        """Whether an earlier run has finished."""
        return self._state.finished is not None

    def _planned(self) -> Plan:
        queues = self._summed(self._source_rows())
        locks = self.source.locks()
        for lock in locks:
            queues.setdefault(lock.queue, QueuePlan(lock.queue))
        return Plan([queues[name] for name in sorted(queues)], locks, list(self.source.notes))

    def _refuse_changes(self, plan: Plan) -> None:
        if self._state.finished != _checksum(plan):
            raise Conflict(
                f"{self.source.name} was taken over, and has changed since.",
                hint="Point the programs that work there to the new queues, and put there what came since.",
            )

    def _check_target(self, plan: Plan) -> None:
        mine, counts_of = self._mine(), {counts.queue: counts for counts in self.target.counts()}
        for queue in plan.queues:
            if queue.queue in counts_of and queue.queue not in mine and self._is_used(counts_of[queue.queue]):
                raise Conflict(
                    f"queue {queue.queue!r} of {self.target.name} is in use.",
                    hint="Take over into a fresh space (?space=NAME in the URL); nothing is mixed with what is there.",
                )
            if queue.history and not self.target.capabilities.full_history:
                raise Unsupported(
                    f"{self.target.name} keeps no full history; {self.source.name} has one.",
                    hint="Choose another store, or leave it out: --leave-out history",
                )

    def _is_used(self, counts: Counts) -> bool:
        if counts.live + counts.dead > 0:
            return True
        return bool(self.target.history(Find(queue=counts.queue, limit=1)))

    def _check_quiet(self) -> None:
        if shown := self.source.running():
            raise Conflict(
                f"somebody still works at {self.source.name}: {shown}.",
                hint="Stop the nodes of the seed first; then start again.",
            )

    # --- the run -----------------------------------------------------------------------------------

    def run(self) -> Adopted:
        """Take over, or continue an interrupted run. When this returns, the queues are open and verified."""
        plan = self.plan()
        if self.was_done:
            self._open_queues()
            return Adopted(plan, was_done=True)
        self._check_quiet()
        self._begin()
        self._close_queues(plan)
        carried = self._carry()
        for lock in plan.locks:
            self.target.lock(lock.queue, lock.holder, lock.reason)
        plan = self._verify(plan)
        failpoints.point("adopt.verified")
        # First the mark that it is done: once the queues are open, nothing may be carried again.
        self._write_state(msgspec.structs.replace(self._state, finished=_checksum(plan)))
        failpoints.point("adopt.marked")
        self._open_queues()
        return Adopted(plan, carried)

    def _begin(self) -> None:
        self._take_turn()
        failpoints.point("adopt.begun")

    def _take_turn(self) -> None:
        """Before every load: a second process that does the same stops the first, which finds that out here."""
        self._write_state(msgspec.structs.replace(self._state, runner=self._runner, step=self._state.step + 1))

    def _close_queues(self, plan: Plan) -> None:
        """Define every queue and lock it before anything is in it."""
        mine = self._mine()
        for queue in plan.queues:
            if queue.queue not in mine:
                self.target.define(queue.queue, Definition(fifo=self.source.fifo or None))
                self.target.lock(queue.queue, HOLDER, self._reason)
        failpoints.point("adopt.locked")

    def _carry(self) -> int:
        """Compare what is there, in order, and load what follows."""
        mine = self._mine()
        loaded = {part: self._target_rows(part, mine) for part in PARTS}
        carried = done = size = 0
        load: list[TransferRow] = []
        for row in self._source_rows():
            done += 1
            if (before := next(loaded[row.part], None)) is not None:
                if before.essence() != row.essence():
                    raise self._changed(row.queue)
                continue
            if row.queue not in mine:
                raise self._changed(row.queue)
            if row.payload is not None and len(row.payload) > self.target.payload_limit:
                raise self.target.too_large(len(row.payload))
            load.append(row)
            size += len(row.payload or b"") + 500
            if len(load) == PAGE or size > LOAD_BYTES:
                carried += self._load(load)
                load, size = [], 0
                self.report(done)
        carried += self._load(load)
        self.report(done)
        return carried

    def _load(self, rows: list[TransferRow]) -> int:
        if not rows:
            return 0
        self._take_turn()
        failpoints.point("adopt.before")
        holds = [Hold(row.queue, row.unique, row.id) for row in rows if row.part == "live" and row.unique]
        try:
            self.target.load(rows, holds)
        except UnitTooLarge:
            half = len(rows) // 2
            if not half:
                raise
            return self._load(rows[:half]) + self._load(rows[half:])
        failpoints.point("adopt.loaded")
        return len(rows)

    def _verify(self, before: Plan) -> Plan:
        """Read both sides again; they have to be the same, and the source what it was."""
        after = self._planned()
        if changed := _differing(_checksums(before), _checksums(after)):
            raise self._changed(changed[0])
        mine = self._mine()
        copied = self._summed(row for part in self._parts for row in self._target_rows(part, mine))
        checksums = {queue: copied.get(queue, QueuePlan(queue)).checksum for queue in _checksums(after)}
        if different := _differing(_checksums(after), checksums):
            raise Conflict(
                f"queue {different[0]!r} of {self.target.name} is not what {self.source.name} holds.",
                hint="Take over into a fresh space (?space=NAME in the URL).",
            )
        return after

    def _changed(self, queue: str) -> Conflict:
        return Conflict(
            f"{self.source.name} changed while it was taken over (queue {queue!r}).",
            hint="Stop the programs that work there, and take over into a fresh space (?space=NAME in the URL).",
        )

    # --- both sides --------------------------------------------------------------------------------

    def _source_rows(self) -> Iterator[TransferRow]:
        return (row for row in self.source.rows(self._state.began_us) if row.part in self._parts)

    def _target_rows(self, part: Part, queues: Collection[str]) -> Iterator[TransferRow]:
        after = 0
        while page := self.target.export(part, after, PAGE):
            yield from (row for row in page if row.queue in queues)
            after = page[-1].seq

    def _summed(self, rows: Iterator[TransferRow]) -> dict[str, QueuePlan]:
        queues: dict[str, QueuePlan] = {}
        sums: dict[str, tuple[hashlib.blake2b, hashlib.blake2b]] = {}
        now = self.target.now()
        for row in rows:
            queue = queues.setdefault(row.queue, QueuePlan(row.queue))
            bodies, all_of_it = sums.setdefault(row.queue, (_digest(), _digest()))
            _count(queue, row, now)
            for digest, data in ((bodies, row.payload or b""), (all_of_it, row.essence())):
                digest.update(len(data).to_bytes(4, "big") + data)
        for name, (bodies, all_of_it) in sums.items():
            queues[name].bodies, queues[name].checksum = bodies.hexdigest(), all_of_it.hexdigest()
        return queues

    def _mine(self) -> set[str]:
        """Queues of the target that this adoption has locked."""
        return {lock.queue for lock in self.target.locks() if (lock.holder, lock.reason) == (HOLDER, self._reason)}

    def _open_queues(self) -> None:
        for queue in sorted(self._mine()):
            self.target.unlock(queue, HOLDER)

    # --- what the target remembers -------------------------------------------------------------------

    def _read_state(self) -> tuple[int, _State]:
        if document := self.target.document(self._document):
            return document.version, msgspec.json.decode(document.value, type=_State)
        return 0, _State(self.source.seed, self.source.name, self.target.now(), self._parts)

    def _write_state(self, state: _State) -> None:
        write = DocumentWrite(self._document, msgspec.json.encode(state), self._version)
        if not all(self.target.write([write])):
            raise Conflict(
                f"another process takes {self.source.name} over just now.", hint="Let it end; then start again."
            )
        self._version, self._state = self._version + 1, state


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def _count(queue: QueuePlan, row: TransferRow, now: Micros) -> None:
    if row.part == "history":
        queue.history += 1
    elif row.part == "dead":
        queue.dead += 1
    elif row.attempt:
        queue.retrying += 1
    elif row.due_us > now:
        queue.delayed += 1
    else:
        queue.ready += 1


def _checksums(plan: Plan) -> dict[str, str]:
    return {queue.queue: queue.checksum for queue in plan.queues}


def _checksum(plan: Plan) -> str:
    return hashlib.blake2b(msgspec.json.encode(_checksums(plan)), digest_size=16).hexdigest()


def _differing(left: dict[str, str], right: dict[str, str]) -> list[str]:
    return sorted(queue for queue in {*left, *right} if left.get(queue) != right.get(queue))
