"""State and timers as records of the log ``<computation>.state``: what a checkpoint changed, in the same transaction.

The log has a partition per task. A record holds the entries a checkpoint changed, so that a checkpoint costs what it
changes, and what a restart needs: the watermark and the input offsets. Reading a partition from its start gives the
state.

To keep it from growing without end, it is rewritten in rounds. Once it holds 1.6 times as many entries as there are,
each checkpoint appends some unchanged entries again. When all have come, what was before the round began is garbage,
and retention removes it. Rounds are short, so that most restarts come between two of them and read little more than
the state. All in all less than three times the bytes of the changes are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.clock import Micros
from penstock.errors import BadInput, Conflict, SchemaMismatch, Undecodable
from penstock.ids import is_another
from penstock.log.record import Partition
from penstock.stream.computation import Computation
from penstock.stream.engine.state_store import Cell, Entry
from penstock.stream.engine.watermark import LOWEST, Watermark
from penstock.stream.state import Declared
from penstock.stream.timers import Kind, Place, Timers

CHUNK = 256 * 1024  # bytes of entries in one record
SMALL = 1000  # entries below which nothing is rewritten
REWRITE_AT = 1.6  # entries written since the last round for each one that there is, when the next begins
REWRITES = 8  # entries that a round appends again for each change
TIMER: dict[Kind, str] = {"event": "timer/e", "processing": "timer/p"}  # names of states have no slash
Payloads = Iterable[tuple[int, bytes]]  # records of a state log, with their offsets
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
    inputs: dict[str, str] = {}  # which logs it was made from: their identities


def state_log(computation: str) -> str:
    """The log that keeps a computation's state."""
    return f"{computation}.state"


class _Progress(NamedTuple):
    """How far the rewriting of a changelog has come."""

    written: int = 0  # entries since ``base``
    base: int = 0  # what is before it is not needed any more
    places: list[tuple[str, Any, str]] | None = None  # what the round under way rewrites
    reached: int = 0
    begun_at: int = 0


