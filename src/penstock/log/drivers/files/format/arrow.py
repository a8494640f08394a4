"""Frames from Arrow columns: what executors of Spark write aside, without touching a record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import BadInput
from penstock.log.drivers.files.format.frame import (
    HEADERS,
    KEY_NULLS,
    KEYS,
    MAX_FRAME,
    TIMES,
    Encoded,
    framed,
)
from penstock.log.record import arrow_module

if TYPE_CHECKING:
    import pyarrow as pa


def encode_arrow(batch: pa.RecordBatch, compression: str | None = None) -> Iterator[Encoded]:
    """The frames of a batch: one, or several if it is large."""
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
    return framed(parts, flags, count, lowest, highest, sizes, compression=compression, dated=times is not None)


def _binary(column: Any) -> tuple[list[Any], int]:
    """Offsets and bytes of a column, and how many bytes."""
    _, offsets, data = column.buffers()
    places = memoryview(offsets)[: 4 * (len(column) + 1)]
    size = int.from_bytes(places[-4:], "little", signed=True)
    return [places, b"" if data is None else memoryview(data)[:size]], size


def _whole(column: Any) -> Any:
    """A column whose buffers begin with its first value: a part of a larger one is copied."""
    if column.offset == 0 and _begins(column):
        return column
    return column.take(arrow_module().array(range(len(column))))


def _begins(column: Any) -> bool:
    pa = arrow_module()
    if not pa.types.is_binary(column.type):
        return True
    offsets = column.buffers()[1]
    return offsets is not None and int.from_bytes(memoryview(offsets)[:4], "little", signed=True) == 0
