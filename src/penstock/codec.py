"""Typed payloads to bytes and back: msgspec structs, dataclasses, plain JSON, raw bytes, pydantic models.

Only JSON and raw bytes are ever stored; nothing here can run code found in a payload (no pickle).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar, cast, get_origin, is_typeddict

import msgspec
import msgspec.inspect

from penstock.errors import BadInput, Undecodable, WrongType

T = TypeVar("T")

JSON = "json"
BYTES = "bytes"
UPCASTERS = "__penstock_upcasters__"  # on a class that penstock.versioned() has decorated
# Lists and objects inside one another. Readers in other languages, and those of the service's answers, give up below.
MOST_DEPTH = 255
# msgspec works out what a struct of structs holds when it is first read, and a second thread that reads it meanwhile
# takes the process down with it. So readers are made one at a time, and ours when their modules are imported.
_MAKING = threading.RLock()
_PREPARED: set[type] = set()
# Types that say nothing of what is inside: what JSON cannot tell apart would come back as something else.
_LOOSE: tuple[Any, ...] = (Any, dict, list, tuple)
_AS_LIST = (tuple, set, frozenset)
_AS_TEXT = (bytes, bytearray, memoryview, datetime, date, time, timedelta, uuid.UUID, Decimal)


class Codec(Protocol[T]):
    """Turns values of one type into bytes and back. Pass your own as ``codec=``."""

    name: str
    type_name: str

    def encode(self, value: T) -> bytes:
        """The bytes to store. Raises ``WrongType`` for a value that could not be read back."""

    def decode(self, payload: bytes) -> T:
        """The value. Raises ``Undecodable`` when the bytes do not fit."""


class JsonCodec(Generic[T]):
    """msgspec's typed JSON."""

    name = JSON

    def __init__(self, type_: type[T] | Any) -> None:
        """Prepare encoder and decoder for one type."""
        self.type_name = type_name(type_)
        self.type = self._type = type_
        # What isinstance can decide at once; generics such as list[int] are left to the decoder.
        decidable = (
            isinstance(type_, type) and type_ is not Any and get_origin(type_) is None and not is_typeddict(type_)
        )  # Any is a class since 3.11
        self._class: type | None = type_ if decidable else None
        # Values of these come back as they were, if they can be encoded at all.
        self._exact: type | None = type_ if type_ is int or type_ is str else None
        self._loose = any(type_ is loose for loose in _LOOSE)
        self._encoder = msgspec.json.Encoder(enc_hook=_encode_pydantic)
        try:
            with _MAKING:
                if self._class is not None and _has_no_json_form(cast(Any, self._class)):
                    raise TypeError("it has no JSON form")
                self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type_, dec_hook=_decode_pydantic)
        except TypeError as cause:
            raise BadInput(
                f"payload type {type_!r} cannot be stored as JSON: {cause}.",
                hint="Use a msgspec.Struct, a dataclass, a pydantic model, plain JSON types or bytes.",
            ) from cause

    def encode(self, value: T) -> bytes:
        """Encode, then read back once: a value nobody could read again is refused here, not in a worker."""
        is_exact = value.__class__ is self._exact
        if not is_exact and self._class is not None and not isinstance(value, self._class):
            raise _wrong_type(self._type, value, "is not an instance of it")
        try:
            payload = self._encoder.encode(value)
            if is_exact or (self._loose and _is_plain_struct(value)):  # without a type all of it can be read
                return payload
            if self._loose and value.__class__ in _SAME_IN_JSON and len(payload) <= MOST_DEPTH:
                return payload
            back = self._decoder.decode(payload)
        except Exception as cause:  # also what the type's own checks raise
            raise _wrong_type(self._type, value, str(cause)) from cause
        if len(payload) > MOST_DEPTH:  # what is shorter cannot be nested deeper
            check_depth(payload, self.type_name)
        if back != value and (lost := next(self._changes(value), None)):
            raise _wrong_type(self._type, value, lost)
        return payload

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Encode many, which is faster than one after the other."""
        kinds = set(map(type, values))
        try:
            is_same = self._type is Any and (kinds <= _NUMBERS or all(map(_is_plain_struct, values)))
            if is_same or kinds == {self._exact}:
                return list(map(self._encoder.encode, values))
            if self._class is None or kinds == {self._class}:
                payloads = list(map(self._encoder.encode, values))
                is_shallow = max(map(len, payloads), default=0) <= MOST_DEPTH
                if is_shallow and list(map(self._decoder.decode, payloads)) == list(values):
                    return payloads
        except Exception:  # noqa: S110 - the one that cannot be encoded is found below
            pass
        return [self.encode(value) for value in values]

    def _changes(self, value: Any) -> Iterator[str]:
        """What would come back as something else."""
        if self._type is tuple:  # it says so much of itself, and nothing of what is in it
            return (change for index, inner in enumerate(value) for change in _lost(inner, f"$[{index}]", loose=True))
        return _lost(value, "$", loose=self._loose)

    def decode(self, payload: bytes) -> T:
        """Read the typed value."""
        try:
            return cast(T, self._decoder.decode(payload))
        except Exception as cause:  # also what the type's own checks raise
            raise Undecodable(
                f"{len(payload)} stored bytes cannot be read as {self.type_name}: {cause}.",
                hint="Was the type changed? Give new fields a default, or replay with the old type.",
            ) from cause

    def decode_many(self, payloads: Sequence[bytes]) -> list[T]:
        """Read many, which is faster than one after the other."""
        try:
            return list(map(self._decoder.decode, payloads))
        except Exception:
            return [self.decode(payload) for payload in payloads]  # raises for the one that cannot be read


class BytesCodec:
    """Raw bytes, stored as they are."""

    name = BYTES
    type_name = "bytes"

    def encode(self, value: bytes) -> bytes:
        """Check that these are bytes."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _wrong_type(bytes, value, "is not bytes")
        return bytes(value)

    def decode(self, payload: bytes) -> bytes:
        """The same bytes."""
        return payload


