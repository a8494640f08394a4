"""How the pages write numbers, times, ids and values for people."""

from __future__ import annotations

from datetime import timedelta  # noqa: F401 - for the examples
from typing import Any

import msgspec

from penstock.clock import SECOND, Duration, Micros, duration_micros, from_micros
from penstock.codec import BYTES, MOST_DEPTH, depth_of
from penstock.gateway.item import masked_payload

SHORT_ID = 8
LONGEST_VALUE = 64 * 1024  # characters of a payload that are shown
LONGEST_DUMP = 2048  # bytes
PREVIEW = 120
MOST_DIGITS = 18  # of a number that every store accepts
CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key", "x-penstock-key"})


def number(value: float | None) -> str:
    """A number with commas; fractions only where they matter.

    >>> number(1234567), number(0.25), number(None)
    ('1,234,567', '0.25', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2g}"


def span(micros: Micros | None) -> str:
    """A length of time in at most two units.

    >>> span(95 * SECOND), span(1_500_000), span(26 * 3600 * SECOND), span(12_000)
    ('1 m 35 s', '1.5 s', '1 d 2 h', '12 ms')
    """
    if micros is None:
        return "–"
    seconds = abs(micros) / SECOND
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or parts[0]


def seconds(value: float | None) -> str:
    """A length of time that is given in seconds."""
    return "–" if value is None else span(int(value * SECOND))


def lasting(value: Duration) -> str:
    """A length of time as settings give it.

    >>> lasting(timedelta(days=4)), lasting("90m")
    ('4 d', '1 h 30 m')
    """
    return span(duration_micros(value))


def when(moment: Micros | None, now: Micros) -> str:
    """A moment as seen from now: ``in 4 m``, ``2 h ago``."""
    if moment is None:
        return "–"
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def clock(moment: Micros | None, now: Micros) -> str:
    """The time of a moment of today, or the day too, in UTC."""
    if moment is None:
        return "–"
    then, today = from_micros(moment), from_micros(now)
    return f"{then:%H:%M:%S}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M:%S}"


def exact(moment: Micros | None) -> str:
    """A moment to the millisecond, in UTC."""
    if moment is None:
        return "–"
    then = from_micros(moment)
    return f"{then:%Y-%m-%d %H:%M:%S}.{then.microsecond // 1000:03d}"


def short_id(id_: str) -> str:
    """The end of an id, after a mark for what was cut: its beginning is its time, nearly equal for neighbours.

    >>> short_id("01a1e595-aa10-75e6-9f78-e41e3acef2d3"), short_id("order-17")
    ('…3acef2d3', 'order-17')
    """
    return id_ if len(id_) <= SHORT_ID else f"…{id_[-SHORT_ID:]}"


def plural(count: int, noun: str, many: str = "") -> str:
    """A number with its noun.

    >>> plural(1, "entry", "entries"), plural(2, "queue")
    ('1 entry', '2 queues')
    """
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def size(count: int) -> str:
    """A number of bytes."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"


def preview(payload: bytes | None, codec: str, type_name: str) -> str:
    """The beginning of a payload in one line."""
    if payload is None:
        return ""
    payload = masked_payload(payload, type_name)
    if codec == BYTES:
        return f"{size(len(payload))}: {payload[:24].hex(' ')}"
    text = payload[: PREVIEW * 4].decode("utf-8", "replace")
    return text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…"


Pieces = list[tuple[str, str]]  # text with the look of each part; a template writes it, and escapes it


def value_pieces(payload: bytes, codec: str, type_name: str) -> Pieces:
    """A payload as text, JSON indented and with marks for its parts; other bytes in hexadecimal."""
    payload = masked_payload(payload, type_name)
    if codec != BYTES and depth_of(payload) <= MOST_DEPTH:
        try:
            parsed = msgspec.json.decode(payload)
            if len(payload) <= LONGEST_VALUE:
                return _marked(parsed, 0)
            return [("", _cut(msgspec.json.format(payload, indent=2).decode()))]
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    shown = payload[:LONGEST_DUMP]
    lines = [shown[start : start + 16] for start in range(0, len(shown), 16)]
    text = "\n".join(f"{line.hex(' '):<48}{_printable(line)}" for line in lines)
    more = len(payload) - len(shown)
    return [("", f"{text}\n… {size(more)} more" if more else text)]


def _cut(text: str) -> str:
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:LONGEST_VALUE]}\n… {len(text) - LONGEST_VALUE:,} characters more"


def _printable(line: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)


def _marked(value: Any, depth: int) -> Pieces:
    pad, inner = "  " * depth, "  " * (depth + 1)
    if isinstance(value, dict) and value:
        pieces: Pieces = [("", "{\n")]
        for place, (name, item) in enumerate(value.items()):
            pieces += [("", inner), ("j-k", _json(name)), ("", ": "), *_marked(item, depth + 1)]
            pieces.append(("", ",\n" if place < len(value) - 1 else "\n"))
        return [*pieces, ("", pad + "}")]
    if isinstance(value, list) and value:
        pieces = [("", "[\n")]
        for place, item in enumerate(value):
            pieces += [("", inner), *_marked(item, depth + 1)]
            pieces.append(("", ",\n" if place < len(value) - 1 else "\n"))
        return [*pieces, ("", pad + "]")]
    return [("j-s" if isinstance(value, str) else "j-n", _json(value))]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def headers_shown(headers: dict[str, str]) -> dict[str, str | None]:
    """Headers by name, or None for what carries a credential."""
    return {name: None if name.lower() in CREDENTIALS else value for name, value in headers.items()}


def trace_id(headers: dict[str, str]) -> str | None:
    """The trace that an entry belongs to, from its W3C ``traceparent``."""
    parts = headers.get("traceparent", "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None


FILTERS: dict[str, Any] = {
    "number": number, "span": span, "seconds": seconds, "exact": exact, "short_id": short_id, "size": size,
    "plural": plural, "lasting": lasting,
}  # fmt: skip


def whole_number(text: str) -> int | None:
    """The number in a text of an address or a form, or None where no store could take it.

    >>> whole_number("12"), whole_number("²"), whole_number("9" * 30)
    (12, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None
