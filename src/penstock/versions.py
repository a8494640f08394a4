"""Payload types that grow: what was stored in an earlier shape is brought to the one of today when it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from penstock.codec import UPCASTERS, JsonCodec
from penstock.errors import BadInput, PayloadTooNew, Undecodable

T = TypeVar("T")
C = TypeVar("C", bound=type)
# Takes the JSON object of one version and returns that of the next.
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

FIELD = "$version"


def versioned(*upcasters: Upcaster) -> Callable[[C], C]:
    """Decorate a payload type whose shape has changed.

    Payloads carry their version as ``"$version"``. One without it is of version 1, so a type that was stored before it
    was decorated can be decorated later.

    >>> def cents(old):
    ...     return {"cents": round(old["amount"] * 100)}
    >>> @versioned(cents)
    ... class Price(msgspec.Struct):
    ...     cents: int
    >>> VersionedCodec(Price).decode(b'{"amount": 1.5}')
    Price(cents=150)

    Args:
        *upcasters: the first brings a payload of version 1 to version 2, the second one from 2 to 3, and so on; the
            class is of the version after the last, or of version 1 without any
    """
    if not all(map(callable, upcasters)):
        raise BadInput("versioned() takes functions.", hint="One for each step: from version 1 to 2, from 2 to 3, …")

    def decorate(type_: C) -> C:
        setattr(type_, UPCASTERS, upcasters)
        return type_

    return decorate


class _Head(msgspec.Struct):
    version: int = msgspec.field(name=FIELD, default=1)


class VersionedCodec(JsonCodec[T]):
    """JSON objects with a version in them, of a type that is decorated with :func:`versioned`."""

    def __init__(self, type_: type[T]) -> None:
        """Prepare for one type."""
        super().__init__(type_)
        self._upcasters: tuple[Upcaster, ...] = vars(type_)[UPCASTERS]
        self.version = len(self._upcasters) + 1
        self._head = msgspec.json.Decoder(_Head)
        self._mark = f'{{"{FIELD}":{self.version}'.encode()

    def encode(self, value: T) -> bytes:
        """Encode, with the version of today."""
        payload = super().encode(value)
        if payload[:1] != b"{":
            raise BadInput(
                f"{self.type_name} is versioned, and no JSON object.",
                hint="Only types with named fields have versions.",
            )
        return self._mark + (b"}" if payload == b"{}" else b"," + payload[1:])

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Encode many, each with the version of today."""
        return [self.encode(value) for value in values]

    def decode(self, payload: bytes) -> T:
        """Read a value of any version up to that of today."""
        if payload.startswith(self._mark) and payload[len(self._mark) : len(self._mark) + 1] in (b",", b"}"):
            return super().decode(b"{" + payload[len(self._mark) :].removeprefix(b","))
        try:
            version = self._head.decode(payload).version
        except msgspec.MsgspecError as cause:
            raise Undecodable(
                f"{len(payload)} stored bytes cannot be read as {self.type_name}: {cause}.",
                hint="A versioned payload is a JSON object; something else put this one.",
            ) from cause
        if version > self.version:
            raise PayloadTooNew(
                f"this {self.type_name} has version {version}; this program knows versions up to {self.version}.",
                hint="Newer code has written it: deploy what reads a new version before what writes it.",
            )
        return super().decode(self._current(payload, version))

    def decode_many(self, payloads: Sequence[bytes]) -> list[T]:
        """Read many, each in its version."""
        return [self.decode(payload) for payload in payloads]

    def _current(self, payload: bytes, version: int) -> bytes:
        """The payload as the version of today, without the mark: a type may forbid fields that it does not have."""
        fields = cast(dict[str, Any], msgspec.json.decode(payload))
        fields.pop(FIELD, None)
        if version < 1:
            raise Undecodable(
                f"version {version} of a {self.type_name} was never written.", hint="Versions begin at 1."
            )
        for number in range(version, self.version):
            try:
                fields = self._upcasters[number - 1](fields)
            except Exception as cause:
                raise Undecodable(
                    f"a {self.type_name} of version {number} cannot be brought to version {number + 1}: "
                    f"{type(cause).__name__}: {cause}.",
                    hint=f"Mend {self._upcasters[number - 1].__name__}() so that it takes all that was ever stored; "
                    "then replay the dead letters.",
                ) from cause
        return self._encoder.encode(fields)