class Changelog:
    """The changelog of one task: reads its records back, makes those of a checkpoint, and plans their rewriting."""

    def __init__(self, computation: Computation, partition: Partition) -> None:
        """``partition`` is the task's partition of the state log."""
        self.partition = partition
        self.computation = computation
        self.shapes = shapes_of(computation)
        self._inputs: Mapping[str, str] = {}  # the identities of the logs that the state is made from
        self._progress = _Progress()
        # What the progress will be if the checkpoint under way is committed; a failed one has rewritten nothing.
        self._planned = self._progress
        self._next = 0  # where the next record will be, at least

    # --- reading -----------------------------------------------------------------------------------

    def restore(
        self, payloads: Payloads, cells: Mapping[str, Cell], timers: Timers, watermark: Watermark,
        *, inputs: Mapping[str, str], start: int, end: int,
    ) -> dict[str, int]:  # fmt: skip
        """Take all records from ``start`` to ``end``; returns the input offsets that go with the restored state.

        ``inputs`` are the identities of the input logs as they are now.
        """
        offsets: dict[str, int] = {}
        inputs_before: dict[str, str] = {}
        written = 0
        for offset, payload in payloads:
            change = decoded_change(payload, self.partition, offset)
            check_shapes(self.computation, change)
            for raw in change.entries:
                written += self._load(Entry(*raw), cells, timers, change.version)
            offsets.update(change.offsets)
            inputs_before.update(change.inputs)
            watermark.load(change.low, change.highs)
        check_inputs(self.computation, inputs_before, inputs)
        self._inputs = inputs
        self._next = end
        self._progress = self._planned = _Progress(written, start)
        for cell in cells.values():
            probe(self.computation, cell)
        return offsets

    def catch_up(
        self, payloads: Payloads, cells: Mapping[str, Cell], timers: Timers, watermark: Watermark, *, end: int
    ) -> dict[str, int]:
        """Take records that another owner of the task has appended since; returns the offsets that go with them.

        A round of rewriting that was begun here continues: whatever was changed meanwhile is behind its beginning too.
        """
        offsets: dict[str, int] = {}
        progress = self._progress
        for offset, payload in payloads:
            change = decoded_change(payload, self.partition, offset)
            written = sum(self._load(Entry(*raw), cells, timers, change.version) for raw in change.entries)
            offsets.update(change.offsets)
            watermark.load(change.low, change.highs)
            progress = progress._replace(written=progress.written + written)
            if change.base > progress.base:  # the other one has ended a round of its own
                live = sum(cell.entry_count() for cell in cells.values()) + len(timers)
                progress = _Progress(live, change.base)
        self._next = end
        self._progress = self._planned = progress
        return offsets

    def _load(self, entry: Entry, cells: Mapping[str, Cell], timers: Timers, version: int) -> int:
        """Load an entry. Returns its weight."""
        kind = KINDS.get(entry.state)
        if kind is not None:
            timers.load((kind, entry.key, entry.sub), None if entry.payload is None else entry.expires)
            return 1
        cell = cells.get(entry.state)
        if cell is None:
            return 1  # a state that this version no longer has
        if version < self.computation.version and entry.payload is not None:
            entry = upgraded(self.computation, entry, cell, version)
        cell.load(entry)
        return cell.weight(entry)

    # --- writing -----------------------------------------------------------------------------------

    def records(
        self, changes: list[Entry], cells: Mapping[str, Cell], timers: Timers, watermark: Watermark,
        offsets: Mapping[str, int],
    ) -> list[bytes]:  # fmt: skip
        """The records of a checkpoint: its changes, and as much rewriting as it pays for."""
        live = sum(cell.entry_count() for cell in cells.values()) + len(timers)
        changed = sum(weight_of(entry, cells) for entry in changes)
        plan, rewritten = self._rewritten(live, REWRITES * changed + 1, cells, timers)
        low, highs = watermark.position()
        records: list[bytes] = []
        part: list[tuple[str, str, str, bytes | None, Micros]] = []
        size = 0
        for entry in (*rewritten, *changes):
            more = len(entry.key) + len(entry.sub) + len(entry.payload or b"") + 16
            if part and size + more > CHUNK:  # a large one comes alone: a store has a limit
                records.append(self._record(plan.base, low, highs, offsets, part))
                part, size = [], 0
            part.append(tuple(entry))  # type: ignore[arg-type]
            size += more
        if part or not records:
            records.append(self._record(plan.base, low, highs, offsets, part))
        changed += sum(weight_of(entry, cells) for entry in rewritten)
        self._planned = plan._replace(written=plan.written + changed)
        return records

    def _record(self, base: int, low: Micros, highs: dict[str, Micros], offsets: Mapping[str, int], part: Any) -> bytes:
        change = Change(
            self.computation.version, self.shapes, low, highs, dict(offsets), part, base, inputs=dict(self._inputs)
        )  # fmt: skip
        return msgspec.msgpack.encode(change)

    def _rewritten(
        self, live: int, most: int, cells: Mapping[str, Cell], timers: Timers
    ) -> tuple[_Progress, list[Entry]]:
        """What this checkpoint rewrites, and the progress when that is committed."""
        now = self._progress
        if now.places is None:
            if now.written < REWRITE_AT * live + SMALL:
                return now, []
            places = [(name, key, sub) for name, cell in cells.items() for key, sub in cell.places()]
            places += [(TIMER[kind], key, name) for kind, key, name in timers.places()]
            now = now._replace(written=0, places=places, reached=0, begun_at=self._next)
        rewritten: list[Entry] = []
        places = now.places or []
        reached = now.reached
        while reached < len(places) and most > 0:
            state, key, sub = places[reached]
            reached += 1
            kind = KINDS.get(state)
            if kind is None:
                entries = list(cells[state].entries(key, sub))
            else:
                entry = timer_entry((kind, key, sub), timers)
                entries = [] if entry is None else [entry]
            rewritten += entries
            most -= sum(weight_of(entry, cells) for entry in entries)
        if reached < len(places):
            return now._replace(reached=reached), rewritten
        return _Progress(now.written, now.begun_at), rewritten

    def written(self, end: int) -> int | None:
        """The checkpoint was committed and the changelog ends there now.

        If records at its beginning are no longer needed, returns the offset before which they can go.
        """
        before, self._progress = self._progress, self._planned
        self._next = end
        return self._progress.base if before.base != self._progress.base else None


def weight_of(entry: Entry, cells: Mapping[str, Cell]) -> int:
    """How many items an entry holds."""
    cell = cells.get(entry.state)
    return 1 if cell is None else cell.weight(entry)


def upgraded(computation: Computation, entry: Entry, cell: Cell, version: int) -> Entry:
    """Convert a stored value of an older version."""
    return cell.converted(entry, lambda key, raw: computation.upgrade(version, entry.state, key, raw))


