"""Records as Arrow columns, for computations that take a batch at once: what they get, and what they give.

A computation with ``batch=Columns(…)`` gets a ``pyarrow.RecordBatch`` with the columns key, time, headers and value,
and gives such batches back. :class:`map_in_arrow` is the same for a function over iterators, as Spark's mapInArrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from msgspec import inspect

from penstock.codec import BytesCodec, Codec, JsonCodec
from penstock.errors import BadInput, Undecodable, WrongType
from penstock.log.record import Headers, Record, arrow_module, arrow_times
from penstock.policy import Batching
from penstock.stream.computation import Computation, Names, OperatorOptions, names_of
from penstock.stream.context import Context
from penstock.stream.operators import Operator, check_arguments

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.stream.engine.checkpoint import InputBatch

REQUIRED = ("key", "time", "value")
KNOWN = (*REQUIRED, "headers")
HINT = "Give key, time and value, and headers if there are any; set_column() on the batch that came leaves the others."
# What Arrow takes as it is; everything else becomes what JSON has.
_NATIVE = (bytes, bytearray)


class Columns(Batching, frozen=True, forbid_unknown_fields=True):
    """The ``batch`` option of a computation: ``process_batch`` gets up to ``size`` records as one Arrow batch.

    The runner decides where one batch ends and the next begins: results must not depend on it. States and timers are
    not available.
    """

    size: int = 10_000
    linger: Any = timedelta(milliseconds=20)


InArrow = Callable[[Iterator["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


class map_in_arrow(Operator):
    """Apply a function to columns, as Spark's mapInArrow does.

    Args:
        function: from an iterator of column batches to an iterator of them; a ``dict`` in place of a batch has one for
            each of the outputs that it names: ``to`` or ``side_outputs``
        batch: how many records at once
    """

    def __init__(
        self, name: str, function: InArrow, source: str, to: str, *, side_outputs: Names = (),
        batch: Columns = Columns(),  # noqa: B008 - it is frozen
        **options: Unpack[OperatorOptions],
    ) -> None:  # fmt: skip
        """From ``source`` to ``to``."""
        check_arguments(map_in_arrow, name=name, function=function, source=source, to=to)
        super().__init__(name, source, (to, *names_of(side_outputs)), options)
        self.batch = batch
        self.function = function

    def process_batch(self, records: Any, ctx: Context) -> object:
        """Apply the function to the columns of one partition."""
        return self.function(iter((records,)))


def check_columns(name: str, computation: Computation) -> None:
    """Refuse states and timers, which a computation over columns cannot have."""
    arrow_module()
    for what, given in (("states", bool(computation.states)), ("timers", computation.overrides("on_timer"))):
        if given:
            raise BadInput(
                f"{name} takes columns and has {what}: a batch of columns has no current key.",
                hint="Let a later computation keep what is needed, record by record.",
            )


class ColumnBatches:
    """Calls ``process_batch`` of one task with columns, and produces what it gives."""

    def __init__(self, name: str, codecs: Mapping[str, Codec[Any]], outputs: Sequence[str]) -> None:
        """``codecs`` are those of the inputs."""
        self._name = name
        self._outputs = outputs
        self._codecs = codecs
        self._types = {stream: value_type(stream, codec) for stream, codec in codecs.items()}

    def process(self, computation: Computation, batch: InputBatch, ctx: Context) -> None:
        """Process one batch."""
        columns = self._columns(batch)
        given = computation.process_batch(columns, ctx)
        for part in self._parts(given):
            for stream, table in part.items():
                self._produce(ctx, stream, table)

    # --- what came ---------------------------------------------------------------------------------------

    def _columns(self, batch: InputBatch) -> pa.RecordBatch:
        pa = arrow_module()
        payloads = [record.payload for record in batch.records]
        headers = [_bytes_of(record.headers) for record in batch.records] if batch.has_headers else None
        columns = {
            "key": _keys(batch.keys),
            "time": arrow_times(batch.times),
            "headers": pa.nulls(len(payloads), HEADERS()) if headers is None else pa.array(headers, HEADERS()),
            "value": self._values(batch.stream, payloads, batch.records),
        }
        return pa.RecordBatch.from_pydict(columns)

    def _values(self, stream: str, payloads: list[bytes], records: list[Record[Any]]) -> pa.Array:
        pa = arrow_module()
        codec, kind = self._codecs[stream], self._types[stream]
        if kind is None:
            if not isinstance(codec, BytesCodec):
                for payload in payloads:
                    codec.decode(payload)  # a record that cannot be read is a failure
            return pa.array(payloads, pa.binary())
        values = [msgspec.to_builtins(codec.decode(payload), builtin_types=_NATIVE) for payload in payloads]
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as cause:
            where = str(records[0].position) if len(records) == 1 else stream
            raise Undecodable(
                f"{where} holds a value that does not fit a column of {kind}: {cause}.",
                hint="Declare the stream as bytes, or with a type that holds all its values.",
            ) from cause

    # --- what is given -----------------------------------------------------------------------------------

    def _parts(self, given: Any) -> Iterator[dict[str, Any]]:
        """The tables that process_batch returned, by output."""
        pa = arrow_module()
        if given is None:
            return
        if isinstance(given, pa.RecordBatch | pa.Table):
            yield {self._only_output(): given}
        elif isinstance(given, dict):
            yield given
        elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
            for part in given:
                yield from self._parts(part)
        else:
            raise self._wrong(f"a {type(given).__name__}", "Return a pyarrow RecordBatch or Table, or yield them.")

    def _only_output(self) -> str:
        if not self._outputs:
            raise self._wrong("columns and has no output", "Name an output, or return None.")
        return self._outputs[0]

    def _produce(self, ctx: Context, stream: str, table: Any) -> None:
        pa = arrow_module()
        if not isinstance(table, pa.RecordBatch | pa.Table):
            raise self._wrong(f"a {type(table).__name__} for {stream}", "Give a pyarrow RecordBatch or Table.")
        names = table.schema.names
        missing = [name for name in REQUIRED if name not in names]
        strange = [name for name in names if name not in KNOWN]
        if missing or strange or len(set(names)) != len(names):
            what = f"without the column {missing[0]!r}" if missing else f"with a column {(strange or names)[0]!r}"
            raise self._wrong(f"columns {what} for {stream}", HINT)
        keys = self._list(table, "key", pa.string())
        times = self._list(table, "time", pa.timestamp("us", tz="UTC"), pa.int64())
        headers = self._list(table, "headers", HEADERS()) if "headers" in names else [None] * len(keys)
        if None in times:
            raise self._wrong(f"a time that is null for {stream}", "Every record has a time.")
        codec = ctx.codec_of(stream)
        column = table.column("value")
        is_payload = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        encode = partial(_checked, codec) if is_payload else partial(_encoded, codec)
        for value, key, time, some in zip(column.to_pylist(), keys, times, headers, strict=True):
            ctx.append(stream, encode(value), key, time, _texts(some))

    def _list(self, table: Any, name: str, *kinds: Any) -> list[Any]:
        column = table.column(name)
        try:
            for kind in kinds:
                column = column.cast(kind)
        except arrow_module().ArrowException as cause:
            raise self._wrong(f"a column {name} of {table.column(name).type}, not {kinds[0]}", str(cause)) from cause
        values: list[Any] = column.to_pylist()
        return values

    def _wrong(self, given: str, hint: str) -> WrongType:
        return WrongType(f"{self._name} gave {given}.", hint=hint)


def _encoded(codec: Codec[Any], value: Any) -> bytes:
    """Encode a value of a column with the stream's type and defaults."""
    if value.__class__ in (int, str, float, bool) or isinstance(codec, BytesCodec):
        return codec.encode(value)
    return codec.encode(codec.decode(msgspec.json.encode(value)))


