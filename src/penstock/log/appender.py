"""Appender: the typed writer of a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypedDict, TypeVar

from penstock.clock import Duration, duration
from penstock.codec import Codec, codec_for
from penstock.errors import BadInput, Closed
from penstock.log.record import Appended, Headers, Moment, Offset
from penstock.log.routing import LingerBuffer, Router
from penstock.log.settings import check_index
from penstock.log.store import LogStore
from penstock.names import check_name
from penstock.scalars import Scalar
from penstock.tracing import begin

T = TypeVar("T")

LINGER = "5ms"
LINGER_BYTES = 64 * 1024


class AppendOptions(TypedDict, total=False):
    """What may be said of a record; see :meth:`Appender.append`."""

    key: Scalar | bytes
    partition: int | None
    timestamp: Moment | None
    headers: Headers | None
    sequence: int | None


class AppendManyOptions(TypedDict, total=False):
    """What may be said of records; see :meth:`Appender.append_many`."""

    keys: Sequence[Scalar | bytes] | None
    partition: int | None
    timestamps: Sequence[Moment] | None
    headers: Sequence[Headers | None] | None
    sequence: int | None


class Appender(Generic[T]):
    """Appends to one log. Threads may share it.

    :meth:`append` and :meth:`append_many` return once the records are as safe as the store's durability promises.
    :meth:`send` only buffers a record. If the process dies, buffered records are lost.

    Args:
        store: that has the log
        log: its name
        exclusive: keep the log to this appender; refused while there is another one
        producer: names the source of the records: a second appender of the same name fences the first. With rising
            ``sequence`` numbers, an append can be repeated safely.
        linger: how long :meth:`send` buffers
        linger_bytes: how much :meth:`send` buffers
    """

    def __init__(
        self,
        store: LogStore,
        log: str,
        type: Any = Any,
        *,
        codec: Codec[T] | None = None,
        exclusive: bool = False,
        producer: str | None = None,
        linger: Duration = LINGER,
        linger_bytes: int = LINGER_BYTES,
    ) -> None:
        """Open the appender."""
        self.store = store
        self.codec: Codec[T] = codec or codec_for(type)
        settings = store.settings(log)
        self.log = settings.name
        self.partitions = settings.partitions
        self.producer = None if producer is None else check_name(producer, kind="producer")
        if exclusive and not store.capabilities.exclusive:
            raise store.unsupported("exclusive appenders")
        self._router = Router(store, settings, self.codec)
        seconds = duration(linger, name="linger").total_seconds()
        self._sink = store.driver.open_sink(settings, exclusive=exclusive, producer=self.producer)
        self._buffer = (
            LingerBuffer(self._router, self._sink, seconds, linger_bytes, self._signal) if linger_bytes > 0 else None
        )
        self.closed = False
        store.register(self)

    def append(
        self,
        value: T,
        *,
        key: Scalar | bytes = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Offset:
        """Append a record: to ``partition``, or else by ``key``, or else to the partitions in turn.

        Args:
            sequence: of a named producer: the append can be repeated

        Returns:
            where the record is

        Raises:
            WrongType: the value is not of the log's type
            PartitionNotFound: there is no such partition
            PayloadTooLarge: it is larger than a record may be
            StoreFull: the store has no room
            Fenced: there is a newer appender of this producer
            Conflict: an old sequence
        """
        self._check(sequence)
        span = begin(self.store.tracing, "append", self.log, headers)
        try:
            number, records = self._router.route_one(
                value, key=key, partition=partition, timestamp=timestamp, headers=headers, sequence=sequence
            )
            offset = self._sink.append(((number, records),), sequence)[0][0]
        except BaseException as error:
            if span is not None:
                span.end(error)
            raise
        self._signal(number, offset, 1)
        if span is not None:
            span.message(f"{number}:{offset}")
            span.end()
        return Offset(self.log, number, offset)

    def append_many(
        self,
        values: Iterable[T],
        *,
        keys: Sequence[Scalar | bytes] | None = None,
        partition: int | None = None,
        timestamps: Sequence[Moment] | None = None,
        headers: Sequence[Headers | None] | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """Append records in one call, in order. Without keys and partition, all go to the next partition in turn.

        The records of one partition are appended as a whole or not at all; for several partitions, use a transaction.

        Args:
            sequence: of the first record, of a named producer: the append can be repeated
            headers: one for each value

        Raises:
            Fenced: there is a newer appender of this producer
            Conflict: an old sequence
        """
        self._check(sequence)
        span = begin(self.store.tracing, "append", self.log, None)
        try:
            parts, ranks = self._router.route_many(
                values, keys=keys, partition=partition, timestamps=timestamps, headers=headers, sequence=sequence
            )
            offsets = self._sink.append(parts, sequence) if parts else []
        except BaseException as error:
            if span is not None:
                span.end(error)
            raise
        if span is not None:
            span.message("", sum(len(records) for _, records in parts))
            span.end()
        spans = {}
        for (number, records), extent in zip(parts, offsets, strict=True):
            spans[number] = extent
            self._signal(number, extent[0], len(records))
        return Appended(self.log, spans, ranks)

    def send(
        self,
        value: T,
        *,
        key: Scalar | bytes = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Append a record soon. A failure is raised by a later ``send``, by ``flush`` or by ``close``."""
        if self.closed:
            self._check(None)
        if self._buffer is None:
            raise BadInput(
                "send() needs a buffer, and linger_bytes is 0.", hint="Use append(), or a positive linger_bytes."
            )
        self._buffer.add(value, key, partition, timestamp, headers)

    def flush(self) -> None:
        """Return once everything sent so far is appended."""
        self._check(None)
        if self._buffer is not None:
            self._buffer.flush()

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence of this producer in a partition: where to continue after a restart."""
        self._check(None)
        check_index(self._router.settings, partition)
        return self._sink.last_sequence(partition)

    def wait_for(self, offset: Offset, group: str, timeout: Duration = "0s") -> bool:
        """Wait until the group has committed past a record of this log."""
        if offset.log != self.log:
            raise BadInput(f"{offset} is not in log {self.log}.", hint="Ask an appender of its log, or the store.")
        return self.store.wait_for(offset, group, timeout)

    def close(self) -> None:
        """Flush and close."""
        if self.closed:
            return
        try:
            if self._buffer is not None:
                self._buffer.close()
        finally:
            self.closed = True
            self._sink.close()
            self.store.unregister(self)

    def __enter__(self) -> Appender[T]:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Flush and close."""
        self.close()

    def __repr__(self) -> str:
        """Log and store."""
        return f"<appender of {self.log} in {self.store!r}>"

    def _check(self, sequence: int | None) -> None:
        if self.closed:
            raise Closed(f"the appender of {self.log} was closed.", hint="Open another one.")
        if sequence is not None:
            if self.producer is None:
                raise BadInput("a sequence needs a producer.", hint='Open the appender with producer="name".')
            if not self.store.capabilities.sequences:
                raise self.store.unsupported("sequences")
            if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence < 1 << 63:
                raise BadInput(f"sequence {sequence!r} is not a number from 0.", hint="Use rising whole numbers.")

    def _signal(self, partition: int, offset: int, count: int) -> None:
        signals = self.store.signals
        if signals.wants("appended"):
            signals.tell("appended", self.log, (), self.store.now(), partition=partition, offset=offset, count=count)
        else:
            signals.count("appended", count)