def timer_entry(place: Place, timers: Timers) -> Entry | None:
    """A timer as an entry."""
    at = timers.at(place)
    return None if at is None else Entry(TIMER[place[0]], place[1], place[2], b"", at)


def timer_changes(timers: Timers) -> Iterator[Entry]:
    """The changes of timers since the last checkpoint, as entries."""
    for (kind, key, name), at in timers.changes():
        yield Entry(TIMER[kind], key, name, None if at is None else b"", at or 0)


# --- versions ----------------------------------------------------------------------------------------


def shapes_of(computation: Computation) -> dict[str, str]:
    """The shapes of its states, as they are written."""
    return {state.name: state.written for state in computation.states}


def check_states(states: Iterable[Any], owner: str) -> None:
    """Raise for what is not a declared state, and for two of one name."""
    seen: set[str] = set()
    for state in states:
        if not isinstance(state, Declared):
            raise BadInput(
                f"{owner} declares {state!r} as a state.", hint='Write Value("total", int), List(…) or Map(…).'
            )
        if state.name in seen:
            raise BadInput(f"{owner} declares two states {state.name!r}.", hint="Give each a name of its own.")
        seen.add(state.name)


def start_over(computation: str) -> str:
    """How to let a computation start over, for hints."""
    return f"penstock stream reset MODULE:TOPOLOGY URL {computation}"


def check_inputs(computation: Computation, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise when an input is another log than the one that the state was made from."""
    if before and now and not before.keys() & now.keys():
        raise Conflict(
            f"the state of {computation.name} was made from {', '.join(sorted(before))}; it reads "
            f"{', '.join(sorted(now))} now, from the beginning, and would count twice what it knows already.",
            hint=f"Give the computation another name, or start over with {start_over(computation.name)}.",
        )
    for log, identity in now.items():
        if is_another(before.get(log, ""), identity):
            raise Conflict(
                f"the state of {computation.name} is of another log {log!r}: it was created again since.",
                hint=f"Bring the old log back, or start over with {start_over(computation.name)}.",
            )


def check_shapes(computation: Computation, last: Change) -> None:
    """Raise if stored state does not fit the code: wrong version without upgrade(), or another shape."""
    out = f"Start over with {start_over(computation.name)}, or run the code that wrote it."
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
        check_kinds(computation, last)
        return
    declared = {state.name: state for state in computation.states}
    for name, shape in last.shapes.items():
        state = declared.get(name)
        if state is None or not state.fits(shape):
            now = "not declared any more" if state is None else f"declared as {state.shape}"
            raise SchemaMismatch(
                f"state {name!r} of {computation.name} is kept as {shape} and {now}.",
                hint=f"Raise version and override upgrade(), or use another name for the new state. {out}",
            )


def check_kinds(computation: Computation, last: Change) -> None:
    """Raise if a state is of another kind than before: ``upgrade`` is given values, not maps or windows."""
    for state in computation.states:
        shape = last.shapes.get(state.name, state.kind)
        if not shape.startswith(state.kind):
            raise SchemaMismatch(
                f"state {state.name!r} of {computation.name} is kept as {shape} and declared as {state.shape}.",
                hint=f"Use another name for the new state, or start over with {start_over(computation.name)}.",
            )


def probe(computation: Computation, cell: Cell) -> None:
    """Read a few stored values: this finds a type that changed inside before any work begins."""
    for number, (key, sub) in enumerate(cell.places()):
        for entry in cell.entries(key, sub):
            probe_entry(computation, cell, entry)
        if number >= 20:
            return


def probe_entry(computation: Computation, cell: Cell, entry: Entry) -> None:
    """Read one stored value."""
    try:
        cell.probe(entry)
    except Undecodable as cause:
        raise SchemaMismatch(
            f"state {entry.state!r} of {computation.name} has values that do not fit its type: {cause.message}",
            hint="Give new fields a default, or raise version and override upgrade(). "
            f"Start over with {start_over(computation.name)}.",
        ) from cause


def decoded_change(payload: bytes, partition: Partition, offset: int) -> Change:
    """Decode a record of the state log."""
    try:
        return msgspec.msgpack.decode(payload, type=Change)
    except msgspec.MsgspecError as cause:
        computation = partition.log.removesuffix(state_log(""))
        raise Undecodable(
            f"offset {offset} of {partition} is not a state change: {cause}.",
            hint=f"Only runners may append to it. Restore it from a backup, or {start_over(computation)}.",
            partition=str(partition), offset=offset,
        ) from cause  # fmt: skip
