"""Parse column types from DDL text, as Spark writes them.

Spark parses DDL in its JVM, and its error messages are long. A source is asked for its columns in a process without a
JVM. So DDL is parsed here, as far as payloads can have such types.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import types as t

from penstock.errors import BadInput
from penstock.names import did_you_mean

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.|'')*')|(?P<word>\w+)|(?P<sign>[<>(),:]))"
)
_PLAIN: dict[str, Callable[[], t.DataType]] = {
    "BOOLEAN": t.BooleanType,
    "TINYINT": t.ByteType,
    "BYTE": t.ByteType,
    "SMALLINT": t.ShortType,
    "SHORT": t.ShortType,
    "INT": t.IntegerType,
    "INTEGER": t.IntegerType,
    "BIGINT": t.LongType,
    "LONG": t.LongType,
    "FLOAT": t.FloatType,
    "REAL": t.FloatType,
    "DOUBLE": t.DoubleType,
    "STRING": t.StringType,
    "BINARY": t.BinaryType,
    "DATE": t.DateType,
    "TIMESTAMP": t.TimestampType,
    "TIMESTAMP_LTZ": t.TimestampType,
    "TIMESTAMP_NTZ": t.TimestampNTZType,
}
_DECIMAL = ("DECIMAL", "DEC", "NUMERIC")
_MOST_DIGITS = 38
_DEPTH = 50
TYPES = (*_PLAIN, *_DECIMAL, "ARRAY", "MAP", "STRUCT")
_SHAPE = 'Write "page STRING, ms BIGINT, tags ARRAY<STRING>".'


def columns_of(ddl: str) -> t.StructType:
    """The columns that a text names. Errors have one line."""
    return _Reader(ddl).all()


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._at = 0
        self._depth = 0

    def all(self) -> t.StructType:
        schema = self._fields()
        if self._ddl[self._at :].strip():
            raise self._wrong("a comma is expected")
        if not schema.fields:
            raise BadInput("schema names no column.", hint=_SHAPE)
        return schema

    def _fields(self) -> t.StructType:
        fields: dict[str, t.StructField] = {}
        while self._peek()[1] not in ("", ">"):
            name = self._name()
            if name in fields:
                raise BadInput(f"schema names column {name!r} twice.", hint="A column has one name, and one type.")
            self._takes(":")
            kind = self._type()
            nullable = True
            if self._takes("NOT"):
                self._needs("NULL")
                nullable = False
            if self._takes("COMMENT"):
                self._next("text", "a text in quotes")
            fields[name] = t.StructField(name, kind, nullable)
            if not self._takes(","):
                break
            if self._peek()[1] in ("", ">"):
                raise self._wrong("a column is expected")
        return t.StructType(list(fields.values()))

    def _name(self) -> str:
        kind, text = self._peek()
        if kind == "quoted":
            self._next("quoted", "a name")
            return text[1:-1].replace("``", "`")
        return self._next("word", "the name of a column")

    def _type(self) -> t.DataType:
        name = self._next("word", "a type").upper()
        if name in _PLAIN:
            return _PLAIN[name]()
        if name in _DECIMAL:
            return self._decimal()
        if name not in TYPES:
            raise BadInput(
                f"schema: payloads cannot be read as {name}.",
                hint=f"{did_you_mean(name, TYPES)}Known: {', '.join(TYPES)}.",
            )
        self._depth += 1
        if self._depth > _DEPTH:
            raise BadInput(f"schema is nested more than {_DEPTH} deep.", hint="Use STRING for what is inside.")
        self._needs("<")
        kind: t.DataType
        if name == "ARRAY":
            kind = t.ArrayType(self._type())
        elif name == "MAP":
            key = self._type()
            self._needs(",")
            kind = t.MapType(key, self._type())
        else:
            kind = self._fields()
        self._needs(">")
        self._depth -= 1
        return kind

    def _decimal(self) -> t.DataType:
        digits, scale = 10, 0
        if self._takes("("):
            digits = self._number()
            if self._takes(","):
                scale = self._number()
            self._needs(")")
        if not 1 <= digits <= _MOST_DIGITS or scale > digits:
            raise BadInput(
                f"schema: DECIMAL({digits}, {scale}) has no such digits.", hint=f"Use up to {_MOST_DIGITS} digits."
            )
        return t.DecimalType(digits, scale)

    def _number(self) -> int:
        text = self._next("word", "a number")
        if not text.isdecimal():
            raise self._wrong("a number is expected")
        return int(text)

    # --- tokens --------------------------------------------------------------------------------------

    def _peek(self) -> tuple[str, str]:
        match = _TOKEN.match(self._ddl, self._at)
        if match is None:
            return "", self._ddl[self._at :].strip()
        return str(match.lastgroup), match[str(match.lastgroup)]

    def _next(self, kind: str, what: str) -> str:
        kind_of_token, text = self._peek()
        if kind_of_token != kind:
            raise self._wrong(f"{what} is expected")
        match = _TOKEN.match(self._ddl, self._at)
        assert match is not None  # noqa: S101 - it was just looked at
        self._at = match.end()
        return text

    def _takes(self, text: str) -> bool:
        kind, token = self._peek()
        if kind not in ("word", "sign") or token.upper() != text:
            return False
        self._next(kind, text)
        return True

    def _needs(self, text: str) -> None:
        if not self._takes(text):
            raise self._wrong(f"{text} is expected")

    def _wrong(self, cause: str) -> BadInput:
        rest = self._ddl[self._at :].strip()
        place = f"before {rest[:30]!r}" if rest else "at its end"
        return BadInput(f"schema {self._ddl[:60]!r}: {cause} {place}.", hint=_SHAPE)
