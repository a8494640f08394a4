"""Frames: what one append writes, and how it is read back; the one place that knows the bytes.

A frame is a header and columns laid out as Arrow wants them (little endian, each column padded to 8 bytes):

- value offsets int32[n+1], value bytes;
- with ``KEYS``: key offsets int32[n+1], key bytes, and with ``KEY_NULLS`` a validity bitmap;
- with ``TIMES``: int64[n] microseconds (else all records have the header's first time);
- with ``HEADERS``: offsets int32[n+1], msgpack maps (empty: none).

The checksum of the body does not depend on the offset, so everything but the header is made before any lock is taken.
docs/file-log-format.md says it all in words.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.clock import Micros
from penstock.log.record import (
    NO_HEADERS,
    Headers,
    NewRecords,
    Partition,
    Record,
    RecordBatch,
    arrow_module,
    arrow_schema,
    key_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = 0x464C4E50  # "PNLF"
FORMAT = 2
KEYS, KEY_NULLS, TIMES, HEADERS, TXN, GAP = 1, 2, 4, 8, 16, 32
PLAIN, ZLIB = 0, 1

_HEAD = struct.Struct("<IIIIBBHIQqqqQIIQQQIIII")
HEADER = _HEAD.size
_CHECKED = slice(8, HEADER)
_ONE = struct.Struct("<ii")
MAX_FRAME = 16 * 1024 * 1024
# A block that is freed at the end of the heap goes back to the system, and the next one of its size costs as many page
# faults as it has pages. The last few blocks are kept for a while: an append of 1,000 records is a third cheaper.
WARM = 1024 * 1024
_warm: deque[bytes] = deque(maxlen=4)
_PAD = [b"\0" * ((8 - size) % 8) for size in range(8)]


class Header(NamedTuple):
    """A frame's header, read."""

    size: int  # bytes of the whole frame
    body_crc: int
    compression: int
    flags: int
    records: int
    offset: int  # in the partition; on disk it counts from the first offset of the segment
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
        """Behind its last record."""
        return self.offset + self.records


class Encoded(msgspec.Struct, gc=False):
    """A frame that lacks only its place."""

    parts: list[Any]  # bytes, or views of them
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
    dated: bool  # the times were given; else the frame takes the time of its append

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
        """The header, now that the place is known: ``offset`` counts from the first one of the segment."""
        lowest, highest = (self.lowest_time, self.highest_time) if self.dated else (now, now)
        flags = self.flags | TXN if txn else self.flags
        raw = _HEAD.pack(
            MAGIC, 0, HEADER + self.body, self.body_crc, FORMAT, self.compression, flags, self.count, offset, lowest,
            highest, now, producer, epoch, self.raw_body, sequence, txn, hint, self.values, self.keys, self.headers, 0,
        )  # fmt: skip
        return b"".join((raw[:4], zlib.crc32(raw[8:]).to_bytes(4, "little"), raw[8:]))


def pack_header(header: Header, base: int) -> bytes:
    """The bytes of a header in the segment that begins with the offset ``base``."""
    raw = _HEAD.pack(
        MAGIC, 0, header.size, header.body_crc, FORMAT, header.compression, header.flags, header.records,
        header.offset - base, header.lowest_time, header.highest_time, header.appended, header.producer, header.epoch,
        header.raw_body, header.sequence, header.txn, header.hint, header.values, header.keys, header.headers, 0,
    )  # fmt: skip
    return raw[:4] + zlib.crc32(raw[_CHECKED]).to_bytes(4, "little") + raw[8:]


def gap(base: int, offset: int, count: int, now: Micros) -> bytes:
    """A frame that stands for records that are lost: their offsets stay empty."""
    return pack_header(Header(HEADER, 0, PLAIN, GAP, count, offset, now, now, now, 0, 0, 0, 0, 0, 0, 0, 0, 0), base)


def read_header(buffer: Any, position: int, base: int) -> Header | None:
    """The header at a position of a segment that begins with offset ``base``, or None if there is no valid one."""
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
    """The columns of some records, with their checksum."""
    values, keys, times, headers = records.values, records.keys, records.times, records.headers
    count = len(values)
    flags = keys_size = headers_size = 0
    data = b"".join(values)
    _warm.append(data if len(data) <= WARM else b"")
    parts = [_offsets(values, count), data]
    if keys is not None:
        column, lengths, nulls = _key_column(keys, count)
        flags |= KEYS
        keys_size = len(column)
        parts += (_packed(lengths, count), column)
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
        blobs = [msgspec.msgpack.encode(one) if one else b"" for one in headers]
        column = b"".join(blobs)
        headers_size = len(column)
        parts += (_offsets(blobs, count), column)
    sizes = (len(data), keys_size, headers_size)
    return framed(parts, flags, count, lowest, highest, sizes, compression=compression, dated=times is not None)


