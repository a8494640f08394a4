"""Arrow: frames from Arrow columns, as Spark's executors stage them, and what a batch needs to become Arrow."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.errors import BadInput
from penstock.log.drivers.files.format.frames import (
    HEADERS,
    KEY_NULLS,
    KEYS,
    MAX_FRAME,
    TIMES,
    Encoded,
    frame_of,
)
from penstock.log.record import arrow_module, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowKit:
    """What every Arrow batch needs, created once: types, and arrays to slice the simple columns from."""

    def __init__(self) -> None:
        """Import pyarrow."""
        self.pa = arrow_module()
        import pyarrow.compute as pc

        self.schema = arrow_schema()
        self.binary = self.pa.binary()
        self.time = self.pa.timestamp("us", tz="UTC")
        self._add = pc.add
        self._numbers = self.pa.array(array("q", range(65536)), self.pa.int64())
        self._run = (0, self._numbers)
        self._int32 = self.pa.int32()
        self._constants: dict[tuple[int | None, int], Any] = {}

    def numbers(self, start: int, count: int) -> Any:
        """Consecutive numbers, sliced from a longer run that the next frames use too."""
        first, run = self._run
        if not first <= start or start + count > first + len(run):
            if len(self._numbers) < count:
                self._numbers = self.pa.array(array("q", range(2 * count)), self.pa.int64())
            first, run = self._run = (start, self._add(self._numbers, start))
        return run.slice(start - first, count)

    def nulls(self, count: int) -> Any:
        """A column of ``count`` nulls."""
        return self._repeated(None, count, self.binary)

    def constant(self, value: int, count: int) -> Any:
        """A column of ``count`` equal numbers."""
        return self._repeated(value, count, self._int32)

    def _repeated(self, value: int | None, count: int, kind: Any) -> Any:
        column = self._constants.get((value, count))
        if column is None:
            if len(self._constants) > 1000:
                self._constants.clear()
            column = self.pa.nulls(count, kind) if value is None else self.pa.repeat(self.pa.scalar(value, kind), count)
            self._constants[value, count] = column
        return column


@cache
def arrow_kit() -> ArrowKit:
    """The kit of this process."""
    return ArrowKit()


def encode_arrow(batch: pa.RecordBatch, compression: str | None = None) -> Iterator[Encoded]:
    """The frames of a batch: several if it is large."""
    if not batch.num_rows:
        return
    if batch.num_rows > 1 and batch.nbytes > MAX_FRAME // 2:
        half = batch.num_rows // 2
        yield from encode_arrow(batch.slice(0, half), compression)
        yield from encode_arrow(batch.slice(half), compression)
        return
    yield _frame(batch, compression)


def _frame(batch: pa.RecordBatch, compression: str | None) -> Encoded:
    count = batch.num_rows
    columns = {name: _whole(batch.column(name)) for name in batch.schema.names}
    values = columns["value"]
    if values.null_count:
        raise BadInput("a record has no value.", hint='Leave such rows out: .where("value IS NOT NULL").')
    flags = keys_size = headers_size = 0
    parts, values_size = _binary(values)
    keys = columns.get("key")
    if keys is not None and keys.null_count < count:
        flags |= KEYS
        own, keys_size = _binary(keys)
        parts += own
        if keys.null_count:
            flags |= KEY_NULLS
            parts.append(memoryview(keys.buffers()[0])[: (count + 7) // 8])
    lowest = highest = 0
    times = columns.get("time")
    if times is not None:
        import pyarrow.compute as pc

        edges = pc.min_max(times.cast(arrow_module().int64()))
        lowest, highest = edges["min"].as_py(), edges["max"].as_py()
        if lowest != highest:
            flags |= TIMES
            parts.append(memoryview(times.buffers()[1])[: 8 * count])
    headers = columns.get("headers")
    if headers is not None and headers.null_count < count:
        flags |= HEADERS
        own, headers_size = _binary(headers.fill_null(b"") if headers.null_count else headers)
        parts += own
    sizes = (values_size, keys_size, headers_size)
    return frame_of(parts, flags, count, lowest, highest, sizes, compression=compression, dated=times is not None)


def _binary(column: Any) -> tuple[list[Any], int]:
    """The offsets and bytes of a column, and the number of bytes."""
    _, offsets, data = column.buffers()
    ends = memoryview(offsets)[: 4 * (len(column) + 1)]
    size = int.from_bytes(ends[-4:], "little", signed=True)
    return [ends, b"" if data is None else memoryview(data)[:size]], size


def _whole(column: Any) -> Any:
    """A column whose buffers begin with its first value; a slice of a larger column is copied."""
    if column.offset == 0 and _starts_at_zero(column):
        return column
    return column.take(arrow_module().array(range(len(column))))


def _starts_at_zero(column: Any) -> bool:
    pa = arrow_module()
    if not pa.types.is_binary(column.type):
        return True
    offsets = column.buffers()[1]
    return offsets is not None and int.from_bytes(memoryview(offsets)[:4], "little", signed=True) == 0
