"""Context: what a computation may ask while it runs: produce, state, timers, time, checkpoints."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from penstock.clock import Duration, Micros, duration_micros, from_micros
from penstock.codec import JsonCodec
from penstock.errors import BadInput
from penstock.log.limits import check_headers
from penstock.log.record import Headers, Moment, NewRecords, Partition, Record, key_bytes, micros
from penstock.names import did_you_mean
from penstock.scalars import Scalar, canonical_text, scalar_of
from penstock.stream.engine.cells import ListCell, MapCell
from penstock.stream.engine.state_store import Cell, Scope, TaskScope, check_texts
from penstock.stream.engine.value_cell import ValueCell
from penstock.stream.engine.watermark import END, LOWEST
from penstock.stream.engine.window_cell import WindowCell
from penstock.stream.timers import Kind, Timers

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.codec import Codec
    from penstock.stream.engine.resolved import OutputStream
    from penstock.stream.state import List, Map, Value

    # A function that writes plain `Context` leaves the types of its records open.
    In = TypeVar("In", default=Any)
    Out = TypeVar("Out", default=Any)
    S = TypeVar("S")
else:
    In = typing.TypeVar("In")
    Out = typing.TypeVar("Out")

Row = tuple[bytes, "str | bytes | None", Micros, "Headers | None"]
SAME: Any = object()


class Output:
    """What was produced for one stream since the last checkpoint, by partition."""

    __slots__ = ("_next", "_partitioner", "codec", "encode", "known", "limit", "partitions", "rows", "stream")

    def __init__(self, output: OutputStream, limit: int) -> None:
        """``limit`` is the most bytes that a record may have."""
        self.stream = output.stream
        self.codec = output.codec
        self.encode = output.codec.encode
        self.partitions = output.partitions
        self.limit = limit
        self.rows: list[list[Row]] = [[] for _ in range(output.partitions)]
        self.known: dict[str | bytes | None, int] = {}  # recent keys and their partitions
        self._partitioner = output.partitioner
        self._next = 0

    def encode_many(self, values: list[Any]) -> list[bytes]:
        """The payloads of many values."""
        return self.codec.encode_many(values) if isinstance(self.codec, JsonCodec) else list(map(self.encode, values))

    def partition_of(self, key: str | bytes | None) -> int:
        """The partition of a key; records without one go to each partition in turn."""
        if key is None:
            self._next = (self._next + 1) % self.partitions
            return self._next
        if len(self.known) > KNOWN:
            self.known.clear()
        key_bytes(key)
        partition = self.known[key] = self._partitioner(key, self.partitions) if self.partitions > 1 else 0
        return partition

    def add(self, keys: list[str | None], rows: Iterable[Row]) -> None:
        """Add records of these keys."""
        known = list(map(self.known.get, keys))
        partitions = [
            self.partition_of(key) if index is None else index for key, index in zip(keys, known, strict=True)
        ]
        if len(set(partitions)) == 1:
            self.rows[partitions[0]] += rows
            return
        for partition, row in zip(partitions, rows, strict=True):
            self.rows[partition].append(row)

    def take(self) -> list[tuple[Partition, NewRecords]]:
        """Take what was produced, ready to be appended. It is committed, or everything is rolled back."""
        parts = []
        produced, self.rows = self.rows, [[] for _ in range(self.partitions)]
        for index, rows in enumerate(produced):
            if not rows:
                continue
            # One column after the other: zip(*rows) would make an iterator for every row.
            keys, headers = [row[1] for row in rows], [row[3] for row in rows]
            records = NewRecords(
                [row[0] for row in rows], keys if any(key is not None for key in keys) else None,
                [row[2] for row in rows], headers if any(headers) else None,
            )  # fmt: skip
            parts.append((Partition(self.stream, index), records))
        return parts

    def clear(self) -> None:
        """Forget what was produced."""
        self.rows = [[] for _ in range(self.partitions)]


class Context(Scope, Generic[In, Out]):
    """What a computation may ask while it works on a record or a timer of one partition.

    ``key`` is the key of the record or timer, ``record`` the record (None for a timer), ``stream`` the input it came
    from, ``partition`` the number of the partition.

    Throughout:
        state: its name, or the state as it was declared
        name: of the timer
        kind: ``"event"`` or ``"processing"`` time
    """

    __slots__ = (
        "_cells", "_clock", "_codecs", "_may_set_timers", "_outputs", "_time", "_timers",
        "computation", "full", "has_headers", "low", "own_key", "partition", "record", "size", "stream",
    )  # fmt: skip

    def __init__(
        self,
        computation: str,
        partition: int,
        outputs: dict[str, Output],
        cells: dict[str, Cell],
        timers: Timers,
        *,
        codecs: Mapping[str, Codec[Any]],
        may_set_timers: bool,
        clock: Callable[[], Micros],
    ) -> None:
        """Made by the runner, one per partition; ``codecs`` are those of the inputs, ``clock`` gives the time."""
        super().__init__()
        self.computation = computation
        self.partition = partition
        self.record: Record[In] | None = None
        self.stream = ""
        self.own_key: str | None = None  # the key as it is in the log: none is not the same as an empty one there
        self.low: Micros = LOWEST
        self.full = False  # a checkpoint is asked for, or needed
        self.size = 0
        self._time: Micros = 0  # of the timer, while one fires
        self.has_headers = False  # whether records of the current batch have headers at all
        self._outputs = outputs
        self._cells = cells
        self._codecs = codecs
        self._timers = timers
        self._may_set_timers = may_set_timers
        self._clock = clock
        for cell in cells.values():
            cell.scope = self if cell.keyed else cast(Scope, TaskScope(self))

    # --- producing ---------------------------------------------------------------------------------

    def produce(
        self,
        stream: str,
        value: Out | Record[Any],
        *,
        key: Scalar | bytes = SAME,
        partition: int | None = None,
        timestamp: Moment | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Append to an output; visible with the checkpoint, with everything else of it.

        Args:
            stream: one of the outputs
            value: of the stream's type; a :class:`Record` is passed on as it is
            key: text, bytes or any JSON scalar, None for none; by default that of the record or timer at work
            partition: instead of the key
            timestamp: the event time; by default that of the record or timer at work
            headers: added to those of the record at work
        """
        out = self._outputs.get(stream)
        if out is None:
            raise self._unknown("output", stream, self._outputs)
        record = self.record
        payload = value.payload if value.__class__ is Record else out.encode(value)
        if key is SAME:
            key = self.own_key
        elif key is not None and not isinstance(key, bytes):
            key = canonical_text(key)
        if partition is None:
            partition = out.known.get(key)
            if partition is None:
                partition = out.partition_of(key)
        elif not 0 <= partition < out.partitions:
            raise BadInput(
                f"stream {out.stream} has no partition {partition!r}.", hint=f"Use 0 to {out.partitions - 1}."
            )
        if timestamp is not None:
            at = micros(timestamp)
        elif record is not None:
            at = record.time_us
        else:
            at = self._time
        own = None if record is None or not self.has_headers else record.headers
        if headers:
            check_headers(headers)
            own = {**own, **headers} if own else headers
        size = len(payload)
        if size > out.limit:
            raise self._too_large(out, size)
        out.rows[partition].append((payload, key, at, own))
        self.size += size
        if self.size > MOST:
            self.full = True

    def append(
        self, stream: str, payload: bytes, key: str | bytes | None, time: Micros, headers: Headers | None
    ) -> None:
        """Append an encoded payload; computations call :meth:`produce`."""
        out = self._output(stream)
        if headers:
            check_headers(headers)
        partition = out.known.get(key)
        if partition is None:
            partition = out.partition_of(key)
        size = len(payload)
        if size > out.limit:
            raise self._too_large(out, size)
        out.rows[partition].append((payload, key, time, headers))
        self.size += size
        if self.size > MOST:
            self.full = True

    def produce_many(
        self, stream: str, values: list[Out], keys: list[str | None], times: Iterable[Micros],
        headers: Iterable[Headers | None] = repeat(None),
    ) -> None:  # fmt: skip
        """Append the results of many keys."""
        out = self._output(stream)
        payloads = out.encode_many(values)
        sizes = list(map(len, payloads))
        if max(sizes, default=0) > out.limit:
            raise self._too_large(out, max(sizes))
        out.add(keys, zip(payloads, keys, times, headers, strict=False))
        self.size += sum(sizes)
        if self.size > MOST:
            self.full = True

    def codec_of(self, stream: str) -> Codec[Any]:
        """The codec of an output."""
        return self._output(stream).codec

    def _output(self, stream: str) -> Output:
        out = self._outputs.get(stream)
        if out is None:
            raise self._unknown("output", stream, self._outputs)
        return out

    def partitions(self, stream: str) -> int:
        """How many partitions an output has."""
        return self._output(stream).partitions

    def decode(self, stream: str, payload: bytes) -> Any:
        """The value of a record of an input with this payload: for payloads that were stored in a state."""
        codec = self._codecs.get(stream)
        if codec is None:
            raise self._unknown("input", stream, self._codecs)
        return codec.decode(payload)

    def use(self, record: Record[Any]) -> None:
        """In a batch: make this record and its key the current ones.

        Args:
            record: one of the batch
        """
        self.record = record
        self.own_key = record.key
        self.key_text = self.own_key or ""
        self.has_headers = True

    # --- state -------------------------------------------------------------------------------------

    @overload
    def value(self, state: Value[S]) -> ValueCell[S]: ...

    @overload
    def value(self, state: str) -> ValueCell[Any]: ...

    def value(self, state: Value[Any] | str) -> ValueCell[Any]:
        """The value state of this name, of the current key."""
        name = state if state.__class__ is str else state.name  # type: ignore[union-attr]
        cell = self._cells.get(name)
        if cell.__class__ is not ValueCell:
            raise self._wrong_state(name, "Value")
        return cell

    @overload
    def list(self, state: List[S]) -> ListCell[S]: ...

    @overload
    def list(self, state: str) -> ListCell[Any]: ...

    def list(self, state: List[Any] | str) -> ListCell[Any]:
        """The list state of this name, of the current key."""
        name = state if state.__class__ is str else state.name  # type: ignore[union-attr]
        cell = self._cells.get(name)
        if cell.__class__ is not ListCell:
            raise self._wrong_state(name, "List")
        return cell

    @overload
    def map(self, state: Map[S]) -> MapCell[S]: ...

    @overload
    def map(self, state: str) -> MapCell[Any]: ...

    def map(self, state: Map[Any] | str) -> MapCell[Any]:
        """The map state of this name, of the current key."""
        name = state if state.__class__ is str else state.name  # type: ignore[union-attr]
        cell = self._cells.get(name)
        if cell.__class__ is not MapCell:
            raise self._wrong_state(name, "Map")
        return cell

    def windows(self, name: str) -> WindowCell:
        """The windows of all keys; only ready-made computations have such a state."""
        cell = self._cells.get(name)
        if cell.__class__ is not WindowCell:
            raise self._wrong_state(name, "Windows")
        return cell

    # --- timers ------------------------------------------------------------------------------------

    def set_timer(self, at: Moment, name: Scalar = "", *, kind: Kind = "event") -> None:
        """Call ``on_timer`` for the current key when event (or processing) time has come there; once.

        A key has one timer of each name and kind: setting it again moves it.

        Args:
            at: the time; a time in the past fires at once
        """
        if not self._may_set_timers:
            raise BadInput(f"{self.computation} has no on_timer to call.", hint="Give it one; then set timers.")
        if kind not in ("event", "processing"):
            raise BadInput(f"timer kind {kind!r} is unknown.", hint="Use 'event' or 'processing'.")
        text = canonical_text(name)
        if self.strict:
            check_texts(self.key_text, text)
        self._timers.set(kind, self.key_text, text, micros(at))

    def set_timer_after(self, delay: Duration, name: Scalar = "") -> None:
        """Call ``on_timer`` for the current key so much processing time from now.

        Args:
            delay: how long from now
        """
        self.set_timer(self._clock() + duration_micros(delay, name="delay"), name, kind="processing")

    def clear_timer(self, name: Scalar = "", *, kind: Kind = "event") -> None:
        """Remove a timer of the current key; harmless if there is none."""
        self._timers.clear(kind, self.key_text, canonical_text(name))

    def timer(self, name: Scalar = "", *, kind: Kind = "event") -> datetime | None:
        """When a timer of the current key fires, or None if it is not set."""
        at = self._timers.get(kind, self.key_text, canonical_text(name))
        return None if at is None else from_micros(at)

    # --- the record at work ------------------------------------------------------------------------

    @property
    def key(self) -> Any:
        """The key of the record or timer at work, as the scalar it was given as; empty if it has none."""
        return scalar_of(self.key_text)

    @key.setter
    def key(self, key: Scalar) -> None:
        """Make another key current: state and timers are those of this key from now on."""
        self.key_text = canonical_text(key)

    # --- time --------------------------------------------------------------------------------------

    @property
    def time_us(self) -> Micros:
        """The event time of the record or timer at work, in microseconds."""
        return self._time if self.record is None else self.record.time_us

    @property
    def time(self) -> datetime:
        """The event time of the record or timer at work."""
        return from_micros(self.time_us)

    @property
    def now_us(self) -> Micros:
        """Processing time, in microseconds."""
        return self._clock()

    @property
    def watermark(self) -> datetime | None:
        """How far event time has come, as of the last checkpoint, or None while nothing is known."""
        return None if self.low == LOWEST else from_micros(LAST if self.low == END else self.low)

    @property
    def late(self) -> bool:
        """Whether the record at work is older than the watermark."""
        return self.record is not None and self.record.time_us < self.low

    @property
    def final(self) -> bool:
        """Whether the input has ended: in timers and ``on_drain`` of a final drain."""
        return self.low == END

    def checkpoint(self) -> None:
        """Ask for a checkpoint after this record; a hint that a runner may ignore."""
        self.full = True

    # --- for the runner ------------------------------------------------------------------------------

    def at_timer(self, key: str, time: Micros) -> None:
        """Make the key and time of a timer current."""
        self.record = None
        self.stream = ""
        self.strict = True
        self.key_text = key
        self.own_key = key or None
        self._time = time

    def _too_large(self, out: Output, size: int) -> BadInput:
        return BadInput(
            f"{self.computation} produced a record of {size:,} bytes; {out.stream} takes {out.limit:,}.",
            hint="Store the data elsewhere and produce a reference to it.",
        )

    def _unknown(self, what: str, name: str, known: Any) -> BadInput:
        listed = ", ".join(known) or "none"
        return BadInput(
            f"{self.computation} has no {what} {name!r}.", hint=f"{did_you_mean(str(name), known)}It has {listed}."
        )

    def _wrong_state(self, name: str, wanted: str) -> BadInput:
        if name not in self._cells:
            return self._unknown("state", name, self._cells)
        return BadInput(
            f"state {name!r} of {self.computation} is no {wanted}.", hint=f"Declare it as {wanted}({name!r}, …)."
        )


KNOWN = 50_000  # keys whose partitions are remembered
MOST = 8 * 1024 * 1024  # bytes produced after which a checkpoint is due
LAST: Micros = 253_402_300_799_000_000  # the last second that datetimes can say
