"""What the records of a state log come to."""

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.stream.engine.blocks import block_of
from penstock.stream.engine.changelog import Change
from penstock.stream.engine.state_store import Entry
from penstock.stream.engine.value_cell import BLOCK


def stored(payloads: Iterable[bytes]) -> dict[Any, Any]:
    """Value and end of everything that is kept, by state, key and sub-key; of blocks, each key for itself."""
    entries: dict[Any, Any] = {}
    for payload in payloads:
        change = msgspec.msgpack.decode(payload, type=Change)
        for entry in map(Entry._make, change.entries):
            is_window = change.shapes.get(entry.state, "").startswith("windows")
            if is_window and entry.payload is None:
                over = entry.state, entry.sub
                entries = {place: item for place, item in entries.items() if (place[0], place[2]) != over}
            elif is_window or entry.sub == BLOCK:
                values, gone = block_of(entry)
                sub = entry.sub if is_window else ""
                entries.update({(entry.state, key, sub): (value, 0) for key, value in values.items()})
                for key in gone:
                    del entries[entry.state, key, sub]
            elif entry.payload is None:
                entries.pop(entry[:3], None)
            else:
                entries[entry[:3]] = (entry.payload, entry.expires)
    return entries


def items_of(entries: Iterable[Entry]) -> dict[Any, Any]:
    """What is kept by entries of which none says that something is gone: each key for itself."""
    items: dict[Any, Any] = {}
    for entry in entries:
        if entry.sub == BLOCK:
            items.update({(entry.state, key): value for key, value in block_of(entry)[0].items()})
        else:
            items[entry[:3]] = entry.payload
    return items