def codec_for(type_: Any) -> Codec[Any]:
    """The codec for a payload type."""
    if type_ is bytes:
        return BytesCodec()
    if type_ is object:
        return JsonCodec(Any)
    if dataclasses.is_dataclass(type_) and not isinstance(type_, type):
        raise BadInput(f"payload type {type_!r} is a value, not a type.", hint="Pass the class itself.")
    # A subclass of a decorated class has a shape, and so versions, of its own.
    if isinstance(type_, type) and UPCASTERS in vars(type_):
        from penstock.versions import VersionedCodec  # which builds on this module

        return VersionedCodec(type_)
    return JsonCodec(type_)


def prepared(type_: type[T]) -> type[T]:
    """Decorates a struct of structs that is read by several threads."""
    with _MAKING:
        msgspec.json.Decoder(type_)
        _PREPARED.add(type_)
    return type_


def check_depth(payload: bytes, type_: str) -> None:
    """Refuse JSON that is nested so deep that some reader could not read it back."""
    if depth_of(payload) > MOST_DEPTH:
        raise WrongType(
            f"this {type_} is nested more than {MOST_DEPTH} deep.",
            hint="Put it flatter, or as bytes that only you read.",
        )


def depth_of(payload: bytes) -> int:
    """How deep the lists and objects of a JSON document are nested; an upper bound where they are few."""
    opened = payload.count(b"[") + payload.count(b"{")
    if opened <= MOST_DEPTH:
        return opened
    brackets = _TEXT.sub(b"", payload).translate(_TO_STEPS, _NO_BRACKETS)
    return max(itertools.accumulate(brackets, lambda depth, step: depth + step - 1), default=1) - 1


