"""The fold path: totals and windows fold all records of a batch first, and touch the state of a key once.

Records are read as Arrow columns. Counts, and sums and extremes of whole numbers, are folded in columns; other folds
are called record by record, in order, on the batch's value so far. Then the results are put into the state as the
computation itself would do it, and the engine closes windows and makes the checkpoint. So the state and every result
are those of the code path.

Whatever cannot be folded exactly raises: a record that cannot be read, a fold that fails, a key that is not text. Then
nothing has happened, and the batch goes through the code path, which finds the bad record.

Arrow and numpy are imported when they are needed: this module is loaded where nothing may start threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.clock import Micros
from penstock.codec import BytesCodec, Codec, JsonCodec
from penstock.errors import PayloadTooLarge
from penstock.log.record import Headers, Partition
from penstock.log.store import LogStore
from penstock.spark.runner.micro_batch import TaskPlan
from penstock.stream.computation import Computation
from penstock.stream.context import Output
from penstock.stream.engine.blocks import ABSENT
from penstock.stream.engine.checkpoint import Folded
from penstock.stream.engine.folding import (
    Aggregate,
    LastOfKeys,
    NotExact,
    ValueSteps,
    aggregate_of,
    can_fold,
    fold_step_of,
    produce_totals,
    put_to_totals,
    put_to_windows,
)
from penstock.stream.engine.task import Task
from penstock.stream.engine.window_cell import Span
from penstock.stream.explaining import path_in_engine
from penstock.stream.operators import TOTAL, FieldFold, running_fold
from penstock.stream.state import fresh
from penstock.stream.windows import OPEN, Session, windowed_fold

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FOLD, CODE = "fold", "code"
ROWS = 100_000  # that are folded at a time
FEW = 100  # records that are sooner processed than Arrow is imported
FAR = 1 << 61  # microseconds; beyond any calendar, and beyond what columns of times hold
_UNCHANGING = frozenset({int, float, str, bytes, bool, type(None)})


class RecordColumns:
    """Some records of one partition, or what the steps of a chain make of them."""

    def __init__(self, batch: pa.RecordBatch, codec: Codec[Any], before: ValueSteps | None) -> None:
        """Take a batch of the log; ``before`` are the steps between the input and the fold."""
        self.keys = batch.column("key")
        self.times: np.ndarray = batch.column("time").cast("int64").to_numpy(zero_copy_only=False)
        self.headers = batch.column("headers")
        self.read = batch.num_rows  # before any step
        self.newest = int(self.times.max())
        self._payloads: Any = batch.column("value") if "value" in batch.schema.names else None
        self._codec = codec
        self._values: list[Any] | None = None
        if int(self.times.min()) < -FAR or self.newest > FAR:
            raise NotExact("a time is beyond every calendar.")
        if before is not None:
            import numpy as np

            self._values, passed = before.run(self.decoded())
            ranks = np.fromiter(passed, np.int64, len(passed))
            self.keys, self.headers, self.times = self.keys.take(ranks), self.headers.take(ranks), self.times[ranks]
        self.count = len(self.times)

    def decoded(self) -> list[Any]:
        """The records, decoded for this call alone."""
        payloads = self._payloads.to_pylist()
        if isinstance(self._codec, JsonCodec):
            return self._codec.decode_many(payloads)
        return list(map(self._codec.decode, payloads))

    def values(self) -> list[Any]:
        """The values of the records."""
        return self.decoded() if self._values is None else self._values

    def value(self, rank: int) -> Any:
        """One value."""
        return self._codec.decode(self._payloads[rank].as_py()) if self._values is None else self._values[rank]

    def payload(self, rank: int, output: Output) -> bytes:
        """One value as it is passed on: a record of the log as it is."""
        if self._values is not None:
            return output.encode(self._values[rank])
        payload: bytes = self._payloads[rank].as_py()
        self._codec.decode(payload)  # one that cannot be read is a failure
        return payload

    def check_readable(self) -> None:
        """Raise for a record that cannot be read: it is a failure, even if it is only counted."""
        if self._values is None and not isinstance(self._codec, BytesCodec):
            self.decoded()

    @cached_property
    def coded_keys(self) -> tuple[pa.Array, pa.Array]:
        """A number for each key, and the keys; no key has the state of the empty one."""
        coded = self.keys.fill_null(b"").dictionary_encode()
        return coded.indices, coded.dictionary.cast("string")  # raises for a key that is not text

    def last_of_keys(self) -> Iterable[tuple[str, tuple[str | None, Micros, Headers | None]]]:
        """Key, time and headers of the last record of each key, in the order in which the keys come first."""
        codes, known = self.coded_keys
        keys = known.to_pylist()
        ranks = dict(zip(codes.to_pylist(), range(self.count), strict=True))  # the last one of a code stays
        times = self.times[list(ranks.values())].tolist()
        named = [keys[code] for code in ranks]
        if not self.keys.null_count and self.headers.null_count == self.count:
            return zip(named, zip(named, times, repeat(None)), strict=False)
        places = ((self.key(rank), time, self.header(rank)) for rank, time in zip(ranks.values(), times, strict=True))
        return zip(named, places, strict=True)

    def texts(self) -> list[str]:
        """The key of each record."""
        return ["" if key is None else key.decode() for key in self.keys.to_pylist()]

    def key(self, rank: int) -> str | None:
        """The key of one record, as the log has it."""
        key = self.keys[rank].as_py()
        return None if key is None else key.decode()

    def header(self, rank: int) -> Headers | None:
        """The headers of one record."""
        blob = self.headers[rank].as_py()
        return msgspec.msgpack.decode(blob) if blob else None


class FoldPath:
    """Folds the batches of one task."""

    def __init__(self, store: LogStore, computation: Computation, codec: Codec[Any], before: ValueSteps | None) -> None:
        """``codec`` is that of the input, ``before`` the steps between the input and the fold."""
        self._store = store
        self._codec = codec
        self._before = before
        fold: Any = cast(running_fold | windowed_fold, computation).fold
        self._of: Callable[[Any], Any] | None = fold.of if isinstance(fold, FieldFold) else None
        self._aggregate = aggregate_of(computation)
        self._known = None if self._aggregate is None else Aggregate(cast(Any, computation), codec)
        self._is_approx = isinstance(fold, FieldFold) and fold.approx
        self._fold = fold
        # What is only counted is not even copied, unless somebody reads it on the way.
        self.reads_values = self._aggregate != "count" or before is not None or not isinstance(codec, BytesCodec)

    def columns(self, plan: TaskPlan, log: str) -> Iterator[RecordColumns]:
        """The records of a plan."""
        start, stop = plan.ranges.get(log, (0, 0))
        if start < stop:
            from penstock.spark.datasource.arrow_batches import merged

            batches = self._store.arrow(Partition(log, plan.index), start, stop)
            if not self.reads_values:
                batches = (batch.select(["key", "time", "headers"]) for batch in batches)
            for batch in merged(batches, limit=ROWS):
                if batch.num_rows:
                    yield RecordColumns(batch, self._codec, self._before)

    def numbers(self, columns: RecordColumns) -> pa.Array:
        """The values to aggregate, as a column of whole numbers, or of floats if order does not matter. Else raises."""
        import pyarrow as pa

        values: Iterable[Any] = columns.values()
        listed = list(values if self._of is None else map(self._of, values))
        types = set(map(type, listed))
        if self._is_approx and float in types and types <= {int, float}:
            return pa.array(list(map(float, listed)), pa.float64())
        if types != {int}:
            raise NotExact("not only whole numbers.")
        try:
            numbers = pa.array(listed, pa.int64())
        except OverflowError as cause:
            raise NotExact("numbers beyond 64 bits.") from cause
        if max(map(abs, (min(listed), max(listed)))) * len(listed) >= 1 << 62:
            raise NotExact("sums beyond 64 bits.")
        return numbers

    def grouped(self, columns: RecordColumns, more: Mapping[str, Any]) -> pa.Table:
        """What the records come to for each key and ``more``: these columns, and ``partial``. Else raises."""
        import pyarrow as pa

        codes, keys = columns.coded_keys
        by = ["key", *more]
        table, how = {"key": codes, **more}, "count_all"
        if self._aggregate == "count":
            columns.check_readable()
            folded = pa.table(table).group_by(by, use_threads=False).aggregate([([], how)])
        else:
            table["number"] = self.numbers(columns)
            how = f"number_{self._aggregate}"
            folded = pa.table(table).group_by(by, use_threads=False).aggregate([("number", self._aggregate)])
        columns_made = [keys.take(folded["key"]), *(folded[name] for name in more), folded[how]]
        return pa.table(columns_made, [*by, "partial"])

    def together(self, tables: list[pa.Table]) -> list[pa.Table]:
        """Several groupings as one, in which a key comes once, if that is exact."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(tables) < 2 or len({table.schema.field("partial").type for table in tables}) > 1:
            return tables
        whole = pa.concat_tables(tables)
        how = "sum" if self._aggregate == "count" else str(self._aggregate)
        bounds = pc.min_max(whole["partial"]).as_py()
        if how == "sum" and max(map(abs, bounds.values())) * len(tables) >= 1 << 62:
            return tables
        by = [name for name in whole.column_names if name != "partial"]
        folded = whole.group_by(by, use_threads=False).aggregate([("partial", how)])
        return [folded.select([*by, f"partial_{how}"]).rename_columns(whole.column_names)]


