"""The values of a log: records, offsets, partitions, batches, bounds and lags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from penstock.clock import FIRST_TIME, LAST_TIME, Micros, from_micros, to_micros
from penstock.codec import BytesCodec, Codec
from penstock.errors import BadInput, MissingExtra, PayloadTooNew, Undecodable

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

Headers = Mapping[str, str | bytes]
Moment = datetime | Micros
NO_HEADERS: Headers = {}
_BYTES = BytesCodec()


class Partition(msgspec.Struct, frozen=True, order=True, gc=False):
    """One partition of a log, printed ``clicks-07``."""

    log: str
    index: int

    def __str__(self) -> str:
        """The log and the number."""
        return f"{self.log}-{self.index:02d}"


class Offset(msgspec.Struct, frozen=True, gc=False):
    """A position in a partition, printed ``clicks-07:+123``. Offsets of different partitions cannot be compared."""

    log: str
    partition: int
    value: int

    def __str__(self) -> str:
        """The partition and the number."""
        return f"{self.log}-{self.partition:02d}:+{self.value}"

    def __lt__(self, other: Offset) -> bool:
        """Whether this offset is before the other."""
        return self.value < self._same_partition(other)

    def __le__(self, other: Offset) -> bool:
        """Before the other, or the same."""
        return self.value <= self._same_partition(other)

    def __gt__(self, other: Offset) -> bool:
        """After the other."""
        return self.value > self._same_partition(other)

    def __ge__(self, other: Offset) -> bool:
        """After the other, or the same."""
        return self.value >= self._same_partition(other)

    def _same_partition(self, other: Offset) -> int:
        if not isinstance(other, Offset) or (self.log, self.partition) != (other.log, other.partition):
            raise BadInput(
                f"{self} and {other} are not in the same partition and cannot be compared.",
                hint="Compare timestamps.",
            )
        return other.value

    @property
    def log_partition(self) -> Partition:
        """The partition it is in."""
        return Partition(self.log, self.partition)


class NewRecords(msgspec.Struct, gc=False):
    """Records to be appended to one partition, as columns. Without ``times``, they get the store's time.

    ``size`` is the number of bytes of all values, or -1 if it was not computed yet.
    """

    values: Sequence[bytes]
    keys: Sequence[str | bytes | None] | None = None
    times: Sequence[Micros] | None = None
    headers: Sequence[Headers | None] | None = None
    size: int = -1

    def __len__(self) -> int:
        """The number of records."""
        return len(self.values)

    def take(self, indexes: Sequence[int]) -> NewRecords:
        """The records at these indexes."""
        values, keys, times, headers = self.values, self.keys, self.times, self.headers
        return NewRecords(
            [values[index] for index in indexes],
            None if keys is None else [keys[index] for index in indexes],
            None if times is None else [times[index] for index in indexes],
            None if headers is None else [headers[index] for index in indexes],
        )

    @staticmethod
    def concat(parts: Sequence[NewRecords], now: Callable[[], Micros]) -> NewRecords:
        """Several batches as one; ``now`` gives the time of records without one, if others have one."""
        if len(parts) == 1:
            return parts[0]
        missing = now()
        values: list[bytes] = []
        keys: list[str | bytes | None] = []
        times: list[Micros] = []
        headers: list[Headers | None] = []
        for part in parts:
            count = len(part)
            values += part.values
            keys += [None] * count if part.keys is None else part.keys
            times += [missing] * count if part.times is None else part.times
            headers += [None] * count if part.headers is None else part.headers
        return NewRecords(
            values,
            keys if any(key is not None for key in keys) else None,
            times if any(part.times is not None for part in parts) else None,
            headers if any(headers) else None,
        )


class Record(msgspec.Struct, Generic[T], frozen=True, gc=False, eq=False):
    """One immutable record of a partition. Its key, headers and value are decoded when they are read."""

    payload: bytes
    offset: int
    time_us: Micros
    batch: RecordBatch

    @property
    def value(self) -> T:
        """The payload as the log's type. Raises :class:`Undecodable`, with the record's position."""
        try:
            return cast(T, self.batch.codec.decode(self.payload))
        except Undecodable as cause:
            raise self._undecodable(cause) from cause

    @property
    def key(self) -> str | None:
        """The key; bytes that are not UTF-8 become surrogate escapes."""
        return self.batch.key_at(self.offset)

    @property
    def headers(self) -> Headers:
        """The headers, such as a trace context; often empty."""
        return self.batch.headers_at(self.offset)

    @property
    def time(self) -> datetime:
        """The timestamp: the appender's, or else the time of the append."""
        return from_micros(self.time_us)

    @property
    def log(self) -> str:
        """The log it is in."""
        return self.batch.partition.log

    @property
    def partition(self) -> int:
        """The number of the partition it is in."""
        return self.batch.partition.index

    @property
    def position(self) -> Offset:
        """Its offset, with its log and partition."""
        return Offset(self.batch.partition.log, self.batch.partition.index, self.offset)

    def _undecodable(self, cause: Undecodable) -> Undecodable:
        where = f"log {self.log}, partition {self.partition}, offset {self.offset}: {cause.message}"
        if isinstance(cause, PayloadTooNew):
            return PayloadTooNew(where, hint=cause.hint)
        return Undecodable(
            where,
            hint="Read it with the type it was written with (give new fields a default), or as bytes to skip it.",
        )

    def __repr__(self) -> str:
        """Its position, its key and the beginning of its payload."""
        shown = self.payload if len(self.payload) <= 40 else self.payload[:37] + b"..."
        return f"<record {self.position} key={self.key!r} {shown!r}>"


