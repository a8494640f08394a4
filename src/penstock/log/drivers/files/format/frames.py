"""Frames: what one append writes. Only this module and :mod:`batch` know their bytes.

A frame is a header followed by columns in Arrow's layout (little endian, each column padded to 8 bytes):

- value offsets int32[n+1], value bytes;
- with ``KEYS``: key offsets int32[n+1], key bytes, and with ``KEY_NULLS`` a validity bitmap;
- with ``TIMES``: int64[n] microseconds (otherwise all records have the header's lowest time);
- with ``HEADERS``: offsets int32[n+1], msgpack maps (empty if a record has no headers).

The checksum of the body does not depend on the offset, so everything but the header is encoded before a lock is taken.
``docs/file-log-format.md`` describes the format in full.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from penstock.clock import Micros
from penstock.log.record import NewRecords, key_bytes

MAGIC = 0x464C4E50  # "PNLF"
FORMAT = 2
KEYS, KEY_NULLS, TIMES, HEADERS, TXN, GAP = 1, 2, 4, 8, 16, 32
PLAIN, ZLIB = 0, 1

_HEAD = struct.Struct("<IIIIBBHIQqqqQIIQQQIIII")
HEADER = _HEAD.size
_CHECKED = slice(8, HEADER)
_TWO_OFFSETS = struct.Struct("<ii")
MAX_FRAME = 16 * 1024 * 1024
# The allocator returns a freed block at the end of the heap to the system, and the next block of that size then costs a
# page fault per page. Holding on to the last few blocks makes an append of 1,000 records a third cheaper.
WARM_BYTES = 1024 * 1024
_warm_blocks: deque[bytes] = deque(maxlen=4)
_PAD = [b"\0" * ((8 - size) % 8) for size in range(8)]


class Header(NamedTuple):
    """The header of a frame."""

    size: int  # bytes of the whole frame
    body_crc: int
    compression: int
    flags: int
    records: int
    offset: int  # in the partition; on disk, relative to the first offset of the segment
    lowest_time: Micros
    highest_time: Micros
    appended: Micros
    producer: int
    epoch: int
    raw_body: int
    sequence: int
    txn: int
    hint: int  # where in the journal to look for the transaction
    values: int
    keys: int
    headers: int

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.offset + self.records


class Encoded(msgspec.Struct, gc=False):
    """An encoded frame, except for what depends on its place in the partition."""

    parts: list[Any]  # bytes or memoryviews
    body: int
    body_crc: int
    compression: int
    flags: int
    count: int
    lowest_time: Micros
    highest_time: Micros
    raw_body: int
    values: int
    keys: int
    headers: int
    dated: bool  # the records have timestamps; otherwise they get the time of the append

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER + self.body

    def header(
        self,
        offset: int,
        now: Micros,
        *,
        producer: int = 0,
        epoch: int = 0,
        sequence: int = 0,
        txn: int = 0,
        hint: int = 0,
    ) -> bytes:
        """The header for a place in a segment; ``offset`` is relative to the segment's first offset."""
        lowest, highest = (self.lowest_time, self.highest_time) if self.dated else (now, now)
        flags = self.flags | TXN if txn else self.flags
        raw = _HEAD.pack(
            MAGIC, 0, HEADER + self.body, self.body_crc, FORMAT, self.compression, flags, self.count, offset, lowest,
            highest, now, producer, epoch, self.raw_body, sequence, txn, hint, self.values, self.keys, self.headers, 0,
        )  # fmt: skip
        return b"".join((raw[:4], zlib.crc32(raw[8:]).to_bytes(4, "little"), raw[8:]))


def keep_warm(block: bytes) -> None:
    """Hold on to a block for a while (see ``WARM_BYTES``)."""
    _warm_blocks.append(block if len(block) <= WARM_BYTES else b"")


def pack_header(header: Header, base: int) -> bytes:
    """The bytes of a header in the segment whose first offset is ``base``."""
    raw = _HEAD.pack(
        MAGIC, 0, header.size, header.body_crc, FORMAT, header.compression, header.flags, header.records,
        header.offset - base, header.lowest_time, header.highest_time, header.appended, header.producer, header.epoch,
        header.raw_body, header.sequence, header.txn, header.hint, header.values, header.keys, header.headers, 0,
    )  # fmt: skip
    return raw[:4] + zlib.crc32(raw[_CHECKED]).to_bytes(4, "little") + raw[8:]


def gap(base: int, offset: int, count: int, now: Micros) -> bytes:
    """A frame that stands for lost records; their offsets stay empty."""
    return pack_header(Header(HEADER, 0, PLAIN, GAP, count, offset, now, now, now, 0, 0, 0, 0, 0, 0, 0, 0, 0), base)


def read_header(buffer: Any, position: int, base: int) -> Header | None:
    """The header at a position of the segment whose first offset is ``base``, or None if it is not valid."""
    raw = buffer[position : position + HEADER]
    if len(raw) < HEADER:
        return None
    (
        magic, crc, size, body_crc, form, compression, flags, count, offset, lowest, highest, appended, producer,
        epoch, raw_body, sequence, txn, hint, values, keys, headers, _,
    ) = _HEAD.unpack(raw)  # fmt: skip
    if magic != MAGIC or form != FORMAT or zlib.crc32(raw[_CHECKED]) != crc:
        return None
    return Header(
        size, body_crc, compression, flags, count, base + offset, lowest, highest, appended, producer, epoch, raw_body,
        sequence, txn, hint, values, keys, headers,
    )  # fmt: skip