def _checked(codec: Codec[Any], payload: bytes | None) -> bytes:
    """Check that a payload given as bytes can be read as one of the stream."""
    if payload is None:
        raise WrongType("a value is null where payloads are given.", hint="Give bytes in every row.")
    if not isinstance(codec, BytesCodec):
        codec.decode(payload)
    return payload


def _keys(keys: Iterable[Any]) -> pa.Array:
    pa = arrow_module()
    try:
        return pa.array(keys, pa.string())
    except (UnicodeEncodeError, pa.ArrowException) as cause:
        raise Undecodable(
            "a key is not UTF-8 and cannot be in a column of texts.", hint="Give such records another key: rekey."
        ) from cause


def HEADERS() -> Any:
    """The type of the column headers."""
    pa = arrow_module()
    return pa.map_(pa.string(), pa.binary())


def _bytes_of(headers: Headers) -> list[tuple[str, bytes]] | None:
    if not headers:
        return None
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers.items()]


def _texts(headers: list[tuple[str, bytes]] | None) -> Headers | None:
    """Headers as they are produced: text where the bytes are text."""
    if not headers:
        return None
    texts: dict[str, str | bytes] = {}
    for name, value in headers:
        try:
            texts[name] = value.decode()
        except UnicodeDecodeError:
            texts[name] = value
    return texts


# --- from a type to the column value -----------------------------------------------------------------------


def value_type(stream: str, codec: Codec[Any]) -> Any:
    """The Arrow type of the column value, or None if payloads stay bytes: the stream has no type or its own codec."""
    if not isinstance(codec, JsonCodec) or codec.type is Any:
        return None
    return _arrow_type(inspect.type_info(codec.type), stream)


def _arrow_type(info: inspect.Type, stream: str) -> Any:
    pa = arrow_module()
    match info:
        case inspect.BoolType():
            return pa.bool_()
        case inspect.IntType():
            return pa.int64()
        case inspect.FloatType():
            return pa.float64()
        case inspect.StrType():
            return pa.string()
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            return pa.list_(_arrow_type(item, stream))
        case inspect.DictType(key_type=inspect.StrType(), value_type=value):
            return pa.map_(pa.string(), _arrow_type(value, stream))
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            return pa.struct([(field.encode_name, _arrow_type(field.type, stream)) for field in info.fields])
        case inspect.UnionType(types=types) if len(rest := [kind for kind in types if not _is_none(kind)]) == 1:
            return _arrow_type(rest[0], stream)
        case _:
            kind = type(info).__name__.removesuffix("Type").lower()
            raise BadInput(
                f"stream {stream} holds values of the type {kind}, which has no column.",
                hint="Declare it as bytes and decode in process_batch, or use another type.",
            )


def _is_none(info: inspect.Type) -> bool:
    return isinstance(info, inspect.NoneType)