class RecordBatch(ABC):
    """Consecutive records of one partition, as columns."""

    __slots__ = ("codec", "partition")

    def __init__(self, partition: Partition) -> None:
        """For a partition; the tailer sets the codec."""
        self.partition = partition
        self.codec: Codec[Any] = _BYTES

    @property
    @abstractmethod
    def offsets(self) -> Sequence[int]:
        """The offsets, rising; a range if there are no holes."""

    @abstractmethod
    def payloads(self) -> list[bytes]:
        """The stored bytes of the values."""

    @abstractmethod
    def times(self) -> Sequence[Micros]:
        """The timestamps."""

    @abstractmethod
    def keys(self) -> Sequence[str | None]:
        """The keys."""

    @abstractmethod
    def headers(self) -> Sequence[Headers]:
        """The headers."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> RecordBatch:
        """The records from index ``start`` up to, but not including, ``stop``."""

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.offsets[-1] + 1

    def __len__(self) -> int:
        """The number of records."""
        return len(self.offsets)

    def from_offset(self, offset: int) -> RecordBatch:
        """The records at or after ``offset``."""
        offsets = self.offsets
        if not offsets or offsets[0] >= offset:
            return self
        if isinstance(offsets, range):
            return self.slice(offset - offsets[0], len(offsets))
        return self.slice(bisect_left(offsets, offset), len(offsets))

    def records(self) -> list[Record[Any]]:
        """The records."""
        return [
            Record(payload, offset, time_us, self)
            for payload, offset, time_us in zip(self.payloads(), self.offsets, self.times(), strict=True)
        ]

    def key_at(self, offset: int) -> str | None:
        """The key of one record."""
        return self.keys()[self._index(offset)]

    def headers_at(self, offset: int) -> Headers:
        """The headers of one record."""
        return self.headers()[self._index(offset)]

    def _index(self, offset: int) -> int:
        offsets = self.offsets
        return offset - offsets[0] if isinstance(offsets, range) else bisect_left(offsets, offset)

    def arrow(self) -> pa.RecordBatch:
        """The batch as Arrow: partition, offset, time, key, value and headers (see :func:`arrow_schema`)."""
        pa = arrow_module()
        headers = self.headers()
        columns = [
            pa.array([self.partition.index] * len(self), pa.int32()),
            pa.array(self.offsets, pa.int64()),
            arrow_times(self.times()),
            pa.array([None if key is None else key_bytes(key) for key in self.keys()], pa.binary()),
            pa.array(self.payloads(), pa.binary()),
            pa.array([msgspec.msgpack.encode(own) if own else b"" for own in headers], pa.binary())
            if any(headers)
            else pa.nulls(len(self), pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema())


class ListBatch(RecordBatch):
    """A batch made of plain lists."""

    __slots__ = ("_headers", "_keys", "_offsets", "_payloads", "_times")

    def __init__(  # noqa: PLR0917 - one per column
        self,
        partition: Partition,
        offsets: Sequence[int],
        payloads: list[bytes],
        times: Sequence[Micros],
        keys: Sequence[str | None],
        headers: Sequence[Headers],
    ) -> None:
        """All columns have the same length."""
        super().__init__(partition)
        self._offsets = offsets
        self._payloads = payloads
        self._times = times
        self._keys = keys
        self._headers = headers

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets."""
        return self._offsets

    def payloads(self) -> list[bytes]:
        """The values."""
        return self._payloads

    def times(self) -> Sequence[Micros]:
        """The timestamps."""
        return self._times

    def keys(self) -> Sequence[str | None]:
        """The keys."""
        return self._keys

    def headers(self) -> Sequence[Headers]:
        """The headers."""
        return self._headers

    def slice(self, start: int, stop: int) -> ListBatch:
        """Some of the records."""
        part = ListBatch(
            self.partition, self._offsets[start:stop], self._payloads[start:stop], self._times[start:stop],
            self._keys[start:stop], self._headers[start:stop],
        )  # fmt: skip
        part.codec = self.codec
        return part


