"""Many entries that are put together: split into units, and encoded with options that are checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.ids import new_id
from penstock.queue.options import ManyOptions
from penstock.queue.protocol import NewEntry

if TYPE_CHECKING:
    from penstock.queue.queue import Queue

T = TypeVar("T")


def split(values: Iterator[T], chunk: int | None) -> Iterator[list[T]]:
    """Lists of at most ``chunk`` values, or one list of all."""
    while part := list(islice(values, chunk)) if chunk else list(values):
        yield part


def new_entries(
    queue: Queue[T], values: Sequence[T], options: ManyOptions, encode: Callable[[T], bytes]
) -> list[NewEntry]:
    """Entries with the same options. Each has its own id and payload."""
    if not values:
        return []
    driver = queue.store.driver
    first = queue.new(values[0], **options)
    entries = [first]
    for value in values[1:]:
        payload = encode(value)
        if len(payload) > driver.payload_limit:
            raise driver.too_large(len(payload))
        entries.append(msgspec.structs.replace(first, id=new_id(), payload=payload, **_own_headers(queue, options)))
    return entries


def _own_headers(queue: Queue[T], options: ManyOptions) -> dict[str, Any]:
    """Headers with a tracing context of the entry's own, where every entry is to have one."""
    tracing = queue.store.driver.tracing
    if tracing is None or not tracing.each:
        return {}
    return {"headers": tracing.inject(dict(options.get("headers") or {}), queue.name)}
