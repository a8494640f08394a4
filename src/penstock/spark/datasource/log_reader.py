"""Reading a log: ranges of offsets as Arrow batches, for a batch or micro-batch by micro-batch.

The driver asks the store where the log begins and ends and deals out ranges; tasks read theirs and nothing else, so
what a batch holds is fixed before it runs, and a repeated one holds the same. Offsets are valid
in one log only, so whatever stores them (a checkpoint, a task) also stores the identity of the log.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import BadInput, Conflict, OffsetOutOfRange, PartitionNotFound, StoreUnavailable
from penstock.ids import is_another
from penstock.log.record import Bounds, Partition
from penstock.log.store import LogStore
from penstock.spark.datasource.arrow_batches import arrow_fields, header_maps, in_calendar, merged
from penstock.spark.datasource.columns import LOG_COLUMNS
from penstock.spark.datasource.options import Options, read_moment, read_offsets
from penstock.spark.datasource.payloads import PAYLOAD_COLUMNS, Payloads
from penstock.spark.datasource.pushdown import micros_of, span_of, values_of
from penstock.spark.stores import logs_at

Ends = dict[int, int]
EARLIEST, LATEST = -(1 << 63), 1 << 63  # outside of all times


class LogRange(InputPartition):
    """Some records of one partition: what one task reads."""

    def __init__(self, identity: str, partition: int, start: int, stop: int) -> None:
        """From ``start`` to before ``stop`` of the log that the driver saw."""
        super().__init__(partition)
        self.identity = identity
        self.partition = partition
        self.start = start
        self.stop = stop


class _LogRanges:
    """The common part of batch and stream: options, positions, and the reading of a range."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Read one log. Raises if it does not exist."""
        self.options = options
        self.log = options.needs_log()
        self.payloads = Payloads.of(options, schema)
        self.fields = arrow_fields(schema, LOG_COLUMNS, PAYLOAD_COLUMNS if self.payloads is not None else ())
        logs_at(options.url).settings(self.log)

    def identity(self) -> str:
        """Which log this is, whatever its name."""
        return logs_at(self.options.url).identity(self.log)

    def bounds(self) -> dict[int, Bounds]:
        """The bounds of the chosen partitions."""
        bounds = logs_at(self.options.url).bounds(self.log)
        chosen = self.options.partitions
        for index in chosen or ():
            if index >= len(bounds):
                raise PartitionNotFound(
                    f"log {self.log} has no partition {index}; it has {len(bounds)}.",
                    hint=f"Use 0 to {len(bounds) - 1}.",
                )
        return {
            partition.partition: partition for partition in bounds if chosen is None or partition.partition in chosen
        }

    def place(self, what: str, text: str) -> Ends:
        """An option start or stop as offsets."""
        bounds = self.bounds()
        if text in ("earliest", "latest"):
            return {
                index: partition.start if text == "earliest" else partition.end for index, partition in bounds.items()
            }
        given = read_offsets(text, what)
        if given is not None:
            for index in given:
                if index not in bounds:
                    raise PartitionNotFound(
                        f"{what} names partition {index}, which is not read from log {self.log}.",
                        hint=f"Read are: {', '.join(map(str, bounds))}.",
                    )
            edge = {index: partition.start if what == "start" else partition.end for index, partition in bounds.items()}
            return {index: given.get(index, at) for index, at in edge.items()}
        moment = read_moment(text)
        assert moment is not None  # noqa: S101 - the options were looked at
        store = logs_at(self.options.url)
        return {index: store.offset_at(Partition(self.log, index), moment).value for index in bounds}

    def ranges(self, identity: str, starts: Mapping[int, int], stops: Mapping[int, int]) -> list[InputPartition]:
        """Tasks for the records in between. Records that are gone raise, or are left out if the options allow it.

        It covers all partitions, chosen or not: a batch that was begun stays as it was.
        """
        bounds = {partition.partition: partition for partition in logs_at(self.options.url).bounds(self.log)}
        skip = self.options.lost == "skip"
        pieces: list[tuple[int, int, int]] = []
        for index, stop in sorted(stops.items()):
            if starts.get(index) == stop:
                continue
            partition = bounds.get(index)
            if partition is None:
                raise PartitionNotFound(
                    f"log {self.log} no longer has partition {index}.",
                    hint="Was it created again? Start a new checkpoint.",
                )
            start = starts.get(index, partition.start)
            if start < partition.start:
                if not skip:
                    raise lost(self.log, index, start, min(partition.start, stop))
                start = partition.start
            if stop > partition.end or start > partition.end:
                if not skip:
                    raise shorter(self.log, partition, max(start, stop))
                stop = min(stop, partition.end)  # noqa: PLW2901
            pieces += [(index, low, high) for low, high in self.cut(index, start, stop) if low < high]
        return [LogRange(identity, *piece) for piece in _split(pieces, self.options.tasks or 0)]

    def cut(self, index: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of a range that have to be read."""
        return [(start, stop)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the records of a range."""
        if isinstance(partition, LogRange):  # Spark makes one of its own for an empty batch
            store = logs_at(self.options.url)
            self._check_same(store, partition)
            for batch in merged(self._records(store, partition)):
                yield self._shaped(batch)
            self._check_same(
                store, partition
            )  # the log may have been replaced meanwhile, and the records be of another

    def _check_same(self, store: LogStore, wanted: LogRange) -> None:
        if is_another(wanted.identity, store.identity(self.log)):
            raise Conflict(
                f"log {self.log} as seen on host {socket.gethostname()} is not the log that the driver saw.",
                hint="Was it created again meanwhile? Do driver and executors see the same store?",
            )

    def _records(self, store: LogStore, wanted: LogRange) -> Iterator[pa.RecordBatch]:
        place = Partition(self.log, wanted.partition)
        start = wanted.start
        while start < wanted.stop:
            bounds = store.bounds_of(place)
            if bounds.end < wanted.stop and self.options.lost == "fail":
                raise StoreUnavailable(
                    f"{place} ends at {bounds.end} as seen here, but the driver saw {wanted.stop}.",
                    hint="Do driver and executors see the same store?",
                )
            try:
                for batch in store.arrow(place, start, wanted.stop):
                    if batch.num_rows:
                        yield batch
                        start = batch.column(1)[-1].as_py() + 1
                return
            except OffsetOutOfRange:
                # Retention was faster than the task.
                now = store.bounds_of(place).start
                if self.options.lost == "fail":
                    raise lost(self.log, wanted.partition, start, min(now, wanted.stop)) from None
                start = max(now, start + 1)

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns: list[Any] = []
        parsed = self.payloads.parse(batch.column("value")) if self.payloads is not None else {}
        for field in self.fields:
            if field.name in parsed:
                columns.append(parsed[field.name])
            elif field.name == "log":
                columns.append(pa.repeat(pa.scalar(self.log, pa.string()), batch.num_rows))
            elif field.name == "headers":
                columns.append(header_maps(batch.column("headers")))
            elif field.name == "time":
                columns.append(in_calendar(batch.column("time")))
            else:
                columns.append(batch.column(field.name))
        return pa.RecordBatch.from_arrays(columns, schema=self.fields)


class LogReader(_LogRanges, DataSourceReader):
    """A log, or a part of it, as it is now."""

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of offsets between start and stop."""
        identity = self.identity()
        starts = self.place("start", self.options.start or "earliest")
        stops = self.place("stop", self.options.stop or "latest")
        return self.ranges(identity, starts, stops)


class FilteringLogReader(LogReader):
    """A log reader that skips what the query's filters rule out: by partition, offset and time."""

    filters: tuple[Filter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember the filters. Spark applies them again to the rows that are left."""
        self.filters = tuple(filters)
        return filters

    def cut(self, index: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of a range that may hold matching rows."""
        chosen = values_of(self.filters, "partition")
        low, high = span_of(self.filters, "offset").within(start, stop)
        if low >= high or (chosen is not None and index not in chosen):
            return []
        times = span_of(self.filters, "time", micros_of)
        if not times.is_bounded:
            return [(low, high)]
        since, until = times.within(EARLIEST, LATEST)
        store = logs_at(self.options.url)
        return store.ranges_in_time(Partition(self.log, index), (low, high), since, until)


class LogStreamReader(_LogRanges, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A log that is followed. An offset is which log it is, and what each partition of it is read up to."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Not ended anywhere yet."""
        super().__init__(options, schema)
        self._final: Ends | None = None  # the ends at which trigger AvailableNow stops

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        return self._offset(self.identity(), self.place("start", self.options.start or "earliest"))

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a batch reads."""
        return ReadAllAvailable() if self.options.limit is None else ReadMaxRows(self.options.limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the current end."""
        self._final = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of the log, for the progress report."""
        return self._offset(self.identity(), self._ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        identity = self._same(start)
        known = _ends_of(start)
        bounds = self.bounds()
        ends = {index: partition.end for index, partition in bounds.items()}
        # A partition that is new is read from its beginning.
        begin = {index: known.get(index, bounds[index].start) for index in ends}
        if self._final is not None:  # what is new since then is for the next query
            ends = {index: min(end, self._final.get(index, begin[index])) for index, end in ends.items()}
        for index, at in begin.items():
            if at > bounds[index].end and self.options.lost == "fail":
                raise shorter(self.log, bounds[index], at)
            if self._final is not None:  # a query that went on while this one was prepared
                ends[index] = max(ends[index], min(at, bounds[index].end))
        if isinstance(limit, ReadMaxRows):
            first = {index: max(at, bounds[index].start) for index, at in begin.items()}
            ends = rationed(first, ends, limit.max_rows)
        # Partitions that are not chosen this time stay where they were.
        return self._offset(identity, {**known, **ends})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one batch."""
        self._same(start)
        return self.ranges(self._same(end), _ends_of(start), _ends_of(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the group's offsets, if one is named, so that its lag shows that these batches are done."""
        if self.options.group is not None:
            self._same(end)
            chosen = self.bounds()
            offsets = {Partition(self.log, index): at for index, at in _ends_of(end).items() if index in chosen}
            logs_at(self.options.url).reset(self.options.group, offsets)

    def _ends(self) -> Ends:
        return {index: partition.end for index, partition in self.bounds().items()}

    def _offset(self, identity: str, ends: Ends) -> dict[str, Any]:
        offsets = {str(index): at for index, at in sorted(ends.items())}
        return {"log": self.log, "id": identity, "offsets": offsets}

    def _same(self, offset: dict[str, Any]) -> str:
        """Check that an offset is of this log. Returns the log's identity."""
        if offset.get("log") != self.log:
            raise BadInput(
                f"the checkpoint is of log {offset.get('log')!r}, not of {self.log!r}.",
                hint="Give every query a checkpointLocation of its own.",
            )
        identity = self.identity()
        if is_another(offset.get("id", ""), identity):
            raise BadInput(
                f"the checkpoint is of another log {self.log!r} than the one in {self.options.place}: "
                "it was created again, or the URL is another one.",
                hint="Use a new checkpointLocation; offsets of one log say nothing about another.",
            )
        return identity


def _ends_of(offset: dict[str, Any]) -> Ends:
    return {int(index): int(at) for index, at in offset["offsets"].items()}


def rationed(begin: Mapping[int, int], ends: Mapping[int, int], limit: int) -> Ends:
    """At most ``limit`` records, shared out in proportion to what each partition has."""
    waiting = {index: max(0, end - begin[index]) for index, end in ends.items()}
    total = sum(waiting.values())
    if total <= limit:
        return dict(ends)
    shares = {index: count * limit // total for index, count in waiting.items()}
    left = limit - sum(shares.values())
    for index in sorted(waiting, key=lambda partition: shares[partition] - waiting[partition] * limit / total):
        if left > 0 and shares[index] < waiting[index]:
            shares[index] += 1
            left -= 1
    return {index: begin[index] + share for index, share in shares.items()}


def lost(log: str, index: int, start: int, stop: int) -> OffsetOutOfRange:
    """The error for records that retention removed before they were read."""
    return OffsetOutOfRange(
        f"offsets {start} to {stop - 1} of {Partition(log, index)} were removed by retention before they were read.",
        hint='Go on without them with .option("lost", "skip"), or keep records longer (keep_for the group).',
    )


def shorter(log: str, bounds: Bounds, offset: int) -> OffsetOutOfRange:
    """The error for a log that ends before where its reader was."""
    return OffsetOutOfRange(
        f"{Partition(log, bounds.partition)} ends at {bounds.end}, but {offset} was to be read.",
        hint='Was the log created again? Start a new checkpoint, or continue with .option("lost", "skip").',
    )


def _split(ranges: list[tuple[int, int, int]], tasks: int) -> Iterator[tuple[int, int, int]]:
    """Cut ranges by size into about as many as requested."""
    total = sum(stop - start for _, start, stop in ranges)
    for index, start, stop in ranges:
        pieces = max(1, round(tasks * (stop - start) / total)) if tasks > len(ranges) else 1
        step = -(-(stop - start) // pieces)
        for begin in range(start, stop, step):
            yield index, begin, min(stop, begin + step)
