"""The columns that Spark sees of a log or a queue, and Arrow batches of exactly those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import BadInput
from penstock.names import did_you_mean

LOG_COLUMNS: dict[str, str] = {
    "log": "STRING NOT NULL",
    "partition": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    "time": "TIMESTAMP NOT NULL",
    "key": "BINARY",
    "value": "BINARY NOT NULL",
    "headers": "MAP<STRING, BINARY>",
}
# The name is known to whoever asked, and as a column it costs as much as a short key.
ON_DEMAND = frozenset({"log"})

ROWS = 10_000  # of one batch to Spark; small frames are put together up to this
BYTES = 4 * 1024 * 1024

_HEADERS = pa.map_(pa.string(), pa.binary())


def chosen_columns(known: Iterable[str], wanted: Sequence[str] | None) -> list[str]:
    """The names asked for, or all that come unasked."""
    names = list(known)
    if wanted is None:
        return [name for name in names if name not in ON_DEMAND]
    for name in wanted:
        if name not in names:
            meant = did_you_mean(name, names)
            raise BadInput(f"there is no column {name!r}.", hint=f"{meant}Known: {', '.join(names)}.")
    if not wanted:
        raise BadInput("columns names no column.", hint=f"Known: {', '.join(names)}.")
    return list(dict.fromkeys(wanted))


def arrow_fields(schema: StructType, known: Iterable[str]) -> pa.Schema:
    """The Arrow schema that Spark expects, and that all of it is known here."""
    chosen_columns(known, schema.fieldNames())
    return to_arrow_schema(schema, timezone="UTC")


def merged(batches: Iterable[pa.RecordBatch], limit: int = ROWS) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a size that is cheap to send: small ones together, large ones cut."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if rows and (rows + batch.num_rows > limit or size >= BYTES):
            yield _one(held)
            held, rows, size = [], 0, 0
        if batch.num_rows > limit:
            for start in range(0, batch.num_rows, limit):
                yield batch.slice(start, limit)
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size() if len(held) == 1 else 0
    if held:
        yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def header_maps(blobs: pa.Array) -> pa.Array:
    """Headers as a log keeps them (msgpack, or nothing) as maps; text comes as its bytes."""
    if blobs.null_count == len(blobs):
        return pa.nulls(len(blobs), _HEADERS)
    maps = [
        None
        if not blob
        else [
            (name, value.encode() if isinstance(value, str) else value)
            for name, value in msgspec.msgpack.decode(blob).items()
        ]
        for blob in blobs.to_pylist()
    ]
    return pa.array(maps, _HEADERS)


def header_blobs(maps: pa.Array) -> pa.Array | None:
    """The way back: what a log keeps; values that are text are text again. None if nobody has any."""
    if maps.null_count == len(maps):
        return None
    blobs = []
    for pairs in maps.to_pylist():
        if not pairs:
            blobs.append(b"")
            continue
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        blobs.append(msgspec.msgpack.encode({name: _text(value) for name, value in items}))
    return pa.array(blobs, pa.binary())


def _text(value: Any) -> str | bytes:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
