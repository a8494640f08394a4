"""Window folds of many records at once: the state of a key's window is asked for and kept once per turn.

Within a turn the watermark stands still, so what a window comes to does not depend on when its state is written. Only
if all goes well: after any error the turn is done again record by record, which finds the one that is to blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast, overload

from penstock.clock import Micros
from penstock.codec import BytesCodec
from penstock.log.record import Record, RecordBatch
from penstock.stream.computation import Computation
from penstock.stream.state import fresh
from penstock.stream.task import Task
from penstock.stream.watermark import LOWEST
from penstock.stream.windows import Held, Session, Tumbling, one_more, windowed_fold
from penstock.stream.work import Work

Place = tuple[str, Micros]  # key and start of a window


class Records(Sequence[Record[Any]]):
    """The records of a batch, made when somebody looks at them."""

    def __init__(self, batch: RecordBatch) -> None:
        self.batch = batch
        self._made: list[Record[Any]] | None = None

    def _all(self) -> list[Record[Any]]:
        if self._made is None:
            self._made = self.batch.records()
        return self._made

    def __len__(self) -> int:
        """How many."""
        return len(self.batch)

    def __iter__(self) -> Iterator[Record[Any]]:
        """One by one."""
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> Record[Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[Record[Any]]: ...
    def __getitem__(self, at: int | slice) -> Record[Any] | list[Record[Any]]:
        """One or some of them."""
        return self._all()[at]


def columns(task: Task, stream: str, batch: RecordBatch) -> Work:
    """A batch as work whose records need not be made."""
    records = cast(list[Record[Any]], Records(batch))
    return Work(task, stream, batch.partition, records, list(batch.keys()), list(batch.times()), any(batch.headers()))


class Folding:
    """What the records of a turn add to their windows."""

    def __init__(self, task: Task) -> None:
        """Nothing yet; only for a computation that :func:`can_fold`."""
        self._task = task
        self._piece = cast(windowed_fold, task.computation)
        self._window = cast(Tumbling, self._piece.window)
        self._size = self._window.micros
        self._counts: Counter[tuple[str | None, Micros]] = Counter()
        self._open: dict[Place, Held] = {}
        self._new: list[Place] = []  # windows that had no record before this turn

    def add(self, work: Work) -> None:
        """Fold records; raises what the fold or the codec raises."""
        batch = cast(Records, work.records).batch
        if self._piece.fold is not one_more:
            self._fold(work, [batch.codec.decode(one) for one in batch.payloads()])
            return
        if not isinstance(batch.codec, BytesCodec):
            for one in batch.payloads():
                batch.codec.decode(one)  # a record that nobody can read is not counted, but a failure
        size, low = self._size, self._task.ctx.low
        if isinstance(self._window, Tumbling):
            starts = [at - at % size for at in work.times]
            if low == LOWEST or min(starts) + size > low:
                self._counts.update(zip(work.keys, starts, strict=True))
                return
        self._fold(work, None)

    def _fold(self, work: Work, values: list[Any] | None) -> None:
        """One by one; without values they are counted."""
        size, low, starts_of = self._size, self._task.ctx.low, self._window.starts
        late: list[int] = []
        for rank, (key, at) in enumerate(zip(work.keys, work.times, strict=True)):
            starts = starts_of(at)
            open_ = [start for start in starts if start + size > low]
            if starts and not open_:
                late.append(rank)
            for start in open_:
                if values is None:
                    self._counts[key, start] += 1
                else:
                    held = self._held(key, start)
                    held.value = self._piece.fold(held.value, values[rank])
        if late and self._piece.late is not None:
            self._pass_on(work, late, self._piece.late)

    def _held(self, key: str | None, start: Micros) -> Held:
        """A window as it is kept, or a new one."""
        place = (key or "", start)  # no key and an empty one have the same state
        found = self._open.get(place)
        if found is None:
            ctx = self._task.ctx
            ctx.key = place[0]
            kept = ctx.map("open").get(str(start))
            if kept is None:
                self._new.append(place)
            value = fresh(self._piece.initial) if kept is None else kept.value
            found = self._open[place] = Held(start, start + self._size, value)
        return found

    def _pass_on(self, work: Work, ranks: list[int], stream: str) -> None:
        ctx = self._task.ctx
        ctx.of_batch(work.stream, has_headers=work.has_headers, strict=False)
        for rank in ranks:
            ctx.record = work.records[rank]
            ctx.own_key = work.keys[rank]
            ctx.key = ctx.own_key or ""
            ctx.produce(stream, ctx.record)

    def keep(self) -> None:
        """Put what was folded into the state, and set the timers of windows that are new; it is used up then."""
        for (key, start), count in self._counts.items():
            held = self._held(key, start)
            held.value += count
        ctx = self._task.ctx
        ctx.of_batch("", has_headers=False, strict=False)
        ctx.now = self._task.store.now()
        for ctx.key, start in self._new:
            ctx.set_timer(start + self._size, str(start))
        cell = ctx.map("open")
        for (ctx.key, start), held in self._open.items():
            cell.set(str(start), held)


def can_fold(computation: Computation) -> bool:
    """Whether it folds windows whose bounds do not depend on the records."""
    return type(computation) is windowed_fold and not isinstance(computation.window, Session)