def encode(records: NewRecords, compression: str | None = None) -> Encoded:
    """Encode records as columns, with their checksum."""
    values, keys, times, headers = records.values, records.keys, records.times, records.headers
    count = len(values)
    flags = keys_size = headers_size = 0
    data = b"".join(values)
    keep_warm(data)
    parts = [_value_offsets(values, count), data]
    if keys is not None:
        column, lengths, nulls = _key_column(keys, count)
        flags |= KEYS
        keys_size = len(column)
        parts += (_length_offsets(lengths, count), column)
        if nulls:
            flags |= KEY_NULLS
            parts.append(nulls)
    lowest = highest = 0
    if times is not None:
        lowest, highest = min(times), max(times)
        if lowest != highest:
            flags |= TIMES
            parts.append(array("q", times).tobytes())
    if headers is not None and any(headers):
        flags |= HEADERS
        blobs = [msgspec.msgpack.encode(own) if own else b"" for own in headers]
        column = b"".join(blobs)
        headers_size = len(column)
        parts += (_value_offsets(blobs, count), column)
    sizes = (len(data), keys_size, headers_size)
    return frame_of(parts, flags, count, lowest, highest, sizes, compression=compression, dated=times is not None)


def frame_of(  # noqa: PLR0917 - the fields of a header
    parts: Sequence[Any],
    flags: int,
    count: int,
    lowest: Micros,
    highest: Micros,
    sizes: tuple[int, int, int],
    *,
    compression: str | None,
    dated: bool,
) -> Encoded:
    """A frame of columns that are already in layout; ``sizes`` are the bytes of all values, keys and headers."""
    padded: list[Any] = []
    crc = raw = 0
    for part in parts:
        size = len(part)
        padded.append(part)
        crc = zlib.crc32(part, crc)
        if size % 8:
            pad = _PAD[size % 8]
            padded.append(pad)
            crc = zlib.crc32(pad, crc)
            size += len(pad)
        raw += size
    body, kind = raw, PLAIN
    if compression == "zlib":
        squeezed = zlib.compress(b"".join(padded), 1)
        padded = [squeezed, _PAD[len(squeezed) % 8]]
        body, kind = len(squeezed) + len(padded[1]), ZLIB
        crc = zlib.crc32(padded[1], zlib.crc32(squeezed))
    return Encoded(padded, body, crc, kind, flags, count, lowest, highest, raw, *sizes, dated)


def split(records: NewRecords, limit: int) -> list[NewRecords]:
    """Split records so that every frame stays below a size; a single record may still be larger."""
    count = len(records)
    if count == 1:
        return [records]
    size = records.size if records.size >= 0 else sum(map(len, records.values))
    if size + 64 * count <= limit and records.headers is None:
        return [records]
    parts: list[NewRecords] = []
    begin = weight = 0
    for rank, value in enumerate(records.values):
        key = records.keys[rank] if records.keys is not None else None
        own = len(value) + 64 + (4 * len(key) if key else 0)
        headers = records.headers[rank] if records.headers is not None else None
        if headers:
            own += sum(len(name) * 4 + len(text) * 4 + 16 for name, text in headers.items())
        if weight and weight + own > limit:
            parts.append(_cut(records, begin, rank))
            begin, weight = rank, 0
        weight += own
    parts.append(_cut(records, begin, count))
    return parts


def _cut(records: NewRecords, begin: int, end: int) -> NewRecords:
    return NewRecords(
        records.values[begin:end],
        None if records.keys is None else records.keys[begin:end],
        None if records.times is None else records.times[begin:end],
        None if records.headers is None else records.headers[begin:end],
    )


def _value_offsets(values: Sequence[bytes], count: int) -> bytes:
    if count == 1:
        return _TWO_OFFSETS.pack(0, len(values[0]))
    return struct.pack(f"<{count + 1}i", *accumulate(map(len, values), initial=0))


def _length_offsets(lengths: Sequence[int], count: int) -> bytes:
    return struct.pack(f"<{count + 1}i", *accumulate(lengths, initial=0))


def _key_column(keys: Sequence[str | bytes | None], count: int) -> tuple[bytes, Sequence[int], bytes]:
    """The bytes of all keys, their lengths, and a bitmap if some are missing."""
    try:
        text = "".join(keys)  # type: ignore[arg-type]
        if text.isascii():  # a single call encodes all of them
            return text.encode(), list(map(len, keys)), b""  # type: ignore[arg-type]
    except TypeError:
        pass
    raw = [b"" if key is None else key_bytes(key) for key in keys]
    nulls = b""
    if any(key is None for key in keys):
        bits = bytearray((count + 7) // 8)
        for rank, key in enumerate(keys):
            if key is not None:
                bits[rank >> 3] |= 1 << (rank & 7)
        nulls = bytes(bits)
    return b"".join(raw), list(map(len, raw)), nulls


def body_of(header: Header, raw: memoryview) -> memoryview | None:
    """The body of a frame as columns, or None if its checksum is wrong."""
    if zlib.crc32(raw) != header.body_crc:
        return None
    if header.compression == ZLIB:
        try:
            plain = zlib.decompressobj().decompress(raw, header.raw_body)
        except zlib.error:
            return None
        return memoryview(plain) if len(plain) == header.raw_body else None
    return raw