class Appended(Sequence[Offset]):
    """The result of :meth:`Appender.append_many`: the offset of every value, in their order."""

    __slots__ = ("_ranks", "log", "spans")

    def __init__(
        self, log: str, spans: Mapping[int, Sequence[int]], ranks: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Offsets by partition; ``ranks`` has each value's partition and rank there, unless there is only one."""
        self.log = log
        self.spans = spans
        self._ranks = ranks

    def __len__(self) -> int:
        """The number of values."""
        return sum(map(len, self.spans.values()))

    def __getitem__(self, index: int) -> Offset:  # type: ignore[override]  # without slices
        """The offset of a value."""
        if self._ranks is not None:
            partition, rank = self._ranks[index]
            return Offset(self.log, partition, self.spans[partition][rank])
        partition, offsets = next(iter(self.spans.items()), (0, ()))
        return Offset(self.log, partition, offsets[index])


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """The offsets of a partition, from ``start`` up to, but not including, ``end``; and its size, if known."""

    partition: int
    start: int
    end: int
    size: int = 0

    @property
    def count(self) -> int:
        """The number of records (on Kafka, at most)."""
        return self.end - self.start


class Lag(msgspec.Struct, frozen=True, gc=False):
    """How far a group is behind: ``lower`` is the next offset it reads, ``upper`` the end of the log.

    ``skipped`` is the number of records that retention removed before the group read them.
    """

    lower: int
    upper: int
    lag: int
    skipped: int = 0

    @staticmethod
    def of(bounds: Bounds, committed: int | None) -> Lag:
        """The lag of one partition."""
        lower = bounds.start if committed is None else min(committed, bounds.end)
        skipped = max(0, bounds.start - lower) if committed is not None else 0
        return Lag(lower, bounds.end, bounds.end - max(lower, bounds.start), skipped)

    @staticmethod
    def total(lags: Iterable[Lag]) -> Lag:
        """The sum over all partitions."""
        partitions = list(lags)
        return Lag(
            sum(partition.lower for partition in partitions),
            sum(partition.upper for partition in partitions),
            sum(partition.lag for partition in partitions),
            sum(partition.skipped for partition in partitions),
        )


class Latency(msgspec.Struct, frozen=True, gc=False):
    """The age of the last committed record, or zero without a lag.

    ``key`` is the key of that record. Before the first commit, the age is that of the oldest record.
    """

    lag: int
    latency: timedelta
    committed_us: Micros | None = None
    key: str | None = None


def micros(moment: Moment) -> Micros:
    """A timestamp as microseconds."""
    if isinstance(moment, int) and not isinstance(moment, bool):
        if not FIRST_TIME <= moment <= LAST_TIME:
            raise BadInput(
                f"timestamp {moment} is not in the years 1 to 9999.",
                hint="Give microseconds since 1970, or a datetime.",
            )
        return moment
    return to_micros(moment, name="timestamp")  # type: ignore[arg-type]


def key_bytes(key: str | bytes) -> bytes:
    """The bytes of a key, as they are stored and hashed."""
    if isinstance(key, bytes):
        return key
    try:
        return key.encode("utf-8", "surrogateescape")
    except (UnicodeEncodeError, AttributeError) as cause:
        raise BadInput(f"key {key!r} is not text: {cause}.", hint="Use str or bytes.") from cause


@cache
def arrow_module() -> Any:
    """The module pyarrow, which only bulk reading needs."""
    try:
        import pyarrow as pa
    except ImportError as cause:
        raise MissingExtra(
            "reading as Arrow needs pyarrow, which is not installed.", hint='Run: pip install "penstock[arrow]"'
        ) from cause
    return pa


@cache
def arrow_schema() -> pa.Schema:
    """The columns of every Arrow batch of a log; headers are msgpack maps, null or empty if there are none."""
    pa = arrow_module()
    return pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary(), nullable=False),
            pa.field("headers", pa.binary()),
        ]
    )


def arrow_times(times: Sequence[Micros]) -> pa.Array:
    """Timestamps as a column."""
    pa = arrow_module()
    kind = pa.timestamp("us", tz="UTC")
    try:
        return pa.array(times, kind)
    except (OverflowError, pa.ArrowInvalid):
        # Other producers may have written timestamps outside int64 microseconds; clamp them.
        limit = (1 << 63) - 1
        return pa.array([min(max(time, -limit), limit) for time in times], kind)


def from_arrow(batch: pa.RecordBatch) -> NewRecords:
    """New records from columns of :func:`arrow_schema`; all but ``value`` may be missing."""
    names = set(batch.schema.names)

    def column(name: str) -> list[Any] | None:
        if name not in names or batch.column(name).null_count == len(batch):
            return None
        values: list[Any] = batch.column(name).to_pylist()
        return values

    pa = arrow_module()
    times = batch.column("time").cast(pa.int64()).to_pylist() if "time" in names else None
    blobs = column("headers")
    headers = None if blobs is None else [msgspec.msgpack.decode(blob) if blob else None for blob in blobs]
    return NewRecords(column("value") or [], column("key"), times, headers)
