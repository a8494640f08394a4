"""Record, Offset, Partition and what is said about a group: the values of a log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
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
        """Name and number."""
        return f"{self.log}-{self.index:02d}"


class Offset(msgspec.Struct, frozen=True, gc=False):
    """A place in a partition, printed ``clicks-07:+123``; offsets of different partitions have no order."""

    log: str
    partition: int
    value: int

    def __str__(self) -> str:
        """Partition and number."""
        return f"{self.log}-{self.partition:02d}:+{self.value}"

    def __lt__(self, other: Offset) -> bool:
        """Whether this one was appended before."""
        return self.value < self._same_partition(other)

    def __le__(self, other: Offset) -> bool:
        """Before, or the same."""
        return self.value <= self._same_partition(other)

    def __gt__(self, other: Offset) -> bool:
        """After."""
        return self.value > self._same_partition(other)

    def __ge__(self, other: Offset) -> bool:
        """After, or the same."""
        return self.value >= self._same_partition(other)

    def _same_partition(self, other: Offset) -> int:
        if not isinstance(other, Offset) or (self.log, self.partition) != (other.log, other.partition):
            raise BadInput(
                f"{self} and {other} are not in one partition and have no order.", hint="Compare timestamps."
            )
        return other.value

    @property
    def place(self) -> Partition:
        """The partition it is in."""
        return Partition(self.log, self.partition)


class NewRecords(msgspec.Struct, gc=False):
    """Records on their way into one partition, as columns. ``times`` None means now, by the store's clock.

    ``size`` is the bytes of all values, once they were counted.
    """

    values: Sequence[bytes]
    keys: Sequence[str | bytes | None] | None = None
    times: Sequence[Micros] | None = None
    headers: Sequence[Headers | None] | None = None
    size: int = -1

    def __len__(self) -> int:
        """How many."""
        return len(self.values)


class Record(msgspec.Struct, Generic[T], frozen=True, gc=False, eq=False):
    """One immutable thing in a log partition. Key, headers and value are read out of its batch when asked for."""

    payload: bytes
    offset: int
    time_us: Micros
    batch: RecordBatch

    @property
    def value(self) -> T:
        """The payload as the log's type; raises :class:`Undecodable`, with the record's place, when it does not fit."""
        try:
            return cast(T, self.batch.codec.decode(self.payload))
        except Undecodable as cause:
            raise self._undecodable(cause) from cause

    @property
    def key(self) -> str | None:
        """The key it was appended with; bytes that are not text come as surrogate escapes."""
        return self.batch.key_at(self.offset)

    @property
    def headers(self) -> Headers:
        """Context and trace; often empty."""
        return self.batch.headers_at(self.offset)

    @property
    def time(self) -> datetime:
        """Its timestamp: given by the appender, else when it was appended."""
        return from_micros(self.time_us)

    @property
    def log(self) -> str:
        """The log it is in."""
        return self.batch.partition.log

    @property
    def partition(self) -> int:
        """The number of its partition."""
        return self.batch.partition.index

    @property
    def place(self) -> Offset:
        """Where it is."""
        return Offset(self.batch.partition.log, self.batch.partition.index, self.offset)

    def _undecodable(self, cause: Undecodable) -> Undecodable:
        where = f"log {self.log}, partition {self.partition}, offset {self.offset}: {cause.message}"
        if isinstance(cause, PayloadTooNew):
            return PayloadTooNew(where, hint=cause.hint)
        return Undecodable(
            where,
            hint="Read it with the type it was written with (give new fields a default), or as bytes to pass over it.",
        )

    def __repr__(self) -> str:
        """Where it is and how it begins."""
        shown = self.payload if len(self.payload) <= 40 else self.payload[:37] + b"..."
        return f"<record {self.place} key={self.key!r} {shown!r}>"


class RecordBatch(ABC):
    """Consecutive records of one partition as columns: what a store reads in one step."""

    __slots__ = ("codec", "partition")

    def __init__(self, partition: Partition) -> None:
        """Of this partition; the tailer sets the codec of its type."""
        self.partition = partition
        self.codec: Codec[Any] = _BYTES

    @property
    @abstractmethod
    def offsets(self) -> Sequence[int]:
        """One per record, rising; a range where there are no holes."""

    @abstractmethod
    def payloads(self) -> list[bytes]:
        """The values as stored."""

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
        """Only the records from index ``start`` to before ``stop``."""

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.offsets[-1] + 1

    def __len__(self) -> int:
        """How many records."""
        return len(self.offsets)

    def from_offset(self, offset: int) -> RecordBatch:
        """Only the records at or after ``offset``."""
        offsets = self.offsets
        if not offsets or offsets[0] >= offset:
            return self
        if isinstance(offsets, range):
            return self.slice(offset - offsets[0], len(offsets))
        return self.slice(bisect_left(offsets, offset), len(offsets))

    def records(self) -> list[Record[Any]]:
        """The records, one by one."""
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
            pa.array([msgspec.msgpack.encode(one) if one else b"" for one in headers], pa.binary())
            if any(headers)
            else pa.nulls(len(self), pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema())


class ListBatch(RecordBatch):
    """A batch made of plain lists, for stores whose driver hands out records one by one."""

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
        """All columns are of the same length."""
        super().__init__(partition)
        self._offsets = offsets
        self._payloads = payloads
        self._times = times
        self._keys = keys
        self._headers = headers

    @property
    def offsets(self) -> Sequence[int]:
        """One per record."""
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
        """A part of it."""
        part = ListBatch(
            self.partition, self._offsets[start:stop], self._payloads[start:stop], self._times[start:stop],
            self._keys[start:stop], self._headers[start:stop],
        )  # fmt: skip
        part.codec = self.codec
        return part


class Appended(Sequence[Offset]):
    """What :meth:`Appender.append_many` gave: the offset of every value, in the order given."""

    __slots__ = ("_places", "log", "spans")

    def __init__(
        self, log: str, spans: Mapping[int, Sequence[int]], places: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Offsets per partition; ``places`` says for each value the partition and its rank there (None: only one)."""
        self.log = log
        self.spans = spans
        self._places = places

    def __len__(self) -> int:
        """How many values."""
        return sum(map(len, self.spans.values()))

    def __getitem__(self, index: int) -> Offset:  # type: ignore[override]  # slices of it are of no use
        """Where the value of this rank is."""
        if self._places is not None:
            partition, rank = self._places[index]
            return Offset(self.log, partition, self.spans[partition][rank])
        partition, offsets = next(iter(self.spans.items()), (0, ()))
        return Offset(self.log, partition, offsets[index])


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """What a partition holds: offsets from ``start`` to before ``end``; ``size`` in bytes where known."""

    partition: int
    start: int
    end: int
    size: int = 0

    @property
    def count(self) -> int:
        """How many records (on Kafka: at most)."""
        return self.end - self.start