class FoldWindows(FoldPath):
    """Folds over tumbling and sliding windows."""

    def __init__(self, store: LogStore, computation: Any, codec: Codec[Any], before: ValueSteps | None) -> None:
        """Nothing is folded yet."""
        super().__init__(store, computation, codec, before)
        self._windows: windowed_fold = computation
        self.reads_values |= self._windows.late is not None or bool(computation.size % computation.every)
        self._size = computation.size
        self._every = computation.every

    def run(self, task: Task, plan: TaskPlan, local: str, log: str) -> Folded:
        """Fold the records of a plan, and put the results into the state of a task."""
        count, newest = 0, None
        groups: list[pa.Table] = []
        for columns in self.columns(plan, log):
            count += columns.read
            newest = max(columns.newest, newest if newest is not None else -FAR)
            if not columns.count:
                continue
            self._pass_on_late(task, columns)
            try:
                groups.append(self._in_columns(columns))
            except NotExact:
                self._put(task, groups)  # what came before goes first
                groups = []
                self._one_by_one(task, columns)
        self._put(task, groups)
        return Folded(count, local, newest)

    def _in_columns(self, columns: RecordColumns) -> pa.Table:
        """The value of the records for each key and step."""
        if self._aggregate is None or self._size % self._every:
            raise NotExact("moments of one step are in different windows.")
        return self.grouped(columns, {"last": columns.times - columns.times % self._every})

    def _put(self, task: Task, groups: list[pa.Table]) -> None:
        for group in self.together(groups):
            steps: dict[Micros, dict[str, Any]] = {}
            for key, last, partial in zip(*(group[name].to_pylist() for name in group.column_names), strict=True):
                steps.setdefault(last, {})[key] = partial
            for last, partials in steps.items():
                put_to_windows(task.ctx, self._windows, cast(Aggregate, self._known), last, partials)

    def _one_by_one(self, task: Task, columns: RecordColumns) -> None:
        """Call the fold for every record. Each window gets a copy of a value that the fold may change."""
        fold, size, every, low = self._fold, self._size, self._every, task.watermark.low
        ctx = task.ctx
        opened = ctx.windows(OPEN)
        for rank, (key, time) in enumerate(zip(columns.texts(), columns.times.tolist(), strict=True)):
            ctx.key_text = key
            value = columns.value(rank)
            starts = range(time - time % every, time - size, -every)
            is_shared = False
            for start in reversed(starts):
                if start + size <= low:
                    continue
                if is_shared and value.__class__ not in _UNCHANGING:
                    value = columns.value(rank)
                is_shared = True
                window = Span(start + size, start)
                held = opened.get(window, ABSENT)
                opened.set(window, fold(fresh(self._windows.initial) if held is ABSENT else held, value))

    def _pass_on_late(self, task: Task, columns: RecordColumns) -> None:
        """Pass on records whose windows have all ended, unchanged."""
        import numpy as np

        to = self._windows.late
        if to is None:
            return
        lasts = columns.times - columns.times % self._every
        is_in_a_window = columns.times - lasts < self._size
        late = np.flatnonzero(is_in_a_window & (lasts + self._size <= task.watermark.low))
        output = task.outputs[to]
        for rank in late.tolist():
            payload = columns.payload(rank, output)
            produce(output, payload, columns.key(rank), int(columns.times[rank]), columns.header(rank))


