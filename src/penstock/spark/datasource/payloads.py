"""Typed payloads: JSON values as a column ``data``, and in ``bad`` why one could not be read."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import inspect
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from penstock.codec import Codec, codec_for
from penstock.errors import BadInput, Undecodable
from penstock.spark.datasource.options import Options

PAYLOAD_COLUMNS = ("data", "bad")
_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")
# What Arrow takes as it is; everything else becomes what JSON has.
_NATIVE = (bytes, bytearray, datetime, date, Decimal)


class Payloads:
    """Reads values into the columns ``data`` and ``bad``; never raises for a value."""

    def __init__(self, named: str | None, data: t.DataType) -> None:
        """``named`` is a type's name, or None to derive the type from ``data``, the type of the column."""
        self._named = named
        self._data = data
        kind = type_of(named) if named is not None else payload_type(data)
        self._codec: Codec[Any] = codec_for(kind)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the arguments to the executors: generated types cannot be pickled."""
        return Payloads, (self._named, self._data)

    @staticmethod
    def of(options: Options, schema: t.StructType) -> Payloads | None:
        """The payloads that the options ask for, or None if values stay bytes."""
        if options.type is None and options.schema is None:
            return None
        types = {field.name: field.dataType for field in schema.fields}
        if options.type is not None:
            return Payloads(options.type, types.get("data") or column_type(type_of(options.type)))
        if "data" not in types:  # bad needs data, too
            raise BadInput("the column data was left out, so nothing can be read.", hint="Add data to columns.")
        return Payloads(None, types["data"])

    def parse(self, values: pa.Array) -> dict[str, pa.Array]:
        """Both columns for some values; null values are neither read nor bad."""
        decode = self._codec.decode
        data: list[Any] = []
        bad: list[str | None] = []
        for value in values.to_pylist():
            reason = None
            read = None
            if value is not None:
                try:
                    read = msgspec.to_builtins(decode(value), builtin_types=_NATIVE)
                except Undecodable as error:
                    reason = error.message
                except Exception as error:  # raised by the type's own properties
                    reason = f"{type(error).__name__}: {error}"
            data.append(read)
            bad.append(reason)
        arrow = to_arrow_type(self._data, timezone="UTC")
        return {"data": _column(data, bad, arrow, self._data), "bad": pa.array(bad, pa.string())}


def _column(data: list[Any], bad: list[str | None], arrow: pa.DataType, spark: t.DataType) -> pa.Array:
    shaped = [None if value is None else _shaped(value, spark) for value in data]
    try:
        return pa.array(shaped, arrow)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    for rank, value in enumerate(shaped):  # some do not fit: which ones?
        try:
            pa.array([value], arrow)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            shaped[rank] = None
            bad[rank] = f"the value does not fit its column: {error}"
    return pa.array(shaped, arrow)


def _shaped(value: Any, spark: t.DataType) -> Any:
    """Convert a JSON value to its column's type; values without a column type become JSON text."""
    if value is None:
        return None
    if isinstance(spark, t.StructType):
        if len(spark.fields) == 1 and spark.fields[0].name == "value" and not isinstance(value, dict):
            value = {"value": value}
        if not isinstance(value, dict):
            return value
        return {field.name: _shaped(value.get(field.name), field.dataType) for field in spark.fields}
    if isinstance(spark, t.ArrayType) and isinstance(value, list | tuple):
        return [_shaped(item, spark.elementType) for item in value]
    if isinstance(spark, t.MapType) and isinstance(value, dict):
        return [(_shaped(key, spark.keyType), _shaped(item, spark.valueType)) for key, item in value.items()]
    if isinstance(spark, t.StringType) and not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    return value


# --- from a Python type to a column ------------------------------------------------------------------------


def type_of(name: str) -> Any:
    """The type that an option ``type="shop.orders:Order"`` names."""
    if not _NAMED.match(name):
        raise BadInput(f"type={name!r} names no type.", hint='Write "module:Type", for instance "shop.orders:Order".')
    module, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as cause:
        raise BadInput(
            f"type={name!r} cannot be imported: {cause}.", hint="Is its module installed on the driver and executors?"
        ) from cause
    return target


