"""What is sent of entries, records, values and times."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from penstock.clock import Duration, duration
from penstock.codec import codec_for
from penstock.errors import BadInput


class NewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One of several entries to be put; ``raw`` instead of a value for queues of bytes."""

    value: Any = None
    raw: bytes | None = None
    due: datetime | None = None
    delay: Duration | None = None
    priority: int = 0
    unique: str | None = None
    unique_period: Duration | None = None
    on_conflict: Literal["keep", "replace", "raise"] = "keep"
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    expires: Duration | None = None
    id: str | None = None
    after: Sequence[str] = ()
    on: Literal["done", "ended"] = "done"
    batch: str | None = None


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record to be appended; ``raw`` instead of a value for logs of bytes."""

    value: Any = None
    raw: bytes | None = None
    key: str | None = None
    headers: dict[str, str] = {}


def entry_content(entry: NewEntry) -> dict[str, Any]:
    """What is sent of an entry."""
    content = content_of(entry)
    time_text(entry.due)
    for name in ("delay", "unique_period", "expires"):
        if name in content:
            content[name] = duration_text(getattr(entry, name))
    return content


def content_of(given: NewEntry | NewRecord) -> dict[str, Any]:
    """What is sent of a value or of bytes."""
    if given.raw is not None and given.value is not None:
        raise BadInput("both a value and raw bytes were given.", hint="Give one of them.")
    content = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None}
    for name in ("labels", "headers", "after"):
        if not content.get(name, True):
            del content[name]
    if content.get("on") == "done":
        del content["on"]
    if given.raw is not None:
        content["bytes"] = base64.b64encode(content.pop("raw")).decode()
    else:
        content["value"] = _value(given.value)
    return content


def _value(given: Any) -> msgspec.Raw:
    """A value as JSON, if it comes back as what it was: the same rule as for a put without a service."""
    if isinstance(given, bytes | bytearray | memoryview):
        raise BadInput("bytes are not JSON.", hint="Send them with raw=, to a queue or log of bytes.")
    plain = given is None or isinstance(given, str | int | float | dict | list | tuple)
    return msgspec.Raw(codec_for(Any if plain else type(given)).encode(given))


def duration_text(given: Duration) -> str:
    """A length of time as it is sent."""
    return f"{duration(given).total_seconds():f}s"


def time_text(moment: datetime | None) -> str | None:
    """A time as it is sent."""
    if moment is not None and not isinstance(moment, datetime):
        raise BadInput(f"{moment!r} is not a time.", hint="Use an aware datetime: a number could mean anything.")
    if moment is not None and moment.tzinfo is None:
        raise BadInput(f"{moment.isoformat()} has no time zone.", hint="Use an aware time.")
    return None if moment is None else moment.isoformat()
