"""Checks of records before they are appended: their size, the lengths of columns, and the types of headers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from penstock.errors import BadInput, PayloadTooLarge
from penstock.log.record import Headers, NewRecords, key_bytes

BYTES_PER_CHARACTER = 4  # at most, in UTF-8


def check_records(log: str, records: NewRecords, limit: int) -> None:
    """Raise for records that a log cannot hold; ``limit`` is for the value, key and headers of a record."""
    values, keys = records.values, records.keys
    for column in (keys, records.times, records.headers):
        if column is not None and len(column) != len(values):
            raise BadInput(
                f"{len(values)} values were given with {len(column)} keys, timestamps or headers.",
                hint="Give one for each value.",
            )
    if records.size < 0:
        records.size = sum(map(len, values))
    # Cheap upper bounds first: a single record can be over the limit only if all of them together are.
    total, largest_bound = records.size, 0
    for headers in records.headers or ():
        if headers:
            size = check_headers(headers)
            total += size
            largest_bound = max(largest_bound, size)
    if keys is not None:
        try:
            total += BYTES_PER_CHARACTER * sum(map(len, filter(None, keys)))
        except TypeError:
            for key in keys:
                if key is not None:
                    key_bytes(key)
            raise
    if total <= limit:
        return
    largest_bound += max(map(len, values))
    if keys is not None:
        largest_bound += BYTES_PER_CHARACTER * max(map(len, filter(None, keys)), default=0)
    if largest_bound > limit and (largest := max(_sizes(records))) > limit:
        raise PayloadTooLarge(
            f"a record of {largest:,} bytes is over the limit of {limit:,} bytes of log {log}.",
            hint="Store the data elsewhere and append a reference to it.",
        )


def _sizes(records: NewRecords) -> Iterator[int]:
    """The size of every record: its value, key and headers."""
    keys, headers = records.keys or repeat(None), records.headers or repeat(None)
    for value, key, own in zip(records.values, keys, headers, strict=False):
        size = len(value)
        if key is not None:
            size += len(key_bytes(key))
        yield size + check_headers(own) if own else size


def check_headers(headers: Headers) -> int:
    """Raise for headers that not every driver can store. Returns their size."""
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise BadInput(f"header {name!r}: {value!r} is not text.", hint="Use str names and str or bytes values.")
        size += len(name) + len(value)
    return size