# A text without an end goes to the end of the payload: no byte of what is not JSON is looked at twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
# In a payload without its texts, each opening bracket becomes the number 2 and each closing one 0.
_TO_STEPS = bytes.maketrans(b"[{]}", bytes((2, 2, 0, 0)))
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def type_name(type_: Any) -> str:
    """The name under which a type is stored. It is only text: nothing is imported by it."""
    plain = getattr(type_, "__qualname__", None) if get_origin(type_) is None else None
    return plain or str(type_).replace("typing.", "")


def _encode_pydantic(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"objects of type {type(value).__name__} have no JSON form")
    return dump(mode="json")


def _decode_pydantic(type_: type, value: Any) -> Any:
    validate = getattr(type_, "model_validate", None)
    if validate is None:
        raise TypeError(f"type {type_.__name__} has no JSON form")
    try:
        return validate(value)
    except ValueError as cause:
        raise msgspec.ValidationError(str(cause)) from cause


@functools.lru_cache(maxsize=1024)
def _has_no_json_form(type_: type) -> bool:
    """A class that neither msgspec nor pydantic knows how to write."""
    if hasattr(type_, "model_validate"):
        return False
    return isinstance(msgspec.inspect.type_info(type_), msgspec.inspect.CustomType)


_NUMBERS = frozenset({int, bool, type(None)})  # without a type these come back as they were
_SAME_IN_JSON = _NUMBERS | {str}  # most values are: they are passed over at once


def _is_plain_struct(value: Any) -> bool:
    """Whether it is a struct of texts, whole numbers and truth values only: JSON changes none of it, at any depth."""
    return isinstance(value, msgspec.Struct) and _SAME_IN_JSON.issuperset(map(type, msgspec.structs.astuple(value)))


def changed_by_json(value: Any) -> str | None:
    """What of a value without a declared type would come back from JSON as something else, or None if nothing would."""
    return None if value.__class__ in _SAME_IN_JSON else next(_lost(value, "$", loose=True), None)


def _lost(value: Any, where: str, *, loose: bool) -> Iterator[str]:
    """What JSON would silently turn into something else. Objects with fields are compared by their fields."""
    if (said := _turned(value, loose=loose)) is not None:
        yield said.format(what=value if isinstance(value, float) else type(value).__name__, where=where)
        return
    if loose and isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                yield f"the key {key!r} at {where} would come back as text"
    for place, inner in _parts(value):
        if inner.__class__ not in _SAME_IN_JSON:
            yield from _lost(
                inner, where + (f"[{place}]" if isinstance(value, list | tuple) else f".{place}"), loose=loose
            )


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """What a value consists of, each with its key, index or name."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    if isinstance(value, msgspec.Struct):
        return ((name, getattr(value, name)) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return ()


def _turned(value: Any, *, loose: bool) -> str | None:
    """What becomes of one value: nan has no form at all; others have none of their own where no type says it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "{what} at {where} has no JSON form"
    if not loose:
        return None
    if isinstance(value, _AS_LIST):
        return "the {what} at {where} would come back as a list"
    if isinstance(value, _AS_TEXT):
        return "the {what} at {where} would come back as text"
    return "the {what} at {where} would come back as its bare value" if isinstance(value, enum.Enum) else None


_LOOSE_HINT = (
    "Open the queue or log with a type that declares it, or put what JSON has: text, numbers, lists, and dicts with "
    "text as keys."
)


def _wrong_type(type_: Any, value: Any, why: str) -> WrongType:
    if isinstance(type_, type) and type(value) is type_ and not any(type_ is loose for loose in _LOOSE):
        return WrongType(
            f"this {type_name(type_)} does not fit its own type: {why}.", hint="Give it the types it declares."
        )
    if type(value) is type_:
        return WrongType(
            f"this {type_name(type_)} holds what would not come back the same: {why}.",
            hint=_LOOSE_HINT,
        )
    if type_ is Any:
        return WrongType(f"this {type(value).__name__} cannot be put where Any is expected: {why}.", hint=_LOOSE_HINT)
    return WrongType(
        f"a {type(value).__name__} cannot be put where {type_name(type_)} is expected: {why}.",
        hint="Open the queue or log with the payload's own type.",
    )
