"""Records of a log as lines: what ``cat`` and ``tail`` print, and what ``append`` reads."""

from __future__ import annotations

import base64
import binascii
import builtins
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import typer

from penstock.cli.printing import preview
from penstock.clock import Micros, check_time, from_micros
from penstock.codec import MOST_DEPTH, Codec, depth_of
from penstock.errors import BadInput, Undecodable, WrongType
from penstock.log.record import Record

FROM_CAT = "Give lines that `cat --json` printed."

# --- written ------------------------------------------------------------------------------------------


def print_record(record: Record[Any], as_json: bool) -> None:
    """Print a record as a row of JSON, or as people read it."""
    if as_json:
        row = {
            "partition": record.partition, "offset": record.offset, "time": _time(record.time_us), "key": record.key,
            "headers": dict(record.headers), **_content(record.payload),
        }  # fmt: skip
        typer.echo(msgspec.json.encode(row, enc_hook=lambda raw: raw.decode("utf-8", "backslashreplace")).decode())
    else:
        key = "" if record.key is None else f" {record.key}"
        typer.echo(f"{record.partition:>3} {record.offset:>8} {_time(record.time_us)}{key} {preview(record.payload)}")


def _content(payload: bytes) -> dict[str, Any]:
    """A payload in a line: ``value`` where it is JSON, otherwise ``bytes`` in base64, as the service shows it."""
    try:
        if depth_of(payload) > MOST_DEPTH:
            raise ValueError
        msgspec.json.decode(payload)
        return {"value": msgspec.Raw(msgspec.json.format(payload, indent=-1))}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {"bytes": base64.b64encode(payload).decode()}


def _time(moment: Micros) -> str | int:
    """A record's time as ISO 8601. A number outside the calendar stays one, so the reader sees what was appended."""
    try:
        check_time(moment)
    except BadInput:
        return moment
    return from_micros(moment).isoformat()


# --- read ---------------------------------------------------------------------------------------------


def lines_of_input() -> Iterator[str]:
    """Lines of standard input, decoded as the shell decodes arguments: bytes that are not UTF-8 survive."""
    return (os.fsdecode(line.rstrip(b"\n")) for line in sys.stdin.buffer)


def read_time(value: Any) -> datetime | int | None:
    """A time as :func:`_time` prints it."""
    if value is None or value == "":
        return None
    if isinstance(value, int):
        return value
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError) as cause:
        raise BadInput(f"time {value!r} is not a time: {cause}.", hint='Write "2026-01-31T12:00:00+00:00".') from cause


def check_json(text: str, what: str) -> None:
    """Refuse what a typed reader could not read."""
    payload = os.fsencode(text)
    try:
        msgspec.json.decode(payload)
        is_too_deep = depth_of(payload) > MOST_DEPTH
    except RecursionError:
        is_too_deep = True
    except (msgspec.DecodeError, UnicodeError) as cause:
        raise BadInput(
            f"{what} is not JSON: {cause}.",
            hint="""In a shell, text is '"hello"'. With --raw any text is taken, for readers of bytes.""",
        ) from cause
    if is_too_deep:
        raise _too_deep(what)


def check_typed(payload: bytes, codec: Codec[Any] | None, what: str) -> None:
    """Refuse what readers of a type could not read; without a codec nothing."""
    if codec is None:
        return
    try:
        codec.decode(payload)
    except Undecodable as error:
        cause = error.__cause__
        why = f"{' '.join(str(cause).split())}." if isinstance(cause, msgspec.MsgspecError) else error.message
        raise WrongType(
            f"{what} cannot be read as {codec.type_name}: {why}", hint="Correct it, or leave --type out."
        ) from error


def _too_deep(what: str) -> BadInput:
    return BadInput(
        f"{what} is nested more than {MOST_DEPTH} deep.",
        hint="Write it flatter. With --raw any text is taken, for readers of bytes.",
    )


class RecordLine(msgspec.Struct):
    """A record as ``cat --json`` prints it."""

    value: msgspec.Raw = msgspec.Raw()
    bytes: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    time: Any = None
    partition: int | None = None

    def check(self, what: str) -> None:
        """Refuse what a typed reader could not read."""
        if self.bytes is not None:
            raise BadInput(f"{what} is not JSON, but bytes.", hint="With --raw any bytes are taken.")
        check_json(builtins.bytes(self.value).decode(), what)

    def payload(self, what: str) -> builtins.bytes:
        """The value as it was written, or the bytes."""
        if self.bytes is None:
            return builtins.bytes(self.value)
        try:
            return base64.b64decode(self.bytes, validate=True)
        except binascii.Error as cause:
            raise BadInput(f"{what} has bytes that are not base64: {cause}.", hint=FROM_CAT) from cause


def read_line(line: str, what: str) -> RecordLine:
    """Read a line that ``cat --json`` printed; ``what`` names it in errors."""
    try:
        row = msgspec.json.decode(os.fsencode(line), type=RecordLine)
    except RecursionError as cause:
        raise _too_deep(what) from cause
    except msgspec.MsgspecError as cause:
        raise BadInput(f"{what} is not a record in JSON: {cause}.", hint=FROM_CAT) from cause
    if (row.bytes is None) != bool(builtins.bytes(row.value)):
        raise BadInput(f"{what} has no value.", hint=FROM_CAT)
    return row
