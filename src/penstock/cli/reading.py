"""What was typed, as values: times, durations, labels, names. Errors name the option as it was typed."""

from __future__ import annotations

from datetime import datetime

from penstock.clock import Micros, duration_micros, to_micros
from penstock.errors import BadInput
from penstock.names import check_name

LENGTHS = "Write it as 500ms, 30s, 45m, 1h30m or 7d."
TIMES = "Write it as 2026-05-01T08:00:00+02:00, or with Z for UTC."


def length(text: str, option: str, *, least: str | None = None) -> Micros:
    """A length of time given as ``--option``, in microseconds."""
    try:
        micros = duration_micros(text, name=f"--{option}")
    except BadInput as error:
        raise BadInput(error.message, hint=LENGTHS) from error
    if least is not None and micros < duration_micros(least):
        raise BadInput(f"--{option} {text} is too short.", hint=f"Use {least} or more.")
    return micros


def moment(text: str, option: str) -> datetime:
    """A time given as ``--option``; one without a zone names no moment."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError as cause:
        raise BadInput(f"--{option} {text!r} is not a time.", hint=TIMES) from cause
    if read.tzinfo is None:
        raise BadInput(f"--{option} {text} has no time zone.", hint=TIMES)
    return read


def before(text: str, now: Micros) -> Micros:
    """``--before``: a time, or how long ago."""
    try:
        return now - duration_micros(text)
    except BadInput:
        return to_micros(moment(text, "before"))


def labels(texts: list[str] | None) -> dict[str, str]:
    """``--label K=V``, repeated."""
    read = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"label {text!r} has no value.", hint="Write it as --label customer=ann.")
        read[name(key, "label")] = value
    return read


def name(text: str, kind: str = "queue") -> str:
    """The name of a queue, label or holder."""
    try:
        return check_name(text, kind=kind)
    except BadInput as error:
        raise BadInput(
            error.message, hint="Use ASCII letters, digits, '.', '_' or '-', starting with a letter or digit."
        ) from error
