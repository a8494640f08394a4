"""What no partition could keep: records over the limit, columns that do not match, headers that are not text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from penstock.errors import BadInput, PayloadTooLarge
from penstock.log.record import Headers, NewRecords, key_bytes

WIDEST = 4  # bytes of a character


def check_records(log: str, records: NewRecords, limit: int) -> None:
    """Raise for what a log could not keep: ``limit`` is for value, key and headers of one record together."""
    values, keys = records.values, records.keys
    for column in (keys, records.times, records.headers):
        if column is not None and len(column) != len(values):
            raise BadInput(
                f"{len(values)} values were given with {len(column)} keys, timestamps or headers.",
                hint="Give one for each value.",
            )
    if records.size < 0:
        records.size = sum(map(len, values))
    # Cheap bounds first: only where all of them together are over the limit a single one may be.
    total, most = records.size, 0
    for headers in records.headers or ():
        if headers:
            size = check_headers(headers)
            total += size
            most = max(most, size)
    if keys is not None:
        try:
            total += WIDEST * sum(map(len, filter(None, keys)))
        except TypeError:
            for key in keys:
                if key is not None:
                    key_bytes(key)
            raise
    if total <= limit:
        return
    most += max(map(len, values))
    if keys is not None:
        most += WIDEST * max(map(len, filter(None, keys)), default=0)
    if most > limit and (largest := max(_sizes(records))) > limit:
        raise PayloadTooLarge(
            f"a record of {largest:,} bytes is over the limit of {limit:,} bytes of log {log}.",
            hint="Store the data elsewhere and append a reference to it.",
        )


def _sizes(records: NewRecords) -> Iterator[int]:
    """What each record takes: its value, its key and its headers."""
    keys, headers = records.keys or repeat(None), records.headers or repeat(None)
    for value, key, own in zip(records.values, keys, headers, strict=False):
        size = len(value)
        if key is not None:
            size += len(key_bytes(key))
        yield size + check_headers(own) if own else size


def check_headers(headers: Headers) -> int:
    """Raise for headers that not every store could keep; how many bytes they may be."""
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise BadInput(f"header {name!r}: {value!r} is not text.", hint="Use str names and str or bytes values.")
        size += len(name) + len(value)
    return size
