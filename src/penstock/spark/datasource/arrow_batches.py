"""Arrow batches of the columns that Spark sees: of the right size, with times and headers as it can take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.clock import FIRST_TIME, from_micros, to_micros
from penstock.errors import BadInput
from penstock.spark.datasource.columns import chosen_columns

ROWS = 10_000  # of one batch to Spark; small frames are put together up to this
BYTES = 4 * 1024 * 1024

_HEADERS = pa.map_(pa.string(), pa.binary())
_FIRST, _LAST = (to_micros(from_micros(micros)) for micros in (-(1 << 62), 1 << 62))  # of the calendar


def arrow_fields(schema: StructType, known: Mapping[str, str], payload: Iterable[str] = ()) -> pa.Schema:
    """The Arrow schema that Spark expects. The user may have given it, so check that it is one of ours."""
    chosen_columns((*known, *payload), schema.fieldNames())
    for rank, field in enumerate(schema.fields):
        if field.name in schema.fieldNames()[:rank]:
            raise BadInput(f"the schema names column {field.name!r} twice.", hint="Name every column once.")
        is_ = known.get(field.name, "").removesuffix(" NOT NULL")
        asked = field.dataType.simpleString()
        if is_ and is_.lower().replace(" ", "") != asked:
            raise BadInput(
                f"column {field.name} is {is_}, not {asked.upper()}.",
                hint="Leave .schema() out, and cast the column after reading it.",
            )
    return to_arrow_schema(schema, timezone="UTC")


def in_calendar(times: pa.Array) -> pa.Array:
    """Clamp times to those that Python can show: a time outside the calendar goes to its first or last year.

    Spark cannot hand its very first day to Python, so it is the second.
    """
    numbers = times.cast(pa.int64())
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (ends["min"] >= _FIRST and ends["max"] <= _LAST):
        return times
    late = pc.min_element_wise(numbers, _LAST, skip_nulls=False)
    return pc.if_else(pc.less(numbers, _FIRST), FIRST_TIME, late).cast(times.type)


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
    """Decode a log's headers (msgpack, or nothing) into maps; text becomes bytes."""
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
    """Encode maps as a log stores headers; UTF-8 values become text again. None if no record has headers."""
    if maps.null_count == len(maps):
        return None
    blobs = []
    for pairs in maps.to_pylist():
        if not pairs:
            blobs.append(b"")
            continue
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        blobs.append(msgspec.msgpack.encode({name: _text(name, value) for name, value in items}))
    return pa.array(blobs, pa.binary())


def _text(name: str, value: str | bytes | None) -> str | bytes:
    if value is None:
        raise BadInput(f"column headers: header {name!r} is null.", hint="Leave such headers out: map_filter().")
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