class FoldTotals(FoldPath):
    """Running totals: produced once per batch for every key that had records."""

    def __init__(self, store: LogStore, computation: Any, codec: Codec[Any], before: ValueSteps | None) -> None:
        """Nothing is folded yet."""
        super().__init__(store, computation, codec, before)
        self._totals: running_fold = computation

    def run(self, task: Task, plan: TaskPlan, local: str, log: str) -> Folded:
        """Fold the records of a plan, put the totals into the state of a task, and produce them."""
        count, newest = 0, None
        last: LastOfKeys = {}
        groups: list[pa.Table] = []
        for columns in self.columns(plan, log):
            count += columns.read
            newest = max(columns.newest, newest if newest is not None else -FAR)
            if not columns.count:
                continue
            try:
                groups.append(self._in_columns(columns))
            except NotExact:
                self._put(task, groups)  # what came before goes first
                groups = []
                self._one_by_one(task, columns)
            last.update(columns.last_of_keys())
        self._put(task, groups)
        produce_totals(task.ctx, self._totals, last)
        return Folded(count, local, newest)

    def _in_columns(self, columns: RecordColumns) -> pa.Table:
        """The value of the records for each key."""
        if self._aggregate is None:
            raise NotExact("a fold of its own.")
        return self.grouped(columns, {})

    def _put(self, task: Task, groups: list[pa.Table]) -> None:
        for group in self.together(groups):
            keys, partials = group["key"].to_pylist(), group["partial"].to_pylist()
            put_to_totals(task.ctx, cast(Aggregate, self._known), keys, partials)

    def _one_by_one(self, task: Task, columns: RecordColumns) -> None:
        ctx, fold, initial = task.ctx, self._fold, self._totals.initial
        total = ctx.value(TOTAL)
        for key, value in zip(columns.texts(), columns.values(), strict=True):
            ctx.key_text = key
            held = total.get(None)
            total.set(fold(fresh(initial) if held is None else held, value))


