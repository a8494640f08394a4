"""FrameBatch: the records of a frame, read from its columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import Micros
from penstock.log.drivers.files.format.arrow import arrow_kit
from penstock.log.drivers.files.format.frames import HEADERS, KEY_NULLS, KEYS, TIMES, Header, keep_warm
from penstock.log.record import NO_HEADERS, Headers, Partition, Record, RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa


def _padded(size: int) -> int:
    return (size + 7) & ~7


class FrameBatch(RecordBatch):
    """The records of one frame, or some of them. Columns are read when they are needed."""

    __slots__ = ("_body", "_head", "_high", "_keys", "_low", "_offsets")

    def __init__(self, partition: Partition, header: Header, body: memoryview, low: int, high: int) -> None:
        """``body`` is the uncompressed body; the batch has the frame's records from ``low`` up to ``high``."""
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
        """The number of records."""
        return self._high - self._low

    def slice(self, start: int, stop: int) -> FrameBatch:
        """Some of the records."""
        part = FrameBatch(self.partition, self._head, self._body, self._low + start, min(self._low + stop, self._high))
        part.codec = self.codec
        return part

    def payloads(self) -> list[bytes]:
        """The values."""
        ranks = self._body[4 * self._low : 4 * (self._high + 1)].cast("i").tolist()
        begin = self._values_at()
        first = ranks[0]
        data = bytes(self._body[begin + first : begin + ranks[-1]])
        keep_warm(data)
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
        """The keys; decoded once, as records ask for them one at a time."""
        if self._keys is None:
            self._keys = self._decoded_keys()
        return self._keys

    def _decoded_keys(self) -> Sequence[str | None]:
        head, count = self._head, len(self)
        if not head.flags & KEYS:
            return [None] * count
        begin = self._keys_at()
        ranks = self._body[begin + 4 * self._low : begin + 4 * (self._high + 1)].cast("i").tolist()
        column = begin + _padded(4 * (head.records + 1))
        raw = bytes(self._body[column + ranks[0] : column + ranks[-1]])
        first = ranks[0]
        if raw.isascii():
            text = raw.decode()
            keys: list[str | None] = [text[low - first : high - first] for low, high in pairwise(ranks)]
        else:
            keys = [raw[low - first : high - first].decode("utf-8", "surrogateescape") for low, high in pairwise(ranks)]
        if head.flags & KEY_NULLS:
            bits = self._body[column + _padded(head.keys) :]
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
        column = begin + _padded(4 * (head.records + 1))
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

    # --- the positions of the columns ---------------------------------------------------------------------

    def _values_at(self) -> int:
        return _padded(4 * (self._head.records + 1))

    def _keys_at(self) -> int:
        return self._values_at() + _padded(self._head.values)

    def _times_at(self) -> int:
        head, begin = self._head, self._keys_at()
        if head.flags & KEYS:
            begin += _padded(4 * (head.records + 1)) + _padded(head.keys)
        if head.flags & KEY_NULLS:
            begin += _padded((head.records + 7) // 8)
        return begin

    def _headers_at(self) -> int:
        return self._times_at() + (8 * self._head.records if self._head.flags & TIMES else 0)

    # --- Arrow -------------------------------------------------------------------------------------

    def arrow(self) -> pa.RecordBatch:
        """The columns as Arrow, without copying a value."""
        kit = arrow_kit()
        pa, head, count = kit.pa, self._head, len(self)
        whole = pa.py_buffer(self._body)
        offsets_size = 4 * (head.records + 1)
        part = None if count == head.records else (self._low, count)

        def column(kind: Any, *buffers: Any) -> Any:
            whole_column = pa.Array.from_buffers(kind, head.records, buffers)
            return whole_column if part is None else whole_column.slice(*part)

        def binary(begin: int, size: int, nulls: Any = None) -> Any:
            at = begin + _padded(offsets_size)
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
                nulls = whole.slice(begin + _padded(offsets_size) + _padded(head.keys), (head.records + 7) // 8)
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
