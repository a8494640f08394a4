"""State and timers as records of the log ``<computation>.state``: what a checkpoint changed, in the same transaction.

The log has a partition per task. A record holds the entries a checkpoint changed, so that a checkpoint costs what it
changes, and what is needed to go on: the watermark and the input offsets. Reading a partition from its start gives the
state. So that it does not grow for ever, it is rewritten in rounds: once it holds about twice as many entries as there
are, each checkpoint appends some unchanged entries again; when all have come, what was before the round began is
garbage, and retention removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.clock import Micros
from penstock.codec import codec_for
from penstock.errors import BadInput, Conflict, PenstockError, SchemaMismatch, Undecodable
from penstock.ids import is_another
from penstock.log.record import Partition
from penstock.log.store import LogStore, Retention
from penstock.stream.computation import Computation
from penstock.stream.state import Cell, Declared, Entry
from penstock.stream.timers import Kind, Place, Timers
from penstock.stream.watermark import LOWEST, Watermark

if TYPE_CHECKING:
    from penstock.stream.topology import Node

CHUNK = 256 * 1024  # bytes of entries in one record
SEGMENT = 4 * 1024 * 1024
SMALL = 1000  # entries below which nothing is rewritten
TIMER: dict[Kind, str] = {"event": "timer/e", "processing": "timer/p"}  # a slash is in no name of a state
KINDS: dict[str, Kind] = {name: kind for kind, name in TIMER.items()}


class Change(msgspec.Struct, array_like=True):
    """One record of a changelog."""

    version: int
    shapes: dict[str, str]
    low: Micros = LOWEST
    highs: dict[str, Micros] = {}
    offsets: dict[str, int] = {}
    entries: list[tuple[str, str, str, bytes | None, Micros]] = []
    base: int = 0  # where to begin to read: everything before is written again behind it
    keeper: str = ""  # set if the state itself is kept elsewhere: by whom
    inputs: dict[str, str] = {}  # which logs it was made from: their identities


def state_log(computation: str) -> str:
    """The log that keeps a computation's state."""
    return f"{computation}.state"


def make_state_log(store: LogStore, computation: str, partitions: int) -> None:
    """Create it; an existing one has to have as many partitions."""
    name = state_log(computation)
    retention = Retention(age=None)
    if store.capabilities.retention:
        retention = Retention(age=None, keep_for=(name,), consumed=True)
    store.create(name, partitions, retention=retention, segment_bytes=SEGMENT)
    kept = store.settings(name).partitions
    if kept != partitions:
        raise Conflict(
            f"the state of {computation} is kept for {kept} partitions, and its inputs have {partitions} now.",
            hint=f"Keep the number of partitions, or begin anew with reset({computation!r}).",
        )


class _Progress(NamedTuple):
    """How far the rewriting of a changelog has come."""

    written: int = 0  # entries since ``base``
    base: int = 0  # what is before it is not needed any more
    places: list[tuple[str, str, str]] | None = None  # what the round under way rewrites
    reached: int = 0
    begun_at: int = 0


