"""Counts and other folds, a whole turn at once: no objects for records, states and timers on the way.

Within a turn the watermark stands still, so what a window comes to does not depend on when its state is written. It is
kept as :mod:`turn` keeps it, so that either can go on where the other was: after any error the turn is done again
record by record, which finds the one that is to blame.

Spark's own aggregations are not used: their results cannot be committed together with our offsets, their watermark is
one for the whole query, and they drop what is late.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from penstock.clock import Micros, duration_micros
from penstock.codec import BytesCodec
from penstock.errors import PayloadTooLarge, SchemaMismatch
from penstock.log.record import Partition, RecordBatch
from penstock.log.store import Commit, LogStore
from penstock.spark.running.buckets import Buckets, Kept
from penstock.spark.running.desk import Desk
from penstock.spark.running.sending import Load
from penstock.spark.running.tickets import Done, Errand
from penstock.spark.stores import logs_at
from penstock.stream.computation import Computation
from penstock.stream.context import MOST
from penstock.stream.engine.changelog import TIMER
from penstock.stream.engine.state_store import value_limit
from penstock.stream.engine.task import outputs_of, watermark_of
from penstock.stream.engine.watermark import END
from penstock.stream.operators import TOTAL, count_record, running_fold
from penstock.stream.state import fresh
from penstock.stream.validate import ResolvedTopology
from penstock.stream.windows import OpenWindow, Session, Sliding, Tumbling, Windowed, windowed_fold

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

ROWS = 200_000  # that are counted at a time
OPEN, CLOSES = "open", TIMER["event"]  # the state of windows, and their timers
Place = tuple[str, Micros]  # key and start of a window


def folder_for(computation: Computation) -> type[Folder] | None:
    """What folds for a computation, if it is one that only folds, by key and by windows known before."""
    if type(computation) is running_fold:
        return Totals
    if type(computation) is windowed_fold and not isinstance(computation.window, Session):
        return Windows
    return None


class Folder(ABC):
    """A task that folds, in a worker; kept there for its next turns."""

    def __init__(self, load: Load, task: int) -> None:
        """Nothing is read yet."""
        self.load = load
        self.index = task
        self._desk = Desk(logs_at(load.url))
        store = self._store = cast(LogStore, self._desk)
        plan = ResolvedTopology(load.topology, store, create=False, writers=load.writers)
        node = load.topology.nodes[load.name]
        resolved = plan.computation(store, node)
        self._computation = node.computation
        ((self._local, self._stream),) = node.inputs.items()
        self._coder = plan.topology.streams[self._stream].coder
        self._outputs = outputs_of(resolved)
        self._kept = node.computation.states[0].codec
        self._limit = value_limit(store.record_limit)
        self._buckets = Buckets(node.computation.version)
        self._watermark = watermark_of(resolved, task, store.now())
        self._begun = False
        self._produced = self._bytes = 0

    def is_current(self, kept: Kept | None) -> bool:
        """Whether it has exactly the state that the state store has."""
        return kept is not None and self._begun and self._buckets.mark == Buckets.mark_of(kept)

    def __len__(self) -> int:
        """How many entries of state it holds."""
        return len(self._buckets)

    def abandon(self) -> None:
        """Throw away what a turn has written aside."""
        self._desk.discard()

    def run(self, errand: Errand, kept: Kept | None) -> Done:
        """Do an errand; after an error this object is of no use any more."""
        self._desk.begin(errand.now)
        self._open(kept)
        self._produced = self._bytes = 0
        job, finish = errand.job, errand.finish
        records = sum(self._read(*job.ranges[self._stream])) if self._stream in job.ranges else 0
        self._keep()
        self._watermark.firm = max(self._watermark.firm, job.firm)
        for local, (_, then) in job.reaches.items():
            self._watermark.set_reach(local, then)
        self._watermark.move(job.silent)
        closed = self._close(self._watermark.low)
        if finish:
            closed += self._close(END)
            self._watermark.finish()
        self._put_aside()
        positions = {log: stop for log, (_, stop) in job.ranges.items()}
        self._buckets.save(self._watermark, positions)
        self._watermark.apply()
        low, highs = self._watermark.position()
        return Done(
            self.index, errand.turn, positions, self._desk.staged(), records, self._produced, closed, low=low,
            highs=highs, heard=dict(self._watermark.heard), firm=self._watermark.firm,
            promise=self._watermark.promise, next_event=self._buckets.next("event"),
            finished=finish is not None,
        )  # fmt: skip

    def _open(self, kept: Kept | None) -> None:
        assert kept is not None  # noqa: S101 - windows are state
        self._buckets.open(kept)
        if not self._begun:
            self._buckets.restore(self._watermark)
            if self._buckets.version != self._computation.version:
                raise SchemaMismatch(f"the windows of {self.load.name} are of another version.", hint="Upgrade them.")
            self._begun = True

    # --- records ---------------------------------------------------------------------------------------

    def _read(self, start: int, stop: int) -> Iterator[int]:
        """Fold what lies between two offsets; gives how many records that were, from time to time."""
        if start >= stop:
            return
        place = Partition(self._stream, self.index)
        if not self._counts_columns:
            yield from self._fold_all(place, start, stop)
            return
        from penstock.spark.batches import merged

        for columns in merged(self._store.arrow(place, start, stop), limit=ROWS):
            times = columns.column("time").cast("int64").to_numpy(zero_copy_only=False)
            if self._count(columns, times):
                self._mark(int(times.max()))
                yield columns.num_rows
            else:
                offsets = columns.column("offset")
                yield from self._fold_all(place, offsets[0].as_py(), offsets[-1].as_py() + 1)

    def _fold_all(self, place: Partition, start: int, stop: int) -> Iterator[int]:
        for batch in self._store.batches(place, start, stop):
            if len(batch):
                self._fold(batch)
                self._mark(max(batch.times()))
                yield len(batch)

    def _mark(self, time: Micros) -> None:
        self._watermark.mark(self._local, time, self._store.now())

    @property
    @abstractmethod
    def _counts_columns(self) -> bool:
        """Whether it only counts, so that nothing of a record but key and time is looked at."""

    @abstractmethod
    def _count(self, columns: pa.RecordBatch, times: np.ndarray) -> bool:
        """Count records in columns; False, and nothing done, if they have to be looked at one by one."""

    @abstractmethod
    def _fold(self, batch: RecordBatch) -> None:
        """Fold records one by one."""

    @abstractmethod
    def _keep(self) -> None:
        """Put what was folded to what was kept."""

    @abstractmethod
    def _close(self, until: Micros) -> int:
        """Produce what ends up to a time; gives how many timers that takes."""

    def _payload(self, value: Any) -> bytes:
        payload = self._kept.encode(value)
        if len(payload) > self._limit:
            raise PayloadTooLarge(f"a total has {len(payload):,} bytes.", hint="Fold less into it.")
        return payload

    # --- outputs ---------------------------------------------------------------------------------------

    def _produce(self, to: str, payload: bytes, key: str | None, time: Micros, headers: Any) -> None:
        out = self._outputs[to]
        if len(payload) > out.limit:
            raise PayloadTooLarge(f"a result has {len(payload):,} bytes.", hint="Fold less into it.")
        partition = out.known.get(key)
        out.rows[out.partition_of(key) if partition is None else partition].append(
            (payload, key, time, headers or None)
        )
        self._produced += 1
        self._bytes += len(payload)
        if self._bytes > MOST:
            self._put_aside()

    def _put_aside(self) -> None:
        made = [one for out in self._outputs.values() for one in out.take()]
        for place, records in made:
            self._store.check_records(place.log, records)
        if made:
            self._desk.transact(Commit(made, []))
        self._bytes = 0


class Windows(Folder):
    """Counts and folds over tumbling and sliding windows."""

    def __init__(self, load: Load, task: int) -> None:
        """Nothing is open yet."""
        super().__init__(load, task)
        self._piece = cast(windowed_fold, self._computation)
        window = self._window = cast(Tumbling | Sliding, self._piece.window)
        self._size = window.micros
        self._step = self._size if isinstance(window, Tumbling) else duration_micros(window.every)
        self._counts: Counter[Place] = Counter()
        self._values: dict[Place, Any] = {}

    @property
    def _counts_columns(self) -> bool:
        # Where the size is no multiple of the step, moments of one step are in different windows.
        even = self._size % self._step == 0
        return self._piece.fold is count_record and isinstance(self._coder, BytesCodec) and even

    def _count(self, columns: pa.RecordBatch, times: np.ndarray) -> bool:
        import pyarrow as pa

        lasts = times - times % self._step
        back = range(0, self._size, self._step)  # a moment's windows begin so long before the last of them
        if int(lasts.min()) - back[-1] + self._size <= self._watermark.low:
            return False  # late, some of them
        keys = columns.column("key").fill_null(b"")
        if (lasts == lasts[0]).all():
            found = keys.value_counts()
            rows = zip(found.field(0).to_pylist(), repeat(int(lasts[0])), found.field(1).to_pylist(), strict=False)
        else:
            table = pa.table({"key": keys, "last": lasts}).group_by(["key", "last"], use_threads=False)
            made = table.aggregate([([], "count_all")]).to_pydict()
            rows = zip(made["key"], made["last"], made["count_all"], strict=False)
        counts = self._counts
        for key, last, count in rows:
            name = key.decode()
            for one in back:
                counts[name, last - one] += count
        return True

    def _fold(self, batch: RecordBatch) -> None:
        size, low, starts_of, fold = self._size, self._watermark.low, self._window.starts, self._piece.fold
        decode = self._coder.decode
        for rank, (key, at, payload) in enumerate(zip(batch.keys(), batch.times(), batch.payloads(), strict=True)):
            value = decode(payload)  # also if it is only counted: what nobody can read is a failure
            starts = starts_of(at)
            open_ = [start for start in starts if start + size > low]
            if starts and not open_ and self._piece.late is not None:
                record = batch.slice(rank, rank + 1).records()[0]
                self._produce(self._piece.late, payload, key, at, record.headers)
            for start in open_:
                one = (key or "", start)  # no key and an empty one have the same state
                if fold is count_record:
                    self._counts[one] += 1
                    continue
                if start != open_[0]:
                    value = decode(payload)  # a fold may keep and change what it is given; windows share nothing
                self._values[one] = fold(self._value(one), value)

    def _value(self, place: Place) -> Any:
        """What a window has come to so far."""
        if place in self._values:
            return self._values[place]
        key, start = place
        kept = self._buckets.places(self._buckets.number(key)).get((OPEN, key, str(start)))
        return fresh(self._piece.initial) if kept is None else self._kept.decode(kept[0]).value

    def _keep(self) -> None:
        buckets, size, decode = self._buckets, self._size, self._kept.decode
        for values, added in ((self._counts, True), (self._values, False)):
            for (key, start), one in values.items():
                number = buckets.number(key)
                places = buckets.places(number)
                sub, end, value = str(start), start + size, one
                kept = places.get((OPEN, key, sub))
                if kept is None:
                    places[CLOSES, key, sub] = (b"", end)
                    buckets.touch(number, end)
                else:
                    buckets.touch(number)
                    if added:
                        value = decode(kept[0]).value + one
                places[OPEN, key, sub] = (self._payload(OpenWindow(start, end, value)), 0)
            values.clear()

    def _close(self, until: Micros) -> int:
        due: list[tuple[Micros, str, str, int]] = []
        for number in self._buckets.due("event", until):
            due += [
                (at, key, sub, number)
                for (state, key, sub), (_, at) in self._buckets.places(number).items()
                if state == CLOSES and at <= until
            ]
        due.sort()
        decode, to = self._kept.decode, self._piece.to
        encode = self._outputs[to].encode
        for _, key, sub, number in due:
            places = self._buckets.places(number)
            self._buckets.touch(number)
            del places[CLOSES, key, sub]
            payload, _ = places.pop((OPEN, key, sub))
            held = decode(payload)
            told = Windowed(key, held.start, held.end, held.value)
            self._produce(to, encode(told), key or None, held.end - 1, None)
        return len(due)


class Totals(Folder):
    """Running totals: told once per turn for every key that had records."""

    def __init__(self, load: Load, task: int) -> None:
        """Nothing is counted yet."""
        super().__init__(load, task)
        self._piece = cast(running_fold, self._computation)
        self._counts: Counter[str] = Counter()
        self._values: dict[str, Any] = {}
        self._last: dict[str, tuple[str | None, Micros, Any]] = {}  # key as it was, time and headers of the last record

    @property
    def _counts_columns(self) -> bool:
        return self._piece.fold is count_record and isinstance(self._coder, BytesCodec)

    def _count(self, columns: pa.RecordBatch, times: np.ndarray) -> bool:
        import pyarrow as pa

        keys, headers = columns.column("key"), columns.column("headers")
        if keys.null_count or headers.null_count < len(headers):
            return False
        table = pa.table({"key": keys, "time": times}).group_by("key", use_threads=False)
        made = table.aggregate([([], "count_all"), ("time", "last")]).to_pydict()
        for key, count, time in zip(made["key"], made["count_all"], made["time_last"], strict=True):
            name = key.decode()
            self._counts[name] += count
            self._last[name] = (name, time, None)
        return True

    def _fold(self, batch: RecordBatch) -> None:
        decode, fold = self._coder.decode, self._piece.fold
        for key, at, payload, headers in zip(
            batch.keys(), batch.times(), batch.payloads(), batch.headers(), strict=True
        ):
            value, name = decode(payload), key or ""
            if fold is count_record:
                self._counts[name] += 1
            else:
                held = self._values[name] if name in self._values else self._total(name)
                self._values[name] = fold(fresh(self._piece.initial) if held is None else held, value)
            self._last[name] = (key, at, headers)

    def _total(self, key: str) -> Any:
        kept = self._buckets.places(self._buckets.number(key)).get((TOTAL, key, ""))
        return None if kept is None else self._kept.decode(kept[0])

    def _keep(self) -> None:
        buckets, to = self._buckets, self._piece.to
        encode = self._outputs[to].encode
        for key, last in self._last.items():
            value = self._values[key] if key in self._values else (self._total(key) or 0) + self._counts[key]
            number = buckets.number(key)
            buckets.places(number)[TOTAL, key, ""] = (self._payload(value), 0)
            buckets.touch(number)
            self._produce(to, encode(value), *last)
        for one in (self._counts, self._values, self._last):
            one.clear()

    def _close(self, until: Micros) -> int:
        return 0