def framed(  # noqa: PLR0917 - the fields of a header
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
    """A frame of columns that are laid out; ``sizes`` are the bytes of all values, keys and headers."""
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
    """Parts whose frames stay below a size; one record may be larger than the limit by itself."""
    count = len(records)
    if count == 1:
        return [records]
    size = records.size if records.size >= 0 else sum(map(len, records.values))
    if size + 64 * count <= limit and records.headers is None:
        return [records]
    found: list[NewRecords] = []
    begin = weight = 0
    for rank, value in enumerate(records.values):
        key = records.keys[rank] if records.keys is not None else None
        own = len(value) + 64 + (4 * len(key) if key else 0)
        headers = records.headers[rank] if records.headers is not None else None
        if headers:
            own += sum(len(name) * 4 + len(text) * 4 + 16 for name, text in headers.items())
        if weight and weight + own > limit:
            found.append(_cut(records, begin, rank))
            begin, weight = rank, 0
        weight += own
    found.append(_cut(records, begin, count))
    return found


def _cut(records: NewRecords, begin: int, end: int) -> NewRecords:
    return NewRecords(
        records.values[begin:end],
        None if records.keys is None else records.keys[begin:end],
        None if records.times is None else records.times[begin:end],
        None if records.headers is None else records.headers[begin:end],
    )


def _offsets(values: Sequence[bytes], count: int) -> bytes:
    if count == 1:
        return _ONE.pack(0, len(values[0]))
    return struct.pack(f"<{count + 1}i", *accumulate(map(len, values), initial=0))


def _packed(lengths: Sequence[int], count: int) -> bytes:
    return struct.pack(f"<{count + 1}i", *accumulate(lengths, initial=0))


def _key_column(keys: Sequence[str | bytes | None], count: int) -> tuple[bytes, Sequence[int], bytes]:
    """The bytes of all keys, their lengths, and a bitmap if some are missing."""
    try:
        text = "".join(keys)  # type: ignore[arg-type]
        if text.isascii():  # one call for all of them
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


def _up(size: int) -> int:
    return (size + 7) & ~7


class FrameBatch(RecordBatch):
    """The records of one frame, or a part of them; columns are cut out when asked for."""

    __slots__ = ("_body", "_head", "_high", "_keys", "_low", "_offsets")

    def __init__(self, partition: Partition, header: Header, body: memoryview, low: int, high: int) -> None:
        """``body`` is the frame's body, not compressed; ``low`` to ``high`` are the ranks meant."""
        super().__init__(partition)
        self._head = header
        self._body = body
        self._low = low
        self._high = high
        self._offsets = range(header.offset + low, header.offset + high)
        self._keys: Sequence[str | None] | None = None

    @property
    def offsets(self) -> range:
        """One per record."""
        return self._offsets

    def __len__(self) -> int:
        """How many."""
        return self._high - self._low

    def slice(self, start: int, stop: int) -> FrameBatch:
        """A part of it."""
        part = FrameBatch(self.partition, self._head, self._body, self._low + start, min(self._low + stop, self._high))
        part.codec = self.codec
        return part

    def payloads(self) -> list[bytes]:
        """The values."""
        ranks = self._body[4 * self._low : 4 * (self._high + 1)].cast("i").tolist()
        begin = self._values_at()
        first = ranks[0]
        data = bytes(self._body[begin + first : begin + ranks[-1]])
        _warm.append(data if len(data) <= WARM else b"")
        if first:
            ranks = [rank - first for rank in ranks]
        return [data[low:high] for low, high in pairwise(ranks)]

    def records(self) -> list[Record[Any]]:
        """The records."""
        return list(map(Record, self.payloads(), self._offsets, self._times(), repeat(self)))

    def times(self) -> list[Micros]:
        """The timestamps."""
        times = self._times()
        return times if isinstance(times, list) else [self._head.lowest_time] * len(self)

    def _times(self) -> list[Micros] | repeat[Micros]:
        if not self._head.flags & TIMES:
            return repeat(self._head.lowest_time)
        begin = self._times_at()
        return self._body[begin + 8 * self._low : begin + 8 * self._high].cast("q").tolist()

    def keys(self) -> Sequence[str | None]:
        """The keys; made once, as records ask for them one by one."""
        if self._keys is None:
            self._keys = self._made_keys()
        return self._keys

    def _made_keys(self) -> Sequence[str | None]:
        head, count = self._head, len(self)
        if not head.flags & KEYS:
            return [None] * count
        begin = self._keys_at()
        ranks = self._body[begin + 4 * self._low : begin + 4 * (self._high + 1)].cast("i").tolist()
        column = begin + _up(4 * (head.records + 1))
        raw = bytes(self._body[column + ranks[0] : column + ranks[-1]])
        first = ranks[0]
        if raw.isascii():
            text = raw.decode()
            keys: list[str | None] = [text[low - first : high - first] for low, high in pairwise(ranks)]
        else:
            keys = [raw[low - first : high - first].decode("utf-8", "surrogateescape") for low, high in pairwise(ranks)]
        if head.flags & KEY_NULLS:
            bits = self._body[column + _up(head.keys) :]
            keys = [
                key if bits[rank >> 3] >> (rank & 7) & 1 else None
                for rank, key in zip(range(self._low, self._high), keys, strict=True)
            ]
        return keys

    def headers(self) -> Sequence[Headers]:
        """The headers."""
        head = self._head
        if not head.flags & HEADERS:
            return [NO_HEADERS] * len(self)
        begin = self._headers_at()
        ranks = self._body[begin + 4 * self._low : begin + 4 * (self._high + 1)].cast("i").tolist()
        column = begin + _up(4 * (head.records + 1))
        return [
            msgspec.msgpack.decode(self._body[column + low : column + high]) if high > low else NO_HEADERS
            for low, high in pairwise(ranks)
        ]

    def headers_at(self, offset: int) -> Headers:
        """The headers of one record."""
        if not self._head.flags & HEADERS:
            return NO_HEADERS
        rank = offset - self._head.offset - self._low
        return self.slice(rank, rank + 1).headers()[0]

    # --- where the columns are ---------------------------------------------------------------------

    def _values_at(self) -> int:
        return _up(4 * (self._head.records + 1))

    def _keys_at(self) -> int:
        return self._values_at() + _up(self._head.values)

    def _times_at(self) -> int:
        head, begin = self._head, self._keys_at()
        if head.flags & KEYS:
            begin += _up(4 * (head.records + 1)) + _up(head.keys)
        if head.flags & KEY_NULLS:
            begin += _up((head.records + 7) // 8)
        return begin

    def _headers_at(self) -> int:
        return self._times_at() + (8 * self._head.records if self._head.flags & TIMES else 0)

    # --- Arrow -------------------------------------------------------------------------------------

    def arrow(self) -> pa.RecordBatch:
        """The same columns as Arrow, without touching a record."""
        kit = _kit()
        pa, head, count = kit.pa, self._head, len(self)
        whole = pa.py_buffer(self._body)
        offsets_size = 4 * (head.records + 1)
        part = None if count == head.records else (self._low, count)

        def column(kind: Any, *buffers: Any) -> Any:
            made = pa.Array.from_buffers(kind, head.records, buffers)
            return made if part is None else made.slice(*part)

        def binary(begin: int, size: int, nulls: Any = None) -> Any:
            at = begin + _up(offsets_size)
            return column(kit.binary, nulls, whole.slice(begin, offsets_size), whole.slice(at, size))

        if head.flags & TIMES:
            times = column(kit.time, None, whole.slice(self._times_at(), 8 * head.records))
        else:
            same = head.lowest_time.to_bytes(8, "little", signed=True) * count
            times = pa.Array.from_buffers(kit.time, count, (None, pa.py_buffer(same)))
        if head.flags & KEYS:
            begin = self._keys_at()
            nulls = None
            if head.flags & KEY_NULLS:
                nulls = whole.slice(begin + _up(offsets_size) + _up(head.keys), (head.records + 7) // 8)
            keys = binary(begin, head.keys, nulls)
        else:
            keys = kit.nulls(count)
        columns = [
            kit.constant(self.partition.index, count),
            kit.numbers(self._offsets.start, count),
            times,
            keys,
            binary(0, head.values),
            binary(self._headers_at(), head.headers) if head.flags & HEADERS else kit.nulls(count),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=kit.schema)


class _Kit:
    """What every Arrow batch needs, made once: types, and arrays to cut the simple columns from."""

    def __init__(self) -> None:
        self.pa = arrow_module()
        import pyarrow.compute as pc

        self.schema = arrow_schema()
        self.binary = self.pa.binary()
        self.time = self.pa.timestamp("us", tz="UTC")
        self._add = pc.add
        self._numbers = self.pa.array(array("q", range(65536)), self.pa.int64())
        self._run = (0, self._numbers)
        self._int32 = self.pa.int32()
        self._constants: dict[tuple[int | None, int], Any] = {}

    def numbers(self, start: int, count: int) -> Any:
        """Consecutive ones, cut out of a longer run that the next frames use too."""
        first, run = self._run
        if not first <= start or start + count > first + len(run):
            if len(self._numbers) < count:
                self._numbers = self.pa.array(array("q", range(2 * count)), self.pa.int64())
            first, run = self._run = (start, self._add(self._numbers, start))
        return run.slice(start - first, count)

    def nulls(self, count: int) -> Any:
        """Nothing, so many times."""
        return self._same(None, count, self.binary)

    def constant(self, value: int, count: int) -> Any:
        """The same number, so many times."""
        return self._same(value, count, self._int32)

    def _same(self, value: int | None, count: int, kind: Any) -> Any:
        known = self._constants.get((value, count))
        if known is None:
            if len(self._constants) > 1000:
                self._constants.clear()
            known = self.pa.nulls(count, kind) if value is None else self.pa.repeat(self.pa.scalar(value, kind), count)
            self._constants[value, count] = known
        return known


@cache
def _kit() -> _Kit:
    return _Kit()


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


__all__ = ["Encoded", "FrameBatch", "Header", "body_of", "encode", "gap", "pack_header", "read_header", "split"]