class Changelog:
    """The changelog of one task, and how far its rewriting has come."""

    def __init__(self, store: LogStore, node: Node, index: int) -> None:
        """Of partition ``index``."""
        self.place = Partition(state_log(node.name), index)
        self.store = store
        self.computation = node.computation
        self.shapes = shapes_of(node.computation)
        self._streams = tuple(node.inputs.values())
        self._inputs: dict[str, str] = {}  # which logs they are
        self._progress = _Progress()
        # What the progress will be if the checkpoint under way holds; one that fails must not count as rewritten.
        self._planned = self._progress
        self._next = 0  # where the next record will be, at least

    # --- reading -----------------------------------------------------------------------------------

    def restore(self, cells: Mapping[str, Cell], timers: Timers, watermark: Watermark) -> dict[str, int]:
        """Read it all; the input offsets of the last checkpoint that changed something."""
        offsets: dict[str, int] = {}
        inputs: dict[str, str] = {}
        self._inputs = {stream: self.store.identity(stream) for stream in self._streams}
        bounds = self.store.bounds_of(self.place)
        base, written = bounds.start, 0
        if self.store.capabilities.dense:  # elsewhere a look at the end costs as much as all of it
            last = last_change(self.store, self.place)
            base = max(bounds.start, 0 if last is None else last.base)
        for batch in self.store.batches(self.place, base):
            for payload in batch.payloads():
                change = _decoded(payload, self.place)
                check_keeper(self.computation, change)
                check_shapes(self.computation, change)
                written += len(change.entries)
                for raw in change.entries:
                    self._load(Entry(*raw), cells, timers, change.version)
                offsets.update(change.offsets)
                inputs.update(change.inputs)
                watermark.load(change.low, change.highs)
        check_inputs(self.computation, inputs, self._inputs)
        self._next = bounds.end
        self._progress = self._planned = _Progress(written, base)
        for cell in cells.values():
            probe(self.computation, cell)
        return offsets

    def _load(self, entry: Entry, cells: Mapping[str, Cell], timers: Timers, version: int) -> None:
        kind = KINDS.get(entry.state)
        if kind is not None:
            timers.load((kind, entry.key, entry.sub), None if entry.payload is None else entry.expires)
            return
        cell = cells.get(entry.state)
        if cell is None:
            return  # a state that this version no longer has
        if version < self.computation.version and entry.payload is not None:
            entry = upgraded(self.computation, entry, cell, version)
        cell.load(entry)

    # --- writing -----------------------------------------------------------------------------------

    def records(
        self, changes: list[Entry], cells: Mapping[str, Cell], timers: Timers, watermark: Watermark,
        offsets: Mapping[str, int],
    ) -> list[bytes]:  # fmt: skip
        """The records of a checkpoint: its changes, and as much rewriting as it pays for."""
        live = sum(cell.entry_count() for cell in cells.values()) + len(timers)
        plan, rewritten = self._rewritten(live, 2 * len(changes) + 1, cells, timers)
        low, highs = watermark.kept()
        made: list[bytes] = []
        part: list[tuple[str, str, str, bytes | None, Micros]] = []
        size = 0
        for entry in (*rewritten, *changes):
            more = len(entry.key) + len(entry.sub) + len(entry.payload or b"") + 16
            if part and size + more > CHUNK:  # a large one comes alone: a store has a limit
                made.append(self._record(plan.base, low, highs, offsets, part))
                part, size = [], 0
            part.append(tuple(entry))  # type: ignore[arg-type]
            size += more
        if part or not made:
            made.append(self._record(plan.base, low, highs, offsets, part))
        self._planned = plan._replace(written=plan.written + len(rewritten) + len(changes))
        return made

    def _record(self, base: int, low: Micros, highs: dict[str, Micros], offsets: Mapping[str, int], part: Any) -> bytes:
        change = Change(
            self.computation.version, self.shapes, low, highs, dict(offsets), part, base, inputs=self._inputs
        )  # fmt: skip
        return msgspec.msgpack.encode(change)

    def _rewritten(
        self, live: int, most: int, cells: Mapping[str, Cell], timers: Timers
    ) -> tuple[_Progress, list[Entry]]:
        """What this checkpoint rewrites, and the progress when that is committed."""
        now = self._progress
        if now.places is None:
            if now.written < 2 * live + SMALL:
                return now, []
            places = [(name, key, sub) for name, cell in cells.items() for key, sub in cell.places()]
            places += [(TIMER[kind], key, name) for kind, key, name in timers.places()]
            now = now._replace(written=0, places=places, reached=0, begun_at=self._next)
        found: list[Entry] = []
        places = now.places or []
        reached = now.reached
        while reached < len(places) and len(found) < most:
            state, key, sub = places[reached]
            reached += 1
            kind = KINDS.get(state)
            entry = timer_entry((kind, key, sub), timers) if kind is not None else cells[state].entry(key, sub)
            if entry is not None:
                found.append(entry)
        if reached < len(places):
            return now._replace(reached=reached), found
        return _Progress(now.written, now.begun_at), found

    def written(self, end: int) -> None:
        """The checkpoint holds; the changelog ends there now. Sometimes its beginning is let go."""
        before, self._progress = self._progress, self._planned
        self._next = end
        if before.base != self._progress.base and self.store.capabilities.retention:
            self.store.reset(self.place.log, {self.place: self._progress.base})
            self.store.retain(self.place.log)


def upgraded(computation: Computation, entry: Entry, cell: Cell, version: int) -> Entry:
    """A kept value of an older version, as this one needs it."""
    raw = codec_for(Any).decode(entry.payload or b"null")
    value = computation.upgrade(version, entry.state, entry.key, raw)
    return entry._replace(payload=None if value is None else cell.encode(value))


def timer_entry(place: Place, timers: Timers) -> Entry | None:
    """A timer as an entry."""
    at = timers.at(place)
    return None if at is None else Entry(TIMER[place[0]], place[1], place[2], b"", at)


def timer_changes(timers: Timers) -> Iterator[Entry]:
    """What became of timers since the last checkpoint, as entries."""
    for (kind, key, name), at in timers.changes():
        yield Entry(TIMER[kind], key, name, None if at is None else b"", at or 0)


# --- versions ----------------------------------------------------------------------------------------


def shapes_of(computation: Computation) -> dict[str, str]:
    """The shapes of its states."""
    return {one.name: one.shape for one in computation.states}


