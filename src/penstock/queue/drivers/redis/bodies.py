"""What is stored of an entry: its body and its item, read.

A body is a prefix, a packed list and the payload; an item is what changes in an entry's life. Both are described in
``lua/lib/entries.lua``.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.clock import Micros

STRIPPED = 8  # the flag of a body whose payload is gone
_EXACT = 2**53  # above it Lua's numbers are multiples of 32 at worst, for as long as datetime reaches


class Meta(msgspec.Struct, array_like=True, gc=False):
    """The packed list in a body: what never changes in an entry. False: absent."""

    id: str
    queue: str
    codec: str
    type: str
    labels: dict[str, str] | bool = False
    headers: dict[str, str] | bool = False
    unique: str | bool = False
    mode: str | bool = False
    linked: bool = False  # others wait for it


# Flags, priority (100 less it), created, first due, expires or 0, size of the packed list.
PREFIX = struct.Struct(">BBqQqI")
# Priority, due, sequence number and number of the body (each in two parts), attempt, generation, fence, flags.
SIGN = 1 << 63  # of times that sort: it is flipped, so that those before 1970 come first
ITEM = struct.Struct(">BQHIHIIIIB")
read_meta = msgspec.msgpack.Decoder(Meta).decode
pack = msgspec.msgpack.Encoder().encode


class Body(msgspec.Struct, gc=False):
    """A body, read."""

    flags: int
    created: Micros
    first_due: Micros
    expires: Micros | None
    meta: Meta
    payload: bytes

    @property
    def labels(self) -> dict[str, str]:
        """As users see them."""
        return self.meta.labels or {}  # type: ignore[return-value]

    @property
    def headers(self) -> dict[str, str]:
        """As users see them."""
        return self.meta.headers or {}  # type: ignore[return-value]


class Item(msgspec.Struct, gc=False):
    """An item, read."""

    priority: int
    due: Micros
    seq: int
    attempt: int
    generation: int
    fence: int
    suspect: bool


def read_body(text: bytes) -> Body:
    """A body from its text."""
    flags, _, created, first_due, expires, size = PREFIX.unpack_from(text)
    end = PREFIX.size + size
    return Body(flags, created, first_due - SIGN, expires or None, read_meta(text[PREFIX.size : end]), text[end:])


def read_item(text: bytes) -> Item:
    """An item from its text."""
    priority, due, high, low, _, _, attempt, generation, fence, flags = ITEM.unpack(text)
    return Item(100 - priority, due - SIGN, high << 32 | low, attempt, generation, fence, flags % 2 == 1)


def exact(moment: Micros | None) -> Micros | None:
    """A time the server can hold: from the year 2255 on to the nearest 32 microseconds before."""
    return moment if moment is None or moment < _EXACT else moment & ~31