def produce(output: Output, payload: bytes, key: str | None, time: Micros, headers: Headers | None) -> None:
    """Append a record to an output; visible with the checkpoint."""
    if len(payload) > output.limit:
        raise PayloadTooLarge(f"a result has {len(payload):,} bytes.", hint="Fold less into it.")
    partition = output.known.get(key)
    if partition is None:
        partition = output.partition_of(key)
    output.rows[partition].append((payload, key, time, headers))


def fold_path_of(computation: Computation) -> type[FoldTotals] | type[FoldWindows] | None:
    """The fold path of a computation, or None if only the code path can run it."""
    step, before = fold_step_of(computation)
    if before is not None and can_fold(computation) is None:
        return None  # a fold of its own may change the values, which the steps before it share
    if type(step) is running_fold:
        return FoldTotals
    if type(step) is windowed_fold and not (
        isinstance(step.window, Session) or step.folds_records or step.allowed_lateness
    ):
        return FoldWindows
    return None


def open_fold_path(store: LogStore, computation: Computation, codec: Codec[Any]) -> FoldTotals | FoldWindows | None:
    """What folds the batches of a computation whose input has this codec, or None."""
    fold_path = fold_path_of(computation)
    step, before = fold_step_of(computation)
    return None if fold_path is None else fold_path(store, step, codec, before)


def path_of(computation: Computation) -> tuple[str, str]:
    """The path that a computation takes, and why; for people."""
    step, before = fold_step_of(computation)
    if fold_path_of(computation) is None and can_fold(computation) is not None:
        return CODE, "sessions, which are folded before their state is touched if all are whole numbers"
    if fold_path_of(computation) is None:
        return path_in_engine(computation)
    behind = "" if before is None else ", behind the other steps of the chain"
    aggregate = aggregate_of(step)
    if aggregate is None:
        return FOLD, f"its own function is called for every record, over columns that were decoded together{behind}"
    if aggregate == "count":
        return FOLD, f"counted in columns{behind}"
    return FOLD, f"{aggregate} in columns if all are whole numbers, else record by record{behind}"