def check_states(states: Iterable[Any], owner: str) -> None:
    """Raise for what is no declared state, and for two of one name."""
    seen: set[str] = set()
    for one in states:
        if not isinstance(one, Declared):
            raise BadInput(
                f"{owner} declares {one!r} as a state.", hint='Write Value("total", int), List(…) or Map(…).'
            )
        if one.name in seen:
            raise BadInput(f"{owner} declares two states {one.name!r}.", hint="Give each a name of its own.")
        seen.add(one.name)


def last_change(store: LogStore, place: Partition) -> Change | None:
    """The newest record of a changelog."""
    bounds = store.bounds_of(place)
    back = 1 if store.capabilities.dense else 16  # offsets of transaction marks, where there are such
    while bounds.start < bounds.end:
        start = max(bounds.start, bounds.end - back)
        payloads = [one for batch in store.batches(place, start) for one in batch.payloads()]
        if payloads:
            return _decoded(payloads[-1], place)
        if start == bounds.start:
            return None
        back *= 8
    return None


def check_keeper(computation: Computation, last: Change, keeper: str = "") -> None:
    """Raise when the state is kept by another kind of runner, where this one cannot get it."""
    if last.keeper.partition(" ")[0] != keeper:
        there = f"kept by {last.keeper}" if last.keeper else "kept in its changelog, by a local runner"
        raise Conflict(
            f"the state of {computation.name} is {there}.",
            hint=f"Run it there, or begin anew with reset({computation.name!r}).",
        )


def check_inputs(computation: Computation, kept: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise when an input is another log than the one that the state was made from."""
    for log, identity in found.items():
        if is_another(kept.get(log, ""), identity):
            raise Conflict(
                f"the state of {computation.name} is of another log {log!r}: it was made anew since.",
                hint=f"Bring the old log back, or begin anew with reset({computation.name!r}).",
            )


def check_shapes(computation: Computation, last: Change) -> None:
    """Raise when what is kept is not what the code declares, and nobody says how to get from one to the other."""
    out = f"Begin anew with reset({computation.name!r}), or run the code that wrote it."
    if last.version > computation.version:
        raise SchemaMismatch(
            f"the state of {computation.name} was written by version {last.version}; this is {computation.version}.",
            hint=out,
        )
    if last.version < computation.version:
        if not computation.overrides("upgrade"):
            raise SchemaMismatch(
                f"the state of {computation.name} is of version {last.version}, the code of {computation.version}.",
                hint=f"Override upgrade() to convert kept values. {out}",
            )
        return
    declared = shapes_of(computation)
    for name, shape in last.shapes.items():
        if declared.get(name) != shape:
            now = f"declared as {declared[name]}" if name in declared else "not declared any more"
            raise SchemaMismatch(
                f"state {name!r} of {computation.name} is kept as {shape} and {now}.",
                hint=f"Raise version and override upgrade(), or use another name for the new state. {out}",
            )


def probe(computation: Computation, cell: Cell) -> None:
    """Read a few kept values: a type that changed inside is found here, not in the middle of the work."""
    for number, (key, sub) in enumerate(cell.places()):
        entry = cell.entry(key, sub)
        if entry is not None and entry.payload is not None:
            probe_entry(computation, cell, entry)
        if number >= 20:
            return


def probe_entry(computation: Computation, cell: Cell, entry: Entry) -> None:
    """Read one kept value."""
    try:
        cell.decode(entry.payload or b"")
    except Undecodable as cause:
        raise SchemaMismatch(
            f"state {entry.state!r} of {computation.name} has values that do not fit its type: {cause.message}",
            hint="Give new fields a default, or raise version and override upgrade(). "
            f"Begin anew with reset({computation.name!r}).",
        ) from cause


def check_kept(store: LogStore, node: Node) -> None:
    """Before anything runs: the newest record of a partition fits the code and the inputs; others when restored."""
    computation = node.computation
    name = state_log(node.name)
    if not store.exists(name):
        return
    cells = {one.name: one.cell() for one in computation.states}
    for place in store.partitions(name):
        last = last_change(store, place)
        if last is None:
            continue
        check_keeper(computation, last)
        check_shapes(computation, last)
        check_inputs(
            computation, last.inputs, {one: store.identity(one) for one in node.inputs.values() if store.exists(one)}
        )
        if last.version == computation.version:
            for raw in last.entries[-20:]:
                entry = Entry(*raw)
                if entry.state in cells and entry.payload is not None:
                    probe_entry(computation, cells[entry.state], entry)
        return


def _decoded(payload: bytes, place: Partition) -> Change:
    try:
        return msgspec.msgpack.decode(payload, type=Change)
    except msgspec.MsgspecError as cause:
        raise PenstockError(
            f"{place} holds something that is no state: {cause}.", hint="Nothing but a runner may append to it."
        ) from cause