class Lag(msgspec.Struct, frozen=True, gc=False):
    """How far a group is behind: ``lower`` is the next offset it reads, ``upper`` the end of the log.

    ``skipped`` counts records that retention removed before the group read them.
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
        """The lag of all partitions together: sums."""
        all_ = list(lags)
        return Lag(
            sum(one.lower for one in all_),
            sum(one.upper for one in all_),
            sum(one.lag for one in all_),
            sum(one.skipped for one in all_),
        )


class Latency(msgspec.Struct, frozen=True, gc=False):
    """How old the last committed record is while there is a lag; zero without one.

    ``key`` is the key of that record. Before the first commit the age is that of the oldest record.
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
                f"timestamp {moment} is in no year from 1 to 9999.", hint="Give microseconds since 1970, or a datetime."
            )
        return moment
    return to_micros(moment, name="timestamp")  # type: ignore[arg-type]


def key_bytes(key: str | bytes) -> bytes:
    """The bytes a key is stored and hashed as."""
    if isinstance(key, bytes):
        return key
    try:
        return key.encode("utf-8", "surrogateescape")
    except (UnicodeEncodeError, AttributeError) as cause:
        raise BadInput(f"key {key!r} is not text: {cause}.", hint="Use str or bytes.") from cause


@cache
def arrow_module() -> Any:
    """Arrow, which only bulk reading needs."""
    try:
        import pyarrow as pa
    except ImportError as cause:
        raise MissingExtra(
            "reading as Arrow needs pyarrow, which is not installed.", hint='Run: pip install "penstock[arrow]"'
        ) from cause
    return pa


@cache
def arrow_schema() -> pa.Schema:
    """The columns of every Arrow batch of a log; headers are msgpack maps, null or empty without any."""
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
    """Times as a column."""
    pa = arrow_module()
    kind = pa.timestamp("us", tz="UTC")
    try:
        return pa.array(times, kind)
    except (OverflowError, pa.ArrowInvalid):
        # Others may have written milliseconds that are not microseconds: the farthest there are have to do.
        most = (1 << 63) - 1
        return pa.array([min(max(one, -most), most) for one in times], kind)


def from_arrow(batch: pa.RecordBatch) -> NewRecords:
    """New records out of columns of :func:`arrow_schema`; all but ``value`` may be missing."""
    names = set(batch.schema.names)

    def column(name: str) -> list[Any] | None:
        if name not in names or batch.column(name).null_count == len(batch):
            return None
        found: list[Any] = batch.column(name).to_pylist()
        return found

    pa = arrow_module()
    times = batch.column("time").cast(pa.int64()).to_pylist() if "time" in names else None
    blobs = column("headers")
    headers = None if blobs is None else [msgspec.msgpack.decode(blob) if blob else None for blob in blobs]
    return NewRecords(column("value") or [], column("key"), times, headers)
