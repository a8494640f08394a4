"""Blocks: the values of many keys, written to the state log and read back as one entry.

With many keys a value costs as little as a number in a dict does. Plain numbers are kept as they are, everything else
as JSON. A block of a checkpoint holds the keys that were changed, and those that are gone; it takes as many entries as
its size asks for. The last field of such an entry says how many keys it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, repeat
from typing import Any, TypeGuard, TypeVar

import msgspec

from penstock.codec import codec_for
from penstock.errors import Undecodable
from penstock.stream.engine.state_store import Entry, check_texts

KEYS = 1000  # of one entry
AGAIN = 250  # keys that are written again together: few, as a checkpoint that changes little writes little again
BYTES = 64 * 1024  # of one entry, if it has several keys
ABSENT: Any = object()  # there is no value
_WIDEST = 1 << 63  # what msgpack holds of whole numbers

T = TypeVar("T")
Kept = int | float | bytes | None  # a plain number as it is, everything else as JSON
Block = tuple[dict[str, Kept], list[str]]  # keys with their values, and keys that are gone
_BLOCK: Any = msgspec.msgpack.Decoder(tuple[dict[str, int | float | bytes | None], list[str]])
_PLAIN: dict[Any, frozenset[type]] = {
    Any: frozenset({int, float, type(None)}), int: frozenset({int}), float: frozenset({float}),
}  # fmt: skip


def plain_of(type_: Any) -> frozenset[type]:
    """Which values of a state of this type may be kept as they are: those that come back from JSON the same."""
    return _PLAIN.get(type_, frozenset()) if type_ is Any or isinstance(type_, type) else frozenset()


def packed(values: dict[str, Any], plain: frozenset[type], encode: Callable[[Any], bytes]) -> dict[str, Kept]:
    """Values as they are kept; ``encode`` is for those that are not plain."""
    check_texts("".join(values))
    kinds = set(map(type, values.values()))
    if kinds == {int} and int in plain and -_WIDEST <= min(values.values()) <= max(values.values()) < _WIDEST:
        return values
    return {key: value if value.__class__ in plain and _fits(value) else encode(value) for key, value in values.items()}


def _fits(value: Any) -> TypeGuard[int | float | None]:
    """Whether a number comes back from msgpack as it would from JSON."""
    if value is None:
        return True
    return -_WIDEST <= value < _WIDEST if value.__class__ is int else math.isfinite(value)


def block_entries(state: str, sub: str, values: Mapping[str, Kept], gone: list[str]) -> Iterator[Entry]:
    """A block in as many entries as its size takes."""
    items = iter(values.items())
    while some := list(islice(items, KEYS)):
        yield from _parts(state, sub, some, lambda part: (dict(part), ()))
    for start in range(0, len(gone), KEYS):
        yield from _parts(state, sub, gone[start : start + KEYS], lambda part: ({}, part))


def _parts(state: str, sub: str, some: list[T], block: Callable[[list[T]], Any]) -> Iterator[Entry]:
    """One entry, or as many as keep it small: keys may be long, and values too."""
    payload = msgspec.msgpack.encode(block(some))
    if len(payload) <= BYTES or len(some) == 1:
        yield Entry(state, "", sub, payload, len(some))
        return
    half = len(some) // 2
    yield from _parts(state, sub, some[:half], block)
    yield from _parts(state, sub, some[half:], block)


def block_of(entry: Entry) -> Block:
    """What an entry holds."""
    try:
        block: Block = _BLOCK.decode(entry.payload or b"")
    except msgspec.MsgspecError as cause:
        raise Undecodable(
            f"values of state {entry.state} cannot be read: {cause}.",
            hint="Only runners may append to a state log. Restore it from a backup, or start over.",
        ) from cause
    return block


def keep(block: dict[str, Kept], values: Mapping[str, Kept], gone: Iterable[str]) -> None:
    """Take changes over."""
    block.update(values)
    for key in gone:
        block.pop(key, None)


def probe_block(entry: Entry, decode: Callable[[bytes], Any]) -> None:
    """Read some of what an entry holds."""
    for value in islice(block_of(entry)[0].values(), 20):
        if isinstance(value, bytes):
            decode(value)


def converted_block(
    entry: Entry, plain: Callable[[Any], Any], convert: Callable[[str, Any], Any], encode: Callable[[Any], bytes]
) -> Entry:
    """The entry with other values: ``convert`` is given each key and what was kept, as plain JSON.

    ``plain`` makes that of a number that was kept as it is. Keys for which None comes back are gone.
    """
    values, gone = block_of(entry)
    decode = codec_for(Any).decode
    payloads: dict[str, Kept] = {}
    for key, value in values.items():
        converted = convert(key, decode(value) if isinstance(value, bytes) else plain(value))
        if converted is None:
            gone.append(key)
        else:
            payloads[key] = encode(converted)
    return entry._replace(payload=msgspec.msgpack.encode((payloads, gone)))


def key_groups(block: Mapping[str, Kept]) -> Iterator[tuple[str, ...]]:
    """The keys of a block, some at a time: so many are written again together."""
    keys = iter(list(block))
    while some := tuple(islice(keys, AGAIN)):
        yield some


def held_of(
    keys: Iterable[str], changed: Mapping[str, Any], base: Mapping[str, Kept], read: Callable[[str], Any]
) -> list[Any]:
    """What many keys have by now: what was changed, or else what is kept, which ``read`` decodes."""
    if changed:
        held = [changed[key] if key in changed else base.get(key, ABSENT) for key in keys]
    else:
        held = list(map(base.get, keys, repeat(ABSENT)))
    if bytes in set(map(type, held)):
        held = [changed[key] if key in changed else read(key) for key in keys]
    return held