def column_type(type_: Any) -> t.StructType:
    """The column for a payload type: its fields, or for a type without fields one called ``value``."""
    try:
        kind = _spark_type(inspect.type_info(type_))
    except TypeError as cause:
        raise BadInput(f"{type_!r} has no columns: {cause}.", hint="Use a msgspec.Struct or a dataclass.") from cause
    return kind if isinstance(kind, t.StructType) else t.StructType([t.StructField("value", kind)])


_PLAIN: dict[type[inspect.Type], t.DataType] = {
    inspect.BoolType: t.BooleanType(),
    inspect.IntType: t.LongType(),
    inspect.FloatType: t.DoubleType(),
    inspect.StrType: t.StringType(),
    inspect.BytesType: t.BinaryType(),
    inspect.ByteArrayType: t.BinaryType(),
    inspect.DateTimeType: t.TimestampType(),
    inspect.DateType: t.DateType(),
    inspect.DecimalType: t.DecimalType(38, 18),
}


def _spark_type(info: inspect.Type) -> t.DataType:
    if isinstance(info, inspect.Metadata):
        return _spark_type(info.type)
    plain = _PLAIN.get(type(info))
    if plain is not None:
        return plain
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        fields = [t.StructField(field.encode_name, _spark_type(field.type)) for field in info.fields]
        return t.StructType(fields) if fields else t.StringType()
    if isinstance(info, inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType):
        return t.ArrayType(_spark_type(info.item_type))
    if isinstance(info, inspect.DictType):
        # Keys of JSON are text.
        return t.MapType(t.StringType(), _spark_type(info.value_type))
    if isinstance(info, inspect.UnionType):
        some = [kind for kind in info.types if not isinstance(kind, inspect.NoneType)]
        return _spark_type(some[0]) if len(some) == 1 else t.StringType()
    if isinstance(info, inspect.LiteralType) and all(isinstance(value, int) for value in info.values):
        return t.LongType()
    if isinstance(info, inspect.EnumType) and all(isinstance(member.value, int) for member in info.cls):
        return t.LongType()
    return t.StringType()  # UUIDs, durations, texts to choose from, and what may be anything: as JSON


# --- from a column to a Python type -------------------------------------------------------------------------


def payload_type(data: t.DataType) -> Any:
    """A type that reads JSON objects with these fields, each of which may be missing unless it is NOT NULL."""
    return _python_type(data)


_WHOLE: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_PYTHON: dict[type[t.DataType], Any] = {
    t.BooleanType: bool,
    t.FloatType: float,
    t.DoubleType: float,
    t.StringType: str,
    t.BinaryType: bytes,
    t.DateType: date,
    t.DecimalType: Decimal,
    t.TimestampType: Annotated[datetime, msgspec.Meta(tz=True)],
    t.TimestampNTZType: Annotated[datetime, msgspec.Meta(tz=False)],
}


def _python_type(kind: t.DataType) -> Any:
    bits = _WHOLE.get(type(kind))
    if bits is not None:
        half = 1 << (bits - 1)
        # msgspec takes no bounds beyond 64 bits; those Arrow refuses by itself.
        return int if bits == 64 else Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]
    if isinstance(kind, t.StructType):
        return _struct_type(kind.fields)
    if isinstance(kind, t.ArrayType):
        item = _python_type(kind.elementType)
        return list[item | None if kind.containsNull else item]  # type: ignore[misc]
    if isinstance(kind, t.MapType):
        item = _python_type(kind.valueType)
        return dict[_python_type(kind.keyType), item | None if kind.valueContainsNull else item]  # type: ignore[misc]
    plain = _PYTHON.get(type(kind))
    if plain is None:
        raise BadInput(f"schema: payloads cannot be read as {kind.simpleString()}.", hint="Use STRING and cast it.")
    return plain


def _struct_type(fields: Sequence[t.StructField]) -> Any:
    members: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    rename: dict[str, str] = {}
    for rank, field in enumerate(fields):
        name = f"f{rank}"  # a column may be called anything
        rename[name] = field.name
        kind = _python_type(field.dataType)
        members.append((name, kind | None, None) if field.nullable else (name, kind))
    return msgspec.defstruct("Payload", members, rename=rename, kw_only=True)
