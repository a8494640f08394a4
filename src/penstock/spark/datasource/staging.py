"""Staging, in a task that writes to logs: rows are distributed over partitions and written aside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import check_time
from penstock.errors import BadInput
from penstock.log.partitioner import partitioner
from penstock.log.protocol import Staged
from penstock.log.record import from_arrow
from penstock.log.settings import LogSettings
from penstock.log.store import LogStore
from penstock.names import check_name
from penstock.spark.datasource.arrow_batches import header_blobs

_SIZED = ("value", "key", "headers")  # what counts against the limit of a record
KNOWN = 100_000  # keys whose partitions are remembered
SHORT = 1 << 16  # partitions whose numbers fit two bytes


class Staging:
    """Writes Arrow batches aside, for one log or for those that a column ``log`` names."""

    def __init__(self, store: LogStore, log: str | None, first: int) -> None:
        """``first`` is the partition of the first record without a key, so that tasks begin at different partitions."""
        self.store = store
        self.log = log
        self._next = first
        self._staged: dict[str, _StagedLog] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the column value, and optionally key, partition, time, headers and log."""
        if not batch.num_rows:
            return
        if self.log is not None:
            self._staged_log(self.log).add(batch)
            return
        names = batch.column("log")
        for name in pc.unique(names).to_pylist():
            if name is None:
                raise BadInput("a row names no log: its column log is null.", hint="Say for every row where it goes.")
            self._staged_log(name).add(batch.filter(pc.equal(names, name)))

    def close(self) -> list[Staged]:
        """Close the stages. Returns what the transaction commits; logs without records have none."""
        return [staged.stage.close() for staged in self._staged.values()]

    def discard(self) -> None:
        """Discard everything that was staged."""
        for staged in self._staged.values():
            staged.stage.discard()

    def _staged_log(self, name: str) -> _StagedLog:
        staged = self._staged.get(name)
        if staged is None:
            settings = self.store.settings(check_name(name, kind="log"))
            staged = self._staged[name] = _StagedLog(self.store, settings, self._next)
        return staged


class _Spots(dict[bytes, int]):
    """A cache of the partitions of keys: many rows have the same key."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._hash = partitioner(settings.partitioner)
        self._partitions = settings.partitions

    def __missing__(self, key: bytes) -> int:
        partition = self[key] = self._hash(key, self._partitions)
        return partition

    def of(self, keys: Sequence[bytes]) -> np.ndarray:
        if len(self) > KNOWN:
            self.clear()
        return np.fromiter(map(self.__getitem__, keys), np.int64, len(keys))


class _StagedLog:
    """Distributes the rows of one log over its partitions."""

    def __init__(self, store: LogStore, settings: LogSettings, first: int) -> None:
        self.store = store
        self.settings = settings
        self.stage = store.stage(settings.name)
        self._next = first
        self._spots = _Spots(settings)

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode the columns and write them to their partitions."""
        records = self._records(batch)
        self._check(records)
        count = self.settings.partitions
        places = self._places(batch, records)
        if places is None:
            self.stage.append_arrow([(self._next % count, records)])
            self._next += 1
            return
        # Of numbers as short as these NumPy sorts the digits, in a quarter of the time.
        order = np.argsort(places.astype(np.uint16) if count <= SHORT else places, kind="stable")
        sizes = np.bincount(places, minlength=count)
        parts = []
        begin = 0
        for index, size in enumerate(sizes.tolist()):
            if size:
                parts.append((index, records.take(pa.array(order[begin : begin + size]))))
                begin += size
        self.stage.append_arrow(parts)

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        columns = {"value": batch.column("value").cast(pa.binary())}
        if "key" in names:
            columns["key"] = batch.column("key").cast(pa.binary())
        if "time" in names:
            times = batch.column("time").cast(pa.timestamp("us", tz="UTC"))
            if times.null_count:
                times = times.fill_null(pa.scalar(self.store.now(), pa.int64()).cast(times.type))
            columns["time"] = times
        if "headers" in names:
            blobs = header_blobs(batch.column("headers"))
            if blobs is not None:
                columns["headers"] = blobs
        return pa.RecordBatch.from_pydict(columns)

    def _check(self, records: pa.RecordBatch) -> None:
        values = records.column("value")
        if values.null_count:
            raise BadInput(
                f"a record for log {self.settings.name} has no value.", hint='Leave such rows out: "value IS NOT NULL".'
            )
        names = records.schema.names
        sizes = [pc.max(pc.binary_length(records.column(name))).as_py() or 0 for name in _SIZED if name in names]
        if (
            sum(sizes) > self.store.record_limit
        ):  # only if the longest values together exceed the limit can a record be too large
            self.store.check_records(self.settings.name, from_arrow(records))
        if "time" in names:
            ends = pc.min_max(records.column("time").cast(pa.int64())).as_py()
            for micros in ends.values():
                check_time(micros, name=f"column time: {micros} microseconds since 1970")

    def _places(self, batch: pa.RecordBatch, records: pa.RecordBatch) -> np.ndarray | None:
        """The partition of every row, or None for a whole batch that may go anywhere."""
        count = self.settings.partitions
        names = records.schema.names
        given = batch.column("partition") if "partition" in batch.schema.names else None
        keys = records.column("key") if "key" in names else None
        if given is None and (keys is None or keys.null_count == len(keys)):
            return None
        if count == 1 and given is None:
            return np.zeros(len(records), np.int64)
        places = None
        if keys is not None and keys.null_count < len(keys):
            coded = keys.dictionary_encode()
            hashed = self._spots.of(coded.dictionary.to_pylist())
            if given is None and not keys.null_count:
                places_of_rows: np.ndarray = hashed[coded.indices.to_numpy()]
                return places_of_rows
            ranks = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            places = np.where(ranks >= 0, hashed[ranks], -1)
        if places is None:
            places = np.full(len(records), -1, np.int64)
        if given is not None:
            ends = pc.min_max(given.cast(pa.int64())).as_py()
            wrong = next((index for index in ends.values() if index is not None and not 0 <= index < count), None)
            wanted = given.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            if wrong is not None:
                raise BadInput(
                    f"log {self.settings.name} has no partition {wrong}; it has {count}.",
                    hint=f"Use 0 to {count - 1}, or null to have it chosen by the key.",
                )
            places = np.where(wanted >= 0, wanted, places)
        open_ = np.flatnonzero(places < 0)
        if len(open_):
            places[open_] = (np.arange(len(open_)) + self._next) % count
            self._next += len(open_)
        return places
