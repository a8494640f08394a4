"""What the records of a state log come to."""

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.stream.engine.changelog import Change


def stored(payloads: Iterable[bytes]) -> dict[Any, Any]:
    """Value and end of everything that is kept, by state, key and sub-key; of windows, each key for itself."""
    entries: dict[Any, Any] = {}
    for payload in payloads:
        change = msgspec.msgpack.decode(payload, type=Change)
        for state, key, sub, value, expires in change.entries:
            if not change.shapes.get(state, "").startswith("windows"):
                entries[state, key, sub] = (value, expires)
                if value is None:
                    del entries[state, key, sub]
            elif value is None:
                entries = {place: entry for place, entry in entries.items() if (place[0], place[2]) != (state, sub)}
            else:
                kept, gone = msgspec.msgpack.decode(value)
                entries.update({(state, one, sub): (held, 0) for one, held in kept.items()})
                for one in gone:
                    del entries[state, one, sub]
    return entries
